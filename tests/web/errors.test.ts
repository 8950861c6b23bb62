import {
  DecodeState,
  loadNeedle3,
  NEEDLE3,
  Needle3Error,
  type Float32Input,
  type Mark,
  type ModelConfig,
  type Needle3,
  type WasmFloat32Array,
} from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { expectError, expectSameBits, type ErrorCode } from './support/assert.js';
import { expectSameTrace, Inputs, observe, openStep, seedHistories, step, steps, type Trace } from './support/drive.js';
import { HYBRID, NO_ENGRAM, PLAIN, engramTailRows, qkvTailRows, widths } from './support/geometry.js';
import { needle3 } from './support/instance.js';

/** Values that no number argument takes. */
const NO_NUMBERS: readonly unknown[] = [null, '0', '', true, [], [1], {}, 1n, Symbol('one'), () => 1];
/** Values that no Float32Input argument takes. */
const NO_FLOAT32: readonly unknown[] = [
  undefined,
  null,
  3,
  'rows',
  [1, 2, 3],
  {},
  { length: 3 },
  new Float64Array(3),
  new Int32Array(3),
  new Uint8Array(3),
  new ArrayBuffer(12),
  new DataView(new ArrayBuffer(12)),
];

/** How a value shows in a message, where the message must show it. */
function shown(value: unknown): string {
  return typeof value === 'number' ? String(value) : '';
}

const Q = widths(HYBRID);
const STEPS_BEFORE = [1, 1, 5];
const POSITION = 7;

interface Context {
  readonly needle: Needle3;
  readonly other: Needle3;
  readonly inputs: Inputs;
}

let context: Promise<Context> | undefined;
function getContext(): Promise<Context> {
  context ??= Promise.all([needle3(), loadNeedle3()]).then(([needle, other]) => ({
    needle,
    other,
    inputs: new Inputs(HYBRID, 11),
  }));
  return context;
}

interface Situation {
  readonly config?: ModelConfig;
  readonly options?: Parameters<Needle3['createDecodeState']>[1];
  /** Brings both states where the call is refused. */
  readonly arrange?: (state: DecodeState, inputs: Inputs) => void;
  /** What both do after it; default: some steps more. */
  readonly finish?: (state: DecodeState, inputs: Inputs) => Trace;
}

/** Past a full ring of four slots, between two steps. */
const BETWEEN_STEPS: Situation = {};

/** All calls of a step of one row made, nothing committed. */
const INSIDE_A_STEP: Situation = {
  arrange: (state, inputs) => void openStep(state, inputs, 1),
  finish(state, inputs) {
    state.advance();
    return steps(state, inputs, 1, 3);
  },
};

/**
 * Makes the calls on one of two equal states, and then goes on with both: what a refused call has changed would show
 * in the bits that follow.
 */
async function refuse(situation: Situation, calls: (state: DecodeState, context: Context) => void): Promise<void> {
  const { needle, other } = await getContext();
  const { config = HYBRID, options = { capacityHint: 2 } } = situation;
  const inputs = new Inputs(config, 11);
  const [state, twin] = [needle.createDecodeState(config, options), needle.createDecodeState(config, options)];
  for (const each of [state, twin]) {
    steps(each, inputs, ...STEPS_BEFORE);
    situation.arrange?.(each, inputs);
  }
  const before = observe(state);
  calls(state, { needle, other, inputs });
  expect(observe(state)).toEqual(before);
  const finish = situation.finish ?? ((each: DecodeState) => steps(each, inputs, 1, 3));
  expectSameTrace(finish(state, inputs), finish(twin, inputs), 'after the refusal');
  state.dispose();
  twin.dispose();
}

type Kind =
  | { readonly kind: 'index'; readonly count: number }
  | { readonly kind: 'projection' | 'mark' }
  | { readonly kind: 'array'; readonly output?: boolean }
  | { readonly kind: 'integer'; readonly min: number; readonly max: number; readonly optional?: boolean };

interface Parameter {
  readonly name: string;
  readonly is: Kind;
}

interface Method {
  readonly name: string;
  readonly parameters: readonly Parameter[];
  /** Arguments that it takes, between steps and in a step of one row. */
  readonly valid: () => unknown[];
  /** Whether the middle of a step refuses it whatever its arguments. */
  readonly betweenSteps?: boolean;
}

const layer: Parameter = { name: 'layer', is: { kind: 'index', count: HYBRID.numLayers } };
const site: Parameter = { name: 'site', is: { kind: 'index', count: HYBRID.engram.sites.length } };
const projection: Parameter = { name: 'projection', is: { kind: 'projection' } };
const array = (name: string, output = false): Parameter => ({ name, is: { kind: 'array', output } });
const position = (optional: boolean): Parameter => ({
  name: 'position',
  is: { kind: 'integer', min: 0, max: 2 ** 31 - 1, optional },
});
const floats = (count: number): Float32Array => new Float32Array(count).fill(0.5);
const { qkvConvTaps, dModel } = HYBRID;
const { convTaps } = HYBRID.engram;

const METHODS: readonly Method[] = [
  { name: 'slots', parameters: [layer], valid: () => [0] },
  { name: 'kv', parameters: [layer], valid: () => [0] },
  { name: 'span', parameters: [layer, position(true)], valid: () => [0, 5] },
  {
    name: 'pushToken',
    parameters: [{ name: 'id', is: { kind: 'integer', min: 0, max: HYBRID.vocabSize - 1 } }],
    valid: () => [1],
  },
  {
    name: 'conv',
    parameters: [layer, projection, array('taps'), array('rows', true)],
    valid: () => [0, 'k', floats(qkvConvTaps * Q.k), floats(Q.k)],
  },
  {
    name: 'engramConv',
    parameters: [site, array('taps'), array('rows', true)],
    valid: () => [0, floats(convTaps * dModel), floats(dModel)],
  },
  {
    name: 'writeKv',
    parameters: [layer, array('keys'), array('values')],
    valid: () => [0, floats(Q.k), floats(Q.v)],
  },
  {
    name: 'attend',
    parameters: [layer, array('query'), array('out', true)],
    valid: () => [0, floats(Q.q), floats(Q.out)],
  },
  {
    name: 'appendAndAttend',
    parameters: [layer, array('query'), array('keys'), array('values'), array('out', true)],
    valid: () => [0, floats(Q.q), floats(Q.k), floats(Q.v), floats(Q.out)],
  },
  {
    name: 'advance',
    parameters: [{ name: 'count', is: { kind: 'integer', min: 1, max: 2 ** 31 - 1, optional: true } }],
    valid: () => [1],
  },
  {
    name: 'writeKv',
    parameters: [layer, array('keys'), array('values'), position(true)],
    valid: () => [0, floats(Q.k), floats(Q.v), POSITION],
    betweenSteps: true,
  },
  {
    name: 'seedConvTail',
    parameters: [layer, projection, array('rows')],
    valid: () => [0, 'v', floats(qkvTailRows(HYBRID) * Q.v)],
    betweenSteps: true,
  },
  {
    name: 'seedEngramTail',
    parameters: [site, array('rows')],
    valid: () => [1, floats(engramTailRows(HYBRID.engram) * dModel)],
    betweenSteps: true,
  },
  { name: 'setPosition', parameters: [position(false)], valid: () => [POSITION], betweenSteps: true },
  { name: 'rollback', parameters: [{ name: 'mark', is: { kind: 'mark' } }], valid: () => [] },
  { name: 'release', parameters: [{ name: 'mark', is: { kind: 'mark' } }], valid: () => [], betweenSteps: true },
];

/** Values that the parameter refuses, for each code. */
function refused(is: Kind, valid: unknown): { code: ErrorCode; values: readonly unknown[] }[] {
  switch (is.kind) {
    case 'index':
      return [
        { code: 'type', values: [undefined, ...NO_NUMBERS] },
        { code: 'range', values: [-1, is.count, 0.5, NaN, Infinity, 2 ** 32] },
      ];
    case 'integer':
      return [
        { code: 'type', values: is.optional === true ? NO_NUMBERS : [undefined, ...NO_NUMBERS] },
        { code: 'range', values: [is.min - 1, is.max + 1, is.min + 0.5, NaN, Infinity, -Infinity, 2 ** 32 + is.min] },
      ];
    case 'projection':
      return [
        { code: 'type', values: [undefined, null, 0, ['q'], {}, Symbol('q')] },
        { code: 'range', values: ['x', 'Q', '', 'qk', 'out'] },
      ];
    case 'mark':
      return [{ code: 'type', values: [undefined, null, 1, 'mark', {}, Object.create(null) as object] }];
    case 'array': {
      const { length } = valid as Float32Array;
      return [
        { code: 'type', values: NO_FLOAT32 },
        { code: 'shape', values: [0, length - 1, length + 1].map(floats) },
      ];
    }
  }
}

function call(state: DecodeState, method: Method, args: readonly unknown[]): unknown {
  return (state as unknown as Record<string, (...args: unknown[]) => unknown>)[method.name](...args);
}

/** The method and its parameters, to tell overloads apart. */
function title(method: Method): string {
  return `${method.name}(${method.parameters.map((each) => each.name).join(', ')})`;
}

describe('arguments of the state', () => {
  for (const method of METHODS) {
    const situations = [
      ['between steps', BETWEEN_STEPS],
      ['inside a step', INSIDE_A_STEP],
    ] as const;
    for (const [when, situation] of method.betweenSteps === true ? situations.slice(0, 1) : situations) {
      method.parameters.forEach((parameter, index) => {
        for (const { code, values } of refused(parameter.is, method.valid()[index])) {
          it(`${title(method)} ${when} refuses a wrong ${parameter.name}: ${code}`, () =>
            refuse(situation, (state) => {
              for (const value of values) {
                const args = method.valid();
                args[index] = value;
                const size = value instanceof Float32Array ? String(value.length) : shown(value);
                expectError(() => call(state, method, args), code, `${method.name}: `, parameter.name, size);
              }
            }));
        }

        if (parameter.is.kind !== 'array') return;
        it(`${title(method)} ${when} refuses another instance's ${parameter.name}: range`, () =>
          refuse(situation, (state, { other }) => {
            const args = method.valid();
            args[index] = other.allocate((args[index] as Float32Array).length);
            expectError(() => call(state, method, args), 'range', `${method.name}: `, parameter.name, 'instance');
            (args[index] as WasmFloat32Array).dispose();
          }));

        it(`${title(method)} ${when} refuses a disposed ${parameter.name}: disposed`, () =>
          refuse(situation, (state, { needle }) => {
            const owner = needle.allocate((method.valid()[index] as Float32Array).length);
            for (const gone of [owner, owner.subarray(0)]) {
              const args = method.valid();
              args[index] = gone;
              owner.dispose();
              expectError(() => call(state, method, args), 'disposed', `${method.name}: `);
            }
          }));

        if (parameter.is.output !== true) return;
        method.parameters.forEach((input, inputIndex) => {
          if (inputIndex === index || input.is.kind !== 'array') return;
          it(`${title(method)} ${when} refuses a ${parameter.name} that overlaps ${input.name}: range`, () =>
            refuse(situation, (state, { needle }) => {
              const [a, b] = [method.valid()[inputIndex], method.valid()[index]] as [Float32Array, Float32Array];
              const total = a.length + b.length - 1;
              const buffer = new Float32Array(total).fill(0.5);
              const shared = needle.allocate(total);
              // Each ends with the other's first element.
              const layouts: [Float32Input, Float32Input][] = [
                [buffer.subarray(0, a.length), buffer.subarray(a.length - 1)],
                [buffer.subarray(b.length - 1), buffer.subarray(0, b.length)],
                [shared.subarray(0, a.length), shared.subarray(a.length - 1)],
                [shared.view.subarray(0, a.length), shared.view.subarray(a.length - 1)],
                [shared.view.subarray(b.length - 1), shared.subarray(0, b.length)],
              ];
              if (a.length === b.length) layouts.push([buffer.subarray(0, a.length), buffer.subarray(0, a.length)]);
              for (const [inputArray, output] of layouts) {
                const args = method.valid();
                args[inputIndex] = inputArray;
                args[index] = output;
                expectError(() => call(state, method, args), 'range', `${method.name}: `, parameter.name, input.name);
              }
              expectSameBits(buffer, new Float32Array(total).fill(0.5), 'the shared array');
              shared.dispose();
            }));
        });
      });
    }
  }

  it('seedTokens refuses what is no list of token ids: type', () =>
    refuse(BETWEEN_STEPS, (state) => {
      for (const ids of [undefined, null, 3, 'ids', {}, () => 1, { length: -1 }, { length: 1.5 }]) {
        expectError(() => state.seedTokens(ids as number[]), 'type', 'seedTokens: ', 'ids');
      }
      for (const id of ['1', null, undefined, 1n, {}]) {
        expectError(() => state.seedTokens([0, id as number]), 'type', 'seedTokens: ', 'ids[1]');
      }
    }));

  it('seedTokens refuses ids outside the vocabulary and fractions: range', () =>
    refuse(BETWEEN_STEPS, (state) => {
      for (const id of [-1, HYBRID.vocabSize, 0.5, NaN, Infinity]) {
        expectError(() => state.seedTokens([0, 1, id]), 'range', 'seedTokens: ', 'ids[2]', String(id));
      }
      // Ids that are not kept are checked as well.
      expectError(() => state.seedTokens([64, 0, 0, 0, 0, 0]), 'range', 'seedTokens: ', 'ids[0]', '64');
    }));

  it('save refuses options and fingerprints of another type: type', () =>
    refuse(BETWEEN_STEPS, (state) => {
      for (const options of [null, 1, 'x'])
        expectError(() => state.save(options as unknown as object), 'type', 'save: ', 'options');
      for (const fingerprint of [null, 'abc', [1], new Float32Array(1), new ArrayBuffer(4)]) {
        expectError(
          () => state.save({ fingerprint: fingerprint as unknown as Uint8Array }),
          'type',
          'save: ',
          'fingerprint',
        );
      }
    }));

  it('save refuses a fingerprint longer than 64 bytes: range', () =>
    refuse(BETWEEN_STEPS, (state) => {
      expectError(() => state.save({ fingerprint: new Uint8Array(65) }), 'range', 'save: ', 'fingerprint', '65', '64');
    }));

  it('a site is refused where the geometry has no Engram: range', () =>
    refuse({ config: { ...HYBRID, engram: { ...HYBRID.engram, sites: [] } } }, (state) => {
      expectError(() => state.engramConv(0, floats(15), floats(5)), 'range', 'engramConv: ', 'site', '0');
      expectError(() => state.seedEngramTail(0, floats(20)), 'range', 'seedEngramTail: ', 'site', '0');
    }));
});

describe('the moment of a call', () => {
  const openings: readonly (readonly [string, (state: DecodeState, inputs: Inputs) => void])[] = [
    ['a token is pushed', (state) => state.pushToken(1)],
    ['a projection is convolved', (state, inputs) => state.conv(1, 'q', inputs.taps(1, 'q'), floats(Q.q))],
    ['an Engram is convolved', (state, inputs) => state.engramConv(0, inputs.engramTaps(0), floats(dModel))],
    ['keys are written', (state) => state.writeKv(2, floats(Q.k), floats(Q.v))],
    ['a query has attended', (state) => state.appendAndAttend(0, floats(Q.q), floats(Q.k), floats(Q.v), floats(Q.out))],
  ];
  const refusals: Record<string, (state: DecodeState, mark: Mark) => unknown> = {
    fork: (state) => state.fork(),
    save: (state) => state.save(),
    mark: (state) => state.mark(),
    release: (state, mark) => state.release(mark),
    setPosition: (state) => state.setPosition(3),
    seedConvTail: (state) => state.seedConvTail(0, 'q', floats(qkvTailRows(HYBRID) * Q.q)),
    seedEngramTail: (state) => state.seedEngramTail(0, floats(engramTailRows(HYBRID.engram) * dModel)),
    seedTokens: (state) => state.seedTokens([1, 2]),
    writeKv: (state) => state.writeKv(0, floats(Q.k), floats(Q.v), POSITION),
  };
  for (const [opening, open] of openings) {
    it(`once ${opening}, the step refuses ${Object.keys(refusals).join(', ')}: range`, async () => {
      const marks = new Map<DecodeState, Mark>();
      await refuse(
        {
          arrange(state, inputs) {
            marks.set(state, state.mark());
            open(state, inputs);
          },
          finish(state, inputs) {
            // What the step had done so far is committed, and shows in the tails, the tokens and the keys.
            state.advance();
            const trace = [
              inputs.rows(1, 'q', 8, 1),
              inputs.engramRows(0, 8, 1),
              readKeys(state, 2),
              readKeys(state, 0),
            ];
            state.conv(1, 'q', inputs.taps(1, 'q'), trace[0]);
            state.engramConv(0, inputs.engramTaps(0), trace[1]);
            trace.push(Float32Array.from(state.engramIndices().indices));
            // The mark is still good.
            state.rollback(marks.get(state)!);
            expect(state.position).toBe(POSITION);
            state.release(marks.get(state)!);
            return [...trace, ...steps(state, inputs, 1, 3)];
          },
        },
        (state) => {
          for (const [name, make] of Object.entries(refusals)) {
            expectError(() => make(state, marks.get(state)!), 'range', `${name}: `, 'step');
          }
        },
      );
    });
  }

  it('engramIndices before any token: range', async () => {
    const { needle, inputs } = await getContext();
    const [state, twin] = [needle.createDecodeState(HYBRID), needle.createDecodeState(HYBRID)];
    expectError(() => state.engramIndices(), 'range', 'engramIndices: ', 'token');
    expectSameTrace(steps(state, inputs, 1, 2), steps(twin, inputs, 1, 2), 'afterwards');
    state.dispose();
    twin.dispose();
  });

  it('attend before the write of its position: range', () =>
    refuse(BETWEEN_STEPS, (state) => {
      for (let l = 0; l < HYBRID.numLayers; l++) {
        expectError(() => state.attend(l, floats(Q.q), floats(Q.out)), 'range', 'attend: ', `layer ${l}`, '7');
      }
    }));

  it('attend in a step of more rows: shape', () =>
    refuse(
      {
        arrange: (state, inputs) => void openStep(state, inputs, 3),
        finish(state, inputs) {
          state.advance(3);
          return steps(state, inputs, 1, 3);
        },
      },
      (state) => {
        expectError(() => state.attend(0, floats(Q.q), floats(Q.out)), 'shape', 'attend: ', '3');
      },
    ));

  it('attend and appendAndAttend over positions that a layer does not hold: range', () =>
    refuse(
      {
        // Beyond what is held: the layers start new ranges, which do not reach back far enough.
        arrange: (state) => state.setPosition(20),
        finish(state) {
          state.setPosition(0);
          state.reset();
          return steps(state, new Inputs(HYBRID, 11), 1, 3);
        },
      },
      (state) => {
        const out = new Float32Array(Q.out);
        expectError(
          () => state.appendAndAttend(0, floats(Q.q), floats(Q.k), floats(Q.v), out),
          'range',
          'appendAndAttend: ',
          'layer 0',
          '17',
        );
        expectSameBits(out, new Float32Array(Q.out), 'out');
      },
    ));

  it('rows of another number than the step has: shape', () =>
    refuse(INSIDE_A_STEP, (state, { inputs }) => {
      const says = ['2', '1'];
      expectError(() => state.conv(0, 'q', inputs.taps(0, 'q'), floats(2 * Q.q)), 'shape', 'conv: ', ...says);
      expectError(
        () => state.engramConv(0, inputs.engramTaps(0), floats(2 * dModel)),
        'shape',
        'engramConv: ',
        ...says,
      );
      expectError(() => state.writeKv(0, floats(2 * Q.k), floats(2 * Q.v)), 'shape', 'writeKv: ', ...says);
      expectError(
        () => state.appendAndAttend(0, floats(2 * Q.q), floats(2 * Q.k), floats(2 * Q.v), floats(2 * Q.out)),
        'shape',
        'appendAndAttend: ',
        ...says,
      );
    }));

  it('arrays of one call whose rows disagree in number: shape', () =>
    refuse(BETWEEN_STEPS, (state) => {
      expectError(() => state.writeKv(0, floats(Q.k), floats(2 * Q.v)), 'shape', 'writeKv: ', 'values');
      expectError(() => state.writeKv(0, floats(2 * Q.k), floats(Q.v)), 'shape', 'writeKv: ');
      expectError(() => state.writeKv(0, floats(2 * Q.k), floats(Q.v), POSITION), 'shape', 'writeKv: ');
      const append = (q: number, k: number, v: number, out: number): void =>
        state.appendAndAttend(0, floats(q * Q.q), floats(k * Q.k), floats(v * Q.v), floats(out * Q.out));
      for (const [q, k, v, out] of [
        [2, 1, 1, 1],
        [1, 2, 1, 1],
        [1, 1, 2, 1],
        [1, 1, 1, 2],
        [2, 2, 2, 1],
      ] as const) {
        expectError(() => append(q, k, v, out), 'shape', 'appendAndAttend: ');
      }
    }));

  it('advance by another count than the rows of the step: range', () =>
    refuse(
      {
        arrange: (state) => state.writeKv(0, floats(3 * Q.k), floats(3 * Q.v)),
        finish(state, inputs) {
          state.advance(3);
          state.setPosition(POSITION);
          return [...Array.from({ length: HYBRID.numLayers }, (_, l) => readKeys(state, l)), ...steps(state, inputs)];
        },
      },
      (state) => {
        for (const count of [undefined, 1, 2, 4]) {
          expectError(() => state.advance(count), 'range', 'advance: ', String(count ?? 1), '3');
        }
      },
    ));

  it('advance by another count than the tokens pushed: range', () =>
    refuse(
      {
        arrange(state) {
          state.pushToken(1);
          state.pushToken(2);
        },
        finish(state) {
          state.advance(2);
          return [Float32Array.from(state.engramIndices().indices)];
        },
      },
      (state) => {
        for (const count of [undefined, 1, 3]) {
          expectError(() => state.advance(count), 'range', 'advance: ', String(count ?? 1), '2', 'token');
        }
      },
    ));

  it('advance where rows and tokens disagree: range, until the step is made whole or dropped', () =>
    refuse(
      {
        arrange(state) {
          state.pushToken(1);
          state.writeKv(0, floats(2 * Q.k), floats(2 * Q.v));
        },
        finish(state, inputs) {
          state.discard();
          return steps(state, inputs, 2, 1);
        },
      },
      (state) => {
        expectError(() => state.advance(1), 'range', 'advance: ');
        expectError(() => state.advance(2), 'range', 'advance: ');
      },
    ));

  it('no position beyond 2^31 − 1 is committed: range', async () => {
    const { needle } = await getContext();
    const state = needle.createDecodeState(HYBRID);
    const last = 2 ** 31 - 1;
    state.setPosition(last - 1);
    expectError(() => state.advance(2), 'range', 'advance: ', '2');
    state.advance(1);
    expect(state.position).toBe(last);
    expectError(() => state.advance(1), 'range', 'advance: ', '1');
    expect(state.position).toBe(last);
    expect(state.span(0)).toEqual({ first: last - 3, last });
    expect(state.span(1)).toEqual({ first: last - 31, last });
    state.dispose();
  });

  it('a write at an explicit position below what the layer holds: range', () =>
    refuse(BETWEEN_STEPS, (state) => {
      // At position 7 a ring of four holds 4 … 6.
      expectError(() => state.writeKv(0, floats(Q.k), floats(Q.v), 3), 'range', 'writeKv: ', 'position', '3', '4');
    }));
});

function readKeys(state: DecodeState, l: number): Float32Array {
  const kv = state.kv(l);
  if (kv.precision !== 'f32') throw new Error('an f32 state has f32 rows');
  const { first, last } = state.span(l, state.position - 1);
  const rows = [];
  for (let p = first; p <= last; p++) rows.push(...kv.keys.subarray((p % kv.slots) * Q.k, ((p % kv.slots) + 1) * Q.k));
  return Float32Array.from(rows);
}

describe('seeds', () => {
  it('seeds from elsewhere are taken in the forms that the type allows', async () => {
    const { needle, inputs } = await getContext();
    const state = needle.createDecodeState(HYBRID);
    seedHistories(state, inputs, 9);
    state.seedTokens(Uint8Array.of(1, 2, 3, 4));
    expect(Array.from(state.tokenHistory)).toEqual([2, 3, 4]);
    state.seedTokens({ length: 2, 0: 5, 1: 6 });
    expect(Array.from(state.tokenHistory)).toEqual([5, 6]);
    state.seedTokens([]);
    expect(Array.from(state.tokenHistory)).toEqual([]);
    state.dispose();
  });
});

describe('numbers that would poison later steps', () => {
  for (const bad of [NaN, Infinity, -Infinity]) {
    for (const [what, width, headWidth] of [
      ['keys', Q.k, HYBRID.qkHeadDim],
      ['values', Q.v, HYBRID.vHeadDim],
    ] as const) {
      it(`${what} of ${bad}: non-finite, naming layer, head, element and position`, async () => {
        for (const precision of ['f32', 'int8'] as const) {
          await refuse({ options: { precision, capacityHint: 2 } }, (state) => {
            const count = 6;
            const rows = { keys: floats(count * Q.k), values: floats(count * Q.v) };
            rows[what][4 * width + headWidth + 2] = bad;
            const says = [what, 'layer 1', 'head 1', 'element 2', `position ${POSITION + 4}`];
            expectError(() => state.writeKv(1, rows.keys, rows.values), 'non-finite', 'writeKv: ', ...says);
            expectError(() => state.writeKv(1, rows.keys, rows.values, POSITION), 'non-finite', 'writeKv: ', ...says);
            const out = new Float32Array(count * Q.out);
            expectError(
              () => state.appendAndAttend(1, floats(count * Q.q), rows.keys, rows.values, out),
              'non-finite',
              'appendAndAttend: ',
              ...says,
            );
            expectSameBits(out, new Float32Array(out.length), 'out');
          });
        }
      });
    }

    it(`a query of ${bad} to be quantised: non-finite`, () =>
      refuse({ options: { precision: 'int8', capacityHint: 2 } }, (state) => {
        const query = floats(Q.q);
        query[HYBRID.qkHeadDim + 1] = bad;
        const says = ['query', 'head 1', 'element 1'];
        expectError(
          () => state.appendAndAttend(0, query, floats(Q.k), floats(Q.v), floats(Q.out)),
          'non-finite',
          'appendAndAttend: ',
          ...says,
        );
      }));

    it(`a query of ${bad} to be quantised, at attend: non-finite, and the write stands`, () =>
      refuse(
        {
          options: { precision: 'int8', capacityHint: 2 },
          arrange: (state) => state.writeKv(0, floats(Q.k), floats(Q.v)),
          finish(state, inputs) {
            const out = new Float32Array(Q.out);
            state.attend(0, floats(Q.q), out);
            state.discard();
            return [out, ...steps(state, inputs, 1, 3)];
          },
        },
        (state) => {
          const query = floats(Q.q);
          query[0] = bad;
          expectError(
            () => state.attend(0, query, floats(Q.out)),
            'non-finite',
            'attend: ',
            'query',
            'head 0',
            'element 0',
          );
        },
      ));
  }

  it('a query that is not quantised may hold anything', async () => {
    const { needle } = await getContext();
    for (const options of [{}, { precision: 'int8', quantizeQuery: false }] as const) {
      const state = needle.createDecodeState(HYBRID, options);
      state.appendAndAttend(0, floats(Q.q).fill(NaN), floats(Q.k), floats(Q.v), floats(Q.out));
      state.dispose();
    }
  });
});

describe('marks', () => {
  const deaths: Record<string, (state: DecodeState, mark: Mark) => void> = {
    'is released': (state, mark) => state.release(mark),
    'belongs to a state that was reset': (state) => state.reset(),
    'belongs to a state whose position was set': (state) => state.setPosition(5),
    'belongs to a state whose convolution tail was seeded': (state) =>
      state.seedConvTail(0, 'q', floats(qkvTailRows(HYBRID) * Q.q)),
    'belongs to a state whose Engram tail was seeded': (state) =>
      state.seedEngramTail(0, floats(engramTailRows(HYBRID.engram) * dModel)),
    'belongs to a state whose tokens were seeded': (state) => state.seedTokens([1]),
    'belongs to a state that had rows imported': (state) => state.writeKv(0, floats(Q.k), floats(Q.v), POSITION),
  };
  for (const [how, kill] of Object.entries(deaths)) {
    it(`a mark that ${how} is refused: range`, async () => {
      const marks = new Map<DecodeState, Mark>();
      await refuse(
        {
          arrange(state, inputs) {
            const mark = state.mark();
            marks.set(state, mark);
            step(state, inputs);
            kill(state, mark);
            expect(state.markBytes).toBe(0);
          },
          finish(state, inputs) {
            state.reset();
            return steps(state, inputs, 2, 1);
          },
        },
        (state) => {
          expectError(() => state.rollback(marks.get(state)!), 'range', 'rollback: ', 'mark');
          expectError(() => state.release(marks.get(state)!), 'range', 'release: ', 'mark');
        },
      );
    });
  }

  for (const method of ['rollback', 'release'] as const) {
    it(`an inner mark is refused after ${method} of an outer one: range`, async () => {
      const marks = new Map<DecodeState, Mark>();
      await refuse(
        {
          arrange(state, inputs) {
            const outer = state.mark();
            step(state, inputs);
            marks.set(state, state.mark());
            step(state, inputs);
            state[method](outer);
          },
        },
        (state) => {
          expectError(() => state.rollback(marks.get(state)!), 'range', 'rollback: ', 'mark');
          expectError(() => state.release(marks.get(state)!), 'range', 'release: ', 'mark');
        },
      );
    });

    it(`${method} refuses a mark of another state, of a fork and of another instance: range`, () =>
      refuse(BETWEEN_STEPS, (state, { needle, other }) => {
        const own = state.mark();
        const fork = state.fork();
        const strangers = [needle.createDecodeState(HYBRID), other.createDecodeState(HYBRID), fork];
        for (const stranger of strangers) {
          expectError(() => state[method](stranger.mark()), 'range', `${method}: `, 'mark');
        }
        // A fork has no marks, and the one it was made beside is not its own.
        expectError(() => fork[method](own), 'range', `${method}: `, 'mark');
        for (const stranger of strangers) stranger.dispose();
        state.release(own);
      }));
  }
});

describe('after dispose', () => {
  it('every method and property of a state: disposed, and nothing else', async () => {
    const { needle } = await getContext();
    const state = needle.createDecodeState(HYBRID);
    const mark = state.mark();
    const kv = state.kv(0);
    state.dispose();
    for (const method of METHODS) {
      const args = method.name === 'rollback' || method.name === 'release' ? [mark] : method.valid();
      expectError(() => call(state, method, args), 'disposed', `${method.name}: `);
      // It comes before all else that may be wrong.
      expectError(() => call(state, method, []), 'disposed', `${method.name}: `);
    }
    const bare = ['engramIndices', 'discard', 'fork', 'mark', 'save', 'reset'] as const;
    for (const name of bare) expectError(() => state[name](), 'disposed', `${name}: `);
    expectError(() => state.seedTokens([1]), 'disposed', 'seedTokens: ');
    const properties = [
      'config',
      'precision',
      'quantizeQuery',
      'position',
      'byteLength',
      'markBytes',
      'isSaturated',
      'tokenHistory',
    ] as const;
    for (const name of properties) expectError(() => state[name], 'disposed', name);
    expectError(() => kv.slots, 'disposed');
    expectError(() => kv.keys, 'disposed');
    expectError(() => kv.values, 'disposed');
  });

  it('the list of methods above is the whole of the class', () => {
    const tested = new Set([
      ...METHODS.map((method) => method.name),
      ...['engramIndices', 'discard', 'fork', 'mark', 'save', 'reset', 'seedTokens', 'dispose', 'constructor'],
      ...['config', 'precision', 'quantizeQuery', 'position', 'byteLength', 'markBytes', 'isSaturated', 'tokenHistory'],
    ]);
    expect(new Set(Object.getOwnPropertyNames(DecodeState.prototype))).toEqual(tested);
  });

  it('every use of an array and of its subarrays: disposed', async () => {
    const { needle } = await getContext();
    const owner = needle.allocate(8);
    const part = owner.subarray(2, 6);
    owner.dispose();
    for (const array of [owner, part]) {
      expectError(() => array.length, 'disposed', 'length');
      expectError(() => array.view, 'disposed', 'view');
      expectError(() => array.subarray(0), 'disposed', 'subarray');
    }
  });
});

/** A geometry with one field replaced; the field may be one of the Engram's. */
function withField(field: string, value: unknown): ModelConfig {
  const [head, inner] = field.split('.') as [string, string?];
  const config = HYBRID as unknown as Record<string, unknown>;
  if (inner === undefined) return { ...config, [head]: value } as unknown as ModelConfig;
  return { ...config, [head]: { ...(config[head] as object), [inner]: value } } as unknown as ModelConfig;
}

describe('geometry', () => {
  const counts = [
    ...['vocabSize', 'dModel', 'numHeads', 'numKvHeads', 'numLayers', 'qkHeadDim', 'vHeadDim', 'maxSeqLen', 'hadaN'],
    ...['mhcLanes', 'engram.heads', 'engram.slots', 'engram.subDim', 'engram.convDilation'],
  ];
  const mayBeZero = ['slidingWindow', 'outVocab', 'qkvConvTaps', 'engram.convTaps', 'engram.seedHeads'];
  const lists = ['globalLayers', 'engram.orders', 'engram.sites'];
  const cases: readonly (readonly [field: string, values: readonly unknown[], ...says: string[]])[] = [
    ...counts.map((field) => [field, [0], '1'] as const),
    ...[...counts, ...mayBeZero].map(
      (field) => [field, [-1, 0.5, NaN, Infinity, 2 ** 32, '4', null, undefined, true, 4n, [4]], 'integer'] as const,
    ),
    ['ropeTheta', [0, -1, NaN, Infinity, '1', null, undefined]],
    ...lists.map((field) => [field, [null, undefined, 3, 'x', {}], 'array'] as const),
    ...lists.map((field) => [field, [[0.5], [-1], ['0'], [null], [2 ** 32], [NaN]], '[0]', 'integer'] as const),
    ['globalLayers', [[3], [0, 3]], '3', 'numLayers'],
    ['globalLayers', [[1, 1]], '1', 'twice'],
    ['globalLayers', [[2, 1]], '1', 'ascending'],
    ['engram.sites', [[3], [0, 2, 3]], '3', 'numLayers'],
    ['engram.sites', [[0, 0]], '0', 'twice'],
    ['engram.sites', [[2, 0]], '0', 'ascending'],
    ['engram.orders', [[0], [2, 0]], '0', '1'],
    ['outVocab', [65], '65', 'vocabSize', '64'],
    ['numHeads', [3, 1], 'numKvHeads', '2'],
    ['maxSeqLen', [2 ** 31], '2147483648', '2147483647'],
    ['engram', [null, undefined, 3, 'x'], 'object'],
    // Too large for 32-bit memory.
    ['dModel', [2 ** 30], 'dModel', '32-bit'],
    ['qkHeadDim', [2 ** 29], 'qkHeadDim', '32-bit'],
    ['vHeadDim', [2 ** 30], 'vHeadDim', '32-bit'],
    ['numLayers', [2 ** 27], '32-bit'],
    ['qkvConvTaps', [2 ** 31], '32-bit'],
    ['engram.convTaps', [2 ** 31], '32-bit'],
    ['engram.convDilation', [2 ** 31], '32-bit'],
    ['engram.heads', [2 ** 31], '32-bit'],
    ['engram.orders', [[2 ** 31]], '32-bit'],
  ];
  for (const [field, values, ...says] of cases) {
    it(`${field} of ${values.map((value) => (Array.isArray(value) ? `[${value.map(String).join(', ')}]` : String(value))).join(', ')}: config`, async () => {
      const { needle } = await getContext();
      const { allocatedBytes } = needle.memory;
      // Where several fields make a size, the message names the size and what it comes to.
      const isSize = says.includes('32-bit');
      const named = isSize ? [...says, 'bytes'] : [field, ...says];
      for (const value of values) {
        const config = withField(field, value);
        const inMessage = isSize ? '' : shown(value);
        expectError(() => needle.createDecodeState(config), 'config', 'createDecodeState: ', ...named, inMessage);
        expectError(() => needle.decodeStateBytes(config, { positions: 1 }), 'config', 'decodeStateBytes: ', ...named);
      }
      expect(needle.memory.allocatedBytes).toBe(allocatedBytes);
    });
  }

  it('what is no object: type', async () => {
    const { needle } = await getContext();
    for (const config of [undefined, null, 1, 'NEEDLE3', true]) {
      expectError(
        () => needle.createDecodeState(config as unknown as ModelConfig),
        'type',
        'createDecodeState: ',
        'config',
      );
      expectError(
        () => needle.decodeStateBytes(config as unknown as ModelConfig, { positions: 1 }),
        'type',
        'decodeStateBytes: ',
        'config',
      );
    }
  });

  it('everything that makes sense is taken: no convolution, no Engram, no window, one of everything', async () => {
    const { needle } = await getContext();
    const one = {
      ...PLAIN,
      vocabSize: 1,
      dModel: 1,
      numHeads: 1,
      numKvHeads: 1,
      qkHeadDim: 1,
      vHeadDim: 1,
      maxSeqLen: 1,
    };
    const valid: ModelConfig[] = [
      PLAIN,
      one,
      { ...one, slidingWindow: 4294967295 },
      { ...HYBRID, globalLayers: [], engram: NO_ENGRAM },
      { ...HYBRID, globalLayers: [0, 1, 2] },
      { ...HYBRID, outVocab: 64 },
      { ...HYBRID, maxSeqLen: 2 ** 31 - 1, vocabSize: 2 ** 32 - 1 },
      { ...HYBRID, engram: { ...HYBRID.engram, seedHeads: 4294967295, slots: 4294967295 } },
      { ...HYBRID, engram: { ...HYBRID.engram, orders: [3, 3, 1] } },
      NEEDLE3,
    ];
    for (const config of valid) {
      const state = needle.createDecodeState(config, { capacityHint: 0 });
      expect(state.config).toEqual(config);
      state.dispose();
    }
  });

  it("the state's geometry is a copy of its own that nobody can change", async () => {
    const { needle } = await getContext();
    const config = structuredClone(HYBRID) as unknown as {
      numLayers: number;
      globalLayers: number[];
      engram: { orders: number[] };
    };
    const state = needle.createDecodeState(config as unknown as ModelConfig);
    config.numLayers = 99;
    config.globalLayers.push(7);
    config.engram.orders[0] = 9;
    expect(state.config).toEqual(HYBRID);
    for (const part of [
      state.config,
      state.config.globalLayers,
      state.config.engram,
      state.config.engram.orders,
      state.config.engram.sites,
    ]) {
      expect(Object.isFrozen(part)).toBe(true);
    }
    expect(
      Object.isFrozen(NEEDLE3) && Object.isFrozen(NEEDLE3.engram.orders) && Object.isFrozen(NEEDLE3.globalLayers),
    ).toBe(true);
    state.dispose();
  });
});

describe('options of a state', () => {
  const create = (needle: Needle3, options: unknown): unknown => needle.createDecodeState(HYBRID, options as object);
  const bytes = (needle: Needle3, options: unknown): unknown =>
    needle.decodeStateBytes(HYBRID, { positions: 1, ...(options as object) });
  const cases: readonly (readonly [option: string, code: ErrorCode, values: readonly unknown[], ...says: string[]])[] =
    [
      ['capacityHint', 'type', NO_NUMBERS],
      ['capacityHint', 'range', [-1, 0.5, NaN, Infinity], 'integer'],
      ['precision', 'type', [null, 8, {}, true]],
      ['precision', 'unsupported', ['f16', 'F32', '', 'int4'], "'f32'", "'int8'"],
      ['quantizeQuery', 'type', [null, 0, 1, 'true', {}]],
    ];
  for (const [option, code, values, ...says] of cases) {
    it(`a wrong ${option}: ${code}`, async () => {
      const { needle } = await getContext();
      for (const value of values) {
        const all = [option, ...says, shown(value)];
        expectError(() => create(needle, { [option]: value }), code, 'createDecodeState: ', ...all);
        expectError(() => bytes(needle, { [option]: value }), code, 'decodeStateBytes: ', ...all);
      }
    });
  }

  it('options that are no object: type', async () => {
    const { needle } = await getContext();
    for (const options of [null, 5, 'f32', true]) {
      expectError(() => create(needle, options), 'type', 'createDecodeState: ', 'options');
      expectError(() => needle.decodeStateBytes(HYBRID, options as never), 'type', 'decodeStateBytes: ', 'options');
      expectError(
        () => needle.restoreDecodeState(new Uint8Array(1), options as never),
        'type',
        'restoreDecodeState: ',
        'options',
      );
    }
    expectError(() => needle.decodeStateBytes(HYBRID, undefined as never), 'type', 'decodeStateBytes: ', 'options');
  });

  it('quantizeQuery over f32: unsupported', async () => {
    const { needle } = await getContext();
    for (const options of [{ quantizeQuery: true }, { precision: 'f32', quantizeQuery: true }]) {
      expectError(() => create(needle, options), 'unsupported', 'createDecodeState: ', 'quantizeQuery', 'int8');
    }
  });

  it('positions of decodeStateBytes: type or range', async () => {
    const { needle } = await getContext();
    for (const positions of [undefined, ...NO_NUMBERS]) {
      expectError(() => needle.decodeStateBytes(HYBRID, { positions: positions as number }), 'type', 'positions');
    }
    for (const positions of [-1, 0.5, NaN, Infinity, 2 ** 31]) {
      expectError(
        () => needle.decodeStateBytes(HYBRID, { positions }),
        'range',
        'decodeStateBytes: ',
        'positions',
        String(positions),
      );
    }
  });

  it('the defaults are f32 for 512 positions, and quantised queries with int8', async () => {
    const { needle } = await getContext();
    const states = [
      needle.createDecodeState(NEEDLE3),
      needle.createDecodeState(NEEDLE3, { precision: 'int8' }),
      needle.createDecodeState(NEEDLE3, { precision: 'int8', quantizeQuery: false, capacityHint: 99999 }),
      needle.createDecodeState(NEEDLE3, { capacityHint: undefined, precision: undefined, quantizeQuery: undefined }),
    ];
    expect(states.map((state) => [state.precision, state.quantizeQuery, state.slots(0), state.slots(4)])).toEqual([
      ['f32', false, 512, 512],
      ['int8', true, 512, 512],
      ['int8', false, 1024, 8192],
      ['f32', false, 512, 512],
    ]);
    for (const state of states) state.dispose();
  });
});

describe('arguments of the instance', () => {
  it('allocate: type, range or out-of-memory', async () => {
    const { needle } = await getContext();
    const { allocatedBytes } = needle.memory;
    for (const length of [undefined, ...NO_NUMBERS])
      expectError(() => needle.allocate(length as number), 'type', 'allocate: ', 'length');
    for (const length of [-1, 0.5, NaN, Infinity])
      expectError(() => needle.allocate(length), 'range', 'allocate: ', 'length', String(length));
    for (const length of [2 ** 30, 2 ** 32, 2 ** 53 - 1])
      expectError(() => needle.allocate(length), 'out-of-memory', 'allocate: ', String(length));
    expect(needle.memory.allocatedBytes).toBe(allocatedBytes);
    const empty = needle.allocate(0);
    expect(empty.length).toBe(0);
    expect(empty.view.length).toBe(0);
    empty.dispose();
  });

  it('subarray: type or range', async () => {
    const { needle } = await getContext();
    const array = needle.allocate(8);
    for (const begin of [undefined, ...NO_NUMBERS])
      expectError(() => array.subarray(begin as number), 'type', 'subarray: ', 'begin');
    for (const end of NO_NUMBERS) expectError(() => array.subarray(0, end as number), 'type', 'subarray: ', 'end');
    for (const begin of [-1, 9, 0.5, NaN])
      expectError(() => array.subarray(begin), 'range', 'subarray: ', 'begin', String(begin));
    for (const end of [-1, 2, 9, 3.5, NaN])
      expectError(() => array.subarray(3, end), 'range', 'subarray: ', 'end', String(end));
    array.dispose();
  });

  it('fakeQuantize: type, range, unsupported or non-finite, and x stays as it was', async () => {
    const { needle } = await getContext();
    for (const x of [...NO_FLOAT32])
      expectError(() => needle.fakeQuantize(x as Float32Array), 'type', 'fakeQuantize: ', 'x');
    const x = Float32Array.of(1, 2, 3.3);
    for (const bits of NO_NUMBERS)
      expectError(() => needle.fakeQuantize(x, bits as number), 'type', 'fakeQuantize: ', 'bits');
    for (const bits of [8.5, NaN, Infinity])
      expectError(() => needle.fakeQuantize(x, bits), 'range', 'fakeQuantize: ', 'bits', String(bits));
    for (const bits of [-8, 0, 1, 17, 32])
      expectError(() => needle.fakeQuantize(x, bits), 'unsupported', 'fakeQuantize: ', 'bits', String(bits));
    expectSameBits(x, Float32Array.of(1, 2, 3.3), 'x');
    for (const bad of [NaN, Infinity, -Infinity]) {
      const poisoned = Float32Array.of(1.3, bad, 2);
      expectError(() => needle.fakeQuantize(poisoned), 'non-finite', 'fakeQuantize: ', '1');
      expectSameBits(poisoned, Float32Array.of(1.3, bad, 2), 'x');
    }
    expect(needle.fakeQuantize(new Float32Array(0))).toHaveLength(0);
  });

  it('quantizeRows: type, range, shape or non-finite', async () => {
    const { needle } = await getContext();
    for (const x of [...NO_FLOAT32])
      expectError(() => needle.quantizeRows(x as Float32Array, 1), 'type', 'quantizeRows: ', 'x');
    const x = new Float32Array(6);
    for (const length of [undefined, ...NO_NUMBERS]) {
      expectError(() => needle.quantizeRows(x, length as number), 'type', 'quantizeRows: ', 'rowLength');
    }
    for (const length of [0, -2, 1.5, NaN, Infinity]) {
      expectError(() => needle.quantizeRows(x, length), 'range', 'quantizeRows: ', 'rowLength', String(length));
    }
    for (const length of [4, 5, 7, 2 ** 40])
      expectError(() => needle.quantizeRows(x, length), 'shape', 'quantizeRows: ', 'x', '6', String(length));
    for (const bad of [NaN, Infinity]) {
      expectError(() => needle.quantizeRows(Float32Array.of(1, 2, 3, bad), 2), 'non-finite', 'quantizeRows: ');
    }
    const empty = needle.quantizeRows(new Float32Array(0), 4);
    expect([empty.values.length, empty.scales.length]).toEqual([0, 0]);
  });

  it('engramIndices: type, range or config', async () => {
    const { needle } = await getContext();
    const { engram } = HYBRID;
    for (const tokens of [undefined, null, 3, 'x', {}])
      expectError(() => needle.engramIndices(tokens as number[], engram), 'type', 'tokens');
    for (const token of ['1', null, undefined]) {
      expectError(
        () => needle.engramIndices([1, token as unknown as number], engram),
        'type',
        'engramIndices: ',
        'tokens[1]',
      );
    }
    for (const token of [-1, 0.5, 2 ** 32, NaN]) {
      expectError(
        () => needle.engramIndices([1, token], engram),
        'range',
        'engramIndices: ',
        'tokens[1]',
        String(token),
      );
    }
    for (const bad of [undefined, null, 3])
      expectError(() => needle.engramIndices([1], bad as never), 'type', 'engramIndices: ', 'engram');
    for (const field of ['heads', 'slots'] as const) {
      for (const value of [0, -1, 0.5, 'x', undefined]) {
        expectError(
          () => needle.engramIndices([1], { ...engram, [field]: value as number }),
          'config',
          'engramIndices: ',
          field,
        );
      }
    }
    expectError(
      () => needle.engramIndices([1], { ...engram, orders: [2, 0] }),
      'config',
      'engramIndices: ',
      'orders',
      '0',
    );
    expect(needle.engramIndices([], engram)).toHaveLength(0);
    expect(needle.engramIndices([1, 2], NO_ENGRAM)).toHaveLength(0);
    expect(Array.from(needle.engramIndices(Uint16Array.of(1, 2), engram))).toEqual(
      Array.from(needle.engramIndices([1, 2], engram)),
    );
  });

  it('restoreDecodeState: type or range', async () => {
    const { needle } = await getContext();
    for (const snapshot of [
      undefined,
      null,
      'bytes',
      [1],
      new ArrayBuffer(8),
      new Float32Array(2),
      new Uint16Array(4),
    ]) {
      expectError(
        () => needle.restoreDecodeState(snapshot as unknown as Uint8Array),
        'type',
        'restoreDecodeState: ',
        'snapshot',
      );
    }
    for (const fingerprint of [null, 'abc', [1], new ArrayBuffer(4)]) {
      expectError(
        () => needle.restoreDecodeState(new Uint8Array(4), { fingerprint: fingerprint as unknown as Uint8Array }),
        'type',
        'restoreDecodeState: ',
        'fingerprint',
      );
    }
    expectError(
      () => needle.restoreDecodeState(new Uint8Array(4), { fingerprint: new Uint8Array(65) }),
      'range',
      'fingerprint',
      '65',
    );
    expectError(
      () => needle.restoreDecodeState(new Uint8Array(4), { config: 3 as never }),
      'type',
      'restoreDecodeState: ',
      'config',
    );
    expectError(
      () => needle.restoreDecodeState(new Uint8Array(4), { config: withField('dModel', 0.5) }),
      'config',
      'dModel',
    );
  });
});

describe('Needle3Error', () => {
  it('is an Error with a name, a code, a message, a stack and a cause', () => {
    const cause = new TypeError('first');
    const error = new Needle3Error('range', 'conv: layer must be …', { cause });
    expect(error).toBeInstanceOf(Error);
    expect(Object.prototype.toString.call(error)).toBe('[object Error]');
    expect([error.name, error.code, error.message, error.cause]).toEqual([
      'Needle3Error',
      'range',
      'conv: layer must be …',
      cause,
    ]);
    expect(String(error)).toBe('Needle3Error: conv: layer must be …');
    expect(error.stack).toBeTypeOf('string');
    expect('cause' in new Needle3Error('type', 'x')).toBe(false);
  });
});
