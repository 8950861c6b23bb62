import type { DecodeModel, DecodeState, ModelConfig } from 'needle3-wasm';

import { widths } from './geometry.js';
import { mix, Xorshift32 } from './random.js';

const { fround } = Math;

/** rows (n, from) times weights (from, to), each element summed in float64 and rounded once: the same in every engine. */
function project(rows: Float32Array, weights: Float32Array, from: number, to: number): Float32Array {
  const count = rows.length / from;
  const result = new Float32Array(count * to);
  for (let i = 0; i < count; i++) {
    for (let j = 0; j < to; j++) {
      let sum = 0;
      for (let c = 0; c < from; c++) sum += rows[i * from + c] * weights[c * to + j];
      result[i * to + j] = sum;
    }
  }
  return result;
}

/** Adds, and keeps the residual stream within [−2, 2] without a function that engines round differently. */
function addTo(stream: Float32Array, update: Float32Array): void {
  for (let i = 0; i < stream.length; i++) stream[i] = Math.max(-2, Math.min(2, fround(stream[i] + update[i])));
}

/**
 * A small model with seeded weights that uses every history of the state: its logits depend on keys and values, on the
 * convolution tails and on the tokens before.
 */
export class SmallModel implements DecodeModel {
  readonly #config: ModelConfig;
  readonly #weights = new Map<string, Float32Array>();
  readonly #seed: number;
  /** Called before each call on the state, with its name and the number of such calls made before. */
  beforeCall: (name: string, index: number) => void = () => undefined;
  /** Calls on the state so far. */
  calls = 0;
  /** Lengths of the batches that it got. */
  readonly batches: number[] = [];

  constructor(config: ModelConfig, seed = 1) {
    this.#config = config;
    this.#seed = seed;
  }

  #weight(name: string, index: number, length: number): Float32Array {
    const key = `${name} ${index}`;
    let weights = this.#weights.get(key);
    if (weights === undefined) {
      weights = new Xorshift32(mix(this.#seed, index, ...Array.from(name, (c) => c.charCodeAt(0)))).floats(length);
      this.#weights.set(key, weights);
    }
    return weights;
  }

  #call<T>(name: string, make: () => T): T {
    this.beforeCall(name, this.calls++);
    return make();
  }

  forward(state: DecodeState, tokens: Uint32Array): Float32Array {
    const { vocabSize, dModel, engram, numLayers, qkvConvTaps } = this.#config;
    const { q, k, v, out } = widths(this.#config);
    const count = tokens.length;
    this.batches.push(count);
    const embedding = this.#weight('embedding', 0, vocabSize * dModel);
    const stream = new Float32Array(count * dModel);
    const memories = engram.sites.map(() => new Float32Array(count * dModel));
    tokens.forEach((token, i) => {
      this.#call('pushToken', () => state.pushToken(token));
      stream.set(embedding.subarray(token * dModel, (token + 1) * dModel), i * dModel);
      const { indices, valid } = this.#call('engramIndices', () => state.engramIndices());
      memories.forEach((memory, site) => {
        for (let c = 0; c < dModel; c++) {
          let sum = 0;
          valid.forEach((counts, table) => {
            if (counts) sum += new Xorshift32(mix(this.#seed, site, table, indices[table], c)).float();
          });
          memory[i * dModel + c] = sum;
        }
      });
    });

    for (let layer = 0; layer < numLayers; layer++) {
      const site = engram.sites.indexOf(layer);
      if (site >= 0) {
        const taps = this.#weight('engram', site, engram.convTaps * dModel);
        this.#call('engramConv', () => state.engramConv(site, taps, memories[site]));
        addTo(stream, memories[site]);
      }
      const [query, keys, values] = (['q', 'k', 'v'] as const).map((projection) => {
        const width = { q, k, v }[projection];
        const rows = project(stream, this.#weight(projection, layer, dModel * width), dModel, width);
        const taps = this.#weight(`${projection} taps`, layer, qkvConvTaps * width);
        this.#call('conv', () => state.conv(layer, projection, taps, rows));
        return rows;
      }) as [Float32Array, Float32Array, Float32Array];
      const attended = new Float32Array(count * out);
      this.#call('appendAndAttend', () => state.appendAndAttend(layer, query, keys, values, attended));
      addTo(stream, project(attended, this.#weight('out', layer, out * dModel), out, dModel));
    }
    this.#call('advance', () => state.advance(count));

    const last = stream.subarray((count - 1) * dModel);
    const logits = new Float32Array(vocabSize);
    for (let token = 0; token < vocabSize; token++) {
      let sum = 0;
      for (let c = 0; c < dModel; c++) sum += last[c] * embedding[token * dModel + c];
      logits[token] = 2 * sum;
    }
    return logits;
  }
}

/** A model that takes no notice of anything and gives the same logits always, as a new array each time. */
export function constantModel(logits: ArrayLike<number>): DecodeModel {
  return {
    forward(state, tokens) {
      for (const token of tokens) state.pushToken(token);
      state.advance(tokens.length);
      return Float32Array.from(logits);
    },
  };
}
