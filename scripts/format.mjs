#!/usr/bin/env node
// @ts-check
// Formats every file of the project, or with --check says which ones are not formatted.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { capture, nodeBin, root, run } from './lib/tools.mjs';

const usage = `usage: node scripts/format.mjs [--check]

clang-format for C++, Prettier for everything else. --check changes nothing and fails where something would change.
`;

const { values } = parseArgs({
  options: { check: { type: 'boolean', default: false }, help: { type: 'boolean', default: false } },
});
if (values.help) {
  console.log(usage);
} else {
  const cpp = ['src', 'bindings', 'tests', 'bench'].flatMap((directory) =>
    readdirSync(join(root, directory), { recursive: true })
      .map((name) => `${directory}/${name}`)
      .filter((name) => /\.(cpp|h)$/.test(name) && !name.includes('node_modules')),
  );
  const formatted = values.check
    ? await capture('clang-format', ['--dry-run', '--Werror', ...cpp])
    : await capture('clang-format', ['-i', ...cpp]);
  // One line a file, as Prettier has it.
  const unformatted = new Set(formatted.output.match(/^[^:\n]+(?=:\d+:\d+: error: code should be)/gm));
  for (const name of unformatted) console.log(`[warn] ${name}`);
  if (formatted.code !== 0 && unformatted.size === 0) console.log(formatted.output);
  const prettier = await run(nodeBin('prettier'), [values.check ? '--check' : '--write', '--log-level=warn', '.']);
  process.exitCode = formatted.code === 0 && prettier === 0 ? 0 : 1;
}
