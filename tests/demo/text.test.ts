import { describe, expect, it } from 'vitest';

import { geometryNamed } from '../../web/demo/src/geometries.js';
import { explain, sightAt } from '../../web/demo/src/ui/explain.js';
import { formatBytes, formatMilliseconds } from '../../web/demo/src/ui/format.js';
import { decodeText, encodeText, END_OF_TEXT, keepLegible, OUTPUT_IDS } from '../../web/demo/src/vocabulary.js';

describe('the vocabulary', () => {
  it('gives text back as it was, special ids left out', () => {
    expect(decodeText([...encodeText('Tromsø → 東京'), END_OF_TEXT])).toBe('Tromsø → 東京');
  });

  it('leaves the end of the text to be chosen only where the model may end it', () => {
    const logits = () => new Float32Array(OUTPUT_IDS);
    const free = logits();
    keepLegible(free, true);
    const kept = logits();
    keepLegible(kept, false);
    expect(free[END_OF_TEXT]).toBe(0);
    expect(kept[END_OF_TEXT]).toBe(-Infinity);
    const legible = [...kept.keys()].filter((id) => kept[id] === 0);
    expect(decodeText(legible)).toBe(' ,.abcdefghijklmnopqrstuvwxyz');
  });
});

describe('figures', () => {
  it('are shown in the unit that keeps them short', () => {
    expect([0, 1023, 1536, 44040192].map(formatBytes)).toEqual(['0 B', '1023 B', '1.50 KiB', '42 MiB']);
    expect([0.0125, 1.234, 56.78, 1500].map(formatMilliseconds)).toEqual(['13 µs', '1.23 ms', '56.8 ms', '1.50 s']);
  });
});

describe('the explanation', () => {
  const { config } = geometryNamed('pocket');
  const titleAt = (position: number, saturated = false) => explain(config, position, [position], saturated).title;

  it('follows the state from empty to saturated', () => {
    const { slidingWindow, maxSeqLen } = config;
    expect(titleAt(0)).toBe('Nothing is remembered yet');
    expect(titleAt(slidingWindow - 1)).toBe('The rings are growing');
    expect(titleAt(slidingWindow)).toBe('The local rings have wrapped');
    expect(titleAt(maxSeqLen)).toBe('The context is full');
    expect(titleAt(maxSeqLen + 1, true)).toBe('Saturated: even the global layers forget now');
  });

  it('tells what the next token will see: the window, the context, and itself', () => {
    const ranges = (position: number) => sightAt(config, position).map(({ range }) => range);
    expect(ranges(0)).toEqual(['0 to 0', '0 to 0']);
    expect(ranges(31)).toEqual(['0 to 31', '0 to 31']);
    expect(ranges(32)).toEqual(['1 to 32', '0 to 32']);
    expect(ranges(160)).toEqual(['129 to 160', '1 to 160']);
  });
});
