import { decode, type DecodeModel, type DecodeState, type Mark, type Needle3 } from 'needle3-wasm';
import { checkState, type CheckResult } from './check.js';
import { geometryNamed } from './geometries.js';
import { deriveSeed, uniformAt } from './random.js';
import { noTimes, stateTime, SyntheticModel, TIME_SHARES, type StepTimes } from './model.js';
import type { FrameEvent, Precision, RunEnd, Sample } from './protocol.js';
import { PACES, type Settings } from './settings.js';
import { END_OF_TEXT, encodeText, keepLegible } from './vocabulary.js';

/** Marks that a state may hold at once, so that steps back cost a bounded amount of memory. */
const MAX_MARKS = 64;
/** Forward calls that the shown times are averaged over: browsers' clocks tick too coarsely for one. */
const TIMED_CALLS = 32;
const SPACE = 0x20;

export interface SessionHooks {
  /** After every forward call: lets messages in, keeps the pace, and returns early when aborted. */
  breathe(tokensPerSecond: number, signal: AbortSignal): Promise<void>;
  /** Something to show has changed. */
  changed(): void;
}

interface TimedCall {
  readonly rows: number;
  readonly times: StepTimes;
}

/** A decode state and the marks to step back by, outermost first. */
class Track {
  readonly marks: { position: number; mark: Mark }[] = [];

  constructor(readonly state: DecodeState) {}

  /** Marks the present moment where the newest mark is `interval` tokens old. */
  markEvery(interval: number): void {
    const newest = this.marks.at(-1);
    if (newest && this.state.position - newest.position < interval) return;
    this.marks.push({ position: this.state.position, mark: this.state.mark() });
  }

  /** Goes back to `position`: to the nearest mark before it, then forward again by feeding `tokens` of it. */
  rewind(position: number, tokens: readonly number[], model: SyntheticModel): void {
    while (this.marks.length > 1 && this.marks.at(-1)!.position > position) this.marks.pop();
    const nearest = this.marks.at(-1)!;
    this.state.rollback(nearest.mark);
    const again = Uint32Array.from(tokens.slice(nearest.position, position));
    if (again.length > 0) model.forward(this.state, again);
  }
}

/** Draws a token: the largest of logits / temperature + Gumbel noise, which is a draw from their softmax. */
function draw(logits: Float32Array, temperature: number, seed: number): number {
  let best = 0;
  let highest = -Infinity;
  logits.forEach((logit, id) => {
    const unit = 0.5 + uniformAt(seed, id, 0.5 / Math.sqrt(3));
    const value = logit - temperature * Math.log(-Math.log(unit));
    if (value > highest) [best, highest] = [id, value];
  });
  return best;
}

/** One text, the state that holds it, and a twin of the other precision for comparison. */
export class Session {
  readonly model: SyntheticModel;
  readonly reservedBytes: Record<Precision, number>;
  /** Prompt and generated tokens. The state holds the first `position` of them. */
  tokens: number[] = [];
  promptLength = 0;

  readonly #needle3: Needle3;
  readonly #hooks: SessionHooks;
  readonly #track: Track;
  readonly #twin: Track | undefined;
  #markInterval = 1;
  #recent: TimedCall[] = [];
  #samples: Sample[] = [];
  #shown = 0;

  /** Takes over `restored` where given: a state that holds `tokens`. */
  constructor(
    needle3: Needle3,
    readonly settings: Settings,
    hooks: SessionHooks,
    restored?: { state: DecodeState; tokens: readonly number[]; promptLength: number },
  ) {
    this.#needle3 = needle3;
    this.#hooks = hooks;
    const { config } = geometryNamed(settings.geometry);
    this.model = new SyntheticModel(needle3, config, settings.seed);
    const { capacityHint } = settings;
    const create = (precision: Precision) => {
      const quantizeQuery = precision === 'int8' && settings.quantizeQuery;
      return needle3.createDecodeState(config, { precision, quantizeQuery, capacityHint });
    };
    const reserve = (precision: Precision) =>
      needle3.decodeStateBytes(config, {
        precision,
        capacityHint: config.maxSeqLen,
        positions: config.maxSeqLen,
      });
    this.reservedBytes = { f32: reserve('f32'), int8: reserve('int8') };
    this.#track = new Track(restored?.state ?? create(settings.precision));
    this.#twin = settings.compare ? new Track(create(settings.precision === 'f32' ? 'int8' : 'f32')) : undefined;
    if (restored) {
      this.tokens = [...restored.tokens];
      this.promptLength = restored.promptLength;
      const { promptBatch } = geometryNamed(settings.geometry);
      for (let from = 0; this.#twin && from < this.state.position; from += promptBatch) {
        const to = Math.min(from + promptBatch, this.state.position);
        this.model.forward(this.#twin.state, Uint32Array.from(this.tokens.slice(from, to)));
        this.#sample(this.#twin.state, to - from);
      }
      this.#sample(this.state, 0);
    }
    for (const track of this.#tracks()) track.markEvery(1);
  }

  get state(): DecodeState {
    return this.#track.state;
  }

  /** True where nothing was ever fed since creation or `reset`. */
  get isUntouched(): boolean {
    return this.state.position === 0;
  }

  get canGoBack(): boolean {
    const floor = this.#track.marks[0].position;
    return this.tokens.length > Math.max(this.promptLength, floor + 1);
  }

  /** Feeds the prompt and decodes. */
  start(settings: Settings, signal: AbortSignal): Promise<RunEnd> {
    this.tokens = [...encodeText(settings.prompt)];
    this.promptLength = this.tokens.length;
    this.#shown = 0;
    return this.run(settings, settings.maxTokens, signal);
  }

  /** Decodes up to `limit` tokens on from the newest one. */
  async run(settings: Settings, limit: number, signal: AbortSignal): Promise<RunEnd> {
    // An abort may leave every token fed: decode() wants one to go on from, so the newest is taken back.
    if (this.tokens.length > 0 && this.state.position === this.tokens.length) this.#rewind(this.tokens.length - 1);
    this.#markInterval = Math.max(1, Math.ceil((this.promptLength + limit) / MAX_MARKS));
    const pending = this.tokens.slice(this.state.position);
    const stream = decode(this.#driven(settings, signal), this.state, pending, {
      maxNewTokens: limit,
      temperature: settings.temperature,
      seed: (settings.seed + this.state.position) >>> 0,
      promptBatch: geometryNamed(settings.geometry).promptBatch,
      stopTokens: [END_OF_TEXT],
      signal,
      logits: (logits) => keepLegible(logits, settings.mayEnd),
    });
    for await (const token of stream) {
      this.tokens.push(token);
      this.#hooks.changed();
    }
    const { stopReason } = await stream.result;
    this.#hooks.changed();
    return stopReason;
  }

  /** Goes on past the context, where decode() does not, by the model alone. */
  async runPast(settings: Settings, signal: AbortSignal): Promise<RunEnd> {
    const model = this.#driven(settings, signal);
    for (let made = 0; made < settings.maxTokens; made++) {
      if (signal.aborted) return 'aborted';
      const pending = Uint32Array.from(this.tokens.slice(this.state.position));
      const logits = await model.forward(this.state, pending);
      keepLegible(logits, false);
      this.tokens.push(draw(logits, settings.temperature, deriveSeed(settings.seed, this.state.position)));
      this.#hooks.changed();
    }
    return 'max-new-tokens';
  }

  /** Takes back the newest generated token. */
  back(): void {
    if (!this.canGoBack) return;
    this.tokens.pop();
    this.#shown = Math.min(this.#shown, this.tokens.length);
    if (this.state.position >= this.tokens.length) this.#rewind(this.tokens.length - 1);
    this.#hooks.changed();
  }

  reset(): void {
    this.tokens = [];
    this.promptLength = 0;
    this.#shown = 0;
    this.#recent = [];
    this.#samples = [];
    for (const track of this.#tracks()) {
      track.state.reset();
      track.marks.length = 0;
      track.markEvery(1);
    }
  }

  check(breathe: () => Promise<void>, onLayer: (done: number, total: number) => void): Promise<CheckResult> {
    const { position } = this.state;
    const next = this.tokens[position] ?? SPACE;
    const held = this.tokens.slice(0, position);
    return checkState(this.#needle3, this.model, this.state, held, next, breathe, onLayer);
  }

  /** What has changed since the last frame, and how things stand. */
  frame(): FrameEvent {
    const { state } = this;
    const { linearBytes, allocatedBytes } = this.#needle3.memory;
    const tokensFrom = this.#shown;
    const samples = this.#samples;
    this.#shown = this.tokens.length;
    this.#samples = [];
    return {
      type: 'frame',
      tokensFrom,
      tokens: this.tokens.slice(tokensFrom),
      promptLength: this.promptLength,
      position: state.position,
      slots: Array.from({ length: state.config.numLayers }, (_, layer) => state.slots(layer)),
      history: [...state.tokenHistory],
      byteLength: state.byteLength,
      markBytes: state.markBytes,
      isSaturated: state.isSaturated,
      linearBytes,
      allocatedBytes,
      times: this.#meanTimes(),
      samples,
      canGoBack: this.canGoBack,
    };
  }

  dispose(): void {
    for (const track of this.#tracks()) track.state.dispose();
    this.model.dispose();
  }

  #tracks(): Track[] {
    return this.#twin ? [this.#track, this.#twin] : [this.#track];
  }

  /** The model as decode() drives it here: the twin is fed too, moments are marked, and the pace is kept. */
  #driven(settings: Settings, signal: AbortSignal): DecodeModel {
    return {
      forward: async (state, tokens) => {
        const logits = this.model.forward(state, tokens);
        this.#recent.push({ rows: tokens.length, times: this.model.times });
        if (this.#recent.length > TIMED_CALLS) this.#recent.shift();
        this.#sample(state, tokens.length);
        if (this.#twin) {
          this.model.forward(this.#twin.state, tokens);
          this.#sample(this.#twin.state, tokens.length);
        }
        for (const track of this.#tracks()) track.markEvery(this.#markInterval);
        this.#hooks.changed();
        await this.#hooks.breathe(PACES[settings.pace], signal);
        return logits;
      },
    };
  }

  #rewind(position: number): void {
    for (const track of this.#tracks()) track.rewind(position, this.tokens, this.model);
  }

  #sample(state: DecodeState, rows: number): void {
    const { precision, position, byteLength } = state;
    const stateMs = rows === 0 ? 0 : stateTime(this.model.times) / rows;
    this.#samples.push({ precision, position, byteLength, rows, stateMs });
  }

  /** Without the slowest calls: they tell of the machine's other work. */
  #meanTimes(): StepTimes | null {
    if (this.#recent.length === 0) return null;
    const total = ({ rows, times }: TimedCall) => TIME_SHARES.reduce((sum, share) => sum + times[share], 0) / rows;
    const calls = [...this.#recent]
      .sort((a, b) => total(a) - total(b))
      .slice(0, Math.ceil(this.#recent.length * 0.875));
    const rows = calls.reduce((sum, call) => sum + call.rows, 0);
    const mean = noTimes();
    for (const share of TIME_SHARES) mean[share] = calls.reduce((sum, { times }) => sum + times[share], 0) / rows;
    return mean;
  }
}
