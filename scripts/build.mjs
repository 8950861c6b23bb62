#!/usr/bin/env node
// @ts-check
// Builds the package into dist/, from clean: the WebAssembly core with its glue, and the TypeScript around it.
import { copyFile, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { emscriptenEnvironment, heading, must, nodeBin, root } from './lib/tools.mjs';

const usage = `usage: node scripts/build.mjs

Compiles src/ and bindings/ with Emscripten and web/src with TypeScript, into dist/: what the package ships.
Run scripts/setup.mjs first.
`;

const dist = join(root, 'dist');

async function buildCore() {
  heading('WebAssembly core');
  await must('cmake', ['--preset', 'wasm'], { env: emscriptenEnvironment });
  await must('cmake', ['--build', '--preset', 'wasm', '--target', 'needle3_wasm'], { env: emscriptenEnvironment });
}

/** The glue as Emscripten writes it, made small. It is a module, and keeps its own reference to needle3.wasm. */
async function minifyGlue() {
  const { minify } = await import('terser');
  const source = await readFile(join(root, 'build/wasm/bindings/needle3.js'), 'utf8');
  const { code } = await minify(source, { module: true, ecma: 2020, compress: { passes: 2 }, mangle: true });
  if (!code) throw new Error('terser gave nothing');
  await writeFile(join(dist, 'needle3.js'), code);
}

const { values } = parseArgs({ options: { help: { type: 'boolean', default: false } } });
if (values.help) {
  console.log(usage);
} else {
  await buildCore();

  heading('dist/');
  await rm(dist, { recursive: true, force: true });
  await mkdir(dist);
  await must(nodeBin('tsc'), ['-p', 'tsconfig.build.json']);
  await minifyGlue();
  await copyFile(join(root, 'build/wasm/bindings/needle3.wasm'), join(dist, 'needle3.wasm'));
  // A declaration file is not output of tsc's, yet the emitted declarations refer to it.
  await copyFile(join(root, 'web/src/needle3.d.ts'), join(dist, 'needle3.d.ts'));
  for (const file of ['needle3.wasm', 'needle3.js']) {
    console.log(`dist/${file}  ${((await stat(join(dist, file))).size / 1000).toFixed(1)} kB`);
  }
}
