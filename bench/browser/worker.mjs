// @ts-check
// The benchmarks in a module Worker, where an application would drive a decode state. bench/browser.mjs serves it, says
// what to measure and takes the reports.
import { measure } from '../lib/measure.mjs';
import { openWasmWorks } from '../lib/wasm.mjs';

/** @param {'progress' | 'results' | 'failure'} kind @param {string} body */
const report = (kind, body) => fetch(`/report/${kind}`, { method: 'POST', body });

try {
  const { chosen, timing, withPackage } = await (await fetch('/plan')).json();
  const createWork = await openWasmWorks(await WebAssembly.compileStreaming(fetch('/works.wasm')));
  const entry = '/dist/index.js';
  const api = withPackage ? await import(entry) : undefined;
  // Not at every round: that would disturb what is timed.
  const onProgress = (/** @type {string} */ text) => {
    if (!text.includes(', round')) void report('progress', text);
  };
  const results = await measure(chosen, { createWork, api, timing, onProgress });
  await report('results', JSON.stringify(results));
} catch (error) {
  await report('failure', error instanceof Error ? `${error.message}\n${error.stack}` : String(error));
}
