#!/usr/bin/env node
// @ts-check
// Checks form and types: each check by name, so that `npm test` can run and count them one by one.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { capture, heading, nodeBin, root } from './lib/tools.mjs';

/** Every .cpp file that clang-tidy looks at; headers come with them. */
function sources() {
  return ['src'].flatMap((directory) =>
    readdirSync(join(root, directory), { recursive: true })
      .map(String)
      .filter((name) => name.endsWith('.cpp'))
      .map((name) => `${directory}/${name}`),
  );
}

/** clang-tidy reads how files are compiled from the sanitized build: clang's own flags. */
async function clangTidy() {
  const configured = await capture('cmake', ['--preset', 'native-sanitized']);
  if (configured.code !== 0) return configured;
  const names = sources();
  const half = Math.ceil(names.length / 2);
  const results = await Promise.all(
    [names.slice(0, half), names.slice(half)]
      .filter((part) => part.length > 0)
      .map((part) => capture('clang-tidy', ['--quiet', '-p', 'build/sanitized', ...part])),
  );
  return { code: Math.max(...results.map(({ code }) => code)), output: results.map(({ output }) => output).join('') };
}

/** @type {{ name: string, check: () => Promise<{ code: number, output: string }> }[]} */
export const checks = [
  { name: 'formatting', check: () => capture('node', ['scripts/format.mjs', '--check']) },
  { name: 'types of sources, tests, demo and scripts', check: () => capture(nodeBin('tsc'), ['-p', 'tsconfig.json']) },
  { name: 'ESLint', check: () => capture(nodeBin('eslint'), ['--max-warnings=0', '.']) },
  { name: 'clang-tidy', check: clangTidy },
];

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  for (const { name, check } of checks) {
    heading(name);
    const { code, output } = await check();
    if (code === 0) console.log('ok');
    else {
      console.log(output);
      process.exitCode = 1;
    }
  }
}
