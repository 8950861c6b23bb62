import type { EngramConfig, ModelConfig } from 'needle3-wasm';

/** No n-gram table, no Engram site. */
export const NO_ENGRAM: EngramConfig = {
  orders: [],
  heads: 1,
  slots: 1,
  subDim: 1,
  sites: [],
  convTaps: 0,
  convDilation: 1,
  seedHeads: 0,
};

/**
 * Three layers, the middle one global, with every history there is, and odd widths: small enough that a ring wraps
 * after four positions, and that one kept row more or less shows.
 */
export const HYBRID: ModelConfig = {
  vocabSize: 64,
  outVocab: 0,
  dModel: 5,
  numHeads: 4,
  numKvHeads: 2,
  numLayers: 3,
  qkHeadDim: 3,
  vHeadDim: 5,
  maxSeqLen: 32,
  hadaN: 1,
  mhcLanes: 1,
  ropeTheta: 10000,
  slidingWindow: 4,
  globalLayers: [1],
  qkvConvTaps: 3,
  engram: { orders: [2, 3], heads: 2, slots: 64, subDim: 2, sites: [0, 2], convTaps: 3, convDilation: 2, seedHeads: 0 },
};

/** One global layer and nothing else. */
export const PLAIN: ModelConfig = {
  ...HYBRID,
  numHeads: 2,
  numLayers: 1,
  slidingWindow: 0,
  globalLayers: [],
  qkvConvTaps: 0,
  engram: NO_ENGRAM,
};

/** Row widths in floats. */
export interface Widths {
  readonly q: number;
  readonly k: number;
  readonly v: number;
  readonly out: number;
}

export function widths(config: ModelConfig): Widths {
  return {
    q: config.numHeads * config.qkHeadDim,
    k: config.numKvHeads * config.qkHeadDim,
    v: config.numKvHeads * config.vHeadDim,
    out: config.numHeads * config.vHeadDim,
  };
}

export function isGlobal(config: ModelConfig, layer: number): boolean {
  return config.slidingWindow === 0 || config.globalLayers.includes(layer);
}

/** The most slots that a layer grows to. */
export function cap(config: ModelConfig, layer: number): number {
  return isGlobal(config, layer) ? config.maxSeqLen : Math.min(config.slidingWindow, config.maxSeqLen);
}

export function maxOrder(engram: EngramConfig): number {
  return Math.max(1, ...engram.orders);
}

export function qkvTailRows(config: ModelConfig): number {
  return Math.max(0, config.qkvConvTaps - 1);
}

export function engramTailRows(engram: EngramConfig): number {
  return Math.max(0, engram.convTaps - 1) * engram.convDilation;
}

export function tables(engram: EngramConfig): number {
  return engram.orders.length * engram.heads;
}

/** A geometry as the test vectors spell it. */
export interface VectorConfig {
  readonly vocab_size?: number;
  readonly out_vocab?: number;
  readonly d_model: number;
  readonly num_heads: number;
  readonly num_kv_heads: number;
  readonly num_layers: number;
  readonly qk_head_dim: number;
  readonly v_head_dim: number;
  readonly max_seq_len: number;
  readonly sliding_window: number;
  readonly global_layers: readonly number[];
  readonly qkv_conv_taps: number;
  readonly engram: {
    readonly orders: readonly number[];
    readonly heads: number;
    readonly slots: number;
    readonly sub_dim: number;
    readonly sites: readonly number[];
    readonly conv_taps: number;
    readonly conv_dilation: number;
    readonly seed_heads: number;
  };
}

export function fromVector(config: VectorConfig): ModelConfig {
  const { engram } = config;
  return {
    ...HYBRID,
    vocabSize: config.vocab_size ?? 8192,
    outVocab: config.out_vocab ?? 8192,
    dModel: config.d_model,
    numHeads: config.num_heads,
    numKvHeads: config.num_kv_heads,
    numLayers: config.num_layers,
    qkHeadDim: config.qk_head_dim,
    vHeadDim: config.v_head_dim,
    maxSeqLen: config.max_seq_len,
    slidingWindow: config.sliding_window,
    globalLayers: config.global_layers,
    qkvConvTaps: config.qkv_conv_taps,
    engram: {
      orders: engram.orders,
      heads: engram.heads,
      slots: engram.slots,
      subDim: engram.sub_dim,
      sites: engram.sites,
      convTaps: engram.conv_taps,
      convDilation: engram.conv_dilation,
      seedHeads: engram.seed_heads,
    },
  };
}
