#!/usr/bin/env node
// @ts-check
// The long run of random operations against the naive reference, natively.
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { heading, must, root } from './lib/tools.mjs';

const usage = `usage: node scripts/soak.mjs [--short]

200,000 tokens at a small geometry and 20,000 at the shipped one, with random forks, marks, rollbacks, saves, restores and
disposals. --short does a tenth of it.
`;

const { values } = parseArgs({
  options: { short: { type: 'boolean', default: false }, help: { type: 'boolean', default: false } },
});
if (values.help) {
  console.log(usage);
} else {
  await must('cmake', ['--preset', 'native']);
  await must('cmake', ['--build', '--preset', 'native', '--target', 'needle3_soak']);
  for (const [geometry, tokens] of /** @type {const} */ ([
    ['small', 200_000],
    ['shipped', 20_000],
  ])) {
    const count = values.short ? tokens / 10 : tokens;
    heading(`${count} tokens, ${geometry} geometry`);
    await must(join(root, 'build/native/tests/soak/needle3_soak'), ['--tokens', String(count), '--geometry', geometry]);
  }
}
