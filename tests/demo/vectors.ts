import { readFileSync } from 'node:fs';
import type { ModelConfig } from 'needle3-wasm';

/** The cases of a file of tests/vectors, which says in its `about` what they hold. */
export function vectors(name: string): unknown {
  const text = readFileSync(new URL(`../vectors/${name}.json`, import.meta.url), 'utf8');
  return (JSON.parse(text) as { readonly cases: unknown }).cases;
}

export interface ConfigVector {
  readonly vocab_size: number;
  readonly out_vocab: number;
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

export function configOf(vector: ConfigVector): ModelConfig {
  const { engram } = vector;
  return {
    vocabSize: vector.vocab_size,
    outVocab: vector.out_vocab,
    dModel: vector.d_model,
    numHeads: vector.num_heads,
    numKvHeads: vector.num_kv_heads,
    numLayers: vector.num_layers,
    qkHeadDim: vector.qk_head_dim,
    vHeadDim: vector.v_head_dim,
    maxSeqLen: vector.max_seq_len,
    hadaN: 1,
    mhcLanes: 1,
    ropeTheta: 10000,
    slidingWindow: vector.sliding_window,
    globalLayers: vector.global_layers,
    qkvConvTaps: vector.qkv_conv_taps,
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
