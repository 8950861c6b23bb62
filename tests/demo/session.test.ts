import { loadNeedle3, type Needle3 } from 'needle3-wasm';
import { afterEach, beforeAll, describe, expect, it } from 'vitest';

import { askMany } from '../../web/demo/src/ask.js';
import { checkState, isRounding } from '../../web/demo/src/check.js';
import { GEOMETRIES, geometryNamed } from '../../web/demo/src/geometries.js';
import { SyntheticModel } from '../../web/demo/src/model.js';
import type { FrameEvent } from '../../web/demo/src/protocol.js';
import { Session, type SessionHooks } from '../../web/demo/src/session.js';
import { DEFAULT_SETTINGS, type Settings } from '../../web/demo/src/settings.js';
import { encodeText } from '../../web/demo/src/vocabulary.js';

const signal = new AbortController().signal;
const atOnce = (): Promise<void> => Promise.resolve();
const hooks: SessionHooks = { breathe: atOnce, changed: () => undefined };
const noLayers = (): void => undefined;
const settings: Settings = { ...DEFAULT_SETTINGS, pace: 'full', prompt: 'Trains to Bergen, please.', maxTokens: 40 };

let needle3: Needle3;
const live: Session[] = [];

beforeAll(async () => {
  needle3 = await loadNeedle3();
});

afterEach(() => {
  for (const session of live.splice(0)) session.dispose();
});

function sessionOf(changed: Partial<Settings> = {}): Session {
  const session = new Session(needle3, { ...settings, ...changed }, hooks);
  live.push(session);
  return session;
}

describe('a session', () => {
  const variants = GEOMETRIES.flatMap(({ name }) =>
    (
      [
        ['f32', false],
        ['int8', true],
        ['int8', false],
      ] as const
    ).map(([precision, quantizeQuery]) => ({ geometry: name, precision, quantizeQuery })),
  );

  it.each(variants)(
    'agrees with the recomputation: $geometry, $precision, quantised query $quantizeQuery',
    async (variant) => {
      const session = sessionOf(variant);
      expect(await session.start(session.settings, signal)).toBe('max-new-tokens');
      const result = await session.check(atOnce, noLayers);
      expect(result).toMatchObject({ sameBits: true, positions: session.state.position });
      expect(result.difference).toBeLessThanOrEqual(result.limit * result.magnitude);
      expect(isRounding(result)).toBe(true);
    },
  );

  it('stops at the end of the context, and saturates and stays right when driven past it', async () => {
    const session = sessionOf({ maxTokens: 1000 });
    const { maxSeqLen } = session.state.config;
    expect(await session.start(session.settings, signal)).toBe('max-seq-len');
    expect(session.state.position).toBe(maxSeqLen);
    expect(session.state.isSaturated).toBe(false);
    await session.runPast({ ...session.settings, maxTokens: 30 }, signal);
    expect(session.state.position).toBe(maxSeqLen + 30);
    expect(session.state.isSaturated).toBe(true);
    expect(isRounding(await session.check(atOnce, noLayers))).toBe(true);
  });

  it('makes the same tokens again after steps back, where sampling is greedy', async () => {
    const session = sessionOf({ temperature: 0, maxTokens: 100 });
    await session.start(session.settings, signal);
    const made = [...session.tokens];
    for (let steps = 0; steps < 37; steps++) session.back();
    expect(session.tokens).toEqual(made.slice(0, -37));
    expect(isRounding(await session.check(atOnce, noLayers))).toBe(true);
    await session.run(session.settings, 37, signal);
    expect(session.tokens).toEqual(made);
  });

  it('does not step back into the prompt', async () => {
    const session = sessionOf({ maxTokens: 2 });
    await session.start(session.settings, signal);
    for (let steps = 0; steps < 5; steps++) session.back();
    expect(session.canGoBack).toBe(false);
    expect(session.tokens).toEqual([...encodeText(settings.prompt)]);
  });

  it('goes on after an abort in the middle of the prompt as if there had been none', async () => {
    const whole = sessionOf({ temperature: 0 });
    await whole.start(whole.settings, signal);

    const controller = new AbortController();
    let calls = 0;
    const aborting: SessionHooks = {
      breathe: () => {
        if (++calls === 3) controller.abort();
        return Promise.resolve();
      },
      changed: () => undefined,
    };
    const session = new Session(needle3, whole.settings, aborting);
    live.push(session);
    expect(await session.start(session.settings, controller.signal)).toBe('aborted');
    expect(session.state.position).toBeLessThan(session.promptLength);
    await session.run(session.settings, whole.settings.maxTokens, signal);
    expect(session.tokens).toEqual(whole.tokens);
  });

  it('gives the same tokens and bytes after reset as when it was new', async () => {
    const session = sessionOf();
    await session.start(session.settings, signal);
    const { tokens } = session;
    session.reset();
    expect(session.isUntouched).toBe(true);
    await session.start(session.settings, signal);
    expect(session.tokens).toEqual(tokens);
  });

  it('tells of every token once, and of both precisions at every position', async () => {
    const frames: FrameEvent[] = [];
    const session: Session = new Session(needle3, settings, {
      breathe: atOnce,
      changed: () => frames.push(session.frame()),
    });
    live.push(session);
    await session.start(settings, signal);
    frames.push(session.frame());
    const shown: number[] = [];
    for (const { tokensFrom, tokens } of frames) {
      expect(tokensFrom).toBe(shown.length);
      shown.push(...tokens);
    }
    expect(shown).toEqual(session.tokens);
    const positions = (precision: 'f32' | 'int8') =>
      frames.flatMap(({ samples }) =>
        samples.filter((sample) => sample.precision === precision).map(({ position }) => position),
      );
    expect(positions('f32')).toEqual(positions('int8'));
    expect(positions('f32').at(-1)).toBe(session.state.position);
  });

  it('ends by its own choice where the settings let it', async () => {
    const session = sessionOf({ mayEnd: true, temperature: 4, maxTokens: 8192, geometry: 'small' });
    expect(await session.start(session.settings, signal)).toBe('stop-token');
  });
});

describe('the check', () => {
  it('finds a state that does not hold the text it is said to hold', async () => {
    const session = sessionOf();
    await session.start(session.settings, signal);
    const { position } = session.state;
    const wrong = session.tokens.slice(0, position);
    wrong[0] += 1;
    const result = await checkState(needle3, session.model, session.state, wrong, 0x20, atOnce);
    expect(result.sameBits).toBe(false);
    expect(isRounding(result)).toBe(false);
  });

  it.each([
    ['a convolution', 'conv'],
    ['an Engram convolution', 'engramConv'],
  ] as const)('finds a state that leaves out %s', async (_what, method) => {
    const { config } = geometryNamed('pocket');
    const model = new SyntheticModel(needle3, config, 1);
    const broken = () => {
      const state = needle3.createDecodeState(config);
      state[method] = () => undefined;
      return state;
    };
    const state = broken();
    const tokens = [...encodeText('A text long enough to matter.')];
    model.forward(state, Uint32Array.from(tokens));
    const instance = { createDecodeState: broken } as unknown as Needle3;
    const result = await checkState(instance, model, state, tokens, 0x20, atOnce);
    expect(result.difference).toBeGreaterThan(1000 * result.limit * result.magnitude);
    state.dispose();
    model.dispose();
  });
});

describe('one prompt, many questions', () => {
  it('gives each question the answer that it gets from nothing', async () => {
    const questions = ['Wake me.', 'Rain?'];
    const labels: string[] = [];
    const result = await askMany(
      needle3,
      { settings, shared: 'Tools: alarm, weather. ', questions, maxTokens: 6 },
      atOnce,
      signal,
      (_done, _total, label) => labels.push(label),
    );
    expect(result.answers.map(({ question }) => question)).toEqual(questions);
    expect(result.answers.map(({ sameTokens }) => sameTokens)).toEqual([true, true]);
    expect(result.sharedTokens).toBe(23);
    expect(labels).toHaveLength(5);
  });

  it('leaves nothing behind when it is stopped', async () => {
    const before = needle3.memory.allocatedBytes;
    const controller = new AbortController();
    const breathe = (): Promise<void> => {
      controller.abort();
      return Promise.resolve();
    };
    const asked = askMany(
      needle3,
      { settings, shared: 'Tools. ', questions: ['One?'], maxTokens: 4 },
      breathe,
      controller.signal,
      () => undefined,
    );
    await expect(asked).rejects.toMatchObject({ name: 'AbortError' });
    expect(needle3.memory.allocatedBytes).toBe(before);
  });
});
