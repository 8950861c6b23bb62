import { loadNeedle3, NEEDLE3, type DecodeState, type ModelConfig, type Needle3 } from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { expectError, expectRejection } from './support/assert.js';
import { expectSameTrace, Inputs, observe, step, steps } from './support/drive.js';
import { HYBRID, PLAIN, widths } from './support/geometry.js';
import { startBytes } from './support/instance.js';

const MIB = 2 ** 20;

/** One layer, local or global, whose positions are large: 64 KiB each. */
const LARGE: ModelConfig = {
  ...PLAIN,
  numHeads: 1,
  numKvHeads: 1,
  qkHeadDim: 8192,
  vHeadDim: 8192,
  maxSeqLen: 4096,
  qkvConvTaps: 2,
};

describe('memory that is given back', () => {
  it('linear memory stays flat over 1,000 rounds of create, grow, fork, mark, save, restore and dispose', async () => {
    const needle = await loadNeedle3();
    const inputs = new Inputs(HYBRID, 1);
    let flat = 0;
    for (let round = 0; round < 1000; round++) {
      const precision = round % 2 === 0 ? 'f32' : 'int8';
      const state = needle.createDecodeState(HYBRID, { capacityHint: 1, precision });
      const taps = needle.allocate(100 + round);
      steps(state, inputs, 1, 7);
      const mark = state.mark();
      steps(state, inputs, 9);
      const fork = state.fork();
      step(fork, inputs, 2);
      const restored = needle.restoreDecodeState(state.save());
      if (round % 3 === 0) state.rollback(mark);
      if (round % 3 === 1) state.release(mark);
      for (const each of [fork, state, restored]) each.dispose();
      taps.dispose();
      expect(needle.memory.allocatedBytes, `bytes in use after round ${round}`).toBe(0);
      // Sizes repeat after the first few rounds, so all room that is ever needed is there by then.
      if (round === 10) flat = needle.memory.linearBytes;
    }
    expect(needle.memory.linearBytes).toBe(flat);
  });

  it('large states come and go in the room of one', async () => {
    const needle = await loadNeedle3();
    const rounds = 200;
    let flat = 0;
    for (let round = 0; round < rounds; round++) {
      const state = needle.createDecodeState(NEEDLE3, { capacityHint: 64 + round });
      state.dispose();
      const array = needle.allocate(MIB);
      array.dispose();
      if (round === rounds / 2) flat = needle.memory.linearBytes;
    }
    expect(needle.memory.linearBytes).toBeLessThanOrEqual(flat + 4 * MIB);
    expect(needle.memory.allocatedBytes).toBe(0);
  });

  it('allocatedBytes counts states, marks and arrays, and neither staging nor scratch', async () => {
    const needle = await loadNeedle3();
    expect(needle.memory.allocatedBytes).toBe(0);
    needle.fakeQuantize(new Float32Array(100_000));
    needle.quantizeRows(new Float32Array(100_000), 10);
    expect(needle.memory.allocatedBytes).toBe(0);
    const array = needle.allocate(1000);
    const withArray = needle.memory.allocatedBytes;
    expect(withArray).toBeGreaterThanOrEqual(4000);
    expect(withArray).toBeLessThan(4100);
    const state = needle.createDecodeState(NEEDLE3);
    expect(needle.memory.allocatedBytes - withArray).toBeGreaterThanOrEqual(state.byteLength);
    expect(needle.memory.allocatedBytes - withArray).toBeLessThan(1.05 * state.byteLength);
    const { allocatedBytes } = needle.memory;
    const mark = state.mark();
    expect(needle.memory.allocatedBytes - allocatedBytes).toBeGreaterThanOrEqual(state.markBytes);
    state.release(mark);
    expect(needle.memory.allocatedBytes).toBe(allocatedBytes);
    state.dispose();
    expect(needle.memory.allocatedBytes).toBe(withArray);
    array.dispose();
    expect(needle.memory.allocatedBytes).toBe(0);
  });

  it('a decode step allocates nothing between growths', async () => {
    const needle = await loadNeedle3();
    const inputs = new Inputs(HYBRID, 2);
    for (const precision of ['f32', 'int8'] as const) {
      const state = needle.createDecodeState(HYBRID, { capacityHint: 1, precision });
      // Past the last growth, and with the batch sizes that follow seen.
      steps(state, inputs, ...Array<number>(33).fill(1), 6, 6);
      const before = needle.memory;
      for (let round = 0; round < 200; round++) {
        step(state, inputs, round % 5 === 0 ? 6 : 1);
        if (needle.memory.allocatedBytes !== before.allocatedBytes) {
          expect(needle.memory.allocatedBytes, `after step ${round}`).toBe(before.allocatedBytes);
        }
      }
      expect(needle.memory).toEqual(before);
      state.dispose();
    }
  });

  it('a step allocates only where a layer grows', async () => {
    const needle = await loadNeedle3();
    const state = needle.createDecodeState(PLAIN, { capacityHint: 1 });
    const { k, v } = widths(PLAIN);
    for (let position = 0; position < 40; position++) {
      const [slots, bytes] = [state.slots(0), needle.memory.allocatedBytes];
      state.writeKv(0, new Float32Array(k), new Float32Array(v));
      state.advance();
      const grown = state.slots(0) - slots;
      expect(needle.memory.allocatedBytes - bytes, `at position ${position}`).toBe(grown * (k + v) * 4);
    }
    state.dispose();
  });
});

/** Takes memory until not even `step` bytes are left. Returns the arrays that hold it. */
function exhaust(needle: Needle3, stepBytes: number): { dispose(): void } {
  const held: { dispose(): void }[] = [];
  for (let bytes = 64 * MIB; bytes >= stepBytes;) {
    try {
      held.push(needle.allocate(bytes / 4));
    } catch {
      bytes /= 2;
    }
  }
  return { dispose: () => held.forEach((array) => array.dispose()) };
}

describe('memory that runs out', () => {
  it('a bound below the start, above 4 GiB or no integer: range or type', async () => {
    const start = await startBytes();
    expect(start).toBeLessThanOrEqual(16 * MIB);
    for (const maximumMemoryBytes of [0, -1, start - 1, start + 0.5, 2 ** 32 + 1, NaN, Infinity]) {
      await expectRejection(
        loadNeedle3({ maximumMemoryBytes }),
        'range',
        'maximumMemoryBytes',
        String(maximumMemoryBytes),
      );
    }
    for (const maximumMemoryBytes of [null, '16777216', true, {}]) {
      await expectRejection(
        loadNeedle3({ maximumMemoryBytes: maximumMemoryBytes as number }),
        'type',
        'maximumMemoryBytes',
      );
    }
    const least = await loadNeedle3({ maximumMemoryBytes: start });
    expect(least.memory.linearBytes).toBe(start);
    least.createDecodeState(HYBRID).dispose();
    expectError(() => least.allocate(start / 4), 'out-of-memory', 'allocate: ', String(start / 4));
  });

  /** What may run out: the call, on a state of the layout under test. */
  const calls: Record<string, (needle: Needle3, state: DecodeState) => { dispose(): void } | undefined> = {
    create: (needle) => needle.createDecodeState(LARGE, { capacityHint: 64 }),
    fork: (_, state) => state.fork(),
    restore: (needle, state) => needle.restoreDecodeState(snapshotOf(state)),
    allocate: (needle) => needle.allocate(MIB),
  };
  const snapshots = new WeakMap<DecodeState, Uint8Array>();
  function snapshotOf(state: DecodeState): Uint8Array {
    return snapshots.get(state)!;
  }

  for (const [name, make] of Object.entries(calls)) {
    it(`${name}: out-of-memory, nothing taken, and it succeeds once another state is disposed of`, async () => {
      const needle = await loadNeedle3({ maximumMemoryBytes: 32 * MIB });
      const roomy = await loadNeedle3();
      const inputs = new Inputs(LARGE, 3);
      const [state, spare] = [1, 2].map(() => needle.createDecodeState(LARGE, { capacityHint: 64 })) as [
        DecodeState,
        DecodeState,
      ];
      const twin = roomy.createDecodeState(LARGE, { capacityHint: 64 });
      steps(state, inputs, 3);
      steps(twin, inputs, 3);
      snapshots.set(state, state.save());
      exhaust(needle, 64 * 1024);
      const before = { ...observe(state), ...needle.memory };
      expectError(() => make(needle, state), 'out-of-memory', /(create|fork|restore|allocate)/);
      expect({ ...observe(state), ...needle.memory }).toEqual(before);
      expectSameTrace(steps(state, inputs, 1, 3), steps(twin, inputs, 1, 3), 'after the failure');
      spare.dispose();
      const made = make(needle, state);
      expect(needle.memory.linearBytes).toBeLessThanOrEqual(32 * MIB);
      made?.dispose();
    });
  }

  it('growth of a layer: out-of-memory at writeKv, appendAndAttend and an import, and it succeeds once there is room', async () => {
    const needle = await loadNeedle3({ maximumMemoryBytes: 32 * MIB });
    const roomy = await loadNeedle3();
    const inputs = new Inputs(LARGE, 4);
    const state = needle.createDecodeState(LARGE, { capacityHint: 64 });
    const twin = roomy.createDecodeState(LARGE, { capacityHint: 64 });
    const { q, k, v, out } = widths(LARGE);
    steps(state, inputs, ...Array<number>(64).fill(1));
    steps(twin, inputs, ...Array<number>(64).fill(1));
    const hoard = exhaust(needle, 64 * 1024);
    const before = { ...observe(state), ...needle.memory };
    const rows = (width: number): Float32Array => new Float32Array(width).fill(1);
    expectError(() => state.writeKv(0, rows(k), rows(v)), 'out-of-memory', 'writeKv: ');
    expectError(() => state.writeKv(0, rows(k), rows(v), 64), 'out-of-memory', 'writeKv: ');
    expectError(
      () => state.appendAndAttend(0, rows(q), rows(k), rows(v), rows(out)),
      'out-of-memory',
      'appendAndAttend: ',
    );
    expect({ ...observe(state), ...needle.memory }).toEqual(before);
    // The step goes on: the failed calls set nothing.
    state.discard();
    hoard.dispose();
    expectSameTrace(steps(state, inputs, 1, 2), steps(twin, inputs, 1, 2), 'once there is room');
  });

  it('mark: out-of-memory, and it succeeds once there is room', async () => {
    const needle = await loadNeedle3({ maximumMemoryBytes: 32 * MIB });
    const roomy = await loadNeedle3();
    // Tails that take megabytes, while a row takes little.
    const config: ModelConfig = {
      ...HYBRID,
      dModel: 1024,
      engram: { ...HYBRID.engram, sites: [0], convTaps: 33, convDilation: 32 },
    };
    const inputs = new Inputs(config, 5);
    const [state, twin] = [needle.createDecodeState(config), roomy.createDecodeState(config)];
    for (const each of [state, twin]) steps(each, inputs, 1, 5);
    const hoard = exhaust(needle, 64 * 1024);
    const before = { ...observe(state), ...needle.memory };
    expectError(() => state.mark(), 'out-of-memory', 'mark: ');
    expect({ ...observe(state), ...needle.memory }).toEqual(before);
    expectSameTrace(steps(state, inputs, 1), steps(twin, inputs, 1), 'after the failure');
    hoard.dispose();
    const mark = state.mark();
    expectSameTrace(steps(state, inputs, 3), steps(twin, inputs, 3), 'beside a mark');
    state.rollback(mark);
  });

  it('rows that a mark needs kept: out-of-memory at the write, and it succeeds once there is room', async () => {
    const needle = await loadNeedle3({ maximumMemoryBytes: 32 * MIB });
    const roomy = await loadNeedle3();
    const config: ModelConfig = { ...LARGE, slidingWindow: 16 };
    const inputs = new Inputs(config, 6);
    const [state, twin] = [needle.createDecodeState(config), roomy.createDecodeState(config)];
    for (const each of [state, twin]) steps(each, inputs, 16, 1);
    const mark = state.mark();
    // Position 17 takes the slot of position 1, which no query from 17 on reads; 18 takes that of 2, which the mark needs.
    for (const each of [state, twin]) steps(each, inputs, 1);
    const { k, v } = widths(config);
    const hoard = exhaust(needle, 16 * 1024);
    const before = { ...observe(state), ...needle.memory };
    expectError(() => state.writeKv(0, new Float32Array(k), new Float32Array(v)), 'out-of-memory', 'writeKv: ');
    expect({ ...observe(state), ...needle.memory }).toEqual(before);
    hoard.dispose();
    expectSameTrace(steps(state, inputs, 1, 1), steps(twin, inputs, 1, 1), 'once there is room');
    state.rollback(mark);
    expect(state.position).toBe(17);
  });

  it('save takes no linear memory, so that it works where nothing is left', async () => {
    const needle = await loadNeedle3({ maximumMemoryBytes: 32 * MIB });
    const state = needle.createDecodeState(LARGE, { capacityHint: 64 });
    steps(state, new Inputs(LARGE, 8), 3);
    const fingerprint = Uint8Array.of(1, 2, 3);
    const saved = state.save({ fingerprint });
    const hoard = exhaust(needle, 16);
    const before = needle.memory;
    expect(state.save({ fingerprint })).toEqual(saved);
    expect(needle.memory).toEqual(before);
    hoard.dispose();
  });

  it('staging for a larger batch: out-of-memory, and a smaller one still goes', async () => {
    const needle = await loadNeedle3({ maximumMemoryBytes: 32 * MIB });
    const roomy = await loadNeedle3();
    const inputs = new Inputs(LARGE, 7);
    const [state, twin] = [needle, roomy].map((each) => each.createDecodeState(LARGE, { capacityHint: 64 })) as [
      DecodeState,
      DecodeState,
    ];
    for (const each of [state, twin]) steps(each, inputs, 2);
    const before = { ...observe(state), ...needle.memory };
    const { q } = widths(LARGE);
    const rows = new Float32Array(1024 * q).fill(1);
    const taps = inputs.taps(0, 'q');
    expectError(() => state.conv(0, 'q', taps, rows), 'out-of-memory', 'conv: ');
    expect(rows.every((x) => x === 1)).toBe(true);
    expectError(() => needle.fakeQuantize(rows), 'out-of-memory', 'fakeQuantize: ');
    expectError(() => needle.quantizeRows(rows, q), 'out-of-memory', 'quantizeRows: ');
    expect({ ...observe(state), ...needle.memory }).toEqual(before);
    expectSameTrace(steps(state, inputs, 1, 2), steps(twin, inputs, 1, 2), 'after the failure');
  });
});

describe('memory used up to its last block', () => {
  it('leaves every error what it is, and the state as it was', async () => {
    const needle = await loadNeedle3({ maximumMemoryBytes: await startBytes() });
    const state = needle.createDecodeState(PLAIN, { capacityHint: 1 });
    const { q, k, v, out } = widths(PLAIN);
    const keys = needle.allocate(k);
    const values = needle.allocate(v);
    const query = needle.allocate(q);
    const rows = needle.allocate(out);
    const snapshot = state.save();
    const before = needle.memory.allocatedBytes;
    const fillers = [];
    for (let length = MIB; length >= 1;) {
      try {
        fillers.push(needle.allocate(length - 1));
      } catch {
        length = Math.floor(length / 2);
      }
    }
    const short = keys.subarray(0, k - 1);
    expectError(() => state.writeKv(0, short, values), 'shape', 'keys');
    expectError(() => state.attend(0, query, rows), 'range', 'layer 0');
    expectError(() => state.engramIndices(), 'range', 'token');
    expectError(() => state.mark(), 'out-of-memory', 'mark');
    expectError(() => state.fork(), 'out-of-memory', 'fork');
    expectError(() => needle.createDecodeState(PLAIN), 'out-of-memory', 'createDecodeState');
    expectError(() => needle.restoreDecodeState(snapshot), 'out-of-memory', 'restoreDecodeState');
    for (const filler of fillers) filler.dispose();
    expect(needle.memory.allocatedBytes).toBe(before);
    state.appendAndAttend(0, query, keys, values, rows);
    state.advance();
    expect(state.position).toBe(1);
    needle.createDecodeState(PLAIN, { capacityHint: 1 }).dispose();
  });

  it('is refused where scratch alone would pass 4 GiB', async () => {
    const needle = await loadNeedle3();
    const wide = { ...PLAIN, numHeads: 1, numKvHeads: 1, numLayers: 1, maxSeqLen: 1, qkHeadDim: 1, vHeadDim: 1 };
    for (const width of ['qkHeadDim', 'vHeadDim'] as const) {
      const config = { ...wide, [width]: 2 ** 26 + 1 };
      expectError(() => needle.createDecodeState(config), 'out-of-memory', 'createDecodeState');
    }
    expect(needle.memory.allocatedBytes).toBe(0);
  });
});
