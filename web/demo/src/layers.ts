import type { ModelConfig, Projection } from 'needle3-wasm';
import { linear, rotate, ropeTable, sigmoid, silu, zcRmsNorm } from './row-math.js';
import type { EngramWeights, LayerWeights, Weights } from './weights.js';

/**
 * The synthetic model's layers, all but what has a history: convolutions, n-gram rows and attention come from
 * outside, from a decode state (model.ts) or from a recomputation without one (reference.ts).
 */

/** Buffers of one forward pass over `n` rows; every array is (n, width) row-major. */
export class Rows {
  readonly residual: Float32Array;
  readonly hidden: Float32Array;
  readonly q: Float32Array;
  readonly k: Float32Array;
  readonly v: Float32Array;
  readonly attended: Float32Array;
  readonly engram: Float32Array;
  readonly engramKey: Float32Array;
  readonly engramValue: Float32Array;
  readonly engramConvolved: Float32Array;
  readonly update: Float32Array;
  rope: { cos: Float64Array; sin: Float64Array } = { cos: new Float64Array(0), sin: new Float64Array(0) };

  constructor(
    readonly n: number,
    weights: Weights,
  ) {
    const { config, widths } = weights;
    const rows = (width: number) => new Float32Array(n * width);
    this.residual = rows(config.dModel);
    this.hidden = rows(config.dModel);
    this.q = rows(widths.q);
    this.k = rows(widths.k);
    this.v = rows(widths.v);
    this.attended = rows(widths.attended);
    this.engram = rows(widths.engram);
    this.engramKey = rows(config.dModel);
    this.engramValue = rows(config.dModel);
    this.engramConvolved = rows(config.dModel);
    this.update = rows(config.dModel);
  }

  /** Puts the embeddings of `tokens` into the residual rows and prepares RoPE for positions from `position` on. */
  begin(weights: Weights, tokens: ArrayLike<number>, position: number): void {
    const { dModel, qkHeadDim, ropeTheta } = weights.config;
    for (let row = 0; row < this.n; row++) {
      const from = tokens[row] * dModel;
      this.residual.set(weights.embedding.subarray(from, from + dModel), row * dModel);
    }
    this.rope = ropeTable(position, this.n, qkHeadDim, ropeTheta);
  }
}

/** Leaves the site's gated values in `rows.engramValue` and a copy to be convolved in `rows.engramConvolved`. */
export function engramValues(weights: EngramWeights, rows: Rows): void {
  const { n } = rows;
  linear(weights.key, rows.engram, rows.engramKey, n);
  linear(weights.value, rows.engram, rows.engramValue, n);
  zcRmsNorm(rows.residual, weights.hiddenGain, rows.hidden);
  zcRmsNorm(rows.engramKey, weights.keyGain, rows.engramKey);
  const dModel = rows.residual.length / n;
  for (let base = 0; base < rows.residual.length; base += dModel) {
    let match = 0;
    for (let i = 0; i < dModel; i++) match += rows.hidden[base + i] * rows.engramKey[base + i];
    const gate = sigmoid(match / Math.sqrt(dModel));
    for (let i = 0; i < dModel; i++) rows.engramValue[base + i] = rows.engramValue[base + i] * gate;
  }
  rows.engramConvolved.set(rows.engramValue);
}

/** Adds an Engram site's output to the residual rows, after its convolution. */
export function addEngram(rows: Rows): void {
  for (let i = 0; i < rows.residual.length; i++) {
    rows.residual[i] = rows.residual[i] + rows.engramValue[i] + silu(rows.engramConvolved[i]);
  }
}

/** Leaves the raw projections of the normed residual in `rows.q`, `rows.k` and `rows.v`. */
export function projectQkv(weights: LayerWeights, rows: Rows): void {
  zcRmsNorm(rows.residual, weights.gain, rows.hidden);
  linear(weights.q, rows.hidden, rows.q, rows.n);
  linear(weights.k, rows.hidden, rows.k, rows.n);
  linear(weights.v, rows.hidden, rows.v, rows.n);
}

/** Norm and RoPE of queries and keys, after their convolution. */
export function normAndRotate(weights: LayerWeights, config: ModelConfig, rows: Rows): void {
  zcRmsNorm(rows.q, weights.qGain, rows.q);
  zcRmsNorm(rows.k, weights.kGain, rows.k);
  rotate(rows.q, rows.n, config.qkHeadDim, rows.rope);
  rotate(rows.k, rows.n, config.qkHeadDim, rows.rope);
}

/** Adds the projected attention output to the residual rows. */
export function addAttention(weights: LayerWeights, rows: Rows): void {
  linear(weights.out, rows.attended, rows.update, rows.n);
  for (let i = 0; i < rows.residual.length; i++) rows.residual[i] = rows.residual[i] + rows.update[i];
}

/** Logits of one residual row (dModel), by the first outVocab rows of the embedding. */
export function logitsOf(weights: Weights, residual: Float32Array): Float32Array {
  const { outVocab, vocabSize } = weights.config;
  const logits = new Float32Array(outVocab || vocabSize);
  const normed = new Float32Array(residual.length);
  zcRmsNorm(residual, weights.finalGain, normed);
  linear(weights.embedding, normed, logits, 1);
  return logits;
}

export const PROJECTIONS = ['q', 'k', 'v'] as const satisfies readonly Projection[];

export function tapsOf(weights: LayerWeights, projection: Projection): Float32Array {
  return { q: weights.qTaps, k: weights.kTaps, v: weights.vTaps }[projection];
}
