import type { ModelConfig } from 'needle3-wasm';
import { deriveSeed, uniformArray, uniformAt } from './random.js';

/** One Engram site: projections of the retrieved row, the gate's norms and the value stream's convolution. */
export interface EngramWeights {
  /** (dModel, tables·subDim) */
  readonly key: Float32Array;
  /** (dModel, tables·subDim) */
  readonly value: Float32Array;
  /** (dModel) each: gains of the gate's two norms. */
  readonly hiddenGain: Float32Array;
  readonly keyGain: Float32Array;
  /** (convTaps, dModel) */
  readonly taps: Float32Array;
}

export interface LayerWeights {
  /** (dModel) */
  readonly gain: Float32Array;
  /** (qDim, dModel), (kDim, dModel), (vDim, dModel) */
  readonly q: Float32Array;
  readonly k: Float32Array;
  readonly v: Float32Array;
  /** (qkvConvTaps, qDim), (qkvConvTaps, kDim), (qkvConvTaps, vDim) */
  readonly qTaps: Float32Array;
  readonly kTaps: Float32Array;
  readonly vTaps: Float32Array;
  /** (qkHeadDim) each */
  readonly qGain: Float32Array;
  readonly kGain: Float32Array;
  /** (dModel, attnOutDim) */
  readonly out: Float32Array;
  /** Where the layer carries an Engram. */
  readonly engram: EngramWeights | undefined;
}

/** The widths that follow from a geometry. */
export interface Widths {
  readonly q: number;
  readonly k: number;
  readonly v: number;
  readonly attended: number;
  /** Engram tables: orders × heads. */
  readonly tables: number;
  /** One retrieved row: tables · subDim. */
  readonly engram: number;
}

export function widthsOf(config: ModelConfig): Widths {
  const tables = config.engram.orders.length * config.engram.heads;
  return {
    q: config.numHeads * config.qkHeadDim,
    k: config.numKvHeads * config.qkHeadDim,
    v: config.numKvHeads * config.vHeadDim,
    attended: config.numHeads * config.vHeadDim,
    tables,
    engram: tables * config.engram.subDim,
  };
}

/** Random weights of a geometry: the same seed gives the same weights. */
export class Weights {
  readonly widths: Widths;
  /** (vocabSize, dModel); its first outVocab rows make the logits too. */
  readonly embedding: Float32Array;
  readonly layers: readonly LayerWeights[];
  /** (dModel) */
  readonly finalGain: Float32Array;
  readonly #tableSeed: number;

  constructor(
    readonly config: ModelConfig,
    readonly seed: number,
  ) {
    const { dModel, engram } = config;
    const widths = widthsOf(config);
    this.widths = widths;
    let use = 0;
    const draw = (length: number, deviation: number) => uniformArray(length, deriveSeed(seed, use++), deviation);
    const projection = (outDim: number, inDim: number) => draw(outDim * inDim, 1 / Math.sqrt(inDim));
    // One tap near 1 and the older ones smaller, as trained causal convolutions tend to be.
    const taps = (count: number, width: number) => {
      const array = draw(count * width, 0.3);
      for (let c = 0; c < width && count > 0; c++) array[c] = array[c] + 0.9;
      return array;
    };

    this.#tableSeed = deriveSeed(seed, use++);
    this.embedding = draw(config.vocabSize * dModel, 1 / Math.sqrt(dModel));
    this.finalGain = draw(dModel, 0.1);
    this.layers = Array.from({ length: config.numLayers }, (_, layer) => ({
      gain: draw(dModel, 0.1),
      q: projection(widths.q, dModel),
      k: projection(widths.k, dModel),
      v: projection(widths.v, dModel),
      qTaps: taps(config.qkvConvTaps, widths.q),
      kTaps: taps(config.qkvConvTaps, widths.k),
      vTaps: taps(config.qkvConvTaps, widths.v),
      // Wide gains sharpen the scores: with random keys attention would otherwise average everything away.
      qGain: draw(config.qkHeadDim, 0.6),
      kGain: draw(config.qkHeadDim, 0.6),
      out: projection(dModel, widths.attended),
      engram: engram.sites.includes(layer)
        ? {
            key: projection(dModel, widths.engram),
            value: projection(dModel, widths.engram),
            hiddenGain: draw(dModel, 0.1),
            keyGain: draw(dModel, 0.1),
            taps: taps(engram.convTaps, dModel),
          }
        : undefined,
    }));
  }

  /**
   * Copies row `slot` of Engram table `table` to `out[offset …]`. The tables are shared by the sites and are made on
   * the spot: stored, they would take tables · slots · subDim floats (54 MiB as shipped).
   */
  engramRow(table: number, slot: number, out: Float32Array, offset: number): void {
    const { slots, subDim } = this.config.engram;
    const first = (table * slots + slot) * subDim;
    for (let i = 0; i < subDim; i++) out[offset + i] = uniformAt(this.#tableSeed, first + i, 1);
  }
}
