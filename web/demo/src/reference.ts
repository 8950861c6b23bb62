import type { EngramConfig, ModelConfig } from 'needle3-wasm';
import { isGlobalLayer, layerCap } from './geometries.js';
import {
  addAttention,
  addEngram,
  engramValues,
  normAndRotate,
  PROJECTIONS,
  projectQkv,
  Rows,
  tapsOf,
} from './layers.js';
import type { Weights } from './weights.js';

/**
 * The same model without a cache: every layer over the whole sequence at once, in plain TypeScript. It shares no code
 * with the decode state: it is what the state is checked against.
 */

export interface ReferencePrecision {
  readonly precision: 'f32' | 'int8';
  readonly quantizeQuery: boolean;
}

/** Called now and then in long work; may wait, and may throw to end it. */
export type Breathe = () => void | Promise<void>;

/** Whole-sequence causal convolution. Tap j reads j·dilation rows back and is off for rows before its `wake`. */
export function convolveSequence(
  taps: Float32Array,
  rows: Float32Array,
  n: number,
  dilation: number,
  wake: (tap: number) => number,
): Float32Array {
  const width = rows.length / n;
  const count = taps.length / width;
  if (count === 0) return rows.slice();
  const out = new Float32Array(rows.length);
  for (let p = 0; p < n; p++) {
    for (let c = 0; c < width; c++) {
      let sum = Math.fround(taps[c] * rows[p * width + c]);
      for (let j = 1; j < count && p >= wake(j); j++) {
        const product = Math.fround(taps[j * width + c] * rows[(p - j * dilation) * width + c]);
        sum = Math.fround(sum + product);
      }
      out[p * width + c] = sum;
    }
  }
  return out;
}

/** Symmetric int8, one scale a row, halves away from zero. */
export function quantizeRow(row: Float32Array): { values: Int8Array; scale: number } {
  const values = new Int8Array(row.length);
  const largest = row.reduce((max, x) => Math.max(max, Math.abs(x)), 0);
  const scale = largest === 0 ? 1 : Math.fround(largest / 127);
  const inverse = Math.fround(1 / scale);
  if (!Number.isFinite(inverse)) return { values, scale: 1 };
  for (let i = 0; i < row.length; i++) {
    const scaled = Math.fround(row[i] * inverse);
    const rounded = Math.sign(scaled) * Math.floor(Math.abs(scaled) + 0.5);
    values[i] = Math.min(127, Math.max(-128, rounded));
  }
  return { values, scale };
}

/** What a row is after a trip through int8, in float64 so that the trip is the only rounding. */
function throughInt8(rows: Float32Array, rowLength: number): Float64Array {
  const out = new Float64Array(rows.length);
  for (let base = 0; base < rows.length; base += rowLength) {
    const { values, scale } = quantizeRow(rows.subarray(base, base + rowLength));
    values.forEach((value, i) => (out[base + i] = value * scale));
  }
  return out;
}

/** First position that a query at `p` sees in `layer`. */
export function firstSeen(config: ModelConfig, layer: number, p: number): number {
  const reach = isGlobalLayer(config, layer) ? config.maxSeqLen : layerCap(config, layer);
  return Math.max(0, p + 1 - reach);
}

/** Attention of every position over what its layer lets it see; (n, attnOutDim), computed in float64. */
export async function attendSequence(
  config: ModelConfig,
  layer: number,
  { precision, quantizeQuery }: ReferencePrecision,
  q: Float32Array,
  k: Float32Array,
  v: Float32Array,
  n: number,
  breathe: Breathe = () => undefined,
): Promise<Float32Array> {
  const { numHeads, numKvHeads, qkHeadDim, vHeadDim } = config;
  const queries = quantizeQuery ? throughInt8(q, qkHeadDim) : Float64Array.from(q);
  const keys = precision === 'int8' ? throughInt8(k, qkHeadDim) : Float64Array.from(k);
  const values = precision === 'int8' ? throughInt8(v, vHeadDim) : Float64Array.from(v);
  const out = new Float32Array(n * numHeads * vHeadDim);
  const scores = new Float64Array(n);
  const sum = new Float64Array(vHeadDim);
  const groupSize = numHeads / numKvHeads;

  for (let p = 0; p < n; p++) {
    if (p % 32 === 0) await breathe();
    const first = firstSeen(config, layer, p);
    for (let head = 0; head < numHeads; head++) {
      const kvHead = Math.floor(head / groupSize);
      const queryBase = (p * numHeads + head) * qkHeadDim;
      let largest = -Infinity;
      for (let s = first; s <= p; s++) {
        const keyBase = (s * numKvHeads + kvHead) * qkHeadDim;
        let dot = 0;
        for (let i = 0; i < qkHeadDim; i++) dot += queries[queryBase + i] * keys[keyBase + i];
        scores[s] = dot / Math.sqrt(qkHeadDim);
        largest = Math.max(largest, scores[s]);
      }
      let total = 0;
      sum.fill(0);
      for (let s = first; s <= p; s++) {
        const weight = Math.exp(scores[s] - largest);
        const valueBase = (s * numKvHeads + kvHead) * vHeadDim;
        total += weight;
        for (let i = 0; i < vHeadDim; i++) sum[i] = sum[i] + weight * values[valueBase + i];
      }
      const outBase = (p * numHeads + head) * vHeadDim;
      for (let i = 0; i < vHeadDim; i++) out[outBase + i] = sum[i] / total;
    }
  }
  return out;
}

/** The n-gram hash: the row of table `orderIndex`·heads + `head` that the `order` tokens up to `p` select. */
export function engramSlot(
  { orders, heads, slots, seedHeads }: EngramConfig,
  tokens: ArrayLike<number>,
  p: number,
  orderIndex: number,
  head: number,
): number {
  let hash = Math.imul(0x9e3779b9, orderIndex * (seedHeads || heads) + head + 1);
  for (let j = 0; j < orders[orderIndex]; j++) {
    const token = p >= j ? tokens[p - j] : 0;
    hash = Math.imul(hash ^ token, 0x01000193);
  }
  return ((hash ^ (hash >>> 15)) >>> 0) % slots;
}

/** The Engram row of every position, zero where a table's n-gram is not complete yet; (n, tables·subDim). */
export function engramSequence(weights: Weights, tokens: ArrayLike<number>): Float32Array {
  const { engram } = weights.config;
  const { orders, heads, subDim } = engram;
  const n = tokens.length;
  const out = new Float32Array(n * weights.widths.engram);
  for (let p = 0; p < n; p++) {
    orders.forEach((order, orderIndex) => {
      if (p + 1 < order) return;
      for (let head = 0; head < heads; head++) {
        const table = orderIndex * heads + head;
        const slot = engramSlot(engram, tokens, p, orderIndex, head);
        weights.engramRow(table, slot, out, p * weights.widths.engram + table * subDim);
      }
    });
  }
  return out;
}

/** A pass over a whole sequence, layer by layer. `rows.residual` enters the layer that `layer()` is called with. */
export class WholeSequence {
  readonly rows: Rows;
  readonly #weights: Weights;
  readonly #precision: ReferencePrecision;

  constructor(weights: Weights, precision: ReferencePrecision, tokens: ArrayLike<number>) {
    this.#weights = weights;
    this.#precision = precision;
    this.rows = new Rows(tokens.length, weights);
    this.rows.begin(weights, tokens, 0);
    this.rows.engram.set(engramSequence(weights, tokens));
  }

  /** Takes `rows.residual` through layer `index`, in place. */
  async layer(index: number, breathe?: Breathe): Promise<void> {
    const { config } = this.#weights;
    const { engram } = config;
    const weights = this.#weights.layers[index];
    const { rows } = this;
    const { n } = rows;
    if (weights.engram) {
      engramValues(weights.engram, rows);
      const reach = Math.max(1, ...engram.orders);
      const wake = (tap: number) => tap * Math.max(engram.convDilation, reach);
      rows.engramConvolved.set(convolveSequence(weights.engram.taps, rows.engramValue, n, engram.convDilation, wake));
      addEngram(rows);
    }
    projectQkv(weights, rows);
    for (const projection of PROJECTIONS) {
      rows[projection].set(convolveSequence(tapsOf(weights, projection), rows[projection], n, 1, (tap) => tap));
    }
    normAndRotate(weights, config, rows);
    rows.attended.set(await attendSequence(config, index, this.#precision, rows.q, rows.k, rows.v, n, breathe));
    addAttention(weights, rows);
  }
}

/** The largest |a − b| and the largest |b|. */
export function compareRows(a: Float32Array, b: Float32Array): { difference: number; magnitude: number } {
  let difference = 0;
  let magnitude = 0;
  for (let i = 0; i < b.length; i++) {
    difference = Math.max(difference, Math.abs(a[i] - b[i]));
    magnitude = Math.max(magnitude, Math.abs(b[i]));
  }
  // A NaN anywhere must not pass for agreement: Math.max returns it, once it has seen one.
  return { difference, magnitude };
}
