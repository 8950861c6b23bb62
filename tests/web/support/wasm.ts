/** Where the page can fetch the package's .wasm from. */
export const wasmUrl = new URL('../../../dist/needle3.wasm', import.meta.url);

/** The bytes of the package's .wasm, wherever the tests run. */
export async function wasmBytes(): Promise<Uint8Array<ArrayBuffer>> {
  if (typeof process === 'undefined' || typeof process.getBuiltinModule !== 'function') {
    return new Uint8Array(await (await fetch(wasmUrl)).arrayBuffer());
  }
  return new Uint8Array(await process.getBuiltinModule('node:fs/promises').readFile(wasmUrl));
}

/** FNV-1a, 32 bits. */
export function fnv1a(bytes: Uint8Array): number {
  let hash = 0x811c9dc5;
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash;
}
