#!/usr/bin/env node
// @ts-check
// Checks what a page downloads: the package's entries, bundled and minified, and the .wasm, compressed by brotli.
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { must, nodeBin, root } from './lib/tools.mjs';

const usage = `usage: node scripts/size.mjs

Bundles the entries of dist/ as an application's bundler would and holds the result against .size-limit.json.
`;

const { values } = parseArgs({ options: { help: { type: 'boolean', default: false } } });
if (values.help) {
  console.log(usage);
} else {
  const { build } = await import('vite');
  const entries = { core: 'needle3-wasm', store: 'needle3-wasm/store' };
  for (const [name, entry] of Object.entries(entries)) {
    const outDir = join(root, 'build', 'size', name);
    const input = join(root, 'build', 'size', `${name}.js`);
    await rm(outDir, { recursive: true, force: true });
    await mkdir(outDir, { recursive: true });
    await writeFile(input, `export * from '${entry}';\n`);
    await build({
      root,
      configFile: false,
      logLevel: 'warn',
      publicDir: false,
      build: {
        outDir,
        target: 'es2022',
        minify: true,
        modulePreload: false,
        assetsInlineLimit: 0,
        rolldownOptions: { input, preserveEntrySignatures: 'strict' },
      },
    });
  }
  await must(nodeBin('size-limit'), []);
}
