import {
  checkArrayLike,
  checkFunction,
  checkInteger,
  checkNumber,
  checkObject,
  copyTokens,
  elementsOf,
  isFloat32Array,
  MAX_UINT32,
  wrongType,
} from '../core/check.js';
import { coreOf, heapOf, isDecodeState, isDisposed, type DecodeState } from '../state/decode-state.js';
import { Needle3Error } from '../core/errors.js';

/**
 * A model's forward pass over a decode state: the caller writes it.
 *
 * @example
 * ```ts
 * const model: DecodeModel = {
 *   forward(state, tokens) {
 *     for (const token of tokens) state.pushToken(token);
 *     // … every layer …
 *     state.advance(tokens.length);
 *     return logits;
 *   },
 * };
 * ```
 */
export interface DecodeModel {
  /**
   * Takes the state on by `tokens.length` positions and gives the logits of the last one, outVocab of them (vocabSize
   * where that is 0). The array may be the same each time, and a view of wasm memory: it is copied as soon as it arrives.
   * Where it throws, the step under way is discarded.
   *
   * @param state - the state that `decode` was called with
   * @param tokens - at least one token id, in a buffer of its own
   */
  forward(state: DecodeState, tokens: Uint32Array<ArrayBuffer>): Float32Array | Promise<Float32Array>;
}

/**
 * What `decode` reads of an `AbortSignal`.
 *
 * @example
 * ```ts
 * const controller = new AbortController();
 * decode(model, state, prompt, { signal: controller.signal });
 * ```
 */
export interface AbortSignalLike {
  /** Whether to stop. */
  readonly aborted: boolean;
}

/**
 * How tokens are chosen, and when to stop.
 *
 * @example
 * ```ts
 * const options: DecodeOptions = { maxNewTokens: 64, stopTokens: [2], temperature: 0.8, topP: 0.95, seed: 7 };
 * ```
 */
export interface DecodeOptions {
  /** Tokens to yield at most, an integer of at least 0. 0: only feed the prompt. Default 256. */
  readonly maxNewTokens?: number | undefined;
  /** Token ids that end the text; they are not yielded. Default: none. */
  readonly stopTokens?: ArrayLike<number> | undefined;
  /** What logits are divided by before softmax, finite and at least 0. 0, the default: always the most likely token. */
  readonly temperature?: number | undefined;
  /** Draw from so many most likely tokens only, an integer of at least 0. 0, the default: from all. */
  readonly topK?: number | undefined;
  /** Draw from the most likely tokens that together have this probability, above 0, at most 1. Default 1: from all. */
  readonly topP?: number | undefined;
  /** Seed of the draws, an integer from 0 to 2³²−1. The same seed gives the same tokens on every engine. Default 0. */
  readonly seed?: number | undefined;
  /** Tokens of the prompt that one `forward` call gets, an integer of at least 1. Default 64. */
  readonly promptBatch?: number | undefined;
  /** Called after each batch of the prompt, with the tokens fed so far and the tokens of the prompt. */
  readonly onPrompt?: ((done: number, total: number) => void) | undefined;
  /**
   * Masks (−∞) or biases the logits in place before a token is drawn: a copy of what `forward` gave. `generated` holds
   * the tokens yielded so far.
   */
  readonly logits?: ((logits: Float32Array, generated: readonly number[]) => void | Promise<void>) | undefined;
  /**
   * Stops between two `forward` calls, batches of the prompt included. `decode` lets other events in every 10 ms, so
   * that a message which aborts arrives even where `forward` is synchronous.
   */
  readonly signal?: AbortSignalLike | undefined;
}

/**
 * Why `decode` stopped: a stop token was drawn; `maxNewTokens` were yielded; the context is full; the signal was
 * aborted or the loop left. Where several hold, the first of them in this order.
 *
 * @example
 * ```ts
 * const isCut: Record<StopReason, boolean> = {
 *   'stop-token': false,
 *   'max-new-tokens': true,
 *   'max-seq-len': true,
 *   aborted: true,
 * };
 * ```
 */
export type StopReason = 'stop-token' | 'max-new-tokens' | 'max-seq-len' | 'aborted';

/**
 * How a `decode` ended.
 *
 * @example
 * ```ts
 * const { stopReason, tokens, position }: DecodeResult = await decode(model, state, prompt).result;
 * ```
 */
export interface DecodeResult {
  /** Why it stopped. */
  readonly stopReason: StopReason;
  /** Tokens yielded. */
  readonly tokens: number;
  /** The state's position: the last token yielded is not in the state where it was not fed. */
  readonly position: number;
}

/**
 * The tokens of one `decode`, as they are drawn.
 *
 * @example
 * ```ts
 * const stream: DecodeStream = decode(model, state, prompt);
 * for await (const token of stream) show(token);
 * const { stopReason } = await stream.result;
 * ```
 */
export interface DecodeStream extends AsyncIterable<number> {
  /**
   * How it ended. Rejects with the error that came out of the loop, and never as an unhandled rejection. Reading it
   * before the loop has begun sets the stream going by itself, so awaiting it alone is enough where the tokens do not
   * matter (`maxNewTokens: 0`); tokens drawn so far are kept for a loop that comes later.
   */
  readonly result: Promise<DecodeResult>;
}

const DEFAULT_MAX_NEW_TOKENS = 256;
const DEFAULT_PROMPT_BATCH = 64;

/** DecodeOptions, checked and filled in. */
interface Settings {
  readonly maxNewTokens: number;
  readonly stopTokens: ReadonlySet<number>;
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly seed: number;
  readonly promptBatch: number;
  readonly onPrompt: DecodeOptions['onPrompt'];
  readonly logits: DecodeOptions['logits'];
  readonly signal: AbortSignalLike | undefined;
}

function readSettings(options: DecodeOptions, vocabSize: number): Settings {
  const {
    maxNewTokens = DEFAULT_MAX_NEW_TOKENS,
    stopTokens = [],
    temperature = 0,
    topK = 0,
    topP = 1,
    seed = 0,
    promptBatch = DEFAULT_PROMPT_BATCH,
    onPrompt,
    logits,
    signal,
  } = options;
  checkNumber('decode', 'maxNewTokens', maxNewTokens);
  checkArrayLike('decode', 'stopTokens', stopTokens);
  checkNumber('decode', 'temperature', temperature);
  checkNumber('decode', 'topK', topK);
  checkNumber('decode', 'topP', topP);
  checkNumber('decode', 'seed', seed);
  checkNumber('decode', 'promptBatch', promptBatch);
  if (onPrompt !== undefined) checkFunction('decode', 'onPrompt', onPrompt);
  if (logits !== undefined) checkFunction('decode', 'logits', logits);
  if (signal !== undefined) {
    checkObject('decode', 'signal', signal);
    if (typeof signal.aborted !== 'boolean') wrongType('decode', 'signal', 'an AbortSignal', signal);
  }
  checkInteger('decode', 'maxNewTokens', maxNewTokens, 0, Number.MAX_SAFE_INTEGER);
  // The core takes both as f32.
  if (!Number.isFinite(Math.fround(temperature)) || temperature < 0) {
    throw new Needle3Error('range', `decode: temperature must be finite and at least 0; got ${temperature}`);
  }
  checkInteger('decode', 'topK', topK, 0, Number.MAX_SAFE_INTEGER);
  if (!(Math.fround(topP) > 0 && topP <= 1)) {
    throw new Needle3Error('range', `decode: topP must be above 0 and at most 1; got ${topP}`);
  }
  checkInteger('decode', 'seed', seed, 0, MAX_UINT32);
  checkInteger('decode', 'promptBatch', promptBatch, 1, Number.MAX_SAFE_INTEGER);
  return {
    maxNewTokens,
    stopTokens: new Set(copyTokens('decode', 'stopTokens', stopTokens, vocabSize - 1)),
    temperature,
    topK: Math.min(topK, MAX_UINT32),
    topP,
    seed,
    promptBatch,
    onPrompt,
    logits,
    signal,
  };
}

/** How long a run may keep its thread from other events, in milliseconds. */
const TURN_MS = 10;

/** The next turn of the event loop. Promises alone never let one come; timers would wait 4 ms. */
function nextTurn(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** States whose model is in a `forward` call of some decode. */
const busy = new WeakSet<DecodeState>();

/** @throws Needle3Error `disposed`, or `range` in the middle of a step or of another decode's forward call */
function checkIdle(state: DecodeState): void {
  const core = coreOf(state, 'decode');
  if (busy.has(state)) {
    throw new Needle3Error('range', 'decode: another decode of this state is in its forward call');
  }
  if (core.inStep()) {
    throw new Needle3Error('range', 'decode: the state is in the middle of a step; advance or discard it first');
  }
}

/** @throws Needle3Error `range` */
function checkPromptLength(state: DecodeState, length: number): void {
  const { position, config } = state;
  const room = config.maxSeqLen - position;
  if (length === 0) throw new Needle3Error('range', 'decode: prompt must not be empty');
  if (length > room) {
    throw new Needle3Error(
      'range',
      `decode: prompt of ${length} tokens is longer than the ${Math.max(room, 0)} positions left ` +
        `(maxSeqLen ${config.maxSeqLen}, position ${position})`,
    );
  }
}

/** One run: the tokens, and in the end the result. */
class Run {
  readonly result: Promise<DecodeResult>;
  #resolve!: (result: DecodeResult) => void;
  #reject!: (error: unknown) => void;

  readonly #model: DecodeModel;
  readonly #state: DecodeState;
  readonly #prompt: Uint32Array<ArrayBuffer>;
  readonly #settings: Settings;
  readonly #generated: number[] = [];
  /** Where the state was when this run last looked: it may be disposed of by the time that the result is asked for. */
  #position: number;
  /** Of the last forward call, in an array of the run's own. */
  readonly #logits: Float32Array<ArrayBuffer>;
  readonly #logitsLength: number;
  #yielded = 0;
  #draws = 0;
  #turnBegan = 0;

  constructor(model: DecodeModel, state: DecodeState, prompt: Uint32Array<ArrayBuffer>, settings: Settings) {
    this.#model = model;
    this.#state = state;
    this.#prompt = prompt;
    this.#settings = settings;
    this.#position = state.position;
    const { outVocab, vocabSize } = state.config;
    this.#logitsLength = outVocab === 0 ? vocabSize : outVocab;
    this.#logits = new Float32Array(this.#logitsLength);
    this.result = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // An error reaches whoever reads the loop or the result; a result that nobody reads is no unhandled rejection.
    this.result.catch(() => undefined);
  }

  async *tokens(): AsyncGenerator<number, undefined> {
    try {
      const stopReason = yield* this.#generate();
      this.finish(stopReason);
    } catch (error) {
      this.#reject(error);
      throw error;
    } finally {
      // Where the loop was left at a yield; elsewhere the result is settled already.
      this.finish('aborted');
    }
    return undefined;
  }

  /** Settles the result; a second time does nothing. */
  finish(stopReason: StopReason): void {
    this.#look();
    this.#resolve({ stopReason, tokens: this.#yielded, position: this.#position });
  }

  #look(): void {
    if (!isDisposed(this.#state)) this.#position = this.#state.position;
  }

  async *#generate(): AsyncGenerator<number, StopReason> {
    const { maxNewTokens, stopTokens, promptBatch, onPrompt, signal } = this.#settings;
    const prompt = this.#prompt;
    const total = prompt.length;
    // Time may have passed since `decode` was called.
    checkIdle(this.#state);
    checkPromptLength(this.#state, total);

    this.#turnBegan = performance.now();
    for (let done = 0; done < total;) {
      await this.#letEventsIn();
      if (signal?.aborted) return 'aborted';
      const batch = prompt.slice(done, done + promptBatch);
      await this.#forward(batch);
      done += batch.length;
      onPrompt?.(done, total);
    }

    for (;;) {
      if (maxNewTokens === 0) return 'max-new-tokens';
      if (signal?.aborted) return 'aborted';
      const token = await this.#choose();
      if (token === undefined) return 'aborted';
      if (stopTokens.has(token)) return 'stop-token';
      this.#generated.push(token);
      this.#yielded += 1;
      yield token;
      if (this.#yielded >= maxNewTokens) return 'max-new-tokens';
      await this.#letEventsIn();
      checkIdle(this.#state);
      if (this.#state.position >= this.#state.config.maxSeqLen) return 'max-seq-len';
      if (signal?.aborted) return 'aborted';
      await this.#forward(Uint32Array.of(token));
    }
  }

  /**
   * A model that answers at once would otherwise hold the thread for the whole run, and a Worker would never get the
   * message that asks it to stop.
   */
  async #letEventsIn(): Promise<void> {
    if (performance.now() - this.#turnBegan < TURN_MS) return;
    await nextTurn();
    this.#turnBegan = performance.now();
  }

  /** One forward call, checked. The step that a failing one leaves is discarded. */
  async #forward(tokens: Uint32Array<ArrayBuffer>): Promise<void> {
    const state = this.#state;
    checkIdle(state);
    const before = state.position;
    const { length } = tokens;
    busy.add(state);
    try {
      // An array that comes at once is read at once: before the next await the model may serve another stream with it,
      // or memory grow under it.
      const given = this.#model.forward(state, tokens);
      const logits = isFloat32Array(given) ? given : await given;
      const core = coreOf(state, 'decode');
      const after = core.position();
      if (after !== before + length || core.inStep()) {
        throw new Needle3Error(
          'range',
          `decode: forward must take the state from position ${before} to ${before + length} and end its step; ` +
            `it is at ${after}${core.inStep() ? ', in the middle of a step' : ''}`,
        );
      }
      this.#checkLogits(logits);
      this.#logits.set(logits);
    } catch (error) {
      if (!isDisposed(state)) state.discard();
      throw error;
    } finally {
      busy.delete(state);
      this.#look();
    }
  }

  #checkLogits(logits: Float32Array): void {
    if (!isFloat32Array(logits)) wrongType('decode', 'the logits that forward gives', 'a Float32Array', logits);
    const expected = this.#logitsLength;
    if (elementsOf(logits) !== expected) {
      throw new Needle3Error('shape', `decode: forward must give ${expected} logits; got ${elementsOf(logits)}`);
    }
  }

  /** The next token, or undefined where the run was aborted meanwhile. */
  async #choose(): Promise<number | undefined> {
    const { temperature, topK, topP, seed, signal, logits: hook } = this.#settings;
    if (hook !== undefined) {
      await hook(this.#logits, this.#generated);
      if (signal?.aborted) return undefined;
      this.#checkLogits(this.#logits); // the hook may have transferred it
    }
    coreOf(this.#state, 'decode');
    const heap = heapOf(this.#state);
    const [a] = heap.operands;
    heap.take(a, 'decode', 'logits', this.#logits);
    heap.place('decode', 1, 'in');
    const token = heap.core.sample(a.address, a.length, temperature, topK, topP, seed, this.#draws);
    heap.release();
    if (token < 0) throw heap.lastError('decode');
    this.#draws += 1;
    return token;
  }
}

/** The stream of a run, which the loop drives, or else the stream itself once its result is asked for. */
class Stream implements DecodeStream, AsyncIterator<number, undefined> {
  readonly #run: Run;
  readonly #tokens: AsyncGenerator<number, undefined>;
  /** Whether someone iterates. */
  #driven = false;
  /** Settles when the stream has stopped driving itself; rejects where the run has failed meanwhile. */
  #selfDrive: Promise<void> | undefined;
  /** Tokens drawn before anyone iterated. */
  readonly #waiting: number[] = [];

  constructor(run: Run) {
    this.#run = run;
    this.#tokens = run.tokens();
  }

  get result(): Promise<DecodeResult> {
    if (!this.#driven && this.#selfDrive === undefined) {
      this.#selfDrive = this.#drive();
      this.#selfDrive.catch(() => undefined);
    }
    return this.#run.result;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<number, undefined>> {
    this.#driven = true;
    let failure: { readonly error: unknown } | undefined;
    if (this.#selfDrive !== undefined) {
      failure = await this.#selfDrive.then(
        () => undefined,
        (error: unknown) => ({ error }),
      );
    }
    const token = this.#waiting.shift();
    if (token !== undefined) return { done: false, value: token };
    if (failure !== undefined) {
      this.#selfDrive = undefined;
      throw failure.error;
    }
    return this.#tokens.next();
  }

  async return(): Promise<IteratorResult<number, undefined>> {
    this.#driven = true;
    this.#waiting.length = 0;
    await this.#selfDrive?.catch(() => undefined);
    const end = await this.#tokens.return(undefined);
    // A generator that never ran has settled nothing.
    this.#run.finish('aborted');
    return end;
  }

  async #drive(): Promise<void> {
    // A loop that begins in the same turn has the say.
    await Promise.resolve();
    while (!this.#driven) {
      const { done, value } = await this.#tokens.next();
      if (done) return;
      this.#waiting.push(value);
    }
  }
}

/**
 * The decode loop: feeds a prompt in batches, draws tokens, feeds them back, and says why it stopped. It goes on from
 * the state's position and leaves the state at the last committed token, ready to go on, however it ends.
 *
 * Nothing runs before the stream is iterated (or its `result` read). A token is fed when the next one is asked for.
 * Abort, a `forward` that throws and leaving the loop leave no step half done.
 *
 * @param model - the forward pass
 * @param state - any decode state that is not in the middle of a step
 * @param prompt - token ids, integers from 0 to vocabSize − 1; at least one and at most maxSeqLen − position
 * @param options - how tokens are chosen, and when to stop
 * @throws Needle3Error `disposed`, `type` or `range` for arguments that do not fit. Out of the loop and of `result`
 * come: what `forward`, `logits` and `onPrompt` throw; `range` where `forward` does not take the state on by the tokens
 * it got; `type` or `shape` for what it gives back; `non-finite` for NaN logits; `disposed`
 *
 * @example
 * ```ts
 * const stream = decode(model, state, prompt, { maxNewTokens: 100, stopTokens: [0] });
 * for await (const token of stream) show(token);
 * const { stopReason } = await stream.result;
 * ```
 */
export function decode(
  model: DecodeModel,
  state: DecodeState,
  prompt: ArrayLike<number>,
  options: DecodeOptions = {},
): DecodeStream {
  if (!isDecodeState(state)) wrongType('decode', 'state', 'a DecodeState', state);
  coreOf(state, 'decode');
  if ((typeof model !== 'object' && typeof model !== 'function') || model === null) {
    wrongType('decode', 'model', 'an object with a forward method', model);
  }
  checkFunction('decode', 'model.forward', (model as { readonly forward: unknown }).forward);
  checkArrayLike('decode', 'prompt', prompt);
  checkObject('decode', 'options', options);
  const { vocabSize } = state.config;
  const settings = readSettings(options, vocabSize);
  checkPromptLength(state, prompt.length);
  const tokens = copyTokens('decode', 'prompt', prompt, vocabSize - 1);
  checkIdle(state);
  return new Stream(new Run(model, state, tokens, settings));
}
