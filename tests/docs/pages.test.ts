/** What the pages say about one another and about the package. */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { loadNeedle3, NEEDLE3, type DecodeState, type Precision } from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { pages, readPage } from './fences.js';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The anchors that GitHub gives a page's headings. */
function anchorsOf(markdown: string): Set<string> {
  const withoutFences = markdown.replace(/^```[^]*?^```$/gm, '');
  return new Set(
    [...withoutFences.matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
      heading
        .toLowerCase()
        .replace(/[^\p{L}\p{N} _-]/gu, '')
        .replaceAll(' ', '-'),
    ),
  );
}

/** A state of the shipped geometry that holds so many positions. */
function filled(state: DecodeState, positions: number): DecodeState {
  const batch = 128;
  const keys = new Float32Array(batch * NEEDLE3.numKvHeads * NEEDLE3.qkHeadDim);
  const values = new Float32Array(batch * NEEDLE3.numKvHeads * NEEDLE3.vHeadDim);
  while (state.position < positions) {
    for (let layer = 0; layer < NEEDLE3.numLayers; layer++) state.writeKv(layer, keys, values);
    for (let row = 0; row < batch; row++) state.pushToken(row);
    state.advance(batch);
  }
  return state;
}

describe('the pages', () => {
  it.each([...pages(root), 'CHANGELOG.md'])('%s links to files and headings that are there', (page) => {
    const broken: string[] = [];
    for (const [, link] of readPage(root, page).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^https?:/.test(link)) continue;
      const [path, anchor] = link.split('#');
      const target = path === '' ? page : join(dirname(page), path);
      if (!existsSync(join(root, target))) broken.push(link);
      else if (anchor && !anchorsOf(readPage(root, target)).has(anchor)) broken.push(link);
    }
    expect(broken).toEqual([]);
  });

  it.each([...pages(root), 'CHANGELOG.md'])('%s names scripts that package.json has', (page) => {
    const { scripts } = JSON.parse(readPage(root, 'package.json')) as { scripts: Record<string, string> };
    const named = [...readPage(root, page).matchAll(/npm run ([\w:-]+)/g)].map(([, script]) => script);
    expect(named.filter((script) => !(script in scripts))).toEqual([]);
  });

  it('are all linked from README.md', () => {
    const readme = readPage(root, 'README.md');
    expect(pages(root).filter((page) => page !== 'README.md' && !readme.includes(`](${page}`))).toEqual([]);
  });

  it("have the memory table that the package's states give", async () => {
    const needle3 = await loadNeedle3();
    const measured = (precision: Precision, positions: number): string => {
      const state = filled(needle3.createDecodeState(NEEDLE3, { precision, capacityHint: positions }), positions);
      const MiB = (state.byteLength / 2 ** 20).toFixed(1);
      state.dispose();
      return MiB;
    };
    const rows = [512, 2048, 8192].map((n) => [String(n), measured('f32', n), measured('int8', n)]);
    const widths = [0, 1, 2].map((column) =>
      Math.max(...rows.map((row) => row[column].length), ['positions', 'f32', 'int8'][column].length),
    );
    const line = (cells: readonly string[]): string =>
      `| ${cells.map((cell, i) => cell.padStart(widths[i])).join(' | ')} |`;
    const table = [
      line(['positions', 'f32', 'int8']),
      `| ${widths.map((width) => `${'-'.repeat(width - 1)}:`).join(' | ')} |`,
      ...rows.map(line),
    ].join('\n');
    for (const page of ['README.md', 'docs/guides/memory-on-phones.md']) expect(readPage(root, page)).toContain(table);
  });

  it('explain every error code', async () => {
    const { ERROR_CODES } = await import('../../web/src/core/module.js');
    const codes = ERROR_CODES.filter((code) => code !== 'ok');
    expect(codes.filter((code) => !readPage(root, 'README.md').includes(`| \`${code}\``))).toEqual([]);
    expect(codes.filter((code) => !anchorsOf(readPage(root, 'docs/guides/troubleshooting.md')).has(code))).toEqual([]);
  });
});
