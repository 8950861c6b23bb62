/** Seeded numbers that are a pure function of where they stand, so that weights need no storage to be reproducible. */

/** Mixes 32 bits so that neighbouring inputs give unrelated outputs; returns an unsigned integer. */
export function mix32(value: number): number {
  let bits = value | 0;
  bits = Math.imul(bits ^ (bits >>> 16), 0x21f0aaad);
  bits = Math.imul(bits ^ (bits >>> 15), 0x735a2d97);
  return (bits ^ (bits >>> 15)) >>> 0;
}

/** A seed for one named use, unrelated to the seeds of other uses. */
export function deriveSeed(seed: number, ...path: readonly number[]): number {
  return path.reduce((state, part) => mix32(state + Math.imul(part + 1, 0x9e3779b9)), mix32(seed));
}

/** Number `index` of the sequence that `seed` starts: uniform, mean 0, standard deviation `deviation`. */
export function uniformAt(seed: number, index: number, deviation: number): number {
  const unit = mix32(seed + Math.imul(index + 1, 0x9e3779b9)) / 2 ** 32;
  return (unit * 2 - 1) * deviation * Math.sqrt(3);
}

/** `length` numbers of that sequence, in float32. */
export function uniformArray(length: number, seed: number, deviation: number): Float32Array {
  const array = new Float32Array(length);
  for (let index = 0; index < length; index++) array[index] = uniformAt(seed, index, deviation);
  return array;
}
