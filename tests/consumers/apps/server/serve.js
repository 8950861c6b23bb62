// A server that notes whatever the package does too early: WebAssembly, a request, a Worker, a browser's global, the .wasm.
import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';

const touched = [];
for (const name of ['WebAssembly', 'fetch', 'Worker', 'window', 'document', 'navigator', 'indexedDB']) {
  Object.defineProperty(globalThis, name, { configurable: true, get: () => void touched.push(name) });
}
fs.promises.readFile = new Proxy(fs.promises.readFile, {
  apply(readFile, self, args) {
    if (String(args[0]).endsWith('.wasm')) touched.push('readFile');
    return Reflect.apply(readFile, self, args);
  },
});
syncBuiltinESMExports();

const { loadNeedle3, render } = await import(process.argv[2]);
const html = render();
const atRender = [...touched];
await loadNeedle3().catch(() => undefined);
console.log(JSON.stringify({ html, atRender, afterLoading: touched.length > atRender.length }));
