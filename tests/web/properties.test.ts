import fc from 'fast-check';
import { Needle3Error, type DecodeState, type Mark, type ModelConfig, type Needle3 } from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { engramIndices, NaiveState, quantizeRow, Refusal, type AttentionRow } from './naive.js';
import { batchSizes, geometry, hint, SEED, split, storage } from './support/arbitrary.js';
import { expectEqualNumbers, expectSameBits, expectWithin } from './support/assert.js';
import {
  expectSameTrace,
  Inputs,
  observe,
  openStep,
  PROJECTIONS,
  seedHistories,
  step,
  steps,
} from './support/drive.js';
import { cap, NO_ENGRAM, qkvTailRows, engramTailRows, tables, widths } from './support/geometry.js';
import { needle3 } from './support/instance.js';
import { mix, Xorshift32 } from './support/random.js';

const seed = fc.integer({ min: 1, max: 2 ** 31 - 1 });
const cuts = fc.array(fc.nat({ max: 60 }), { maxLength: 6 });

function run<T extends [unknown, ...unknown[]]>(
  arbitraries: { [K in keyof T]: fc.Arbitrary<T[K]> },
  property: (...values: T) => void,
  numRuns: number,
): void {
  fc.assert(fc.property(...(arbitraries as [fc.Arbitrary<unknown>]), property as unknown as (value: unknown) => void), {
    seed: SEED,
    numRuns,
  });
}

/** Uses states and frees them, whatever happens. */
function withStates<T>(states: DecodeState[], use: () => T): T {
  try {
    return use();
  } finally {
    for (const state of states) state.dispose();
  }
}

describe('the same bits', () => {
  it('whatever the capacity hint and the split into batches', async () => {
    const needle = await needle3();
    run<
      [
        ModelConfig,
        { precision: 'f32' | 'int8'; quantizeQuery: boolean },
        number,
        number,
        number,
        number[],
        number[],
        number,
      ]
    >(
      [geometry, storage, hint, hint, fc.integer({ min: 1, max: 50 }), cuts, cuts, seed],
      (config, stored, hintA, hintB, total, cutsA, cutsB, inputSeed) => {
        const inputs = new Inputs(config, inputSeed);
        const single = needle.createDecodeState(config, { ...stored, capacityHint: 1 });
        const a = needle.createDecodeState(config, { ...stored, capacityHint: hintA });
        const b = needle.createDecodeState(config, { ...stored, capacityHint: hintB });
        withStates([single, a, b], () => {
          const expected = steps(single, inputs, ...Array<number>(total).fill(1));
          expectSameTrace(steps(a, inputs, ...split(total, cutsA)), expected, 'one split and hint');
          expectSameTrace(steps(b, inputs, ...split(total, cutsB)), expected, 'another split and hint');
          // And what follows.
          const next = steps(single, inputs, 1, 1);
          expectSameTrace(steps(a, inputs, 2), next, 'afterwards');
          expectSameTrace(steps(b, inputs, 1, 1), next, 'afterwards');
        });
      },
      150,
    );
  });

  it('with steps interrupted after any call, discarded and done again', async () => {
    const needle = await needle3();
    run<[ModelConfig, { precision: 'f32' | 'int8'; quantizeQuery: boolean }, number[], number[], number]>(
      [geometry, storage, batchSizes, batchSizes, seed],
      (config, stored, sizes, strays, inputSeed) => {
        const inputs = new Inputs(config, inputSeed);
        const stray = new Inputs(config, inputSeed + 1);
        const plain = needle.createDecodeState(config, { ...stored, capacityHint: 1 });
        const interrupted = needle.createDecodeState(config, { ...stored, capacityHint: 3 });
        withStates([plain, interrupted], () => {
          sizes.forEach((size, i) => {
            // A step of another size on other rows, cut short somewhere.
            partialStep(interrupted, stray, strays[i % strays.length], mix(inputSeed, i));
            interrupted.discard();
            expectSameTrace(step(interrupted, inputs, size), step(plain, inputs, size), `step ${i}`);
          });
        });
      },
      150,
    );
  });

  it('with every call of a step made before on other rows', async () => {
    const needle = await needle3();
    run<[ModelConfig, { precision: 'f32' | 'int8'; quantizeQuery: boolean }, number[], number]>(
      [geometry, storage, batchSizes, seed],
      (config, stored, sizes, inputSeed) => {
        const inputs = new Inputs(config, inputSeed);
        const stray = new Inputs(config, inputSeed + 1);
        const plain = needle.createDecodeState(config, { ...stored, capacityHint: 1 });
        const repeated = needle.createDecodeState(config, { ...stored, capacityHint: 2 });
        withStates([plain, repeated], () => {
          sizes.forEach((size, i) => {
            rowsOfStep(repeated, stray, size);
            expectSameTrace(step(repeated, inputs, size), step(plain, inputs, size), `step ${i}`);
          });
        });
      },
      100,
    );
  });

  it('after a prefill elsewhere: rows imported, tails and tokens seeded, the position set', async () => {
    const needle = await needle3();
    run<[ModelConfig, { precision: 'f32' | 'int8'; quantizeQuery: boolean }, number, number, number[], number]>(
      [geometry, storage, hint, fc.integer({ min: 1, max: 40 }), cuts, seed],
      (config, stored, capacityHint, total, importCuts, inputSeed) => {
        const inputs = new Inputs(config, inputSeed);
        const prefilled = needle.createDecodeState(config, { ...stored, capacityHint });
        const imported = needle.createDecodeState(config, { ...stored, capacityHint });
        withStates([prefilled, imported], () => {
          const rows = steps(prefilled, inputs, total);
          importKv(imported, rows, split(total, importCuts));
          seedHistories(imported, inputs, total);
          imported.setPosition(total);
          expect(imported.position).toBe(total);
          expect(observe(imported)).toEqual(observe(prefilled));
          expectSameTrace(steps(imported, inputs, 1, 3, 1), steps(prefilled, inputs, 1, 3, 1), 'afterwards');
        });
      },
      100,
    );
  });

  it('after reset, as in a new state', async () => {
    const needle = await needle3();
    run<[ModelConfig, { precision: 'f32' | 'int8'; quantizeQuery: boolean }, number[], number[], boolean, number]>(
      [geometry, storage, batchSizes, batchSizes, fc.boolean(), seed],
      (config, stored, before, sizes, open, inputSeed) => {
        const inputs = new Inputs(config, inputSeed);
        const used = needle.createDecodeState(config, { ...stored, capacityHint: 1 });
        const fresh = needle.createDecodeState(config, { ...stored, capacityHint: 1 });
        withStates([used, fresh], () => {
          steps(used, new Inputs(config, inputSeed + 1), ...before);
          // Growth of a step that is dropped is dropped with it.
          const slots = observe(used).slots;
          if (open) openStep(used, inputs, 2);
          used.reset();
          expect(observe(used)).toMatchObject({
            position: 0,
            tokenHistory: [],
            markBytes: 0,
            isSaturated: false,
            slots,
          });
          expectSameTrace(steps(used, inputs, ...sizes), steps(fresh, inputs, ...sizes), 'second run');
        });
      },
      100,
    );
  });
});

describe('memory', () => {
  it('decodeStateBytes is what byteLength then is, and a batch ends with the slots of its rows one by one', async () => {
    const needle = await needle3();
    run<[ModelConfig, { precision: 'f32' | 'int8'; quantizeQuery: boolean }, number, number, number[], number]>(
      [geometry, storage, hint, fc.integer({ min: 0, max: 50 }), cuts, seed],
      (config, stored, capacityHint, positions, sizes, inputSeed) => {
        const options = { ...stored, capacityHint };
        const inputs = new Inputs(config, inputSeed);
        const single = needle.createDecodeState(config, options);
        const batched = needle.createDecodeState(config, options);
        withStates([single, batched], () => {
          expect(needle.decodeStateBytes(config, { ...options, positions: 0 })).toBe(single.byteLength);
          steps(single, inputs, ...Array<number>(positions).fill(1));
          steps(batched, inputs, ...split(positions, sizes));
          expect(needle.decodeStateBytes(config, { ...options, positions })).toBe(single.byteLength);
          expect(observe(batched)).toEqual(observe(single));
        });
      },
      150,
    );
  });
});

describe('free functions', () => {
  it('engramIndices agrees with the plain formula for any tokens and tables', async () => {
    const needle = await needle3();
    run<[number[], number[], number, number, number]>(
      [
        fc.array(fc.integer({ min: 0, max: 2 ** 32 - 1 }), { maxLength: 12 }),
        fc.array(fc.integer({ min: 1, max: 5 }), { maxLength: 3 }),
        fc.integer({ min: 1, max: 4 }),
        fc.integer({ min: 1, max: 2 ** 32 - 1 }),
        fc.integer({ min: 0, max: 2 ** 32 - 1 }),
      ],
      (tokens, orders, heads, slots, seedHeads) => {
        const engram = { ...NO_ENGRAM, orders, heads, slots, seedHeads };
        const expected = tokens.flatMap((_, i) => engramIndices(tokens.slice(0, i + 1), engram));
        expect(Array.from(needle.engramIndices(tokens, engram))).toEqual(expected);
      },
      200,
    );
  });

  const finite = fc.float({ noNaN: true, noDefaultInfinity: true });

  it('quantizeRows agrees with the plain quantiser, ties and tiny rows included', async () => {
    const needle = await needle3();
    const row = fc.oneof(
      fc.array(finite, { minLength: 6, maxLength: 6 }),
      // Halves of a scale of one: every second one is a tie.
      fc
        .array(fc.integer({ min: -254, max: 254 }), { minLength: 5, maxLength: 5 })
        .map((list) => [127, ...list.map((x) => x / 2)]),
      fc.array(fc.constantFrom(0, -0, 1e-45, -1e-45, 3.7e-37, 3.9e-37, 3.4e38), { minLength: 6, maxLength: 6 }),
    );
    run<[number[][]]>(
      [fc.array(row, { minLength: 1, maxLength: 4 })],
      (rows) => {
        const x = Float32Array.from(rows.flat());
        const { values, scales } = needle.quantizeRows(x, 6);
        const expected = rows.map((list) => quantizeRow(Float32Array.from(list)));
        expectEqualNumbers(
          values,
          expected.flatMap((each) => each.values),
          'values',
        );
        expectEqualNumbers(
          scales,
          expected.map((each) => each.scale),
          'scales',
        );
      },
      300,
    );
  });

  it('fakeQuantize is the quantiser and back at every width, finite in, finite out', async () => {
    const needle = await needle3();
    run<[number[], number]>(
      [fc.array(finite, { minLength: 1, maxLength: 9 }), fc.integer({ min: 2, max: 16 })],
      (list, bits) => {
        const input = Float32Array.from(list);
        const { values, scale } = quantizeRow(input, bits);
        const x = input.slice();
        expect(needle.fakeQuantize(x, bits)).toBe(x);
        expect(x.every(Number.isFinite)).toBe(true);
        // q = −qmax − 1 cannot come from a symmetric scale, but q·scale may round past the largest float at absmax.
        const expected = values.map((q) => {
          const product = Math.fround(q * scale);
          return Number.isFinite(product) ? product : Math.sign(product) * 3.4028234663852886e38;
        });
        expectEqualNumbers(x, expected, 'x');
      },
      300,
    );
  });
});

/** The rows and calls of a step without its tokens, so that doing it twice repeats every call. */
function rowsOfStep(state: DecodeState, inputs: Inputs, count: number): void {
  partialStep(state, inputs, count, 0, false);
}

/** A step broken off after some call of it (all of them where `stop` is false). */
function partialStep(state: DecodeState, inputs: Inputs, count: number, random: number, stop = true): void {
  const { config } = state;
  const first = state.position;
  const calls: (() => void)[] = [];
  if (stop) for (let i = 0; i < count; i++) calls.push(() => state.pushToken(inputs.token(first + i)));
  config.engram.sites.forEach((_, site) =>
    calls.push(() => state.engramConv(site, inputs.engramTaps(site), inputs.engramRows(site, first, count))),
  );
  for (let layer = 0; layer < config.numLayers; layer++) {
    const rows = PROJECTIONS.map((projection) => inputs.rows(layer, projection, first, count));
    PROJECTIONS.forEach((projection, i) =>
      calls.push(() => state.conv(layer, projection, inputs.taps(layer, projection), rows[i])),
    );
    calls.push(() => state.writeKv(layer, rows[1], rows[2]));
    const out = new Float32Array(count * widths(config).out);
    calls.push(() => state.appendAndAttend(layer, rows[0], rows[1], rows[2], out));
  }
  for (const call of stop ? calls.slice(0, random % (calls.length + 1)) : calls) call();
}

/** Writes the post-convolution keys and values of a prefill at their positions, in chunks, outside any step. */
function importKv(state: DecodeState, trace: readonly Float32Array[], chunks: readonly number[]): void {
  const { config } = state;
  const { q, k, v, out } = widths(config);
  const base = 2 * tables(config.engram) + config.engram.sites.length * config.dModel;
  for (let layer = 0; layer < config.numLayers; layer++) {
    const at = base + layer * (q + k + v + out);
    let position = 0;
    for (const count of chunks) {
      const rows = trace.slice(position, position + count);
      const keys = Float32Array.from(rows.flatMap((row) => Array.from(row.subarray(at + q, at + q + k))));
      const values = Float32Array.from(rows.flatMap((row) => Array.from(row.subarray(at + q + k, at + q + k + v))));
      state.writeKv(layer, keys, values, position);
      position += count;
    }
  }
}

/** One call on a state, drawn as small numbers that its execution reduces to what the geometry has, or nearly. */
type Operation =
  | { readonly kind: 'push'; readonly token: number }
  | { readonly kind: 'indices' | 'discard' | 'reset' | 'fork' | 'mark' | 'snapshot' | 'switch' | 'dispose' }
  | {
      readonly kind: 'conv' | 'attend' | 'append' | 'write' | 'engram';
      readonly layer: number;
      readonly which: number;
      readonly rows: number;
      readonly rowsSeed: number;
      readonly flaw: number;
    }
  | {
      readonly kind: 'import';
      readonly layer: number;
      readonly rows: number;
      readonly rowsSeed: number;
      readonly offset: number;
    }
  | { readonly kind: 'seed'; readonly layer: number; readonly which: number; readonly rowsSeed: number }
  | { readonly kind: 'whole'; readonly rows: number; readonly rowsSeed: number }
  | { readonly kind: 'advance'; readonly count: number }
  | { readonly kind: 'position'; readonly offset: number }
  | { readonly kind: 'rollback' | 'release'; readonly which: number };

const small = fc.nat({ max: 5 });
const rowsArbitrary = fc.oneof(
  { weight: 4, arbitrary: fc.constant(1) },
  { weight: 2, arbitrary: fc.integer({ min: 1, max: 9 }) },
);
const operation: fc.Arbitrary<Operation> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('whole' as const), rows: rowsArbitrary, rowsSeed: seed }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('push' as const), token: fc.nat({ max: 42 }) }) },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constantFrom('conv' as const, 'attend' as const, 'append' as const, 'write' as const, 'engram' as const),
      layer: small,
      which: small,
      rows: rowsArbitrary,
      rowsSeed: seed,
      flaw: fc.oneof(
        { weight: 6, arbitrary: fc.constant(0) },
        { weight: 1, arbitrary: fc.integer({ min: 1, max: 5 }) },
      ),
    }),
  },
  { weight: 5, arbitrary: fc.record({ kind: fc.constant('advance' as const), count: rowsArbitrary }) },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constantFrom(
        'indices' as const,
        'discard' as const,
        'fork' as const,
        'mark' as const,
        'snapshot' as const,
        'switch' as const,
        'dispose' as const,
      ),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('reset' as const) }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constantFrom('rollback' as const, 'release' as const), which: small }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('import' as const),
      layer: small,
      rows: rowsArbitrary,
      rowsSeed: seed,
      offset: fc.integer({ min: -4, max: 6 }),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('seed' as const), layer: small, which: small, rowsSeed: seed }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('position' as const), offset: fc.integer({ min: -6, max: 6 }) }),
  },
);

/** Two states of different hints and the naive one, which must agree in everything. */
class Trio {
  /** Marks as the two states and the naive one know them; dead ones stay, to be refused. */
  readonly marks: { readonly first: Mark; readonly second: Mark; readonly naive: number }[] = [];

  constructor(
    readonly first: DecodeState,
    readonly second: DecodeState,
    readonly naive: NaiveState,
  ) {}

  dispose(): void {
    this.first.dispose();
    this.second.dispose();
  }

  /** The same call on the three: equal outcomes, or the same refusal. */
  both<R, N>(
    name: string,
    real: (state: DecodeState, index: 0 | 1) => R,
    naive: (state: NaiveState) => N,
  ): { first: R; second: R; naive: N } | undefined {
    let expected: N;
    try {
      expected = naive(this.naive);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      for (const [index, state] of [this.first, this.second].entries()) {
        let thrown: unknown;
        try {
          real(state, index as 0 | 1);
        } catch (caught) {
          thrown = caught;
        }
        if (!(thrown instanceof Needle3Error)) expect.fail(`${name}: expected ${error.code}, got ${String(thrown)}`);
        expect(thrown.code, `${name}: ${thrown.message}`).toBe(error.code);
      }
      return undefined;
    }
    return { first: real(this.first, 0), second: real(this.second, 1), naive: expected };
  }

  expectAgreement(): void {
    const { naive } = this;
    for (const state of [this.first, this.second]) {
      expect(state.position).toBe(naive.position);
      expect(state.isSaturated).toBe(naive.isSaturated);
      expect(Array.from(state.tokenHistory)).toEqual(naive.tokenHistory);
    }
    // The naive one has the first one's hint.
    for (let layer = 0; layer < naive.config.numLayers; layer++) {
      expect(this.first.slots(layer), `slots of layer ${layer}`).toBe(naive.slots(layer));
      expect(this.second.span(layer)).toEqual(naive.span(layer));
    }
    expect(this.first.byteLength).toBe(naive.byteLength);
  }
}

function expectAttention(actual: Float32Array, expected: readonly AttentionRow[], what: string): void {
  const width = actual.length / expected.length;
  expected.forEach((row, i) =>
    expectWithin(actual.subarray(i * width, (i + 1) * width), row.out, row.bound, `${what}, row ${i}`),
  );
}

function execute(needle: Needle3, trios: Trio[], operation: Operation): void {
  const trio = trios.at(-1)!;
  const { config } = trio.naive;
  const { q, k, v, out: outWidth } = widths(config);
  const name = JSON.stringify(operation);
  /** Rows of the given width for the step under way, or of the operation's own number. */
  const data = (random: Xorshift32, count: number, width: number): Float32Array => random.floats(count * width);

  switch (operation.kind) {
    case 'push':
      trio.both(
        name,
        (state) => state.pushToken(operation.token),
        (state) => state.pushToken(operation.token),
      );
      break;
    case 'indices': {
      const result = trio.both(
        name,
        (state) => state.engramIndices(),
        (state) => state.engramIndices(),
      );
      if (result === undefined) break;
      for (const { indices, valid } of [result.first, result.second]) {
        expect({ indices: Array.from(indices), valid }).toEqual(result.naive);
      }
      break;
    }
    case 'conv':
    case 'engram': {
      const sites = config.engram.sites.length;
      if (operation.kind === 'engram' && sites === 0) break;
      const random = new Xorshift32(operation.rowsSeed);
      const layer = operation.layer % config.numLayers;
      const projection = PROJECTIONS[operation.which % 3];
      const site = operation.layer % Math.max(1, sites);
      const width = operation.kind === 'engram' ? config.dModel : { q, k, v }[projection];
      const tapCount = operation.kind === 'engram' ? config.engram.convTaps : config.qkvConvTaps;
      const taps = data(random, tapCount + (operation.flaw === 1 ? 1 : 0), width);
      const rows = random.floats(rowCount(trio, operation) * width + (operation.flaw === 2 && width > 1 ? 1 : 0));
      const copies = [rows.slice(), rows.slice()] as const;
      const result = trio.both(
        name,
        (state, index) => {
          if (operation.kind === 'engram') state.engramConv(site, taps, copies[index]);
          else state.conv(layer, projection, taps, copies[index]);
        },
        (state) =>
          operation.kind === 'engram' ? state.engramConv(site, taps, rows) : state.conv(layer, projection, taps, rows),
      );
      if (result === undefined) {
        for (const copy of copies) expectSameBits(copy, rows, `${name}: rows of a refused call`);
      } else {
        expectEqualNumbers(copies[0], result.naive, name);
        expectSameBits(copies[1], copies[0], name);
      }
      break;
    }
    case 'write':
    case 'append':
    case 'attend': {
      const random = new Xorshift32(operation.rowsSeed);
      const layer = operation.layer % config.numLayers;
      const count = operation.kind === 'attend' ? 1 : rowCount(trio, operation);
      const query = data(random, count, q);
      const keys = data(random, count, k);
      const values = data(random, count + (operation.flaw === 1 ? 1 : 0), v);
      if (operation.flaw === 2) values[operation.which % values.length] = NaN;
      if (operation.flaw === 3) keys[operation.which % keys.length] = -Infinity;
      if (operation.flaw === 4 && trio.naive.options.quantizeQuery) query[operation.which % query.length] = Infinity;
      if (operation.kind === 'write') {
        trio.both(
          name,
          (state) => state.writeKv(layer, keys, values),
          (state) => state.writeKv(layer, keys, values),
        );
        break;
      }
      const outs = [new Float32Array(count * outWidth), new Float32Array(count * outWidth)] as const;
      const result = trio.both(
        name,
        (state, index) => {
          if (operation.kind === 'attend') state.attend(layer, query, outs[index]);
          else state.appendAndAttend(layer, query, keys, values, outs[index]);
        },
        (state) =>
          operation.kind === 'attend'
            ? [state.attend(layer, query)]
            : state.appendAndAttend(layer, query, keys, values),
      );
      if (result === undefined) {
        for (const out of outs) expectSameBits(out, new Float32Array(out.length), `${name}: out of a refused call`);
      } else {
        expectAttention(outs[0], result.naive, name);
        expectSameBits(outs[1], outs[0], name);
      }
      break;
    }
    case 'whole': {
      if (trio.naive.inStep) break;
      // The naive one has no ring to fill a gap in: a layer must hold what its queries read.
      const inputs = new Inputs(config, operation.rowsSeed);
      for (let i = 0; i < operation.rows; i++)
        execute(needle, trios, { kind: 'push', token: inputs.token(i) % config.vocabSize });
      for (let layer = 0; layer < config.numLayers; layer++) {
        PROJECTIONS.forEach((_, which) =>
          execute(needle, trios, {
            kind: 'conv',
            layer,
            which,
            rows: operation.rows,
            rowsSeed: mix(operation.rowsSeed, layer, which),
            flaw: 0,
          }),
        );
        execute(needle, trios, {
          kind: 'append',
          layer,
          which: 0,
          rows: operation.rows,
          rowsSeed: mix(operation.rowsSeed, layer, 3),
          flaw: 0,
        });
      }
      config.engram.sites.forEach((_, site) =>
        execute(needle, trios, {
          kind: 'engram',
          layer: site,
          which: 0,
          rows: operation.rows,
          rowsSeed: mix(operation.rowsSeed, site, 4),
          flaw: 0,
        }),
      );
      execute(needle, trios, { kind: 'advance', count: operation.rows });
      break;
    }
    case 'advance':
      trio.both(
        name,
        (state) => state.advance(operation.count),
        (state) => state.advance(operation.count),
      );
      break;
    case 'discard':
      trio.both(
        name,
        (state) => state.discard(),
        (state) => state.discard(),
      );
      break;
    case 'reset':
      trio.both(
        name,
        (state) => state.reset(),
        (state) => state.reset(),
      );
      break;
    case 'import': {
      const random = new Xorshift32(operation.rowsSeed);
      const layer = operation.layer % config.numLayers;
      const position = Math.max(0, trio.naive.position + operation.offset);
      const keys = data(random, operation.rows, k);
      const values = data(random, operation.rows, v);
      trio.both(
        name,
        (state) => state.writeKv(layer, keys, values, position),
        (state) => state.writeKvAt(layer, keys, values, position),
      );
      break;
    }
    case 'seed': {
      const random = new Xorshift32(operation.rowsSeed);
      const layer = operation.layer % config.numLayers;
      const sites = config.engram.sites.length;
      if (operation.which < 3) {
        const projection = PROJECTIONS[operation.which];
        const rows = data(random, qkvTailRows(config), { q, k, v }[projection]);
        trio.both(
          name,
          (state) => state.seedConvTail(layer, projection, rows),
          (state) => state.seedConvTail(layer, projection, rows),
        );
      } else if (operation.which === 3 && sites > 0) {
        const rows = data(random, engramTailRows(config.engram), config.dModel);
        const site = operation.layer % sites;
        trio.both(
          name,
          (state) => state.seedEngramTail(site, rows),
          (state) => state.seedEngramTail(site, rows),
        );
      } else {
        const ids = Array.from({ length: random.below(6) }, () =>
          random.below(config.vocabSize + (operation.which === 5 ? 1 : 0)),
        );
        trio.both(
          name,
          (state) => state.seedTokens(ids),
          (state) => state.seedTokens(ids),
        );
      }
      break;
    }
    case 'position': {
      const position = Math.max(0, trio.naive.position + operation.offset);
      trio.both(
        name,
        (state) => state.setPosition(position),
        (state) => state.setPosition(position),
      );
      break;
    }
    case 'fork': {
      const result = trio.both(
        name,
        (state) => state.fork(),
        (state) => state.fork(),
      );
      if (result !== undefined) trios.splice(-1, 0, new Trio(result.first, result.second, result.naive));
      break;
    }
    case 'mark': {
      const result = trio.both(
        name,
        (state) => state.mark(),
        (state) => state.mark(),
      );
      if (result !== undefined) trio.marks.push(result);
      break;
    }
    case 'rollback':
    case 'release': {
      const mark = trio.marks[operation.which % Math.max(1, trio.marks.length)];
      if (mark === undefined) break;
      trio.both(
        name,
        (state, index) => state[operation.kind](index === 0 ? mark.first : mark.second),
        (state) => state[operation.kind](mark.naive),
      );
      break;
    }
    case 'snapshot': {
      const result = trio.both(
        name,
        (state) => needle.restoreDecodeState(state.save()),
        (state) => state.fork(),
      );
      if (result === undefined) break;
      trio.dispose();
      trios[trios.length - 1] = new Trio(result.first, result.second, result.naive);
      break;
    }
    case 'switch':
      trios.unshift(trios.pop()!);
      break;
    case 'dispose':
      if (trios.length > 1) trios.pop()!.dispose();
      break;
  }
  trios.at(-1)!.expectAgreement();
}

/** The rows of the step under way, so that random calls fit it; flaw 5 breaks that. */
function rowCount(
  trio: Trio,
  operation: { readonly rows: number; readonly flaw: number; readonly kind: string },
): number {
  const { stepRows } = trio.naive;
  return stepRows === 0 || (operation.flaw === 5 && operation.kind !== 'attend') ? operation.rows : stepRows;
}

describe('against the naive model', () => {
  it('random operations give its numbers, its refusals and the same bits at any hint', async () => {
    const needle = await needle3();
    run<[ModelConfig, { precision: 'f32' | 'int8'; quantizeQuery: boolean }, number, number, Operation[]]>(
      [geometry, storage, hint, hint, fc.array(operation, { minLength: 1, maxLength: 40, size: 'max' })],
      (config, stored, hintA, hintB, operations) => {
        const trios = [
          new Trio(
            needle.createDecodeState(config, { ...stored, capacityHint: hintA }),
            needle.createDecodeState(config, { ...stored, capacityHint: hintB }),
            new NaiveState(config, { ...stored, capacityHint: hintA }),
          ),
        ];
        try {
          trios[0].expectAgreement();
          for (const each of operations) execute(needle, trios, each);
          // What each state does next shows what it holds.
          while (trios.length > 0) {
            const trio = trios.at(-1)!;
            execute(needle, trios, { kind: 'discard' });
            execute(needle, trios, { kind: 'whole', rows: 1, rowsSeed: 7 });
            execute(needle, trios, { kind: 'whole', rows: 4, rowsSeed: 8 });
            for (let layer = 0; layer < config.numLayers; layer++)
              expect(cap(config, layer)).toBeGreaterThanOrEqual(trio.first.slots(layer));
            trios.pop();
            trio.dispose();
          }
        } finally {
          for (const trio of trios) trio.dispose();
        }
      },
      300,
    );
  });

  it('leaves nothing in use: all states of this file are freed', async () => {
    expect((await needle3()).memory.allocatedBytes).toBe(0);
  });
});
