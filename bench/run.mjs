#!/usr/bin/env node
// @ts-check
// Times this project's core against the scalar baseline, as WebAssembly in Node and natively.
import { readFileSync } from 'node:fs';

import { contexts } from './comparisons.mjs';
import { buildNativeWorks, buildPackage, buildWasmWorks, nativeCompilers } from './lib/build.mjs';
import { measure, needsPackage } from './lib/measure.mjs';
import { openNativeWorks } from './lib/native.mjs';
import { loadPackage } from './lib/package.mjs';
import { progress } from './lib/progress.mjs';
import { readOptions } from './lib/options.mjs';
import { writeResults } from './lib/results.mjs';
import { formatResults } from './lib/table.mjs';
import { openWasmWorks } from './lib/wasm.mjs';

const { chosen, timing, complete } = readOptions(`usage: npm run bench -- [--only GROUP[,GROUP…]] [--quick]

Builds the benchmark programs, compares their outputs, then times them in turn. Tables go to the terminal, all samples to
bench/results/node.json.
`);

const status = progress();
status.show('building for WebAssembly');
const createWork = await openWasmWorks(await WebAssembly.compile(readFileSync(await buildWasmWorks())));
let api;
if (chosen.some(needsPackage)) {
  status.show('building the package');
  await buildPackage();
  api = await loadPackage();
}
/** @type {Record<string, ReturnType<typeof openNativeWorks>>} */
const natives = {};
for (const [name, compiler] of nativeCompilers()) {
  status.show(`building with ${name}`);
  natives[name] = openNativeWorks(await buildNativeWorks(name, compiler));
}
const results = [];
for (const group of new Set(chosen.map((comparison) => comparison.group))) {
  const comparisons = chosen.filter((comparison) => comparison.group === group);
  const measured = await measure(comparisons, { createWork, api, natives, timing, onProgress: status.show });
  status.clear();
  console.log(`\n${formatResults(measured)}`);
  results.push(...measured);
}
for (const works of Object.values(natives)) works.close();

/** byteLength of a state with default options, by precision and positions. */
async function sessionBytes() {
  const { NEEDLE3, loadNeedle3 } = await loadPackage();
  const needle3 = await loadNeedle3();
  return /** @type {const} */ (['f32', 'int8']).flatMap((precision) =>
    contexts.map((positions) => ({
      precision,
      positions,
      bytes: needle3.decodeStateBytes(NEEDLE3, { precision, positions }),
    })),
  );
}

if (complete) await writeResults('node', { timing, results, bytes: await sessionBytes() });
