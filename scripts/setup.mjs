#!/usr/bin/env node
// @ts-check
// Brings a machine with Node 20 to where the project builds, tests and runs: system packages and npm dependencies.
// What is there already is left alone, so that a second run does nothing.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { browsers, capture, fail, findProgram, must, root, run } from './lib/tools.mjs';

const usage = `usage: node scripts/setup.mjs [--for build|demo|test]

Installs what is missing: system packages through apt-get (as root, or through sudo where it asks for no password) and
npm dependencies as package-lock.json has them. An emsdk on PATH is used as it is.

  --for build   what compiles the package: Emscripten, CMake, Ninja
  --for demo    the same
  --for test    compilers, linters and browsers as well (default)
`;

/**
 * `optional`: what is tested with it is reported as not run where it cannot be had (scripts/test.mjs).
 * @type {{ name: string, package: string, present: () => unknown, optional?: boolean }[]}
 */
const buildTools = [
  { name: 'Emscripten (em++)', package: 'emscripten', present: () => findProgram('em++') && findProgram('emcc') },
  { name: 'CMake', package: 'cmake', present: () => findProgram('cmake') },
  { name: 'Ninja', package: 'ninja-build', present: () => findProgram('ninja') },
];

/** @type {typeof buildTools} */
const testTools = [
  { name: 'g++', package: 'g++', present: () => findProgram('g++') },
  { name: 'clang++', package: 'clang', present: () => findProgram('clang++') },
  { name: "clang's sanitizer runtime", package: 'libclang-rt-dev', present: () => clangRuntime() },
  { name: 'clang-format', package: 'clang-format', present: () => findProgram('clang-format') },
  { name: 'clang-tidy', package: 'clang-tidy', present: () => findProgram('clang-tidy') },
  {
    name: 'GoogleTest (sources)',
    package: 'libgtest-dev',
    present: () => existsSync('/usr/src/googletest/CMakeLists.txt'),
  },
  {
    name: 'JSON for Modern C++',
    package: 'nlohmann-json3-dev',
    present: () => existsSync('/usr/include/nlohmann/json.hpp'),
  },
  { name: 'Chromium', package: 'chromium', present: browsers.chromium, optional: true },
  { name: 'Firefox', package: 'firefox-esr', present: browsers.firefox, optional: true },
  { name: 'Xvfb', package: 'xvfb', present: () => findProgram('xvfb-run'), optional: true },
  { name: 'xauth', package: 'xauth', present: () => findProgram('xauth'), optional: true },
  { name: 'WebKitGTK', package: 'webkit2gtk-driver', present: browsers.webkit, optional: true },
];

function clangRuntime() {
  const clang = findProgram('clang++');
  if (!clang) return false;
  const resources = execFileSync(clang, ['-print-resource-dir'], { encoding: 'utf8' }).trim();
  const libraries = join(resources, 'lib');
  return (
    existsSync(libraries) && readdirSync(libraries, { recursive: true }).some((name) => /rt\.asan/.test(String(name)))
  );
}

/** @param {typeof buildTools} tools */
async function setUpPackages(tools) {
  const missing = tools.filter((tool) => !tool.present());
  if (missing.length === 0) return;
  console.log(`Missing: ${missing.map((tool) => tool.name).join(', ')}`);
  const packages = missing.map((tool) => tool.package);
  const byHand = `install ${missing.map((tool) => tool.name).join(', ')} (on Debian: apt-get install ${packages.join(' ')})`;
  if (!findProgram('apt-get')) fail(`no apt-get here: ${byHand}`);
  const isRoot = process.getuid?.() === 0;
  if (!isRoot && (!findProgram('sudo') || (await capture('sudo', ['-n', 'true'])).code !== 0)) {
    fail(`installing system packages needs root: ${byHand}`);
  }
  /** @param {string[]} args */
  const aptGet = (...args) => {
    const command = ['env', 'DEBIAN_FRONTEND=noninteractive', 'apt-get', '-q', ...args];
    return isRoot ? run(command[0], command.slice(1)) : run('sudo', ['-n', ...command]);
  };
  console.log(`Installing ${packages.join(' ')}`);
  await aptGet('update');
  // One by one where all at once fails, so that a package which this distribution lacks does not hold up the rest.
  if ((await aptGet('install', '-y', '--no-install-recommends', ...packages)) !== 0) {
    for (const name of packages) await aptGet('install', '-y', '--no-install-recommends', name);
  }
  const absent = missing.filter((tool) => !tool.present());
  const needed = absent.filter((tool) => !tool.optional);
  if (needed.length > 0) fail(`still missing after the installation: ${needed.map((tool) => tool.name).join(', ')}`);
  for (const tool of absent) console.log(`${tool.name} could not be installed: its tests will be reported as not run`);
}

/** Whether node_modules holds what package-lock.json asks for, by npm's own record of what it installed. */
function nodeModulesMatch() {
  const record = join(root, 'node_modules', '.package-lock.json');
  if (!existsSync(record)) return false;
  /** @type {(path: string) => Record<string, { version: string, integrity?: string, optional?: boolean }>} */
  const packages = (path) => JSON.parse(readFileSync(path, 'utf8')).packages;
  const installed = packages(record);
  const wanted = packages(join(root, 'package-lock.json'));
  // The project itself.
  delete wanted[''];
  return (
    Object.keys(installed).every((name) => name in wanted) &&
    // Optional ones are those of other platforms as well.
    Object.entries(wanted).every(([name, { version, integrity, optional }]) =>
      installed[name] ? installed[name].version === version && installed[name].integrity === integrity : optional,
    )
  );
}

async function setUpNodeModules() {
  if (nodeModulesMatch()) return;
  console.log('Installing npm dependencies');
  await must('npm', ['ci', '--no-audit', '--no-fund']);
}

const { values } = parseArgs({
  options: { for: { type: 'string', default: 'test' }, help: { type: 'boolean', default: false } },
});
if (values.help) {
  console.log(usage);
} else {
  if (!['build', 'demo', 'test'].includes(values.for)) fail(`--for ${values.for}: build, demo or test\n\n${usage}`);
  if (Number(process.versions.node.split('.')[0]) < 20) fail(`Node 20 or later is needed; this is ${process.version}`);
  await setUpPackages(values.for === 'test' ? [...buildTools, ...testTools] : buildTools);
  await setUpNodeModules();
}
