/**
 * The incremental decode state of Needle 3. Importing does nothing: no request, no worker, no global.
 *
 * @module needle3-wasm
 */
import { createNeedle3, type Needle3 } from './instance.js';
import { fetchLocation, loadCore, type LoadOptions } from './load/load.js';

export * from './api.js';

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
    await loadCore({ defaultLocation: () => new URL('./needle3.wasm', import.meta.url), open: fetchLocation }, options),
  );
}
