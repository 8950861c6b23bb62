// @ts-check
// Goes through comparisons, in Node and in browsers alike: prepares the contestants, compares what they compute, times
// them in turn.
import { requireAgreement } from './outputs.mjs';
import { sampleInTurn } from './sampler.mjs';
import { openPackageStep } from './step.mjs';

/**
 * @typedef {import('../comparisons.mjs').Comparison} Comparison
 * @typedef {import('./wasm.mjs').PreparedWork} PreparedWork
 * @typedef {{ name: string, units?: number, work: PreparedWork }} Prepared
 * @typedef {{ rounds: number, sampleMs: number }} TimingOptions
 *
 * @typedef {object} Means
 * @property {(spec: string) => PreparedWork} createWork
 * @property {Parameters<typeof openPackageStep>[0]} [api]  the package, for comparisons that need it
 * @property {Record<string, { create: (spec: string) => Promise<PreparedWork> }>} [natives]  by compiler
 * @property {TimingOptions} timing
 * @property {(text: string) => void} onProgress
 */

/** @param {Comparison} comparison */
export function needsPackage({ contestants }) {
  return Object.values(contestants).some((contestant) => 'step' in contestant);
}

/** @param {readonly Comparison[]} comparisons @param {Means} means */
export async function measure(comparisons, means) {
  const results = [];
  for (const [i, comparison] of comparisons.entries()) {
    const { id, group, parameters, tolerance = 0 } = comparison;
    const title = `${i + 1}/${comparisons.length} ${id}`;
    means.onProgress(title);
    const prepared = await prepare(comparison, means);
    requireAgreement(id, prepared, tolerance);
    const timings = await sampleInTurn(
      prepared.map(({ name, units, work }) => ({ name, units, run: work.run })),
      { ...means.timing, onRound: (round, rounds) => means.onProgress(`${title}, round ${round + 1}/${rounds}`) },
    );
    for (const { work } of prepared) await work.close();
    results.push({ id, group, parameters, timings });
  }
  return results;
}

/** @param {Comparison} comparison @param {Means} means */
async function prepare({ parameters, contestants, natively }, { createWork, api, natives = {} }) {
  /** @type {Prepared[]} */
  const prepared = [];
  for (const [name, contestant] of Object.entries(contestants)) {
    if ('step' in contestant) {
      if (api === undefined) throw new Error(`${name} needs the package`);
      const precision = parameters.format === 'f32' ? 'f32' : 'int8';
      prepared.push({
        name,
        work: await openPackageStep(api, precision, Number(parameters.positions), contestant.step),
      });
      continue;
    }
    const { spec, units } = contestant;
    prepared.push({ name, units, work: createWork(spec) });
    if (!natively.includes(name)) continue;
    for (const [compiler, works] of Object.entries(natives)) {
      prepared.push({ name: `${name} ${compiler}`, units, work: await works.create(spec) });
    }
  }
  return prepared;
}
