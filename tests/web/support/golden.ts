import { NEEDLE3, type DecodeStateOptions, type Needle3 } from 'needle3-wasm';

import { PROJECTIONS } from './drive.js';
import { widths } from './geometry.js';
import { Xorshift32 } from './random.js';

/** FNV-1a with 64 bits over 32-bit words: hash = (hash ^ word) · (2^40 + 0x1b3), in two halves of 32 bits. */
class WordHash {
  #low = 0x84222325;
  #high = 0xcbf29ce4;

  addWords(words: ArrayLike<number>): void {
    let low = this.#low;
    let high = this.#high;
    for (let i = 0; i < words.length; i++) {
      low = (low ^ words[i]) >>> 0;
      const product = low * 0x1b3;
      high = (Math.floor(product / 2 ** 32) + high * 0x1b3 + low * 2 ** 8) % 2 ** 32;
      low = product % 2 ** 32;
    }
    this.#low = low;
    this.#high = high;
  }

  addFloats(floats: Float32Array): void {
    this.addWords(new Uint32Array(floats.buffer, floats.byteOffset, floats.length));
  }

  /** 16 hexadecimal digits. */
  toString(): string {
    return [this.#high, this.#low].map((half) => half.toString(16).padStart(8, '0')).join('');
  }
}

/** Times, rows a step, and whether it attends: tests/core/support/golden.h has the same list, and says what it covers. */
const STEPS: readonly (readonly [times: number, rows: number, attends: boolean])[] = [
  [1, 96, true],
  [3, 1, true],
  [9, 100, false],
  [1, 40, true],
  [5, 1, true],
  [1, 56, false],
  [2, 1, true],
];

/** The hash of the golden decode, which tests/core/support/golden.h describes step by step. */
export function goldenHash(needle: Needle3, options: DecodeStateOptions): string {
  const { numLayers, dModel, qkvConvTaps, engram } = NEEDLE3;
  const dims = widths(NEEDLE3);
  const state = needle.createDecodeState(NEEDLE3, { ...options, capacityHint: 64 });
  const random = new Xorshift32(20240607);
  const hash = new WordHash();

  const taps = Array.from({ length: numLayers }, () =>
    PROJECTIONS.map((projection) => random.floats(qkvConvTaps * dims[projection])),
  );
  const siteTaps = engram.sites.map(() => random.floats(engram.convTaps * dModel));

  function step(rows: number, attends: boolean): void {
    for (let i = 0; i < rows; i++) {
      state.pushToken(random.uint32() >>> 19);
      const { indices, valid } = state.engramIndices();
      hash.addWords(indices);
      hash.addWords(valid.map(Number));
    }
    siteTaps.forEach((weights, site) => {
      const x = random.floats(rows * dModel);
      state.engramConv(site, weights, x);
      hash.addFloats(x);
    });
    taps.forEach((weights, layer) => {
      const [query, keys, values] = PROJECTIONS.map((projection, i) => {
        const x = random.floats(rows * dims[projection]);
        if (projection === 'q') for (let c = 0; c < x.length; c++) x[c] *= 8;
        state.conv(layer, projection, weights[i], x);
        return x;
      }) as [Float32Array, Float32Array, Float32Array];
      const out = new Float32Array(attends ? rows * dims.out : 0);
      if (attends && rows > 1) {
        state.appendAndAttend(layer, query, keys, values, out);
      } else {
        state.writeKv(layer, keys, values);
        if (attends) state.attend(layer, query, out);
      }
      hash.addFloats(out);
    });
    state.advance(rows);
  }
  for (const [times, rows, attends] of STEPS) for (let i = 0; i < times; i++) step(rows, attends);

  const snapshot = state.save();
  hash.addWords([new DataView(snapshot.buffer).getUint32(snapshot.length - 4, true)]);
  state.dispose();
  return hash.toString();
}
