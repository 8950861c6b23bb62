import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Worker } from 'node:worker_threads';

import { loadNeedle3 } from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { wasmBytes, wasmUrl } from './support/wasm.js';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** Runs a module in a Node of its own, in the package's folder. */
async function node(code: string, ...flags: string[]): Promise<string> {
  const { stdout, stderr } = await promisify(execFile)(
    process.execPath,
    [...flags, '--input-type=module', '--eval', code],
    { cwd: root },
  );
  expect(stderr).toBe('');
  return stdout.trim();
}

const ENTRIES = ['needle3-wasm', './dist/index.js', './dist/node.js'];

describe('importing the package', () => {
  for (const entry of ENTRIES) {
    it(`touches nothing: ${entry}`, async () => {
      const output = await node(`
        import fs from 'node:fs';
        import { syncBuiltinESMExports } from 'node:module';
        const touched = [];
        const traps = ['fetch', 'WebAssembly', 'Worker', 'XMLHttpRequest', 'SharedArrayBuffer', 'document', 'window', 'self',
          'navigator', 'location', 'localStorage', 'indexedDB', 'caches', 'setTimeout', 'setInterval', 'queueMicrotask'];
        for (const name of traps) {
          const value = globalThis[name];
          Object.defineProperty(globalThis, name, { configurable: true, get() { touched.push(name); return value; } });
        }
        const globals = Reflect.ownKeys(globalThis).map(String).sort().join();
        await import(${JSON.stringify(entry)});
        const same = Reflect.ownKeys(globalThis).map(String).sort().join() === globals;
        for (const name of traps) delete globalThis[name];
        console.log(JSON.stringify({ touched, same }));
      `);
      expect(JSON.parse(output)).toEqual({ touched: [], same: true });
    });

    it(`works where there is no WebAssembly, and loading then says so: ${entry}`, async () => {
      const output = await node(`
        delete globalThis.WebAssembly;
        const { loadNeedle3, NEEDLE3 } = await import(${JSON.stringify(entry)});
        const error = await loadNeedle3().catch((error) => error);
        console.log(NEEDLE3.numLayers, error.name, error.code);
      `);
      expect(output).toBe('20 Needle3Error load');
    });
  }

  it('leaves nothing that keeps a process alive, nor does an instance', async () => {
    const output = await node(`
      import { loadNeedle3, NEEDLE3 } from 'needle3-wasm';
      const needle = await loadNeedle3();
      needle.createDecodeState(NEEDLE3);
      console.log(process.getActiveResourcesInfo().filter((name) => !/Pipe|TTY/.test(name)).length);
    `);
    expect(output).toBe('0');
  });
});

describe('loading in Node', () => {
  it('reads a path or a file: URL from disk', async () => {
    for (const wasm of [fileURLToPath(wasmUrl), wasmUrl.href, wasmUrl]) {
      expect((await loadNeedle3({ wasm })).memory.allocatedBytes).toBe(0);
    }
  });

  it('the browser entry works in Node with the bytes given', async () => {
    const output = await node(`
      import { readFile } from 'node:fs/promises';
      import { loadNeedle3, NEEDLE3 } from './dist/index.js';
      const needle = await loadNeedle3({ wasm: await readFile('dist/needle3.wasm') });
      console.log(needle.createDecodeState(NEEDLE3).byteLength);
    `);
    expect(Number(output)).toBeGreaterThan(9e6);
  });

  it('a module compiled here starts in a Worker thread', async () => {
    const module = await WebAssembly.compile(await wasmBytes());
    const worker = new Worker(
      `
        const { parentPort, workerData } = require('node:worker_threads');
        import('needle3-wasm').then(async ({ loadNeedle3, NEEDLE3 }) => {
          const needle = await loadNeedle3({ wasm: workerData });
          parentPort.postMessage(needle.createDecodeState(NEEDLE3).byteLength);
        });
      `,
      { eval: true, workerData: module },
    );
    const bytes = await new Promise<number>((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
    });
    await worker.terminate();
    const state = (await loadNeedle3()).createDecodeState((await import('needle3-wasm')).NEEDLE3);
    expect(bytes).toBe(state.byteLength);
  });
});

describe('what is forgotten', () => {
  it('is freed when the garbage collector finds it: states, arrays, forks, and states with marks', async () => {
    const output = await node(
      `
        import { loadNeedle3, NEEDLE3 } from 'needle3-wasm';
        const needle = await loadNeedle3();
        const kept = needle.allocate(100);
        const owned = needle.memory.allocatedBytes;
        const turn = () => new Promise((resolve) => setTimeout(resolve, 10));
        const peaks = [];
        for (let round = 0; round < 20; round++) {
          (() => {
            const state = needle.createDecodeState(NEEDLE3, { capacityHint: 16 });
            state.fork();
            state.mark();
            state.kv(0);
            needle.allocate(1000).subarray(10);
            needle.restoreDecodeState(state.save());
          })();
          peaks.push(needle.memory.allocatedBytes > owned);
          for (let i = 0; i < 50 && needle.memory.allocatedBytes !== owned; i++) {
            globalThis.gc();
            await turn();
          }
        }
        kept.view[0] = 1;
        console.log(peaks.every(Boolean), needle.memory.allocatedBytes - owned, kept.length);
      `,
      '--expose-gc',
    );
    expect(output).toBe('true 0 100');
  });

  it('is not freed while a part of it is in use: a subarray, a view, rows read through kv', async () => {
    const output = await node(
      `
        import { loadNeedle3, NEEDLE3 } from 'needle3-wasm';
        const needle = await loadNeedle3();
        const part = (() => needle.allocate(1000).subarray(10, 20))();
        const view = (() => { const { view } = needle.allocate(500); view.fill(7); return view; })();
        const kv = (() => {
          const state = needle.createDecodeState(NEEDLE3, { capacityHint: 4 });
          state.writeKv(0, new Float32Array(96).fill(5), new Float32Array(128).fill(6), 0);
          return state.kv(0);
        })();
        for (let i = 0; i < 20; i++) {
          globalThis.gc();
          await new Promise((resolve) => setTimeout(resolve, 5));
          // What had been freed would be given out again.
          needle.allocate(400).view.fill(-1);
        }
        part.view.fill(3);
        console.log(part.view[9], view.every((x) => x === 7), kv.keys[0], kv.values[0]);
      `,
      '--expose-gc',
    );
    expect(output).toBe('3 true 5 6');
  });
});
