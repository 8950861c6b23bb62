import type { DecodeModel, DecodeState, ModelConfig, Needle3, Projection, WasmFloat32Array } from 'needle3-wasm';
import {
  addAttention,
  addEngram,
  engramValues,
  logitsOf,
  normAndRotate,
  PROJECTIONS,
  projectQkv,
  Rows,
} from './layers.js';
import { Weights } from './weights.js';

/** What a step's time is spent on. The first three are the decode state, the others are the synthetic model. */
export const TIME_SHARES = ['attention', 'convolution', 'engram', 'projections', 'norms', 'other'] as const;
export type TimeShare = (typeof TIME_SHARES)[number];
export type StepTimes = Record<TimeShare, number>;

export function noTimes(): StepTimes {
  return { attention: 0, convolution: 0, engram: 0, projections: 0, norms: 0, other: 0 };
}

/** Milliseconds of a step that the decode state took. */
export function stateTime(times: StepTimes): number {
  return times.attention + times.convolution + times.engram;
}

/** Adds up the time between one `enter` and the next under the share that was entered. */
class StepClock {
  times = noTimes();
  #share: TimeShare = 'other';
  #since = 0;

  start(): void {
    this.times = noTimes();
    this.#share = 'other';
    this.#since = performance.now();
  }

  enter(share: TimeShare): void {
    const now = performance.now();
    this.times[this.#share] += now - this.#since;
    this.#share = share;
    this.#since = now;
  }
}

/** Sees the residual rows (n, dModel) that enter `layer`; `layer` = numLayers is what leaves the last one. */
export type LayerObserver = (layer: number, residual: Float32Array, position: number) => void;

/**
 * A model of Needle 3's shape with random weights, written on the public API alone. Its output means nothing; its
 * decode state is exactly what a trained model of that geometry would have.
 */
export class SyntheticModel implements DecodeModel {
  readonly weights: Weights;
  /** Called once a layer where set. */
  observer: LayerObserver | undefined;

  readonly #clock = new StepClock();
  // Taps are used at every step, so they lie in wasm memory, where the state reads them in place.
  readonly #taps: readonly Record<Projection, WasmFloat32Array>[];
  readonly #engramTaps: readonly WasmFloat32Array[];
  readonly #single: Rows;
  #batch: Rows;

  constructor(needle3: Needle3, config: ModelConfig, seed: number) {
    this.weights = new Weights(config, seed);
    const place = (array: Float32Array) => {
      const placed = needle3.allocate(array.length);
      placed.view.set(array);
      return placed;
    };
    const { layers } = this.weights;
    this.#taps =
      config.qkvConvTaps === 0
        ? []
        : layers.map((layer) => ({ q: place(layer.qTaps), k: place(layer.kTaps), v: place(layer.vTaps) }));
    this.#engramTaps =
      config.engram.convTaps === 0 ? [] : config.engram.sites.map((layer) => place(layers[layer].engram!.taps));
    this.#single = new Rows(1, this.weights);
    this.#batch = this.#single;
  }

  /** Where the time of the latest `forward` went, in milliseconds. */
  get times(): Readonly<StepTimes> {
    return this.#clock.times;
  }

  /** Feeds `tokens` and commits them; returns the last one's logits (outVocab), a new array. */
  forward(state: DecodeState, tokens: Uint32Array): Float32Array {
    const { weights } = this;
    const { config } = weights;
    const { position } = state;
    const clock = this.#clock;
    clock.start();
    const rows = this.#rowsFor(tokens.length);
    rows.begin(weights, tokens, position);

    for (let row = 0; row < tokens.length; row++) {
      clock.enter('engram');
      state.pushToken(tokens[row]);
      if (config.engram.sites.length === 0) continue;
      const { indices, valid } = state.engramIndices();
      clock.enter('projections');
      this.#gather(indices, valid, rows.engram, row * weights.widths.engram);
    }

    weights.layers.forEach((layer, index) => {
      this.observer?.(index, rows.residual, position);
      if (layer.engram) {
        clock.enter('projections');
        engramValues(layer.engram, rows);
        clock.enter('engram');
        const site = config.engram.sites.indexOf(index);
        const taps = this.#engramTaps[site];
        if (taps) state.engramConv(site, taps, rows.engramConvolved);
        clock.enter('other');
        addEngram(rows);
      }
      clock.enter('projections');
      projectQkv(layer, rows);
      clock.enter('convolution');
      const taps = this.#taps[index];
      if (taps) for (const projection of PROJECTIONS) state.conv(index, projection, taps[projection], rows[projection]);
      clock.enter('norms');
      normAndRotate(layer, config, rows);
      clock.enter('attention');
      state.appendAndAttend(index, rows.q, rows.k, rows.v, rows.attended);
      clock.enter('projections');
      addAttention(layer, rows);
    });

    this.observer?.(config.numLayers, rows.residual, position);
    const logits = logitsOf(weights, rows.residual.subarray(-config.dModel));
    clock.enter('other');
    state.advance(tokens.length);
    clock.enter('other');
    return logits;
  }

  dispose(): void {
    for (const taps of this.#taps) for (const projection of PROJECTIONS) taps[projection].dispose();
    for (const taps of this.#engramTaps) taps.dispose();
  }

  #rowsFor(n: number): Rows {
    if (n === 1) return this.#single;
    if (this.#batch.n !== n) this.#batch = new Rows(n, this.weights);
    return this.#batch;
  }

  #gather(indices: Uint32Array, valid: readonly boolean[], out: Float32Array, offset: number): void {
    const { subDim } = this.weights.config.engram;
    indices.forEach((slot, table) => {
      const at = offset + table * subDim;
      if (valid[table]) this.weights.engramRow(table, slot, out, at);
      else out.fill(0, at, at + subDim);
    });
  }
}
