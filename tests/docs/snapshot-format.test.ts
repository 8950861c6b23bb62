import { fileURLToPath, pathToFileURL } from 'node:url';

import { loadNeedle3, type DecodeState, type Needle3 } from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { toJavaScript } from './compile.js';
import { readPage, snippetsOf } from './fences.js';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const root = fileURLToPath(new URL('../..', import.meta.url));
const page = 'docs/snapshot-format.md';

/** The example of the page, as its bytes are. */
async function exampleBytes(): Promise<Uint8Array> {
  const example = snippetsOf(page, readPage(root, page)).find(({ fileName }) => fileName === 'example.ts')!;
  const folder = join(root, 'build', 'docs-snapshot-format');
  mkdirSync(folder, { recursive: true });
  const file = join(folder, 'example.js');
  writeFileSync(file, toJavaScript(example.code));
  const { createExample } = (await import(/* @vite-ignore */ pathToFileURL(file).href)) as {
    createExample: (needle3: Needle3) => DecodeState;
  };
  const state = createExample(await loadNeedle3());
  return state.save({ fingerprint: new TextEncoder().encode('hi') });
}

/** The rows of the page's table: offset and bytes. */
function documentedBytes(): { offset: number; bytes: number[] }[] {
  const table = /<!-- example:begin -->([^]*)<!-- example:end -->/.exec(readPage(root, page))?.[1] ?? '';
  return [...table.matchAll(/^\| +(\d+) \| ([0-9a-f ]+?) +\|/gm)].map(([, offset, bytes]) => ({
    offset: Number(offset),
    bytes: bytes.split(' ').map((byte) => parseInt(byte, 16)),
  }));
}

describe('docs/snapshot-format.md', () => {
  it('shows every byte of its example as a snapshot of it has them', async () => {
    const rows = documentedBytes();
    let at = 0;
    for (const { offset, bytes } of rows) {
      expect(offset).toBe(at);
      at += bytes.length;
    }
    expect(rows.flatMap(({ bytes }) => bytes)).toEqual([...(await exampleBytes())]);
  });
});
