#!/usr/bin/env node
// @ts-check
// Runs everything that `npm test` promises, stage by stage, and counts tests from the runners' own reports.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { checks } from './lint.mjs';
import { browsers, capture, emscriptenEnvironment, fail, heading, must, nodeBin, root, run } from './lib/tools.mjs';

/**
 * What a stage came to. `notRun` says why nothing was tried.
 * @typedef {{ passed: number, failed: number, skipped?: number, notRun?: string }} Outcome
 */

const reports = join(root, 'build', 'reports');

/** @type {(path: string) => Outcome} */
function readJUnit(path) {
  const [suite] = /<testsuite[^>]*>/.exec(readFileSync(path, 'utf8')) ?? [''];
  const count = (/** @type {string} */ name) => Number(new RegExp(`\\b${name}="(\\d+)"`).exec(suite)?.[1] ?? 0);
  const skipped = count('skipped') + count('disabled');
  return { passed: count('tests') - count('failures') - skipped, failed: count('failures'), skipped };
}

/** @type {(path: string) => Outcome} */
function readVitestJson(path) {
  /** @type {{ numPassedTests: number, numFailedTests: number, numPendingTests: number, numTodoTests: number, testResults: { status: string, assertionResults: { status: string }[] }[] }} */
  const report = JSON.parse(readFileSync(path, 'utf8'));
  // A file that could not be loaded fails without a test of its own.
  const brokenFiles = report.testResults.filter(
    ({ status, assertionResults }) => status === 'failed' && !assertionResults.some((test) => test.status === 'failed'),
  );
  return {
    passed: report.numPassedTests,
    failed: report.numFailedTests + brokenFiles.length,
    skipped: report.numPendingTests + report.numTodoTests,
  };
}

/**
 * The outcome in the report that a runner was to write, made a failure where it wrote none, ran nothing, or ended badly
 * without a failed test.
 * @param {number} code
 * @param {string} path
 * @param {(path: string) => Outcome} read
 * @returns {Outcome}
 */
function outcomeOf(code, path, read) {
  const outcome = existsSync(path) ? read(path) : { passed: 0, failed: 0 };
  if (outcome.failed > 0) return outcome;
  if (outcome.passed === 0) console.error('no test ran');
  return code !== 0 || outcome.passed === 0 ? { ...outcome, failed: 1 } : outcome;
}

/**
 * Configures and builds a CMake preset, then runs its tests.
 * @param {string} preset
 * @param {Record<string, string>} [env]
 * @returns {Promise<Outcome>}
 */
async function ctest(preset, env = {}) {
  const report = join(reports, `${preset}.xml`);
  for (const args of [
    ['--preset', preset],
    ['--build', '--preset', preset],
  ]) {
    if ((await run('cmake', args, { env })) !== 0) return { passed: 0, failed: 1 };
  }
  const jobs = String(availableParallelism());
  const args = ['--preset', preset, '--output-junit', report, '--parallel', jobs, '--progress'];
  return outcomeOf(await run('ctest', args, { env }), report, readJUnit);
}

/**
 * @param {string} name of the report
 * @param {readonly string[]} projects of vitest.config.ts
 * @returns {Promise<Outcome>}
 */
async function vitest(name, projects) {
  const report = join(reports, `${name}.json`);
  const code = await run(nodeBin('vitest'), [
    'run',
    ...projects.map((project) => `--project=${project}`),
    '--reporter=default',
    '--reporter=json',
    `--outputFile.json=${report}`,
    ...filters,
  ]);
  return outcomeOf(code, report, readVitestJson);
}

/**
 * @param {'chromium' | 'firefox' | 'webkit'} browser what the projects cannot run without
 * @param {string} name of the report
 * @param {readonly string[]} projects of vitest.config.ts
 * @returns {Promise<Outcome>}
 */
async function vitestWithBrowser(browser, name, projects) {
  if (!browsers[browser]()) return { passed: 0, failed: 0, notRun: `${browser} is not installed` };
  return vitest(name, projects);
}

/**
 * The same test files on the page and in a module Worker.
 * @param {'chromium' | 'firefox' | 'webkit'} browser
 */
function vitestInBrowser(browser) {
  return vitestWithBrowser(browser, `vitest-${browser}`, [`${browser}-page`, `${browser}-worker`]);
}

/**
 * Runs named checks one after the other, each of which counts as a test.
 * @param {readonly { name: string, check: () => Promise<{ code: number, output: string }> }[]} list
 * @returns {Promise<Outcome>}
 */
async function runChecks(list) {
  let failed = 0;
  for (const { name, check } of list) {
    const { code, output } = await check();
    console.log(`${code === 0 ? '✓' : '✗'} ${name}`);
    if (code !== 0) {
      console.log(output);
      failed += 1;
    }
  }
  if (list.length === 0) console.error('no test ran');
  return { passed: list.length - failed, failed: list.length === 0 ? 1 : failed };
}

/** Compiles each strict consumer of the declaration files, the declarations themselves checked as well. */
function compileConsumers() {
  const directory = join(root, 'tests', 'web', 'types');
  return runChecks(
    readdirSync(directory)
      .filter((name) => existsSync(join(directory, name, 'tsconfig.json')))
      .map((name) => ({
        name: `a strict consumer compiles: ${name}`,
        check: () =>
          capture(nodeBin('tsc'), ['-p', `tests/web/types/${name}`, '--noEmit', '--skipLibCheck', 'false', '--strict']),
      })),
  );
}

/**
 * In the order of the run. `needsPackage`: it reads dist/.
 * @type {{ name: string, title: string, needsPackage: boolean, execute: () => Promise<Outcome> }[]}
 */
const stages = [
  { name: 'lint', title: 'Formatting, types and linters', needsPackage: true, execute: () => runChecks(checks) },
  {
    name: 'native-sanitized',
    title: 'C++ tests, clang with AddressSanitizer and UndefinedBehaviorSanitizer',
    needsPackage: false,
    execute: () => ctest('native-sanitized', { UBSAN_OPTIONS: 'print_stacktrace=1' }),
  },
  { name: 'native', title: 'C++ tests, g++ Release', needsPackage: false, execute: () => ctest('native') },
  {
    name: 'wasm',
    title: 'C++ tests as WebAssembly in Node',
    needsPackage: false,
    execute: () => ctest('wasm', emscriptenEnvironment),
  },
  {
    name: 'fuzz',
    title: 'Fuzzers, a minute each',
    needsPackage: false,
    execute: () => runChecks([{ name: 'no input fails', check: () => capture('node', ['scripts/fuzz.mjs']) }]),
  },
  {
    name: 'soak',
    title: 'A long random run against the reference, its short form',
    needsPackage: false,
    execute: () =>
      runChecks([{ name: 'no difference', check: () => capture('node', ['scripts/soak.mjs', '--short']) }]),
  },
  { name: 'types', title: 'Declaration files, strict consumers', needsPackage: true, execute: compileConsumers },
  {
    name: 'size',
    title: 'What a page downloads',
    needsPackage: true,
    execute: () => runChecks([{ name: 'within .size-limit.json', check: () => capture('node', ['scripts/size.mjs']) }]),
  },
  { name: 'vitest-node', title: 'Package in Node', needsPackage: true, execute: () => vitest('vitest-node', ['node']) },
  {
    name: 'vitest-chromium',
    title: 'Package in Chromium, page and module Worker',
    needsPackage: true,
    execute: () => vitestInBrowser('chromium'),
  },
  {
    name: 'vitest-firefox',
    title: 'Package in Firefox, page and module Worker',
    needsPackage: true,
    execute: () => vitestInBrowser('firefox'),
  },
  {
    name: 'vitest-webkit',
    title: 'Package in WebKit, page and module Worker',
    needsPackage: true,
    execute: () => vitestInBrowser('webkit'),
  },
  { name: 'demo', title: 'Demo, its parts in Node', needsPackage: true, execute: () => vitest('demo', ['demo']) },
  {
    name: 'docs',
    title: 'Documentation and its examples',
    needsPackage: true,
    execute: () => vitest('docs', ['docs']),
  },
  {
    name: 'consumers',
    title: 'Applications that install the packed tarball',
    needsPackage: true,
    execute: () => vitestWithBrowser('chromium', 'consumers', ['consumers']),
  },
  {
    name: 'e2e-chromium',
    title: 'Demo, end to end in Chromium',
    needsPackage: true,
    execute: () => vitestWithBrowser('chromium', 'e2e-chromium', ['e2e-chromium']),
  },
  {
    name: 'e2e-firefox',
    title: 'Demo, end to end in Firefox',
    needsPackage: true,
    execute: () => vitestWithBrowser('firefox', 'e2e-firefox', ['e2e-firefox']),
  },
  {
    name: 'e2e-webkit',
    title: 'Demo, end to end in WebKit',
    needsPackage: true,
    execute: () => vitestWithBrowser('webkit', 'e2e-webkit', ['e2e-webkit']),
  },
  {
    name: 'reference',
    title: 'API reference',
    needsPackage: true,
    execute: () =>
      runChecks([{ name: 'everything exported is documented', check: () => capture(nodeBin('typedoc'), []) }]),
  },
];

const usage = `usage: node scripts/test.mjs [--only STAGE[,STAGE…]] [FILTER…]

Sets up what is missing, builds the package and runs the stages; the last line is the sum over all of them. With CI=true
a browser that is missing is a failure. FILTER goes to Vitest: parts of the names of test files.

stages:
${stages.map(({ name, title }) => `  ${name.padEnd(18)}${title}`).join('\n')}
`;

const { values, positionals: filters } = parseArgs({
  options: { only: { type: 'string', multiple: true }, help: { type: 'boolean', default: false } },
  allowPositionals: true,
});
if (values.help) {
  console.log(usage);
  process.exit();
}

const wanted = values.only?.flatMap((names) => names.split(','));
const unknown = wanted?.filter((name) => !stages.some((stage) => stage.name === name)) ?? [];
if (unknown.length > 0) fail(`no stage ${unknown.join(', ')}\n\n${usage}`);
const chosen = stages.filter(({ name }) => wanted?.includes(name) ?? true);

heading('Set-up');
await must('node', ['scripts/setup.mjs', '--for', 'test']);
if (chosen.some(({ needsPackage }) => needsPackage)) await must('node', ['scripts/build.mjs']);
rmSync(reports, { recursive: true, force: true });
mkdirSync(reports, { recursive: true });

/** @type {{ name: string, outcome: Outcome, seconds: number }[]} */
const results = [];
for (const { name, title, execute } of chosen) {
  heading(`${title} (${name})`);
  const start = performance.now();
  let outcome = await execute();
  if (outcome.notRun) {
    console.error(`\n!! NOT RUN: ${name}: ${outcome.notRun}\n`);
    if (process.env.CI === 'true') outcome = { ...outcome, failed: 1 };
  }
  results.push({ name, outcome, seconds: (performance.now() - start) / 1000 });
}

heading('Summary');
for (const { name, outcome, seconds } of results) {
  const { passed, failed, skipped = 0, notRun } = outcome;
  const counts = notRun
    ? `NOT RUN: ${notRun}`
    : `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} SKIPPED` : ''}`;
  console.log(`${failed > 0 ? '✗' : notRun ? '!' : '✓'} ${name.padEnd(18)}${counts}  (${seconds.toFixed(0)} s)`);
}
const passed = results.reduce((sum, { outcome }) => sum + outcome.passed, 0);
const failed = results.reduce((sum, { outcome }) => sum + outcome.failed, 0);
console.log(`\n${passed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;
