#!/usr/bin/env node
// @ts-check
// Builds the package from clean, checks the tarball, and says what would be published. Publishes only when told to.
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { capture, fail, heading, must, nodeBin, root } from './lib/tools.mjs';

const usage = `usage: node scripts/release.mjs [--publish]

Removes what earlier builds left, builds dist/, packs it into build/release, checks the tarball with publint and
are-the-types-wrong, installs it into an empty project and runs it there, and lists its files. Run npm test before.

  --publish  publishes the tarball to npm in the end; wants a clean working tree and a version that CHANGELOG.md has
`;

const release = join(root, 'build', 'release');

/** @typedef {{ name: string, version: string, filename: string, size: number, unpackedSize: number, files: { path: string, size: number }[] }} Packed */

/** @param {string} command @param {readonly string[]} args @param {{ cwd?: string }} [options] */
async function output(command, args, options) {
  const result = await capture(command, args, options);
  if (result.code !== 0) fail(`${[command, ...args].join(' ')} failed:\n${result.output}`);
  return result.output;
}

/** @returns {Promise<Packed>} */
async function pack() {
  await rm(release, { recursive: true, force: true });
  await mkdir(release, { recursive: true });
  const text = await output('npm', ['pack', '--json', '--silent', '--pack-destination', release]);
  const [packed] = JSON.parse(text);
  return packed;
}

/**
 * Installs the tarball as a user would, and decodes a step with it.
 * @param {string} tarball
 */
async function runInstalled(tarball) {
  const project = join(release, 'project');
  await mkdir(project);
  await writeFile(join(project, 'package.json'), '{ "private": true, "type": "module" }\n');
  await writeFile(
    join(project, 'main.js'),
    `import { loadNeedle3, NEEDLE3 } from 'needle3-wasm';
const needle3 = await loadNeedle3();
const state = needle3.createDecodeState(NEEDLE3, { precision: 'int8' });
const rows = (width) => new Float32Array(width).fill(0.5);
const out = rows(12 * 64).fill(0);
state.pushToken(1);
for (let layer = 0; layer < 20; layer++) state.appendAndAttend(layer, rows(12 * 48), rows(2 * 48), rows(2 * 64), out);
state.advance();
if (state.position !== 1 || Math.abs(out[0] - 0.5) > 0.01) throw new Error(\`position \${state.position}, output \${out[0]}\`);
`,
  );
  await output('npm', ['install', '--no-audit', '--no-fund', '--ignore-scripts', tarball], { cwd: project });
  await output('node', ['main.js'], { cwd: project });
}

/** @param {string} version */
async function checkPublishable(version) {
  if ((await output('git', ['status', '--porcelain'])).trim() !== '')
    fail('the working tree has changes: commit first');
  const changelog = await readFile(join(root, 'CHANGELOG.md'), 'utf8');
  if (!new RegExp(`^## ${version.replaceAll('.', '\\.')}\\b`, 'm').test(changelog)) {
    fail(`CHANGELOG.md has no section ${version}`);
  }
}

const { values } = parseArgs({
  options: { publish: { type: 'boolean', default: false }, help: { type: 'boolean', default: false } },
});
if (values.help) {
  console.log(usage);
} else {
  const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'));
  if (values.publish) await checkPublishable(version);
  await must('node', ['scripts/setup.mjs', '--for', 'build']);
  for (const left of ['dist', 'build/wasm']) await rm(join(root, left), { recursive: true, force: true });
  await must('node', ['scripts/build.mjs']);

  heading('Tarball');
  const packed = await pack();
  const tarball = join(release, packed.filename);
  await must(nodeBin('publint'), ['run', '--strict', tarball]);
  await must(nodeBin('attw'), ['--profile', 'esm-only', tarball, '--exclude-entrypoints', 'needle3.wasm']);
  await runInstalled(tarball);
  console.log('installed and run in an empty project: ok');

  heading(`${packed.name} ${packed.version}`);
  for (const { path, size } of packed.files) console.log(`${String(size).padStart(8)}  ${path}`);
  const kB = (/** @type {number} */ bytes) => `${(bytes / 1000).toFixed(1)} kB`;
  console.log(`\n${packed.files.length} files, ${kB(packed.unpackedSize)}, packed ${kB(packed.size)}`);
  if (values.publish) {
    heading('Publishing');
    await must('npm', ['publish', '--access', 'public', tarball]);
  } else {
    console.log('Not published: say --publish for that.');
  }
}
