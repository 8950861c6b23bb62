/**
 * The decode state as one would write it down to be sure of it: it keeps every row, has no ring and no SIMD, and does
 * attention in float64. Convolution and quantisation round where the numerics say, by Math.fround, and are exact.
 */
import type { EngramConfig, ModelConfig, Projection } from 'needle3-wasm';

import type { ErrorCode } from './support/assert.js';
import { cap, engramTailRows, isGlobal, maxOrder, qkvTailRows, tables, widths } from './support/geometry.js';

/** A call that the state must refuse with that code. */
export class Refusal extends Error {
  constructor(readonly code: ErrorCode) {
    super(code);
  }
}

const { fround } = Math;

/** Ties away from zero. */
function roundHalfAway(x: number): number {
  return Math.sign(x) * Math.floor(Math.abs(x) + 0.5);
}

/** One row: symmetric, scale = absmax / qmax, or 1 where all is zero or 1 / scale is not finite. */
export function quantizeRow(row: ArrayLike<number>, bits = 8): { values: number[]; scale: number } {
  const qmax = 2 ** (bits - 1) - 1;
  let absmax = 0;
  for (let i = 0; i < row.length; i++) absmax = Math.max(absmax, Math.abs(row[i]));
  const scale = fround(absmax / qmax);
  const inverse = fround(1 / scale);
  if (absmax === 0 || !Number.isFinite(inverse))
    return { values: Array.from({ length: row.length }, () => 0), scale: 1 };
  const values = Array.from({ length: row.length }, (_, i) => {
    const q = roundHalfAway(fround(row[i] * inverse));
    return Math.max(-qmax - 1, Math.min(qmax, q));
  });
  return { values, scale };
}

/** u32 arithmetic, wrapping; tokens before the first count as 0. */
export function engramIndices(tokens: ArrayLike<number>, engram: EngramConfig): number[] {
  const stride = engram.seedHeads || engram.heads;
  const indices: number[] = [];
  engram.orders.forEach((order, orderIndex) => {
    for (let head = 0; head < engram.heads; head++) {
      let acc = Math.imul(0x9e3779b9, Math.imul(orderIndex, stride) + head + 1) >>> 0;
      for (let j = 0; j < order; j++) {
        const token = tokens[tokens.length - 1 - j] ?? 0;
        acc = Math.imul(acc ^ token, 0x01000193) >>> 0;
      }
      acc = (acc ^ (acc >>> 15)) >>> 0;
      indices.push(acc % engram.slots);
    }
  });
  return indices;
}

/** Rows of one convolution, all of them, oldest first; rows before the first are zero. */
interface History {
  rows: Float32Array[];
  pending: Float32Array[];
}

interface Layer {
  slots: number;
  /** The range of positions held, [first, end), uncommitted ones included. */
  first: number;
  end: number;
  keys: Map<number, Float64Array>;
  values: Map<number, Float64Array>;
  /** What `discard` brings back, once the step has written here. */
  committed: Omit<Layer, 'committed'> | undefined;
}

interface Data {
  position: number;
  tokens: number[];
  pendingTokens: number[];
  stepRows: number;
  layers: Layer[];
  convolutions: Record<Projection, History>[];
  engrams: History[];
}

export interface NaiveOptions {
  readonly capacityHint: number;
  readonly precision: 'f32' | 'int8';
  readonly quantizeQuery: boolean;
}

/** An attention row, and how far from it float32 may be. */
export interface AttentionRow {
  readonly out: Float64Array;
  readonly bound: Float64Array;
}

const EPSILON = 2 ** -24;

export class NaiveState {
  #data: Data;
  #marks = new Map<number, Data>();
  #nextMark = 1;

  constructor(
    readonly config: ModelConfig,
    readonly options: NaiveOptions,
  ) {
    const hinted = Math.min(Math.max(options.capacityHint, 1), config.maxSeqLen);
    this.#data = {
      ...this.#blank(),
      layers: Array.from({ length: config.numLayers }, (_, layer) => emptyLayer(Math.min(hinted, cap(config, layer)))),
    };
  }

  #blank(): Omit<Data, 'layers'> {
    return {
      position: 0,
      tokens: [],
      pendingTokens: [],
      stepRows: 0,
      convolutions: Array.from({ length: this.config.numLayers }, () => ({
        q: { rows: [], pending: [] },
        k: { rows: [], pending: [] },
        v: { rows: [], pending: [] },
      })),
      engrams: this.config.engram.sites.map(() => ({ rows: [], pending: [] })),
    };
  }

  get position(): number {
    return this.#data.position;
  }

  get inStep(): boolean {
    return this.#data.stepRows !== 0 || this.#data.pendingTokens.length !== 0;
  }

  get stepRows(): number {
    return this.#data.stepRows;
  }

  get isSaturated(): boolean {
    const { config } = this;
    return (
      this.position > config.maxSeqLen && Array.from({ length: config.numLayers }).some((_, l) => isGlobal(config, l))
    );
  }

  get tokenHistory(): number[] {
    return [...this.#data.tokens, ...this.#data.pendingTokens].slice(-maxOrder(this.config.engram));
  }

  get byteLength(): number {
    const { config, options } = this;
    const { q, k, v } = widths(config);
    const slotBytes = options.precision === 'f32' ? 4 * (k + v) : k + v + 8 * config.numKvHeads;
    const slots = this.#data.layers.reduce((sum, layer) => sum + layer.slots, 0);
    const tails =
      config.numLayers * qkvTailRows(config) * (q + k + v) +
      config.engram.sites.length * engramTailRows(config.engram) * config.dModel;
    return slots * slotBytes + 4 * tails + 4 * this.tokenHistory.length;
  }

  slots(layer: number): number {
    return this.#data.layers[layer].slots;
  }

  span(layer: number, position = this.position): { first: number; last: number } {
    return { first: Math.max(0, position + 1 - cap(this.config, layer)), last: position };
  }

  pushToken(id: number): void {
    if (id >= this.config.vocabSize) throw new Refusal('range');
    this.#data.pendingTokens.push(id);
  }

  engramIndices(): { indices: number[]; valid: boolean[] } {
    const tokens = this.tokenHistory;
    if (tokens.length === 0) throw new Refusal('range');
    const { engram } = this.config;
    return {
      indices: engramIndices(tokens, engram),
      valid: Array.from(
        { length: tables(engram) },
        (_, t) => tokens.length >= engram.orders[Math.floor(t / engram.heads)],
      ),
    };
  }

  conv(layer: number, projection: Projection, taps: Float32Array, rows: Float32Array): Float32Array {
    const history = this.#data.convolutions[layer][projection];
    return this.#convolve(history, widths(this.config)[projection], this.config.qkvConvTaps, 1, 1, taps, rows);
  }

  engramConv(site: number, taps: Float32Array, rows: Float32Array): Float32Array {
    const { engram, dModel } = this.config;
    const history = this.#data.engrams[site];
    return this.#convolve(history, dModel, engram.convTaps, engram.convDilation, maxOrder(engram), taps, rows);
  }

  #convolve(
    history: History,
    width: number,
    count: number,
    dilation: number,
    wake: number,
    taps: Float32Array,
    rows: Float32Array,
  ): Float32Array {
    if (taps.length !== count * width) throw new Refusal('shape');
    const n = this.#rowsOfStep(rows.length, width);
    this.#data.stepRows = n;
    history.pending = split(rows, width);
    if (count === 0) return rows.slice();
    const all = [...history.rows, ...history.pending];
    const out = new Float32Array(rows.length);
    for (let i = 0; i < n; i++) {
      const p = this.position + i;
      for (let c = 0; c < width; c++) {
        let acc = fround(taps[c] * rows[i * width + c]);
        for (let j = 1; j < count; j++) {
          if (p < j * dilation || p < j * wake) continue;
          const x = all[history.rows.length + i - j * dilation]?.[c] ?? 0;
          acc = fround(acc + fround(taps[j * width + c] * x));
        }
        out[i * width + c] = acc;
      }
    }
    return out;
  }

  /** Rows of a call that has them, which must be the step's. */
  #rowsOfStep(length: number, width: number): number {
    const n = length / width;
    if (n < 1 || !Number.isInteger(n)) throw new Refusal('shape');
    if (this.#data.stepRows !== 0 && this.#data.stepRows !== n) throw new Refusal('shape');
    return n;
  }

  writeKv(layer: number, keys: Float32Array, values: Float32Array): void {
    const { k, v } = widths(this.config);
    const n = this.#rowsOfStep(keys.length, k);
    if (values.length !== n * v) throw new Refusal('shape');
    if (![...keys, ...values].every(Number.isFinite)) throw new Refusal('non-finite');
    const target = this.#data.layers[layer];
    if (target.committed === undefined) {
      // Imported rows at or after the position are not committed, and the step's first write forgets them.
      forgetFrom(target, this.position);
      const { slots, first, end } = target;
      target.committed = { slots, first, end, keys: new Map(target.keys), values: new Map(target.values) };
    }
    this.#data.stepRows = n;
    this.#write(layer, keys, values, this.position);
  }

  writeKvAt(layer: number, keys: Float32Array, values: Float32Array, position: number): void {
    if (this.inStep) throw new Refusal('range');
    const { k, v } = widths(this.config);
    const n = keys.length / k;
    if (n < 1 || !Number.isInteger(n) || values.length !== n * v) throw new Refusal('shape');
    if (![...keys, ...values].every(Number.isFinite)) throw new Refusal('non-finite');
    const target = this.#data.layers[layer];
    if (target.first < target.end && position < target.first) throw new Refusal('range');
    this.#write(layer, keys, values, position);
    // A ring holds its latest `cap` positions, and none that no query to come can see.
    const limit = cap(this.config, layer);
    target.first = Math.max(target.first, target.end - limit);
    this.#forgetUnseen(target, limit);
    this.#marks.clear();
  }

  #write(layer: number, keys: Float32Array, values: Float32Array, position: number): void {
    const { config } = this;
    const { k, v } = widths(config);
    const target = this.#data.layers[layer];
    const keyRows = split(keys, k);
    const valueRows = split(values, v);
    if (target.first === target.end || position > target.end) {
      target.keys.clear();
      target.values.clear();
      target.first = position;
      target.end = position;
    }
    keyRows.forEach((row, i) => {
      const p = position + i;
      target.keys.set(p, this.#stored(row, config.qkHeadDim));
      target.values.set(p, this.#stored(valueRows[i], config.vHeadDim));
      target.end = Math.max(target.end, p + 1);
      const limit = cap(config, layer);
      if (p >= target.slots && target.slots < limit) target.slots = Math.min(Math.max(2 * target.slots, p + 1), limit);
    });
  }

  /** A row as it is kept: in int8, quantised by head and back. */
  #stored(row: Float32Array, headWidth: number): Float64Array {
    if (this.options.precision === 'f32') return Float64Array.from(row);
    return Float64Array.from(
      split(row, headWidth).flatMap((head) => {
        const { values, scale } = quantizeRow(head);
        return values.map((q) => q * scale);
      }),
    );
  }

  attend(layer: number, query: Float32Array): AttentionRow {
    const { q } = widths(this.config);
    if (query.length !== q) throw new Refusal('shape');
    this.#rowsOfStep(query.length, q);
    // It comes after its write.
    if (this.#data.layers[layer].committed === undefined) throw new Refusal('range');
    this.#checkHeld(layer, this.position, this.position + 1);
    this.#checkQuery(query);
    return this.#attendRow(layer, query, this.position);
  }

  appendAndAttend(layer: number, query: Float32Array, keys: Float32Array, values: Float32Array): AttentionRow[] {
    const { q, k, v } = widths(this.config);
    const n = this.#rowsOfStep(query.length, q);
    if (keys.length !== n * k || values.length !== n * v) throw new Refusal('shape');
    // Later rows read less of what was before.
    this.#checkHeld(layer, this.position, this.position);
    this.#checkQuery(query);
    this.writeKv(layer, keys, values);
    return split(query, q).map((row, i) => this.#attendRow(layer, row, this.position + i));
  }

  /** Positions of the query's span before `end` must be held. */
  #checkHeld(layer: number, position: number, end: number): void {
    const held = this.#data.layers[layer];
    const { first } = this.span(layer, position);
    if (first < end && (first < held.first || held.end < end)) throw new Refusal('range');
  }

  #checkQuery(query: Float32Array): void {
    if (this.options.quantizeQuery && !query.every(Number.isFinite)) throw new Refusal('non-finite');
  }

  #attendRow(layer: number, query: Float32Array, position: number): AttentionRow {
    const { config, options } = this;
    const { qkHeadDim, vHeadDim, numHeads, numKvHeads } = config;
    const { keys, values } = this.#data.layers[layer];
    const { first, last } = this.span(layer, position);
    const out = new Float64Array(numHeads * vHeadDim);
    const bound = new Float64Array(out.length);
    for (let head = 0; head < numHeads; head++) {
      const kvHead = Math.floor(head / (numHeads / numKvHeads));
      let q: ArrayLike<number> = query.subarray(head * qkHeadDim, (head + 1) * qkHeadDim);
      if (options.quantizeQuery) {
        const quantized = quantizeRow(q);
        q = quantized.values.map((value) => value * quantized.scale);
      }
      const scores: number[] = [];
      let largest = 0;
      for (let p = first; p <= last; p++) {
        let score = 0;
        let magnitude = 0;
        for (let i = 0; i < qkHeadDim; i++) {
          const product = q[i] * keys.get(p)![kvHead * qkHeadDim + i];
          score += product;
          magnitude += Math.abs(product);
        }
        scores.push(score / Math.sqrt(qkHeadDim));
        largest = Math.max(largest, magnitude / Math.sqrt(qkHeadDim));
      }
      const top = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - top));
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      for (let i = 0; i < vHeadDim; i++) {
        let sum = 0;
        let magnitude = 0;
        weights.forEach((weight, j) => {
          const term = (weight / total) * values.get(first + j)![kvHead * vHeadDim + i];
          sum += term;
          magnitude += Math.abs(term);
        });
        const at = head * vHeadDim + i;
        out[at] = sum;
        // A score errs by about (width + 8)·ε·Σ|q·k|/√width, which moves a weight by that much, relatively, and the total
        // as well; the sums over the span and the rounding of scales and weights add a few ε a position.
        bound[at] = magnitude * EPSILON * (2 * (qkHeadDim + 8) * largest + 2 * weights.length + 32);
      }
    }
    return { out, bound };
  }

  advance(count = 1): void {
    const data = this.#data;
    if (count < 1 || data.position + count > 2 ** 31 - 1) throw new Refusal('range');
    if (data.stepRows !== 0 && data.stepRows !== count) throw new Refusal('range');
    if (data.pendingTokens.length !== 0 && data.pendingTokens.length !== count) throw new Refusal('range');
    data.position += count;
    data.tokens.push(...data.pendingTokens);
    for (const history of this.#histories()) {
      history.rows.push(...history.pending);
      history.pending = [];
    }
    data.layers.forEach((layer, index) => {
      layer.committed = undefined;
      this.#forgetUnseen(layer, cap(this.config, index));
    });
    data.stepRows = 0;
    data.pendingTokens = [];
  }

  discard(): void {
    const data = this.#data;
    for (const history of this.#histories()) history.pending = [];
    for (const layer of data.layers) {
      if (layer.committed !== undefined) Object.assign(layer, layer.committed);
      layer.committed = undefined;
    }
    data.stepRows = 0;
    data.pendingTokens = [];
  }

  #histories(): History[] {
    const { convolutions, engrams } = this.#data;
    return [...convolutions.flatMap(({ q, k, v }) => [q, k, v]), ...engrams];
  }

  #refuseInStep(): void {
    if (this.inStep) throw new Refusal('range');
  }

  seedConvTail(layer: number, projection: Projection, rows: Float32Array): void {
    this.#seedTail(
      this.#data.convolutions[layer][projection],
      qkvTailRows(this.config),
      widths(this.config)[projection],
      rows,
    );
  }

  seedEngramTail(site: number, rows: Float32Array): void {
    this.#seedTail(this.#data.engrams[site], engramTailRows(this.config.engram), this.config.dModel, rows);
  }

  #seedTail(history: History, count: number, width: number, rows: Float32Array): void {
    this.#refuseInStep();
    if (rows.length !== count * width) throw new Refusal('shape');
    history.rows = split(rows, width);
    this.#marks.clear();
  }

  seedTokens(ids: readonly number[]): void {
    this.#refuseInStep();
    if (ids.some((id) => id >= this.config.vocabSize)) throw new Refusal('range');
    this.#data.tokens = [...ids];
    this.#marks.clear();
  }

  setPosition(position: number): void {
    this.#refuseInStep();
    this.#data.position = position;
    this.#data.layers.forEach((layer, index) => {
      forgetFrom(layer, position);
      this.#forgetUnseen(layer, cap(this.config, index));
    });
    this.#marks.clear();
  }

  /** Positions that no query from the state's position on reads. */
  #forgetUnseen(layer: Layer, limit: number): void {
    layer.first = Math.max(layer.first, this.position + 1 - limit);
    layer.end = Math.max(layer.end, layer.first);
    for (const rows of [layer.keys, layer.values]) {
      for (const p of [...rows.keys()]) if (p < layer.first) rows.delete(p);
    }
  }

  reset(): void {
    this.discard();
    this.#data = {
      ...this.#blank(),
      layers: this.#data.layers.map((layer) => emptyLayer(layer.slots)),
    };
    this.#marks.clear();
  }

  fork(): NaiveState {
    this.#refuseInStep();
    const copy = new NaiveState(this.config, this.options);
    copy.#data = structuredClone(this.#data);
    return copy;
  }

  mark(): number {
    this.#refuseInStep();
    this.#marks.set(this.#nextMark, structuredClone(this.#data));
    return this.#nextMark++;
  }

  rollback(mark: number): void {
    const data = this.#marks.get(mark);
    if (data === undefined) throw new Refusal('range');
    this.discard();
    const slots = this.#data.layers.map((layer) => layer.slots);
    this.#data = structuredClone(data);
    // What has grown stays grown.
    this.#data.layers.forEach((layer, index) => (layer.slots = slots[index]!));
    this.#dropAfter(mark);
  }

  release(mark: number): void {
    this.#refuseInStep();
    if (!this.#marks.has(mark)) throw new Refusal('range');
    this.#dropAfter(mark);
    this.#marks.delete(mark);
  }

  #dropAfter(mark: number): void {
    for (const id of [...this.#marks.keys()]) if (id > mark) this.#marks.delete(id);
  }
}

function emptyLayer(slots: number): Layer {
  return { slots, first: 0, end: 0, keys: new Map(), values: new Map(), committed: undefined };
}

function forgetFrom(layer: Layer, position: number): void {
  layer.end = Math.min(layer.end, position);
  layer.first = Math.min(layer.first, layer.end);
  for (const rows of [layer.keys, layer.values]) {
    for (const p of [...rows.keys()]) if (p >= layer.end) rows.delete(p);
  }
}

/** Copies of the rows of a row-major array. */
function split(rows: Float32Array, width: number): Float32Array[] {
  return Array.from({ length: rows.length / width }, (_, i) => rows.slice(i * width, (i + 1) * width));
}
