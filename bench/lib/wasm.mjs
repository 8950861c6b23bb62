// @ts-check
// The works of bench/works as a WebAssembly module, in Node and in browsers alike.

import { now } from './clock.mjs';

/**
 * @typedef {object} PreparedWork
 * @property {(iterations: number) => number | Promise<number>} run  milliseconds
 * @property {Float32Array} output  what one run gave
 * @property {() => void | Promise<void>} close
 */

/**
 * @param {WebAssembly.Module} module
 * @returns {Promise<(spec: string) => PreparedWork>}
 */
export async function openWasmWorks(module) {
  const exit = (/** @type {number} */ code) => {
    throw new Error(`the module aborted with code ${code}`);
  };
  const instance = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: { proc_exit: exit } });
  const core = /** @type {any} */ (instance.exports);
  core._initialize();

  return (spec) => {
    const text = new TextEncoder().encode(spec);
    new Uint8Array(core.memory.buffer).set(text, core.spec());
    const work = core.create(text.length);
    if (work === 0) throw new Error(`no such work: ${spec}`);
    core.run(work, 1);
    return {
      run: (iterations) => {
        const start = now();
        core.run(work, iterations);
        return now() - start;
      },
      output: new Float32Array(core.memory.buffer, core.output(work), core.outputLength(work)).slice(),
      close: () => core.destroy(work),
    };
  };
}
