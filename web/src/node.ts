/**
 * The package's entry in Node: as index.ts, but the .wasm is read from disk.
 *
 * @packageDocumentation
 */
import { readFile } from 'node:fs/promises';
import { createNeedle3, type Needle3 } from './instance.js';
import { fetchLocation, loadCore, type LoadOptions, type ResponseLike } from './load/load.js';

export * from './api.js';

/** A `file:` URL or a path is read from disk, any other address is fetched. */
async function open(location: string): Promise<ResponseLike | Uint8Array<ArrayBuffer>> {
  if (/^(https?|data|blob):/i.test(location)) return fetchLocation(location);
  return readFile(/^file:/i.test(location) ? new URL(location) : location);
}

/**
 * Loads the WebAssembly module and starts an instance, with a linear memory of its own. It may be called again, also
 * at the same time and after a failure.
 *
 * @param options - where the .wasm is and how far memory may grow
 * @throws Needle3Error (by rejecting) `type` or `range` for options that do not fit, else `load` with the engine's error
 * as `cause`
 *
 * @example
 * ```ts
 * const needle3 = await loadNeedle3();
 * ```
 */
export async function loadNeedle3(options: LoadOptions = {}): Promise<Needle3> {
  return createNeedle3(
    await loadCore({ defaultLocation: () => new URL('./needle3.wasm', import.meta.url), open }, options),
  );
}
