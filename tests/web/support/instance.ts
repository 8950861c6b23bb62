import { loadNeedle3, type Needle3 } from 'needle3-wasm';

let shared: Promise<Needle3> | undefined;

/** One instance for all the tests of a file that do not look at its memory as a whole. */
export function needle3(): Promise<Needle3> {
  shared ??= loadNeedle3();
  return shared;
}

/** Where linear memory starts: the least `maximumMemoryBytes`. */
export async function startBytes(): Promise<number> {
  return (await loadNeedle3()).memory.linearBytes;
}
