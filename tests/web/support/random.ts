/** Numbers that depend on nothing but their seed: the same in every engine, and the same as tests/core/golden.h makes. */

/** Marsaglia's xorshift32 (13, 17, 5). The seed must not be 0. */
export class Xorshift32 {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0 || 1;
  }

  /** 1 … 2^32 − 1. */
  uint32(): number {
    let x = this.#state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    this.#state = x >>> 0;
    return this.#state;
  }

  /** 0 … bound − 1. */
  below(bound: number): number {
    return this.uint32() % bound;
  }

  /** In [−1, 1): the word as a signed number, over 2^31. */
  float(): number {
    return Math.fround((this.uint32() | 0) * 2 ** -31);
  }

  floats(length: number): Float32Array {
    const floats = new Float32Array(length);
    for (let i = 0; i < length; i++) floats[i] = this.float();
    return floats;
  }
}

/** One well-mixed word from a few small integers (murmur3's finaliser over a running combination). */
export function mix(...parts: readonly number[]): number {
  let h = 0x9e3779b9;
  for (const part of parts) {
    h = Math.imul(h ^ part, 0x85ebca6b);
    h ^= h >>> 13;
    h = Math.imul(h, 0xc2b2ae35);
    h ^= h >>> 16;
  }
  return h >>> 0;
}
