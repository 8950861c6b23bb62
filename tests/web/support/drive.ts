import type { DecodeState, ModelConfig, Projection } from 'needle3-wasm';
import { expect } from 'vitest';

import { expectSameBits } from './assert.js';
import { engramTailRows, qkvTailRows, widths } from './geometry.js';
import { mix, Xorshift32 } from './random.js';

export const PROJECTIONS: readonly Projection[] = ['q', 'k', 'v'];

/**
 * Weights and inputs of a decode of any geometry. What a position gets depends on the seed and the position alone, so
 * that any split into batches sees the same rows.
 */
export class Inputs {
  readonly #taps: readonly Readonly<Record<Projection, Float32Array>>[];
  readonly #engramTaps: readonly Float32Array[];

  constructor(
    readonly config: ModelConfig,
    readonly seed: number,
  ) {
    const { q, k, v } = widths(config);
    const random = new Xorshift32(mix(seed, 0x7a95));
    this.#taps = Array.from({ length: config.numLayers }, () => ({
      q: random.floats(config.qkvConvTaps * q),
      k: random.floats(config.qkvConvTaps * k),
      v: random.floats(config.qkvConvTaps * v),
    }));
    this.#engramTaps = config.engram.sites.map(() => random.floats(config.engram.convTaps * config.dModel));
  }

  taps(layer: number, projection: Projection): Float32Array {
    return this.#taps[layer][projection];
  }

  engramTaps(site: number): Float32Array {
    return this.#engramTaps[site];
  }

  token(position: number): number {
    return mix(this.seed, 1, position) % this.config.vocabSize;
  }

  /** Raw rows of a projection at positions first … first + count − 1. */
  rows(layer: number, projection: Projection, first: number, count: number): Float32Array {
    return this.#rows(PROJECTIONS.indexOf(projection), layer, widths(this.config)[projection], first, count);
  }

  engramRows(site: number, first: number, count: number): Float32Array {
    return this.#rows(3, site, this.config.dModel, first, count);
  }

  #rows(kind: number, index: number, width: number, first: number, count: number): Float32Array {
    const rows = new Float32Array(count * width);
    for (let i = 0; i < count; i++) {
      const random = new Xorshift32(mix(this.seed, 2, kind, index, first + i));
      // Twice as wide as [−1, 1): softmax weights then differ enough to tell rows apart.
      for (let j = 0; j < width; j++) rows[i * width + j] = 2 * random.float();
    }
    return rows;
  }
}

/** All that the steps of a decode give, one array a position: indices, convolved rows, attention. */
export type Trace = Float32Array[];

/** One step of `count` rows from the state's position, committed; what it gave, row by row. */
export function step(state: DecodeState, inputs: Inputs, count = 1): Trace {
  const trace = openStep(state, inputs, count);
  state.advance(count);
  return trace;
}

/** The same without `advance`. */
export function openStep(state: DecodeState, inputs: Inputs, count = 1): Trace {
  const { config } = state;
  const { out: outWidth } = widths(config);
  const first = state.position;
  const pieces: Float32Array[][] = Array.from({ length: count }, () => []);
  const collect = (rows: Float32Array): void => {
    const width = rows.length / count;
    for (let i = 0; i < count; i++) pieces[i].push(rows.slice(i * width, (i + 1) * width));
  };

  for (let i = 0; i < count; i++) {
    state.pushToken(inputs.token(first + i));
    const { indices, valid } = state.engramIndices();
    pieces[i].push(Float32Array.from(indices), Float32Array.from(valid, Number));
  }
  for (let site = 0; site < config.engram.sites.length; site++) {
    const rows = inputs.engramRows(site, first, count);
    state.engramConv(site, inputs.engramTaps(site), rows);
    collect(rows);
  }
  for (let layer = 0; layer < config.numLayers; layer++) {
    const [query, keys, values] = PROJECTIONS.map((projection) => {
      const rows = inputs.rows(layer, projection, first, count);
      state.conv(layer, projection, inputs.taps(layer, projection), rows);
      collect(rows);
      return rows;
    }) as [Float32Array, Float32Array, Float32Array];
    const out = new Float32Array(count * outWidth);
    state.appendAndAttend(layer, query, keys, values, out);
    collect(out);
  }
  return pieces.map(concatenate);
}

/** Steps of the given sizes, one after another. */
export function steps(state: DecodeState, inputs: Inputs, ...counts: number[]): Trace {
  return counts.flatMap((count) => step(state, inputs, count));
}

export function concatenate(pieces: readonly Float32Array[]): Float32Array {
  const joined = new Float32Array(pieces.reduce((length, piece) => length + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    joined.set(piece, at);
    at += piece.length;
  }
  return joined;
}

export function expectSameTrace(actual: Trace, expected: Trace, what: string): void {
  expect(actual.length, `${what}: rows`).toBe(expected.length);
  actual.forEach((row, i) => expectSameBits(row, expected[i], `${what}, row ${i}`));
}

/** What can be asked of a state without changing it. */
export function observe(state: DecodeState): Record<string, unknown> {
  return {
    position: state.position,
    byteLength: state.byteLength,
    markBytes: state.markBytes,
    isSaturated: state.isSaturated,
    tokenHistory: Array.from(state.tokenHistory),
    slots: Array.from({ length: state.config.numLayers }, (_, layer) => state.slots(layer)),
  };
}

/** Fills tails and tokens from elsewhere, as a prefill on another device would leave them at `position`. */
export function seedHistories(state: DecodeState, inputs: Inputs, position: number): void {
  const { config } = state;
  for (let layer = 0; layer < config.numLayers; layer++) {
    for (const projection of PROJECTIONS) {
      const count = qkvTailRows(config);
      const width = widths(config)[projection];
      const rows = new Float32Array(count * width);
      for (let i = 0; i < count; i++) {
        const at = position - count + i;
        if (at >= 0) rows.set(inputs.rows(layer, projection, at, 1), i * width);
      }
      state.seedConvTail(layer, projection, rows);
    }
  }
  for (let site = 0; site < config.engram.sites.length; site++) {
    const count = engramTailRows(config.engram);
    const rows = new Float32Array(count * config.dModel);
    for (let i = 0; i < count; i++) {
      const at = position - count + i;
      if (at >= 0) rows.set(inputs.engramRows(site, at, 1), i * config.dModel);
    }
    state.seedEngramTail(site, rows);
  }
  state.seedTokens(Array.from({ length: position }, (_, at) => inputs.token(at)));
}
