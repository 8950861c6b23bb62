#!/usr/bin/env node
// @ts-check
// Times one decode step of attention, one layer of the shipped geometry, here and in what people use today.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { root } from '../scripts/lib/tools.mjs';
import { buildPackage, buildWasmWorks, installBenchDependencies } from './lib/build.mjs';
import { now } from './lib/clock.mjs';
import { attendInputs, attnOutDim } from './lib/inputs.mjs';
import { requireAgreement } from './lib/outputs.mjs';
import { progress } from './lib/progress.mjs';
import { writeResults } from './lib/results.mjs';
import { sampleInTurn } from './lib/sampler.mjs';
import { formatRows } from './lib/table.mjs';
import { openWasmWorks } from './lib/wasm.mjs';

const usage = `usage: npm run bench:peers -- [--quick]

Compares the outputs of ONNX Runtime Web, of plain typed-array JavaScript and of this project, then times them in turn.
A table goes to the terminal, all samples to bench/results/peers.json. Installs bench/package.json's dependencies.

  --quick  fewer and shorter samples; writes no file
  --help   this text
`;

const { values } = parseArgs({
  options: { quick: { type: 'boolean', default: false }, help: { type: 'boolean', default: false } },
});
if (values.help) {
  console.log(usage);
  process.exit(0);
}
const timing = values.quick ? { rounds: 7, sampleMs: 10 } : { rounds: 15, sampleMs: 30 };

/** Of the largest magnitude in the output. Sums in f32 differ by their order, int8 caches by their scales. */
const tolerance = { f32: 1e-5, int8: 0.03 };

const status = progress();
status.show('building');
await installBenchDependencies();
await buildPackage();
const createWork = await openWasmWorks(await WebAssembly.compile(readFileSync(await buildWasmWorks())));
const onnx = await import('./peers/onnxruntime.mjs');
const javascript = await import('./peers/javascript.mjs');
const { packageStep } = await import('./peers/package.mjs');

/**
 * @typedef {import('./peers/onnxruntime.mjs').Inputs} Inputs
 * @typedef {import('./lib/wasm.mjs').PreparedWork & { name: string, format: 'f32' | 'int8' }} Contestant
 */

/** @param {string} name @param {'f32' | 'int8'} format @param {string} spec @returns {Contestant} */
function fromWork(name, format, spec) {
  return { name, format, ...createWork(spec) };
}

/** @param {string} name @param {'f32' | 'int8'} format @param {() => Float32Array} step @returns {Contestant} */
function fromStep(name, format, step) {
  return {
    name,
    format,
    run: (iterations) => {
      const start = now();
      for (let i = 0; i < iterations; ++i) step();
      return now() - start;
    },
    output: step().slice(),
    close: () => undefined,
  };
}

/**
 * @param {string} name
 * @param {'f32' | 'int8'} format
 * @param {Promise<import('./peers/onnxruntime.mjs').Peer>} opening
 * @returns {Promise<Contestant>}
 */
async function fromOnnx(name, format, opening) {
  const { step, close } = await opening;
  return {
    name: `ONNX Runtime Web ${name}`,
    format,
    run: async (iterations) => {
      const start = now();
      for (let i = 0; i < iterations; ++i) await step();
      return now() - start;
    },
    output: (await step()).slice(0, attnOutDim),
    close,
  };
}

/** @param {number} positions @param {Inputs} inputs @returns {Promise<Contestant[]>} */
async function openAll(positions, inputs) {
  return [
    fromWork('kernel, f32', 'f32', `attend core f32 global ${positions}`),
    fromWork('kernel, int8', 'int8', `attend core int8 global ${positions}`),
    fromStep('package: append and attend, f32', 'f32', await packageStep(inputs, 'f32')),
    fromStep('package: append and attend, int8', 'int8', await packageStep(inputs, 'int8')),
    fromWork('scalar loops in wasm, f32', 'f32', `attend scalar f32 global ${positions}`),
    fromWork('scalar loops in wasm, int8', 'int8', `attend scalar int8 global ${positions}`),
    fromStep('typed-array JavaScript, f32', 'f32', javascript.javascriptAttend(inputs)),
    fromStep('typed-array JavaScript, int8', 'int8', javascript.javascriptAttendInt8(inputs)),
    await fromOnnx('Attention-23, kernel only', 'f32', onnx.attentionKernel(inputs)),
    await fromOnnx('MatMul, Softmax, MatMul, prepacked', 'f32', onnx.prepackedBound(inputs)),
    await fromOnnx('Attention-23, past to present', 'f32', onnx.attentionPastToPresent(inputs)),
    await fromOnnx('GroupQueryAttention, f32', 'f32', onnx.groupQueryAttention(inputs, { quantized: false })),
    await fromOnnx('GroupQueryAttention, int8', 'int8', onnx.groupQueryAttention(inputs, { quantized: true })),
  ];
}

const results = [];
const contexts = [128, 1024, 8192];
for (const [i, positions] of contexts.entries()) {
  const title = `${i + 1}/${contexts.length} ${positions} positions`;
  status.show(title);
  const contestants = await openAll(positions, attendInputs(positions));
  for (const format of /** @type {const} */ (['f32', 'int8'])) {
    // All against f32: what a cache in int8 costs in accuracy is part of the tolerance.
    const compared = contestants.filter((contestant, index) => index === 0 || contestant.format === format);
    const named = compared.map(({ name, output }) => ({ name, work: { output } }));
    requireAgreement(`${positions} positions, ${format}`, named, tolerance[format]);
  }
  const timings = await sampleInTurn(contestants, {
    ...timing,
    onRound: (round, rounds) => status.show(`${title}, round ${round + 1}/${rounds}`),
  });
  for (const { close } of contestants) await close();
  results.push({ id: `${positions}`, group: 'peers', parameters: { positions }, timings });
}
status.clear();

console.log(formatRows(results));

if (!values.quick) {
  const { version } = JSON.parse(readFileSync(join(root, 'bench/node_modules/onnxruntime-web/package.json'), 'utf8'));
  await writeResults('peers', { timing, tolerance, results }, { 'onnxruntime-web': version });
}
