#!/usr/bin/env node
// @ts-check
// Which lines the tests reach: of the C++ core by GoogleTest, of the package by Vitest in Node.
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { fail, findProgram, heading, must, nodeBin, root } from './lib/tools.mjs';

const usage = `usage: node scripts/coverage.mjs

Prints a table for C++ (src/) and one for TypeScript (web/src, by what dist/ runs in Node), and writes pages to coverage/.
`;

const { values } = parseArgs({ options: { help: { type: 'boolean', default: false } } });
if (values.help) {
  console.log(usage);
} else {
  const versions = ['', ...Array.from({ length: 20 }, (_, i) => `-${14 + i}`)];
  const profdata = findProgram(...versions.map((version) => `llvm-profdata${version}`));
  const cov = findProgram(...versions.map((version) => `llvm-cov${version}`));
  if (!profdata || !cov) fail('llvm-profdata and llvm-cov are needed (on Debian: apt-get install llvm)');
  rmSync(join(root, 'coverage'), { recursive: true, force: true });

  heading('C++');
  await must('cmake', ['--preset', 'coverage']);
  await must('cmake', ['--build', '--preset', 'coverage', '--target', 'needle3_tests']);
  const program = 'build/coverage/tests/core/needle3_tests';
  const raw = 'build/coverage/tests.profraw';
  const profile = 'build/coverage/tests.profdata';
  await must(join(root, program), ['--gtest_brief=1'], { env: { LLVM_PROFILE_FILE: raw } });
  await must(profdata, ['merge', '-sparse', raw, '-o', profile]);
  await must(cov, ['report', program, `-instr-profile=${profile}`, 'src']);
  await must(cov, ['show', program, `-instr-profile=${profile}`, '-format=html', '-output-dir=coverage/cpp', 'src']);

  heading('TypeScript');
  await must('node', ['scripts/build.mjs']);
  await must(nodeBin('vitest'), [
    'run',
    '--project=node',
    '--coverage.enabled',
    '--coverage.provider=v8',
    '--coverage.include=dist/**/*.js',
    '--coverage.exclude=dist/needle3.js',
    '--coverage.reporter=text',
    '--coverage.reporter=html',
    '--coverage.reportsDirectory=coverage/typescript',
  ]);
}
