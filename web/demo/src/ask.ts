import { decode, type DecodeModel, type DecodeState, type Needle3 } from 'needle3-wasm';
import { geometryNamed } from './geometries.js';
import { SyntheticModel } from './model.js';
import type { AskAnswer, AskResult } from './protocol.js';
import type { Settings } from './settings.js';
import { decodeText, encodeText, keepLegible } from './vocabulary.js';

/** The cache whose prefill is worth sharing. */
export const ASK_GEOMETRY = 'shipped';

interface Answer {
  readonly tokens: readonly number[];
  readonly firstTokenMs: number;
}

/**
 * Prefills `shared` once, answers every question from a fork of it, then answers each again from nothing: what the
 * forks saved is measured, and the tokens are compared.
 */
export async function askMany(
  needle3: Needle3,
  {
    settings,
    shared,
    questions,
    maxTokens,
  }: {
    settings: Settings;
    shared: string;
    questions: readonly string[];
    maxTokens: number;
  },
  breathe: (signal: AbortSignal) => Promise<void>,
  signal: AbortSignal,
  onProgress: (done: number, total: number, label: string) => void,
): Promise<AskResult> {
  const { config, promptBatch } = geometryNamed(ASK_GEOMETRY);
  const model = new SyntheticModel(needle3, config, settings.seed);
  const { precision } = settings;
  const quantizeQuery = precision === 'int8' && settings.quantizeQuery;
  const create = () => needle3.createDecodeState(config, { precision, quantizeQuery });
  const prefix = encodeText(shared);
  const total = 1 + 2 * questions.length;
  let done = 0;
  const report = (label: string) => onProgress(done++, total, label);

  // Time spent letting messages in is nobody's: it is taken out of every measurement.
  let idle = 0;
  const now = () => performance.now() - idle;
  const driven: DecodeModel = {
    forward: async (state, tokens) => {
      const logits = model.forward(state, tokens);
      const before = performance.now();
      await breathe(signal);
      idle += performance.now() - before;
      return logits;
    },
  };

  const answer = async (state: DecodeState, prompt: ArrayLike<number>, began: number): Promise<Answer> => {
    const tokens: number[] = [];
    let firstTokenMs = 0;
    const stream = decode(driven, state, prompt, {
      maxNewTokens: maxTokens,
      temperature: settings.temperature,
      seed: settings.seed,
      promptBatch,
      signal,
      logits: (logits) => keepLegible(logits, false),
    });
    for await (const token of stream) {
      if (tokens.length === 0) firstTokenMs = now() - began;
      tokens.push(token);
    }
    signal.throwIfAborted();
    return { tokens, firstTokenMs };
  };

  const base = create();
  try {
    report('Prefilling the shared prompt');
    // Once for the engine's compiler, so that the first measurement is like the later ones.
    model.forward(base, encodeText(shared.slice(0, promptBatch)));
    base.reset();
    const began = now();
    const prefill = decode(driven, base, prefix, { maxNewTokens: 0, promptBatch, signal });
    for await (const token of prefill) throw new Error(`a prefill made token ${token}`);
    signal.throwIfAborted();
    const prefillMs = now() - began;

    let forkMs = 0;
    const forked: Answer[] = [];
    for (const question of questions) {
      report('Answering from forks');
      const start = now();
      const state = base.fork();
      forkMs += now() - start;
      try {
        forked.push(await answer(state, encodeText(question), start));
      } finally {
        state.dispose();
      }
    }

    const answers: AskAnswer[] = [];
    for (const [index, question] of questions.entries()) {
      report('Answering again from nothing, to compare');
      const start = now();
      const state = create();
      try {
        const again = await answer(state, [...prefix, ...encodeText(question)], start);
        const { tokens, firstTokenMs } = forked[index];
        answers.push({
          question,
          answer: decodeText(tokens),
          forkedMs: firstTokenMs,
          scratchMs: again.firstTokenMs,
          sameTokens: tokens.length === again.tokens.length && tokens.every((token, at) => token === again.tokens[at]),
        });
      } finally {
        state.dispose();
      }
    }
    return {
      sharedTokens: prefix.length,
      prefillMs,
      forkMs: forkMs / questions.length,
      forkBytes: base.byteLength,
      answers,
    };
  } finally {
    base.dispose();
    model.dispose();
  }
}
