#!/usr/bin/env node
// @ts-check
// Fuzzes the core natively under AddressSanitizer and UndefinedBehaviorSanitizer, all targets at once.
import { mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { capture, fail, heading, must, root } from './lib/tools.mjs';

const usage = `usage: node scripts/fuzz.mjs [--seconds N]

Runs every target in tests/fuzz for N seconds (default 60), from the seeds in tests/fuzz/corpus and from what earlier
runs found (build/fuzz/corpus). An input that fails is left in build/fuzz/found.
`;

const { values } = parseArgs({
  options: { seconds: { type: 'string', default: '60' }, help: { type: 'boolean', default: false } },
});
if (values.help) {
  console.log(usage);
} else {
  if (!/^[1-9]\d*$/.test(values.seconds)) fail(`--seconds ${values.seconds}: a whole number from 1\n\n${usage}`);
  heading('Fuzzers');
  await must('cmake', ['--preset', 'fuzz']);
  await must('cmake', ['--build', '--preset', 'fuzz']);

  const targets = readdirSync(join(root, 'tests/fuzz'))
    .filter((name) => name.endsWith('_fuzz.cpp'))
    .map((name) => name.replace('.cpp', ''));
  mkdirSync(join(root, 'build/fuzz/found'), { recursive: true });
  console.log(`${targets.join(', ')}: ${values.seconds} s each`);
  const outcomes = await Promise.all(
    targets.map(async (target) => {
      const found = join(root, 'build/fuzz/corpus', target);
      mkdirSync(found, { recursive: true });
      const { code, output } = await capture(
        join(root, 'build/fuzz/tests/fuzz', target),
        [
          `-max_total_time=${values.seconds}`,
          `-artifact_prefix=build/fuzz/found/${target}-`,
          '-print_final_stats=1',
          found,
          `tests/fuzz/corpus/${target.replace('_fuzz', '')}`,
        ],
        { env: { UBSAN_OPTIONS: 'print_stacktrace=1' } },
      );
      const runs = /number_of_executed_units: (\d+)/.exec(output)?.[1] ?? 'no';
      console.log(`${code === 0 ? '✓' : '✗'} ${target}: ${runs} inputs`);
      if (code !== 0) console.log(output);
      return code;
    }),
  );
  process.exitCode = outcomes.some((code) => code !== 0) ? 1 : 0;
}
