import {
  decode,
  Needle3Error,
  type DecodeModel,
  type DecodeOptions,
  type DecodeResult,
  type DecodeState,
  type DecodeStream,
  type ModelConfig,
  type Needle3,
} from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import { expectError, expectRejection } from './support/assert.js';
import { expectSameTrace, Inputs, observe, steps } from './support/drive.js';
import { HYBRID, NO_ENGRAM, PLAIN } from './support/geometry.js';
import { needle3 } from './support/instance.js';
import { constantModel, SmallModel } from './support/model.js';

const CONFIG: ModelConfig = { ...HYBRID, maxSeqLen: 64 };
const PROMPT = [5, 17, 2, 63, 0, 5, 17, 2, 9, 33, 41, 12, 7];

/** Lets everything go on that waits for nothing. */
function turn(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve));
}

async function collect(stream: DecodeStream): Promise<number[]> {
  const tokens: number[] = [];
  for await (const token of stream) tokens.push(token);
  return tokens;
}

/** Tokens and result of a run on a new state, which is disposed of. */
async function run(
  options: DecodeOptions,
  {
    model = new SmallModel(CONFIG),
    prompt = PROMPT,
    config = CONFIG,
  }: { model?: DecodeModel; prompt?: ArrayLike<number>; config?: ModelConfig } = {},
): Promise<DecodeResult & { list: number[] }> {
  const state = (await needle3()).createDecodeState(config, { capacityHint: 1 });
  const stream = decode(model, state, prompt, options);
  const list = await collect(stream);
  const result = await stream.result;
  expect(result.position).toBe(state.position);
  expect(result.tokens).toBe(list.length);
  state.dispose();
  return { ...result, list };
}

/** Both states do the same from here on. */
function expectSameFuture(state: DecodeState, twin: DecodeState): void {
  expect(observe(state)).toEqual(observe(twin));
  const inputs = new Inputs(state.config, 77);
  expectSameTrace(steps(state, inputs, 1, 3), steps(twin, inputs, 1, 3), 'afterwards');
}

/** The state that a model's forward calls over these tokens leave, one call for each batch. */
function fed(needle: Needle3, tokens: readonly number[], config = CONFIG): DecodeState {
  const state = needle.createDecodeState(config, { capacityHint: 1 });
  if (tokens.length > 0) new SmallModel(config).forward(state, Uint32Array.from(tokens));
  return state;
}

describe('the tokens', () => {
  // Written down once; every engine must give the same.
  const golden: readonly (readonly [name: string, options: DecodeOptions, tokens: readonly number[]])[] = [
    ['greedy', {}, [37, 6, 63, 6, 7, 41, 6, 28, 25, 30, 48, 33, 58, 33, 30, 61, 7, 45, 14, 36, 58, 58, 25, 1]],
    [
      'temperature',
      { temperature: 1, seed: 1 },
      [37, 6, 63, 6, 7, 41, 53, 41, 26, 30, 14, 39, 31, 41, 6, 41, 41, 6, 44, 61, 58, 7, 61, 33],
    ],
    [
      'another seed',
      { temperature: 1, seed: 2 },
      [37, 6, 63, 6, 7, 41, 37, 41, 48, 28, 25, 6, 45, 37, 63, 4, 30, 41, 28, 25, 9, 41, 14, 15],
    ],
    [
      'high temperature, largest seed',
      { temperature: 3, seed: 4294967295 },
      [32, 28, 60, 0, 39, 60, 8, 43, 9, 9, 36, 2, 35, 6, 53, 19, 29, 46, 50, 60, 56, 60, 58, 49],
    ],
    [
      'top-k',
      { temperature: 1.5, topK: 4, seed: 3 },
      [37, 4, 49, 0, 7, 49, 58, 63, 48, 8, 9, 9, 14, 6, 9, 7, 37, 37, 41, 60, 20, 25, 46, 12],
    ],
    [
      'top-p',
      { temperature: 1.5, topP: 0.6, seed: 4 },
      [53, 6, 0, 6, 60, 60, 49, 58, 48, 1, 9, 4, 39, 63, 41, 45, 49, 47, 25, 28, 30, 6, 58, 30],
    ],
    [
      'top-k and top-p',
      { temperature: 2, topK: 8, topP: 0.8, seed: 5 },
      [53, 4, 6, 63, 39, 41, 0, 41, 25, 6, 60, 25, 58, 41, 21, 58, 20, 6, 25, 32, 49, 60, 32, 47],
    ],
  ];
  for (const [name, options, tokens] of golden) {
    for (const promptBatch of [1, 4, 64]) {
      it(`${name}, ${promptBatch} tokens of the prompt a call, are those written down`, async () => {
        const { list, stopReason } = await run({ ...options, promptBatch, maxNewTokens: 24 });
        expect(list).toEqual(tokens);
        expect(stopReason).toBe('max-new-tokens');
      });
    }
  }

  it('are the same again with the same seed, and others with another', async () => {
    const sample = async (seed: number): Promise<number[]> =>
      (await run({ temperature: 1.2, seed, maxNewTokens: 30 })).list;
    expect(await sample(9)).toEqual(await sample(9));
    expect(await sample(9)).not.toEqual(await sample(10));
  });

  it('are greedy at temperature 0 whatever the seed, with top-k 1, and with a top-p that only the likeliest reaches', async () => {
    const { list } = await run({ maxNewTokens: 20 });
    for (const options of [
      { seed: 5 },
      { temperature: 0, topK: 7, topP: 0.5, seed: 6 },
      { temperature: 2, topK: 1, seed: 7 },
      { temperature: 2, topP: 1e-6, seed: 8 },
    ]) {
      expect((await run({ ...options, maxNewTokens: 20 })).list).toEqual(list);
    }
  });

  it('greedy takes the lowest id among the largest logits', async () => {
    const { list } = await run(
      { maxNewTokens: 3 },
      { model: constantModel([0, 3, -1, 3, 3]), config: { ...CONFIG, vocabSize: 5 }, prompt: [1] },
    );
    expect(list).toEqual([1, 1, 1]);
  });

  const wide: ModelConfig = { ...PLAIN, engram: NO_ENGRAM, vocabSize: 6, maxSeqLen: 8192 };
  const logits = [1, 0, -1, -Infinity, 2, 0.5];
  const draws = 6000;

  async function frequencies(options: DecodeOptions): Promise<number[]> {
    const { list } = await run(
      { ...options, maxNewTokens: draws },
      { model: constantModel(logits), config: wide, prompt: [0] },
    );
    const counts = Array<number>(logits.length).fill(0);
    for (const token of list) counts[token]++;
    return counts.map((count) => count / draws);
  }

  /** Within five standard deviations; the draws are the same each time, so that this passes always or never. */
  function expectFrequencies(actual: readonly number[], weights: readonly number[]): void {
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    weights.forEach((weight, token) => {
      const p = weight / total;
      if (p === 0) expect(actual[token], `token ${token}`).toBe(0);
      else expect(Math.abs(actual[token] - p), `token ${token}`).toBeLessThan(5 * Math.sqrt((p * (1 - p)) / draws));
    });
  }

  it('come as often as softmax over logits / temperature says', async () => {
    for (const temperature of [0.5, 1, 4]) {
      expectFrequencies(
        await frequencies({ temperature, seed: 42 }),
        logits.map((x) => Math.exp(x / temperature)),
      );
    }
  });

  it('come from the k likeliest only with top-k', async () => {
    expectFrequencies(await frequencies({ temperature: 1, topK: 3, seed: 42 }), [
      Math.exp(1),
      0,
      0,
      0,
      Math.exp(2),
      Math.exp(0.5),
    ]);
  });

  it('come from the fewest likeliest that add up to top-p', async () => {
    // 0.563, 0.207, 0.126, 0.076, 0.028: the first two reach 0.77, the first three 0.89.
    expectFrequencies(await frequencies({ temperature: 1, topP: 0.7, seed: 42 }), [
      Math.exp(1),
      0,
      0,
      0,
      Math.exp(2),
      0,
    ]);
    expectFrequencies(await frequencies({ temperature: 1, topP: 0.85, seed: 42 }), [
      Math.exp(1),
      0,
      0,
      0,
      Math.exp(2),
      Math.exp(0.5),
    ]);
  });

  it('follow the stream: a prompt goes on from where the state is', async () => {
    const whole = await run({ maxNewTokens: 10 });
    const state = fed(await needle3(), PROMPT.slice(0, 8));
    const tokens = await collect(decode(new SmallModel(CONFIG), state, PROMPT.slice(8), { maxNewTokens: 10 }));
    expect(tokens).toEqual(whole.list);
    state.dispose();
  });

  it('come from int8 caches as well, the same in every engine', async () => {
    const state = (await needle3()).createDecodeState(CONFIG, { precision: 'int8' });
    const tokens = await collect(
      decode(new SmallModel(CONFIG), state, PROMPT, { maxNewTokens: 24, temperature: 1, seed: 1 }),
    );
    expect(tokens).toEqual([37, 6, 63, 6, 7, 41, 53, 41, 26, 30, 14, 39, 31, 41, 6, 41, 41, 6, 44, 61, 58, 7, 61, 33]);
    state.dispose();
  });
});

describe('stopping', () => {
  it('at a stop token, which is not yielded; all before it is in the state', async () => {
    const { list } = await run({ maxNewTokens: 20 });
    // The one that comes last for the first time.
    const at = Math.max(...list.map((token) => list.indexOf(token)));
    expect(at).toBeGreaterThan(2);
    const result = await run({ maxNewTokens: 20, stopTokens: [list[at], list[at]] });
    expect(result).toEqual({
      list: list.slice(0, at),
      stopReason: 'stop-token',
      tokens: at,
      position: PROMPT.length + at,
    });
  });

  it('at maxNewTokens; the last token is not in the state', async () => {
    expect(await run({ maxNewTokens: 5 })).toMatchObject({
      stopReason: 'max-new-tokens',
      tokens: 5,
      position: PROMPT.length + 4,
    });
  });

  it('after 256 tokens where nothing is said', async () => {
    const config = { ...CONFIG, maxSeqLen: 1024 };
    const { stopReason, tokens } = await run({}, { model: constantModel(Array<number>(64).fill(0)), config });
    expect([stopReason, tokens]).toEqual(['max-new-tokens', 256]);
  });

  it('at the end of the context, when the last token no longer fits', async () => {
    const result = await run({ maxNewTokens: 1000 });
    // The context has room for 64 − 13 more; the token drawn after the last of them is yielded too.
    expect(result).toMatchObject({ stopReason: 'max-seq-len', tokens: 52, position: 64 });
  });

  it('after one token where the prompt fills the context to the brim', async () => {
    const prompt = Array.from({ length: 64 }, (_, i) => (i * 7) % 64);
    expect(await run({}, { prompt })).toMatchObject({ stopReason: 'max-seq-len', tokens: 1, position: 64 });
  });

  it('with maxNewTokens 0 once the prompt is in the state, without drawing', async () => {
    let hooked = 0;
    const result = await run({ maxNewTokens: 0, logits: () => void (hooked += 1) });
    expect(result).toEqual({ list: [], stopReason: 'max-new-tokens', tokens: 0, position: PROMPT.length });
    expect(hooked).toBe(0);
    // Not even logits that cannot be drawn from matter.
    const nan = await run({ maxNewTokens: 0 }, { model: constantModel(Array<number>(64).fill(NaN)) });
    expect(nan.stopReason).toBe('max-new-tokens');
  });

  it('for the first reason of stop-token, max-new-tokens, max-seq-len where several hold', async () => {
    const brim = Array.from({ length: 64 }, () => 1);
    const first = (await run({ maxNewTokens: 1 }, { prompt: brim })).list[0];
    expect((await run({ maxNewTokens: 1, stopTokens: [first] }, { prompt: brim })).stopReason).toBe('stop-token');
    expect((await run({ maxNewTokens: 1 }, { prompt: brim })).stopReason).toBe('max-new-tokens');
    expect((await run({ maxNewTokens: 0, stopTokens: [first] }, { prompt: brim })).stopReason).toBe('max-new-tokens');
    expect((await run({ maxNewTokens: 2 }, { prompt: brim })).stopReason).toBe('max-seq-len');
    // Done is done: an abort that comes with the last token changes nothing.
    const controller = new AbortController();
    const result = await run({ maxNewTokens: 1, signal: controller.signal, logits: () => undefined });
    controller.abort();
    expect(result.stopReason).toBe('max-new-tokens');
  });

  it('and a token is fed only when the next is asked for', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    const stream = decode(new SmallModel(CONFIG), state, PROMPT, { maxNewTokens: 3 });
    const positions: number[] = [];
    for await (const token of stream) {
      expect(token).toBeTypeOf('number');
      positions.push(state.position);
    }
    expect(positions).toEqual([13, 14, 15]);
    expect((await stream.result).position).toBe(15);
    state.dispose();
  });
});

describe('the prompt', () => {
  it('goes in batches, with progress after each', async () => {
    const model = new SmallModel(CONFIG);
    const progress: [number, number][] = [];
    await run({ promptBatch: 5, maxNewTokens: 2, onPrompt: (...step) => void progress.push(step) }, { model });
    expect(progress).toEqual([
      [5, 13],
      [10, 13],
      [13, 13],
    ]);
    expect(model.batches).toEqual([5, 5, 3, 1]);
  });

  it('goes 64 tokens a call where nothing is said', async () => {
    const config = { ...CONFIG, maxSeqLen: 256 };
    const model = new SmallModel(config);
    await run({ maxNewTokens: 0 }, { model, config, prompt: Array.from({ length: 130 }, (_, i) => i % 64) });
    expect(model.batches).toEqual([64, 64, 2]);
  });

  it('reaches forward as a Uint32Array in a buffer of its own, and may change meanwhile', async () => {
    const prompt = [...PROMPT];
    const seen: number[] = [];
    const inner = new SmallModel(CONFIG);
    const model: DecodeModel = {
      forward(state, tokens) {
        expect(tokens).toBeInstanceOf(Uint32Array);
        expect(tokens.buffer.byteLength).toBe(tokens.byteLength);
        seen.push(...tokens);
        const logits = inner.forward(state, tokens);
        prompt.fill(0);
        tokens.fill(0);
        return logits;
      },
    };
    await run({ promptBatch: 4, maxNewTokens: 0 }, { model, prompt });
    expect(seen).toEqual(PROMPT);
  });

  it('may be any array of integers', async () => {
    const { list } = await run({ maxNewTokens: 4 });
    for (const prompt of [
      Uint8Array.from(PROMPT),
      Uint32Array.from(PROMPT),
      Float64Array.from(PROMPT),
      Object.assign({}, PROMPT, { length: 13 }),
    ]) {
      expect((await run({ maxNewTokens: 4 }, { prompt })).list).toEqual(list);
    }
  });

  it('is refused where it is empty, too long, no list or no tokens: range or type, at once', async () => {
    const needle = await needle3();
    const state = fed(needle, PROMPT);
    const twin = fed(needle, PROMPT);
    const model = new SmallModel(CONFIG);
    expectError(() => decode(model, state, []), 'range', 'decode: ', 'prompt', 'empty');
    expectError(() => decode(model, state, Array<number>(52).fill(1)), 'range', 'decode: ', 'prompt', '52', '51');
    for (const prompt of [undefined, null, 3, 'prompt', {}, () => 1]) {
      expectError(() => decode(model, state, prompt as never), 'type', 'decode: ', 'prompt');
    }
    for (const token of ['1', null, 1n]) {
      expectError(() => decode(model, state, [1, token as unknown as number]), 'type', 'decode: ', 'prompt[1]');
    }
    for (const token of [-1, 64, 0.5, NaN]) {
      expectError(() => decode(model, state, [1, token]), 'range', 'decode: ', 'prompt[1]', String(token));
    }
    expect(model.calls).toBe(0);
    expectSameFuture(state, twin);
    state.dispose();
    twin.dispose();
  });

  it('is refused on a saturated state: range', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    steps(state, new Inputs(CONFIG, 1), 70);
    expectError(() => decode(new SmallModel(CONFIG), state, [1]), 'range', 'decode: ', 'prompt', '1', '0');
    state.dispose();
  });
});

describe('arguments and options', () => {
  const model = constantModel(Array<number>(64).fill(0));
  const cases: readonly (readonly [option: keyof DecodeOptions, code: 'type' | 'range', values: readonly unknown[]])[] =
    [
      ['maxNewTokens', 'type', [null, '5', true, {}]],
      ['maxNewTokens', 'range', [-1, 0.5, NaN, Infinity]],
      ['stopTokens', 'type', [null, 5, 'x', {}, ['1'], [null]]],
      ['stopTokens', 'range', [[-1], [64], [0.5], [1, NaN]]],
      ['temperature', 'type', [null, '1', true]],
      ['temperature', 'range', [-1, NaN, Infinity]],
      ['topK', 'type', [null, '1']],
      ['topK', 'range', [-1, 0.5, NaN]],
      ['topP', 'type', [null, '1']],
      ['topP', 'range', [0, -0.5, 1.5, NaN]],
      ['seed', 'type', [null, '1', 1n]],
      ['seed', 'range', [-1, 0.5, 2 ** 32, NaN]],
      ['promptBatch', 'type', [null, '1']],
      ['promptBatch', 'range', [0, -1, 0.5, NaN, Infinity]],
      ['onPrompt', 'type', [null, 1, {}]],
      ['logits', 'type', [null, 1, new Float32Array(1)]],
      ['signal', 'type', [null, 1, true, {}, { aborted: 'no' }]],
    ];
  for (const [option, code, values] of cases) {
    it(`a wrong ${option}: ${code}, at once, and nothing runs`, async () => {
      const needle = await needle3();
      const [state, twin] = [fed(needle, PROMPT), fed(needle, PROMPT)];
      for (const value of values) {
        const shown = typeof value === 'number' ? String(value) : '';
        expectError(() => decode(model, state, [1], { [option]: value }), code, 'decode: ', option, shown);
      }
      expectSameFuture(state, twin);
      state.dispose();
      twin.dispose();
    });
  }

  it('a wrong model, state or options: type', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    for (const wrong of [undefined, null, 1, 'model', {}, { forward: 1 }]) {
      expectError(() => decode(wrong as never, state, [1]), 'type', 'decode: ', 'model');
    }
    for (const wrong of [undefined, null, 1, {}, { position: 0 }]) {
      expectError(() => decode(model, wrong as never, [1]), 'type', 'decode: ', 'state');
    }
    for (const wrong of [null, 1, 'x'])
      expectError(() => decode(model, state, [1], wrong as never), 'type', 'decode: ', 'options');
    state.dispose();
  });

  it('a disposed state: disposed; the middle of a step: range', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    state.pushToken(1);
    expectError(() => decode(model, state, [1]), 'range', 'decode: ', 'step');
    state.advance();
    state.conv(0, 'q', new Float32Array(36), new Float32Array(12));
    expectError(() => decode(model, state, [1]), 'range', 'decode: ', 'step');
    state.dispose();
    expectError(() => decode(model, state, [1]), 'disposed', 'decode: ');
  });
});

describe('the hook on the logits', () => {
  it('masks with −∞ and biases, in place', async () => {
    const { list } = await run({
      maxNewTokens: 10,
      temperature: 1,
      logits: (logits) => void logits.fill(-Infinity, 3),
    });
    expect(list.every((token) => token < 3)).toBe(true);
    const biased = await run({ maxNewTokens: 5, logits: (logits) => void (logits[11] = 1e6) });
    expect(biased.list).toEqual([11, 11, 11, 11, 11]);
  });

  it('gets all logits and the tokens yielded so far, before each draw', async () => {
    const seen: number[][] = [];
    const { list } = await run({
      maxNewTokens: 4,
      logits(logits, generated) {
        expect(logits).toBeInstanceOf(Float32Array);
        expect(logits.length).toBe(64);
        seen.push([...generated]);
      },
    });
    expect(seen).toEqual([0, 1, 2, 3].map((length) => list.slice(0, length)));
  });

  it('may take its time', async () => {
    const slow = await run({
      maxNewTokens: 6,
      async logits(logits) {
        await new Promise((resolve) => setTimeout(resolve, 1));
        logits[0] = -Infinity;
      },
    });
    const quick = await run({ maxNewTokens: 6, logits: (logits) => void (logits[0] = -Infinity) });
    expect(slow.list).toEqual(quick.list);
  });

  it('may throw: the error comes out of the loop and the result, and the state stands at the last commit', async () => {
    const needle = await needle3();
    for (const [calls, fail] of [
      [0, () => Promise.reject(new Error('hook'))],
      [
        2,
        () => {
          throw new Error('hook');
        },
      ],
    ] as const) {
      const state = needle.createDecodeState(CONFIG, { capacityHint: 1 });
      let count = 0;
      const stream = decode(new SmallModel(CONFIG), state, PROMPT, {
        logits: () => (count++ === calls ? fail() : undefined),
      });
      const tokens: number[] = [];
      await expect(
        (async () => {
          for await (const token of stream) tokens.push(token);
        })(),
      ).rejects.toThrow('hook');
      await expect(stream.result).rejects.toThrow('hook');
      expect(tokens.length).toBe(calls);
      const twin = fed(needle, [...PROMPT, ...tokens]);
      expectSameFuture(state, twin);
      state.dispose();
      twin.dispose();
    }
  });
});

describe('the logits that a forward call gives', () => {
  /** Its best token is always the one after the last it was fed, in the one array that it has. */
  class Successor implements DecodeModel {
    constructor(readonly logits: { readonly view: Float32Array }) {}
    forward(state: DecodeState, tokens: Uint32Array): Float32Array {
      for (const token of tokens) state.pushToken(token);
      state.advance(tokens.length);
      const { view } = this.logits;
      view.fill(0);
      view[(tokens.at(-1)! + 1) % view.length] = 1;
      return view;
    }
  }
  const length = PLAIN.outVocab || PLAIN.vocabSize;

  it('are read before another stream of the same model can overwrite them', async () => {
    const model = new Successor({ view: new Float32Array(length) });
    const runs = [[0], [8]].map((prompt) => run({ maxNewTokens: 5 }, { model, prompt, config: PLAIN }));
    const [one, other] = await Promise.all(runs);
    expect(one.list).toEqual([1, 2, 3, 4, 5]);
    expect(other.list).toEqual([9, 10, 11, 12, 13]);
  });

  it('may be a view of wasm memory that grows before a token is drawn', async () => {
    const needle = await needle3();
    const logits = needle.allocate(length);
    const grown: { dispose(): void }[] = [];
    const onPrompt = (): void => void grown.push(needle.allocate(2 ** 20));
    const { list } = await run(
      { maxNewTokens: 3, onPrompt },
      { model: new Successor(logits), prompt: [0], config: PLAIN },
    );
    expect(list).toEqual([1, 2, 3]);
    for (const array of [logits, ...grown]) array.dispose();
  });

  it('are refused where the hook has transferred them', async () => {
    const hook = (logits: Float32Array): void => void structuredClone(logits, { transfer: [logits.buffer] });
    await expectRejection(run({ maxNewTokens: 3, logits: hook }), 'shape', 'logits');
  });

  it('and the tokens that the hook sees do not decide when to stop', async () => {
    const hook = (_: Float32Array, generated: readonly number[]): void => void ((generated as number[]).length = 0);
    expect(await run({ maxNewTokens: 3, logits: hook })).toMatchObject({ stopReason: 'max-new-tokens', tokens: 3 });
  });
});

describe('abort', () => {
  /** Stops after so many forward calls; what is left of the sequence then goes on as if nothing had been. */
  async function abortAfter(forwards: number, how: 'signal' | 'break'): Promise<void> {
    const needle = await needle3();
    const whole = await run({ maxNewTokens: 12, promptBatch: 4 });
    const controller = new AbortController();
    const inner = new SmallModel(CONFIG);
    const model: DecodeModel = {
      forward(state, tokens) {
        const logits = inner.forward(state, tokens);
        if (how === 'signal' && inner.batches.length === forwards) controller.abort();
        return logits;
      },
    };
    const state = needle.createDecodeState(CONFIG, { capacityHint: 1 });
    if (forwards === 0) controller.abort();
    const stream = decode(model, state, PROMPT, { maxNewTokens: 12, promptBatch: 4, signal: controller.signal });
    const tokens: number[] = [];
    for await (const token of stream) {
      tokens.push(token);
      if (how === 'break' && inner.batches.length === forwards) break;
    }
    const sequence = [...PROMPT, ...whole.list];
    const position = Math.min(4 * forwards, PROMPT.length) + Math.max(0, forwards - 4);
    expect(await stream.result).toEqual({ stopReason: 'aborted', tokens: tokens.length, position });
    expect(state.position).toBe(position);
    expect(inner.batches.length).toBe(forwards);
    expect(tokens).toEqual(whole.list.slice(0, tokens.length));

    const twin = fed(needle, sequence.slice(0, position));
    expect(observe(state)).toEqual(observe(twin));
    const rest = sequence.slice(position, Math.max(position + 1, PROMPT.length));
    const next = await collect(decode(new SmallModel(CONFIG), state, rest, { maxNewTokens: 3 }));
    const at = position + rest.length - PROMPT.length;
    expect(next).toEqual(whole.list.slice(at, at + 3));
    state.dispose();
    twin.dispose();
  }

  // Four calls for the prompt, then one for each token.
  for (const forwards of [0, 1, 2, 3, 4, 5, 8]) {
    it(`by the signal after ${forwards} forward calls leaves the state at the last commit, ready to go on`, () =>
      abortAfter(forwards, 'signal'));
  }
  for (const forwards of [4, 5, 8]) {
    it(`by leaving the loop after ${forwards} forward calls leaves the state at the last commit, ready to go on`, () =>
      abortAfter(forwards, 'break'));
  }

  it('takes effect while a forward or a hook is pending, when that is done', async () => {
    const needle = await needle3();
    for (const where of ['forward', 'hook'] as const) {
      const state = needle.createDecodeState(CONFIG);
      const controller = new AbortController();
      const inner = new SmallModel(CONFIG);
      const stream = decode(
        {
          async forward(each, tokens) {
            await turn();
            if (where === 'forward') controller.abort();
            return inner.forward(each, tokens);
          },
        },
        state,
        PROMPT,
        {
          signal: controller.signal,
          async logits() {
            await turn();
            if (where === 'hook') controller.abort();
          },
        },
      );
      expect(await collect(stream)).toEqual([]);
      expect(await stream.result).toEqual({ stopReason: 'aborted', tokens: 0, position: PROMPT.length });
      state.dispose();
    }
  });

  it('needs no more of a signal than that it says whether it is aborted', async () => {
    const signal = { aborted: false };
    const result = await run({
      maxNewTokens: 10,
      signal,
      onPrompt: () => void (signal.aborted = true),
    });
    expect(result).toMatchObject({ stopReason: 'aborted', tokens: 0, position: PROMPT.length });
  });

  it('arrives as a message in the middle of a model that never waits', async () => {
    const controller = new AbortController();
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => controller.abort();
    const config = { ...PLAIN, maxSeqLen: 2 ** 20 };
    // It answers at once, and would do so for a million tokens.
    const model = constantModel(new Float32Array(config.outVocab || config.vocabSize));
    const onPrompt = (): void => port2.postMessage('stop');
    const { stopReason, tokens } = await run(
      { maxNewTokens: 1_000_000, signal: controller.signal, onPrompt },
      { model, config },
    );
    port1.close();
    expect(stopReason).toBe('aborted');
    expect(tokens).toBeGreaterThan(0);
  });

  it('before the loop has begun, by closing the stream, runs nothing', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    const model = new SmallModel(CONFIG);
    const stream = decode(model, state, PROMPT);
    const iterator = stream[Symbol.asyncIterator]();
    expect(await iterator.return!()).toEqual({ done: true, value: undefined });
    expect(await stream.result).toEqual({ stopReason: 'aborted', tokens: 0, position: 0 });
    expect(model.calls).toBe(0);
    state.dispose();
  });
});

describe('a model that throws', () => {
  class Failure extends Error {}

  /** Runs until the model throws at its call of that number; the state must stand at the last commit, and go on. */
  async function throwAt(call: number, promptBatch: number, how: 'throw' | 'reject'): Promise<string | undefined> {
    const needle = await needle3();
    const state = needle.createDecodeState(CONFIG, { capacityHint: 1 });
    const inner = new SmallModel(CONFIG);
    let name: string | undefined;
    inner.beforeCall = (each, index) => {
      if (index !== call) return;
      name = each;
      throw new Failure(`call ${call}`);
    };
    const model: DecodeModel =
      how === 'throw' ? inner : { forward: async (each, tokens) => (await turn(), inner.forward(each, tokens)) };
    const stream = decode(model, state, PROMPT, { maxNewTokens: 3, promptBatch });
    const tokens: number[] = [];
    let thrown: unknown;
    try {
      for await (const token of stream) tokens.push(token);
    } catch (error) {
      thrown = error;
    }
    if (name === undefined) {
      state.dispose();
      return undefined;
    }
    expect(thrown).toBeInstanceOf(Failure);
    await expect(stream.result).rejects.toBe(thrown);

    const sequence = [...PROMPT, ...tokens];
    // Every forward but the last was committed.
    const position = inner.batches.slice(0, -1).reduce((sum, count) => sum + count, 0);
    expect(state.position, `after ${name}`).toBe(position);
    const twin = fed(needle, sequence.slice(0, position));
    expect(observe(state)).toEqual(observe(twin));
    const rest = sequence.slice(position);
    const continued = await collect(decode(new SmallModel(CONFIG), state, rest, { maxNewTokens: 2 }));
    const expected = await collect(decode(new SmallModel(CONFIG), twin, rest, { maxNewTokens: 2 }));
    expect(continued, `after ${name}`).toEqual(expected);
    expectSameFuture(state, twin);
    state.dispose();
    twin.dispose();
    return name;
  }

  // Batches of 6 over rings of 4 slots overwrite all that their first queries still see.
  for (const promptBatch of [1, 6, 64]) {
    for (const how of ['throw', 'reject'] as const) {
      it(`at any call of any layer, ${promptBatch} tokens of the prompt a call (${how}), leaves the state at the last commit, bit for bit`, async () => {
        const names = new Set<string>();
        for (let call = 0; ; call++) {
          const name = await throwAt(call, promptBatch, how);
          if (name === undefined) break;
          names.add(name);
        }
        expect(names).toEqual(
          new Set(['pushToken', 'engramIndices', 'engramConv', 'conv', 'appendAndAttend', 'advance']),
        );
      });
    }
  }

  it('before its first call, or something that is no Error, is passed on as it is', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    for (const value of ['a string', undefined, 7]) {
      const stream = decode(
        {
          forward: () => {
            // eslint-disable-next-line @typescript-eslint/only-throw-error -- what a careless model may throw
            throw value;
          },
        },
        state,
        PROMPT,
      );
      let caught: unknown = 'nothing';
      try {
        await collect(stream);
      } catch (error) {
        caught = error;
      }
      expect(caught).toBe(value);
      await stream.result.then(
        () => expect.fail('the result resolved'),
        (error: unknown) => expect(error).toBe(value),
      );
    }
    expect(state.position).toBe(0);
    state.dispose();
  });

  it('is no unhandled rejection where nobody reads the result, nor where only the result is read late', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    const failing: DecodeModel = { forward: () => Promise.reject(new Failure('late')) };
    await expect(collect(decode(failing, state, PROMPT))).rejects.toThrow('late');
    const stream = decode(failing, state, PROMPT);
    const { result } = stream;
    // An unhandled rejection would be reported by now, and fails this file.
    await new Promise((resolve) => setTimeout(resolve, 20));
    await expect(result).rejects.toThrow('late');
    state.dispose();
  });
});

describe('a model that does not keep to its contract', () => {
  const broken: readonly (readonly [string, 'range' | 'shape' | 'type', DecodeModel['forward'], string])[] = [
    ['does not advance', 'range', () => new Float32Array(64), 'forward'],
    [
      'advances by less',
      'range',
      (state) => {
        state.pushToken(1);
        state.advance();
        return new Float32Array(64);
      },
      'forward',
    ],
    [
      'leaves its step open',
      'range',
      (state, tokens) => {
        state.advance(tokens.length);
        state.pushToken(1);
        return new Float32Array(64);
      },
      'step',
    ],
    [
      'gives too few logits',
      'shape',
      (state, tokens) => {
        state.advance(tokens.length);
        return new Float32Array(63);
      },
      '63',
    ],
    [
      'gives too many logits',
      'shape',
      (state, tokens) => {
        state.advance(tokens.length);
        return new Float32Array(65);
      },
      '65',
    ],
    [
      'gives no Float32Array',
      'type',
      (state, tokens) => {
        state.advance(tokens.length);
        return [1] as unknown as Float32Array;
      },
      'logits',
    ],
    [
      'gives nothing',
      'type',
      (state, tokens) => {
        state.advance(tokens.length);
        return undefined as unknown as Float32Array;
      },
      'logits',
    ],
  ];
  for (const [what, code, forward, says] of broken) {
    it(`${what}: ${code}`, async () => {
      const state = (await needle3()).createDecodeState(CONFIG);
      const stream = decode({ forward }, state, PROMPT);
      const error = await expectRejection(collect(stream), code, 'decode: ', says);
      await expect(stream.result).rejects.toBe(error);
      // No step is left open: that would be refused.
      state.save();
      state.dispose();
    });
  }

  it('gives outVocab logits where that is fewer than the vocabulary', async () => {
    const config = { ...CONFIG, outVocab: 10 };
    const { list } = await run({ maxNewTokens: 2 }, { config, model: constantModel([0, 0, 0, 0, 0, 0, 0, 0, 0, 1]) });
    expect(list).toEqual([9, 9]);
    await expectRejection(run({}, { config, model: constantModel(Array<number>(64).fill(0)) }), 'shape', '10', '64');
  });

  it('gives NaN logits: non-finite, and the state has what was committed', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    const logits = new Float32Array(64);
    logits[20] = NaN;
    for (const options of [{}, { temperature: 1 }]) {
      const stream = decode(constantModel(logits), state, [1, 2], options);
      await expectRejection(collect(stream), 'non-finite', 'decode: ', '20');
      await expectRejection(stream.result, 'non-finite');
    }
    expect(state.position).toBe(4);
    state.dispose();
  });

  it('masks every token: non-finite', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    for (const options of [{}, { temperature: 1 }, { temperature: 1, topK: 2, topP: 0.5 }]) {
      const stream = decode(constantModel(Array<number>(64).fill(-Infinity)), state, [1], options);
      await expectRejection(collect(stream), 'non-finite', 'decode: ');
    }
    state.dispose();
  });

  it('may give the same array each time, one in linear memory too', async () => {
    const needle = await needle3();
    const { list } = await run({ maxNewTokens: 8, logits: (logits) => void (logits[0] = -Infinity) });
    const inner = new SmallModel(CONFIG);
    const kept = needle.allocate(64);
    const model: DecodeModel = {
      forward(state, tokens) {
        const logits = inner.forward(state, tokens);
        kept.view.set(logits);
        return kept.view;
      },
    };
    const again = await run(
      {
        maxNewTokens: 8,
        async logits(logits) {
          // Linear memory grows while the hook has the logits.
          needle.allocate(needle.memory.linearBytes / 4).dispose();
          await turn();
          logits[0] = -Infinity;
        },
      },
      { model },
    );
    expect(again.list).toEqual(list);
    kept.dispose();
  });
});

describe('the stream', () => {
  it('runs nothing before it is asked', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    const model = new SmallModel(CONFIG);
    decode(model, state, PROMPT);
    await new Promise((resolve) => setTimeout(resolve, 5));
    expect(model.calls).toBe(0);
    expect(state.position).toBe(0);
    state.dispose();
  });

  it('runs by itself where only its result is awaited', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    expect(await decode(new SmallModel(CONFIG), state, PROMPT, { maxNewTokens: 0 }).result).toEqual({
      stopReason: 'max-new-tokens',
      tokens: 0,
      position: PROMPT.length,
    });
    state.dispose();
  });

  it('gives each token once, to one loop after another', async () => {
    const whole = await run({ maxNewTokens: 6 });
    const state = (await needle3()).createDecodeState(CONFIG);
    const stream = decode(new SmallModel(CONFIG), state, PROMPT, { maxNewTokens: 6 });
    const iterator = stream[Symbol.asyncIterator]();
    const tokens = [await iterator.next(), await iterator.next()].map(({ value }) => value as number);
    tokens.push(...(await collect(stream)));
    expect(tokens).toEqual(whole.list);
    expect(await iterator.next()).toEqual({ done: true, value: undefined });
    expect(await collect(stream)).toEqual([]);
    state.dispose();
  });

  it('fails with disposed where its state goes meanwhile', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    const stream = decode(new SmallModel(CONFIG), state, PROMPT);
    const iterator = stream[Symbol.asyncIterator]();
    await iterator.next();
    state.dispose();
    await expectRejection(iterator.next(), 'disposed', 'decode: ');
    await expectRejection(stream.result, 'disposed');
  });

  it('refuses a second decode of its state while its forward is pending: range', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    const inner = new SmallModel(CONFIG);
    const stream = decode(
      {
        async forward(each, tokens) {
          expectError(() => decode(inner, each, [1]), 'range', 'decode: ');
          await turn();
          expectError(() => decode(inner, each, [1]), 'range', 'decode: ');
          return inner.forward(each, tokens);
        },
      },
      state,
      PROMPT,
      { maxNewTokens: 2 },
    );
    expect(await collect(stream)).toHaveLength(2);
    state.dispose();
  });

  it('never throws anything but what it was given and Needle3Error', async () => {
    const state = (await needle3()).createDecodeState(CONFIG);
    const stream = decode(new SmallModel(CONFIG), state, PROMPT, {
      onPrompt: () => {
        throw new RangeError('mine');
      },
    });
    await expect(collect(stream)).rejects.toBeInstanceOf(RangeError);
    expect(new Needle3Error('range', 'x')).not.toBeInstanceOf(RangeError);
    expect(state.position).toBe(PROMPT.length);
    state.dispose();
  });
});
