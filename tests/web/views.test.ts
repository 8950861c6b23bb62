import { loadNeedle3, WasmFloat32Array, type DecodeState, type Needle3 } from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { expectError, expectSameBits } from './support/assert.js';
import { expectSameTrace, Inputs, PROJECTIONS, step, steps } from './support/drive.js';
import { HYBRID, PLAIN, widths } from './support/geometry.js';
import { needle3 } from './support/instance.js';

const Q = widths(HYBRID);

/** Makes linear memory grow, which detaches every view of it. */
function growLinearMemory(needle: Needle3): void {
  const { linearBytes } = needle.memory;
  needle.allocate(linearBytes / 4).dispose();
  expect(needle.memory.linearBytes).toBeGreaterThan(linearBytes);
}

function floats(length: number, first = 1): Float32Array {
  return Float32Array.from({ length }, (_, i) => first + i);
}

describe('WasmFloat32Array', () => {
  it('is zero-filled, also where memory was used before', async () => {
    const needle = await needle3();
    for (const length of [1, 7, 1000]) {
      for (let round = 0; round < 3; round++) {
        const array = needle.allocate(length);
        expect(array).toBeInstanceOf(WasmFloat32Array);
        expect(array.length).toBe(length);
        expectSameBits(array.view, new Float32Array(length), 'a new array');
        array.view.fill(NaN);
        array.dispose();
      }
    }
  });

  it('starts on 16 bytes', async () => {
    const needle = await needle3();
    const arrays = [1, 3, 5, 17].map((length) => needle.allocate(length));
    expect(arrays.map((array) => array.view.byteOffset % 16)).toEqual([0, 0, 0, 0]);
    for (const array of arrays) array.dispose();
  });

  it('gives a view that reads and writes linear memory, the same one while it is good', async () => {
    const needle = await needle3();
    const array = needle.allocate(4);
    const { view } = array;
    view.set([1, 2, 3, 4]);
    expect(array.view).toBe(view);
    expect(view.buffer.byteLength).toBe(needle.memory.linearBytes);
    array.dispose();
  });

  it('keeps its contents across growth of linear memory, through a fresh view', async () => {
    const needle = await loadNeedle3();
    const array = needle.allocate(64);
    const part = array.subarray(8, 16);
    const old = array.view;
    old.set(floats(64));
    growLinearMemory(needle);
    expect(old.length, 'a view taken before growth is detached').toBe(0);
    expectSameBits(array.view, floats(64), 'after growth');
    expectSameBits(part.view, floats(8, 9), 'a part, after growth');
    part.view[0] = 99;
    expect(array.view[8]).toBe(99);
  });

  it('shares memory with its subarrays, which nest', async () => {
    const needle = await needle3();
    const array = needle.allocate(10);
    array.view.set(floats(10, 0));
    const part = array.subarray(2, 8);
    const inner = part.subarray(1, 3);
    expect([part.length, inner.length, array.subarray(10).length, array.subarray(4).length]).toEqual([6, 2, 0, 6]);
    expect(Array.from(inner.view)).toEqual([3, 4]);
    inner.view[0] = -1;
    expect(array.view[3]).toBe(-1);
    array.dispose();
  });

  it('ends with its owner, while the end of a part is its own alone', async () => {
    const needle = await needle3();
    const { allocatedBytes } = needle.memory;
    const array = needle.allocate(8);
    const [part, other] = [array.subarray(0, 4), array.subarray(4)];
    part.dispose();
    part.dispose();
    expectError(() => part.view, 'disposed');
    expect(array.view.length).toBe(8);
    expect(other.view.length).toBe(4);
    expect(needle.memory.allocatedBytes).toBeGreaterThan(allocatedBytes);
    array.dispose();
    array.dispose();
    expectError(() => other.view, 'disposed');
    expect(needle.memory.allocatedBytes).toBe(allocatedBytes);
  });

  it('is used where it lies: the results are in it, and the bits are those of plain arrays', async () => {
    const needle = await needle3();
    const inputs = new Inputs(HYBRID, 3);
    const [plain, wasm] = [needle.createDecodeState(HYBRID), needle.createDecodeState(HYBRID)];
    const count = 3;
    const place = (data: Float32Array): WasmFloat32Array => {
      const array = needle.allocate(data.length);
      array.view.set(data);
      return array;
    };
    for (let round = 0; round < 4; round++) {
      const rows = PROJECTIONS.map((projection) => inputs.rows(0, projection, plain.position, count));
      const placed = rows.map(place);
      PROJECTIONS.forEach((projection, i) => {
        const taps = place(inputs.taps(0, projection));
        plain.conv(0, projection, inputs.taps(0, projection), rows[i]);
        wasm.conv(0, projection, taps, placed[i]);
        expectSameBits(placed[i].view, rows[i], `conv ${projection}`);
        taps.dispose();
      });
      const out = new Float32Array(count * Q.out);
      const placedOut = needle.allocate(count * Q.out);
      plain.appendAndAttend(0, rows[0], rows[1], rows[2], out);
      // Plain and wasm arrays mix in one call.
      wasm.appendAndAttend(0, placed[0], rows[1], placed[2], placedOut);
      expectSameBits(placedOut.view, out, 'attention');
      plain.advance(count);
      wasm.advance(count);
      for (const array of [...placed, placedOut]) array.dispose();
    }
    plain.dispose();
    wasm.dispose();
  });

  it('gives parts that work as rows of a larger array', async () => {
    const needle = await needle3();
    const inputs = new Inputs(HYBRID, 4);
    const [plain, wasm] = [needle.createDecodeState(HYBRID), needle.createDecodeState(HYBRID)];
    const all = needle.allocate(Q.q + Q.k + Q.v + Q.out);
    const query = all.subarray(0, Q.q);
    const keys = all.subarray(Q.q, Q.q + Q.k);
    const values = all.subarray(Q.q + Q.k, Q.q + Q.k + Q.v);
    const result = all.subarray(Q.q + Q.k + Q.v);
    const rows = PROJECTIONS.map((projection) => inputs.rows(2, projection, 0, 1));
    [query, keys, values].forEach((array, i) => array.view.set(rows[i]));
    const out = new Float32Array(Q.out);
    plain.appendAndAttend(2, rows[0], rows[1], rows[2], out);
    wasm.appendAndAttend(2, query, keys, values, result);
    expectSameBits(result.view, out, 'attention');
    for (const thing of [all, plain, wasm]) thing.dispose();
  });
});

describe("a caller's own view of linear memory", () => {
  it('is taken as input and output while the staging area grows under it', async () => {
    const needle = await loadNeedle3();
    const config = {
      ...PLAIN,
      numHeads: 1,
      numKvHeads: 1,
      qkHeadDim: 4,
      vHeadDim: 4,
      qkvConvTaps: 2,
      maxSeqLen: 2 ** 20,
    };
    // One batch of rows so large that its staging makes linear memory grow.
    const rows = Math.ceil(needle.memory.linearBytes / 16);
    const state = needle.createDecodeState(config, { capacityHint: 1 });
    const twin = needle.createDecodeState(config, { capacityHint: 1 });
    const owner = needle.allocate(rows * 4);
    const taps = Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8);
    for (let i = 0; i < owner.length; i++) owner.view[i] = (i % 17) - 8;
    const plain = owner.view.slice();

    const { linearBytes } = needle.memory;
    const own = new Float32Array(owner.view.buffer, owner.view.byteOffset, owner.length);
    state.conv(0, 'k', taps, own);
    expect(needle.memory.linearBytes, 'the staging area has grown').toBeGreaterThan(linearBytes);
    expect(own.length, 'the view is detached').toBe(0);
    twin.conv(0, 'k', taps, plain);
    expectSameBits(owner.view, plain, 'written back where the view was');
  });

  it('is written back to, where it is `out`, though the layer grows', async () => {
    const needle = await loadNeedle3();
    const state = needle.createDecodeState(PLAIN, { capacityHint: 1 });
    const twin = needle.createDecodeState(PLAIN, { capacityHint: 32 });
    const { q, k, v, out } = widths(PLAIN);
    const result = needle.allocate(9 * out);
    const expected = new Float32Array(9 * out);
    state.appendAndAttend(0, floats(9 * q), floats(9 * k), floats(9 * v), result.view);
    twin.appendAndAttend(0, floats(9 * q), floats(9 * k), floats(9 * v), expected);
    expectSameBits(result.view, expected, 'out');
    expect(state.slots(0)).toBeGreaterThan(1);
  });

  it("may be a layer's own rows, as input of another state", async () => {
    const needle = await needle3();
    const [source, target, twin] = [1, 2, 3].map(() => needle.createDecodeState(PLAIN)) as [
      DecodeState,
      DecodeState,
      DecodeState,
    ];
    const { k, v } = widths(PLAIN);
    source.writeKv(0, floats(5 * k), floats(5 * v, -3), 0);
    const kv = source.kv(0);
    if (kv.precision !== 'f32') throw new Error('an f32 state has f32 rows');
    target.writeKv(0, kv.keys.subarray(0, 5 * k), kv.values.subarray(0, 5 * v), 0);
    twin.writeKv(0, floats(5 * k), floats(5 * v, -3), 0);
    for (const state of [target, twin]) state.setPosition(5);
    const inputs = new Inputs(PLAIN, 5);
    expectSameTrace(step(target, inputs), step(twin, inputs), 'afterwards');
    for (const state of [source, target, twin]) state.dispose();
  });

  it("is refused as `out` where it is the layer's own keys or values: range", async () => {
    const needle = await needle3();
    const state = needle.createDecodeState(HYBRID);
    const inputs = new Inputs(HYBRID, 6);
    steps(state, inputs, 3);
    const kv = state.kv(0);
    if (kv.precision !== 'f32') throw new Error('an f32 state has f32 rows');
    for (const out of [kv.keys.subarray(0, Q.out), kv.values.subarray(0, Q.out)]) {
      expectError(
        () => state.appendAndAttend(0, floats(Q.q), floats(Q.k), floats(Q.v), out),
        'range',
        'appendAndAttend: ',
        'out',
      );
    }
    state.dispose();
  });
});

describe('inputs', () => {
  it('are left as they are, and only `rows` and `out` are written', async () => {
    const needle = await needle3();
    const state = needle.createDecodeState(HYBRID);
    const [taps, query, keys, values] = [floats(3 * Q.q), floats(Q.q), floats(Q.k), floats(Q.v)];
    // Rows in the middle of a larger buffer: nothing around them is touched.
    const around = floats(Q.q + 2);
    state.conv(0, 'q', taps, around.subarray(1, Q.q + 1));
    expect([around[0], around.at(-1)]).toEqual([1, Q.q + 2]);
    const out = floats(Q.out + 2);
    state.appendAndAttend(0, query, keys, values, out.subarray(1, Q.out + 1));
    expect([out[0], out.at(-1)]).toEqual([1, Q.out + 2]);
    expectSameBits(taps, floats(3 * Q.q), 'taps');
    expectSameBits(query, floats(Q.q), 'query');
    expectSameBits(keys, floats(Q.k), 'keys');
    expectSameBits(values, floats(Q.v), 'values');
    state.dispose();
  });

  it('may share a buffer where they do not overlap, and inputs may be one array', async () => {
    const needle = await needle3();
    const square = { ...PLAIN, numHeads: 2, numKvHeads: 2, qkHeadDim: 3, vHeadDim: 3 };
    const [state, twin] = [needle.createDecodeState(square), needle.createDecodeState(square)];
    const buffer = floats(12);
    const rows = buffer.subarray(0, 6);
    state.appendAndAttend(0, rows, rows, rows, buffer.subarray(6));
    const out = new Float32Array(6);
    twin.appendAndAttend(0, floats(6), floats(6), floats(6), out);
    expectSameBits(buffer.subarray(6), out, 'out');
    expectSameBits(rows, floats(6), 'rows');
    state.dispose();
    twin.dispose();
  });

  it('may lie in shared memory, where the engine has it', async () => {
    const needle = await needle3();
    // Without cross-origin isolation a page has no such constructor; its memory can still be had.
    const shared = new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true }).buffer;
    const [state, twin] = [needle.createDecodeState(HYBRID), needle.createDecodeState(HYBRID)];
    const rows = new Float32Array(shared, 16, Q.k);
    rows.set(floats(Q.k));
    const plain = floats(Q.k);
    state.conv(0, 'k', floats(3 * Q.k), rows);
    twin.conv(0, 'k', floats(3 * Q.k), plain);
    expectSameBits(rows.slice(), plain, 'rows');
    state.dispose();
    twin.dispose();
  });
});

describe('kv', () => {
  it('is live: its fields show each write and each growth, though it was asked for once', async () => {
    const needle = await loadNeedle3();
    for (const precision of ['f32', 'int8'] as const) {
      const state = needle.createDecodeState(PLAIN, { capacityHint: 1, precision });
      const kv = state.kv(0);
      expect(kv.precision).toBe(precision);
      expect([kv.slots, kv.keys.length, kv.values.length]).toEqual([1, Q.k, Q.v]);
      for (let position = 0; position < 9; position++) {
        state.writeKv(0, floats(Q.k, position), floats(Q.v, position));
        state.advance();
        if (position === 4) growLinearMemory(needle);
        expect(kv.slots).toBe(state.slots(0));
        expect(kv.keys.length).toBe(kv.slots * Q.k);
        expect(kv.values.length).toBe(kv.slots * Q.v);
        const keys = kv.keys.subarray(position * Q.k, (position + 1) * Q.k);
        if (kv.precision === 'f32') {
          expect(Array.from(keys)).toEqual(Array.from(floats(Q.k, position)));
        } else {
          expect([kv.keyScales.length, kv.valueScales.length]).toEqual([2 * kv.slots, 2 * kv.slots]);
          // The last element of a head is its largest, and so 127.
          expect(keys[PLAIN.qkHeadDim - 1]).toBe(127);
          expect(kv.keyScales[2 * position]).toBe(Math.fround((position + PLAIN.qkHeadDim - 1) / 127));
        }
      }
      state.dispose();
    }
  });

  it('has no scales in f32', async () => {
    const state = (await needle3()).createDecodeState(PLAIN);
    const kv = state.kv(0);
    expect('keyScales' in kv || 'valueScales' in kv).toBe(false);
    state.dispose();
  });
});

describe('what leaves as a value', () => {
  it('is a copy in a buffer of its own, so that posting it posts no more than it', async () => {
    const needle = await needle3();
    const state = needle.createDecodeState(HYBRID);
    steps(state, new Inputs(HYBRID, 8), 4);
    const { values, scales } = needle.quantizeRows(floats(12), 4);
    const copies = {
      save: state.save(),
      tokenHistory: state.tokenHistory,
      indices: state.engramIndices().indices,
      free: needle.engramIndices([1, 2, 3], HYBRID.engram),
      values,
      scales,
    };
    for (const [name, copy] of Object.entries(copies)) {
      expect(copy.buffer.byteLength, name).toBe(copy.byteLength);
      expect(copy.byteOffset, name).toBe(0);
      expect(structuredClone(copy).buffer.byteLength, name).toBe(copy.byteLength);
    }
    const before = structuredClone(copies);
    steps(state, new Inputs(HYBRID, 9), 3);
    growLinearMemory(needle);
    expect(copies).toEqual(before);
    state.dispose();
  });

  it('may be changed without changing the state', async () => {
    const state = (await needle3()).createDecodeState(HYBRID);
    steps(state, new Inputs(HYBRID, 8), 4);
    const history = Array.from(state.tokenHistory);
    state.tokenHistory.fill(0);
    state.engramIndices().indices.fill(0);
    expect(Array.from(state.tokenHistory)).toEqual(history);
    state.dispose();
  });
});

describe('a Float32Array that lies about its length', () => {
  it('is taken for as long as it is', async () => {
    const needle = await needle3();
    class Short extends Float32Array {
      override get length(): number {
        return 5;
      }
    }
    const x = new Short(20_000).fill(1);
    needle.fakeQuantize(x);
    expect(x[19_999]).toBe(1);
  });
});
