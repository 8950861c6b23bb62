import { loadNeedle3, NEEDLE3, type DecodeState, type ModelConfig, type Needle3 } from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { expectError } from './support/assert.js';
import { expectSameTrace, Inputs, observe, step, steps } from './support/drive.js';
import { HYBRID, NO_ENGRAM, PLAIN } from './support/geometry.js';
import { needle3 } from './support/instance.js';
import { fnv1a } from './support/wasm.js';

const OPTIONS = [
  { precision: 'f32' },
  { precision: 'int8', quantizeQuery: false },
  { precision: 'int8', quantizeQuery: true },
] as const;

function prepared(
  needle: Needle3,
  counts: readonly number[],
  options: (typeof OPTIONS)[number] = OPTIONS[0],
  config = HYBRID,
): DecodeState {
  const state = needle.createDecodeState(config, { ...options, capacityHint: 2 });
  steps(state, new Inputs(config, 31), ...counts);
  return state;
}

describe('a restored state', () => {
  for (const options of OPTIONS) {
    for (const counts of [[], [1], [3], [1, 1, 1, 1, 1], [9, 1], [30, 1, 1], [40]]) {
      it(`goes on bit for bit, ${JSON.stringify(options)} after steps of ${counts.join(', ') || 'none'}`, async () => {
        const needle = await needle3();
        // An instance of its own: nothing can be shared.
        const elsewhere = await loadNeedle3();
        const state = prepared(needle, counts, options);
        const bytes = state.save();
        const copies = [needle, elsewhere].map((each) => each.restoreDecodeState(bytes));
        for (const copy of copies) {
          expect(observe(copy)).toEqual(observe(state));
          expect(copy.config).toEqual(state.config);
          expect([copy.precision, copy.quantizeQuery]).toEqual([state.precision, state.quantizeQuery]);
          expect(copy.save()).toEqual(bytes);
        }
        const inputs = new Inputs(HYBRID, 31);
        const expected = steps(state, inputs, 1, 6, 1);
        for (const copy of copies) expectSameTrace(steps(copy, inputs, 1, 6, 1), expected, 'afterwards');
        for (const each of [state, ...copies]) each.dispose();
      });
    }
  }

  it('has no marks, and saving leaves those of the state as they are', async () => {
    const needle = await needle3();
    // Nine positions have grown the layers to sixteen slots, which is all they need here: growth would stay.
    const state = prepared(needle, [9]);
    const plain = state.save();
    const mark = state.mark();
    expect(state.save()).toEqual(plain);
    steps(state, new Inputs(HYBRID, 31), 6);
    const copy = needle.restoreDecodeState(state.save());
    expect(copy.markBytes).toBe(0);
    state.rollback(mark);
    expect(state.save()).toEqual(plain);
    state.dispose();
    copy.dispose();
  });

  it('comes of every geometry that makes sense', async () => {
    const needle = await needle3();
    const geometries: ModelConfig[] = [
      PLAIN,
      { ...HYBRID, engram: NO_ENGRAM },
      { ...HYBRID, qkvConvTaps: 1 },
      { ...HYBRID, ropeTheta: 0.1 + 0.2 },
    ];
    for (const config of geometries) {
      const state = prepared(needle, [6, 1], OPTIONS[0], config);
      const copy = needle.restoreDecodeState(state.save(), { config });
      expect(copy.config).toEqual(config);
      const inputs = new Inputs(config, 31);
      expectSameTrace(steps(copy, inputs, 3), steps(state, inputs, 3), 'afterwards');
      state.dispose();
      copy.dispose();
    }
  });
});

describe('the bytes', () => {
  it('are the same for the same state, however it came about', async () => {
    const needle = await needle3();
    const inputs = new Inputs(HYBRID, 31);
    const state = prepared(needle, [1, 1, 1, 1, 1, 1, 1, 1, 1]);
    const batched = prepared(needle, [4, 5]);
    const fork = state.fork();
    const interrupted = prepared(needle, [4]);
    step(interrupted, new Inputs(HYBRID, 1), 5);
    interrupted.reset();
    steps(interrupted, inputs, 9);
    const rolledBack = prepared(needle, [9]);
    const mark = rolledBack.mark();
    steps(rolledBack, new Inputs(HYBRID, 2), 3);
    rolledBack.rollback(mark);
    rolledBack.release(mark);
    for (const [name, each] of Object.entries({ batched, fork, rolledBack, interrupted })) {
      // Slots are part of the state; these have grown alike.
      expect(observe(each), name).toEqual(observe(state));
      expect(each.save(), name).toEqual(state.save());
    }
    for (const each of [state, batched, fork, interrupted, rolledBack]) each.dispose();
  });

  it('are the same on every engine', async () => {
    const needle = await needle3();
    const hashes = OPTIONS.map((options) => {
      const state = prepared(needle, [1, 1, 9, 1], options);
      const hash = fnv1a(state.save({ fingerprint: Uint8Array.of(1, 2, 3) }));
      state.dispose();
      return hash;
    });
    // Written down once.
    expect(hashes).toEqual([1798678232, 2118556378, 4114537836]);
  });

  it('hold only the rows in use: a state with room for its context saves what one without does', async () => {
    const needle = await needle3();
    const [small, large] = [4, 8192].map((capacityHint) => needle.createDecodeState(NEEDLE3, { capacityHint })) as [
      DecodeState,
      DecodeState,
    ];
    expect(large.byteLength).toBeGreaterThan(40e6);
    expect(large.save().length).toBe(small.save().length);
    small.dispose();
    large.dispose();
  });
});

describe('a fingerprint', () => {
  it('is stored, and a restore that gives one takes only the same', async () => {
    const needle = await needle3();
    const state = prepared(needle, [3]);
    const fingerprint = Uint8Array.from({ length: 64 }, (_, i) => i);
    const bytes = state.save({ fingerprint });
    for (const given of [{}, { fingerprint: undefined }, { fingerprint }])
      needle.restoreDecodeState(bytes, given).dispose();
    for (const other of [fingerprint.subarray(1), Uint8Array.from(fingerprint, (x) => x ^ 1), Uint8Array.of(0)]) {
      expectError(
        () => needle.restoreDecodeState(bytes, { fingerprint: other }),
        'snapshot',
        'restoreDecodeState: ',
        'fingerprint',
      );
    }
    expectError(
      () => needle.restoreDecodeState(state.save(), { fingerprint }),
      'snapshot',
      'restoreDecodeState: ',
      'fingerprint',
    );
    expect(state.save({ fingerprint: new Uint8Array(0) })).toEqual(state.save());
    state.dispose();
  });
});

describe('a restore that is refused', () => {
  const other: readonly (readonly [string, ModelConfig])[] = [
    ['numLayers', { ...HYBRID, numLayers: 4 }],
    ['ropeTheta', { ...HYBRID, ropeTheta: 10000.5 }],
    ['globalLayers', { ...HYBRID, globalLayers: [2] }],
    ['engram.orders', { ...HYBRID, engram: { ...HYBRID.engram, orders: [3, 2] } }],
    ['engram.subDim', { ...HYBRID, engram: { ...HYBRID.engram, subDim: 3 } }],
  ];
  for (const [field, config] of other) {
    it(`for another geometry: snapshot, naming ${field}`, async () => {
      const needle = await needle3();
      const state = prepared(needle, [3]);
      const bytes = state.save();
      const { allocatedBytes } = needle.memory;
      expectError(() => needle.restoreDecodeState(bytes, { config }), 'snapshot', 'restoreDecodeState: ', field);
      expect(needle.memory.allocatedBytes).toBe(allocatedBytes);
      needle.restoreDecodeState(bytes, { config: HYBRID }).dispose();
      state.dispose();
    });
  }

  it('for bytes cut anywhere, or with one to spare: snapshot, and no memory taken', async () => {
    const needle = await needle3();
    const state = prepared(needle, [1, 6]);
    const bytes = state.save();
    const { allocatedBytes } = needle.memory;
    for (let length = 0; length < bytes.length; length++) {
      expectError(() => needle.restoreDecodeState(bytes.subarray(0, length)), 'snapshot', 'restoreDecodeState: ');
    }
    const longer = new Uint8Array(bytes.length + 1);
    longer.set(bytes);
    expectError(() => needle.restoreDecodeState(longer), 'snapshot', 'restoreDecodeState: ');
    expect(needle.memory.allocatedBytes).toBe(allocatedBytes);
    state.dispose();
  });

  it('for a bit flipped in any byte: snapshot, and no memory taken', async () => {
    const needle = await needle3();
    const state = prepared(needle, [1, 6]);
    const bytes = state.save();
    const { allocatedBytes, linearBytes } = needle.memory;
    for (let at = 0; at < bytes.length; at++) {
      const bit = 1 << ((at * 5) % 8);
      bytes[at] ^= bit;
      expectError(() => needle.restoreDecodeState(bytes), 'snapshot', 'restoreDecodeState: ');
      bytes[at] ^= bit;
    }
    expect(needle.memory).toEqual({ allocatedBytes, linearBytes });
    needle.restoreDecodeState(bytes).dispose();
    state.dispose();
  });

  it('for bytes of another kind, naming what is wrong: snapshot', async () => {
    const needle = await needle3();
    for (const bytes of [new Uint8Array(0), new Uint8Array(1000), new TextEncoder().encode('{"not": "a snapshot"}')]) {
      expectError(() => needle.restoreDecodeState(bytes), 'snapshot', 'restoreDecodeState: ');
    }
  });
});

describe('the bytes given to a restore', () => {
  it('may be a part of a larger buffer, or lie in linear memory', async () => {
    const needle = await needle3();
    const state = prepared(needle, [5]);
    const bytes = state.save();
    const around = new Uint8Array(bytes.length + 7);
    around.set(bytes, 3);
    const inside = needle.allocate(Math.ceil(bytes.length / 4));
    const view = new Uint8Array(inside.view.buffer, inside.view.byteOffset, bytes.length);
    view.set(bytes);
    for (const each of [around.subarray(3, 3 + bytes.length), view]) {
      const copy = needle.restoreDecodeState(each);
      expect(copy.save()).toEqual(bytes);
      copy.dispose();
    }
    inside.dispose();
    state.dispose();
  });
});

describe('a fork', () => {
  for (const options of OPTIONS) {
    it(`is equal bit for bit in all it does next, and independent, ${JSON.stringify(options)}`, async () => {
      const needle = await needle3();
      const inputs = new Inputs(HYBRID, 31);
      for (const counts of [[], [1], [3], [9, 1], [40]]) {
        const state = prepared(needle, counts, options);
        const [fork, later] = [state.fork(), state.fork()];
        expect(observe(fork)).toEqual(observe(state));
        // Neither sees the other's writes, growth or end.
        steps(fork, new Inputs(HYBRID, 99), 5, 1, 1, 30);
        const expected = steps(state, inputs, 1, 6);
        fork.dispose();
        expectSameTrace(steps(later, inputs, 1, 6), expected, 'the fork');
        state.dispose();
        expectSameTrace(steps(later.fork(), inputs, 2), steps(later, inputs, 2), 'a fork of the fork');
        later.dispose();
      }
    });
  }
});

describe('a mark', () => {
  for (const options of OPTIONS) {
    it(`brings back the moment exactly, again and again, rings wrapped or not, ${JSON.stringify(options)}`, async () => {
      const needle = await needle3();
      const inputs = new Inputs(HYBRID, 31);
      for (const before of [[], [2], [9], [40]]) {
        for (const after of [[1], [5], [1, 1, 1, 1, 1, 1], [40], [33, 1]]) {
          const state = prepared(needle, before, options);
          const twin = prepared(needle, before, options);
          const expected = steps(twin, inputs, 1, 7);
          const mark = state.mark();
          for (let round = 0; round < 3; round++) {
            steps(state, new Inputs(HYBRID, 50 + round), ...after);
            if (round === 1) state.pushToken(1);
            state.rollback(mark);
            expect(state.position).toBe(before.reduce((sum, count) => sum + count, 0));
          }
          expectSameTrace(steps(state, inputs, 1, 7), expected, `after ${before.join(', ')} and ${after.join(', ')}`);
          state.release(mark);
          expect(state.markBytes).toBe(0);
          state.dispose();
          twin.dispose();
        }
      }
    });
  }

  it('nests, and bytes are held only while marks are', async () => {
    const needle = await needle3();
    const inputs = new Inputs(HYBRID, 31);
    const state = prepared(needle, [9]);
    const { byteLength } = state;
    const outer = state.mark();
    const atOuter = state.fork();
    const held = state.markBytes;
    expect(held).toBeGreaterThan(0);
    expect(state.byteLength).toBe(byteLength);
    steps(state, inputs, 2);
    const inner = state.mark();
    const atInner = state.fork();
    steps(state, inputs, 5, 1);
    expect(state.markBytes).toBeGreaterThan(held);
    state.rollback(inner);
    expectSameTrace(steps(state, inputs, 3), steps(atInner, inputs, 3), 'from the inner mark');
    state.rollback(inner);
    state.release(inner);
    steps(state, inputs, 9);
    state.rollback(outer);
    expectSameTrace(steps(state, inputs, 3), steps(atOuter, inputs, 3), 'from the outer mark');
    state.release(outer);
    expect(state.markBytes).toBe(0);
    for (const each of [state, atOuter, atInner]) each.dispose();
  });
});
