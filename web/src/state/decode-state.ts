import type { WasmFloat32Array } from '../core/arrays.js';
import {
  allocateBytes,
  checkInteger,
  checkIntegerArgument,
  checkNumber,
  checkObject,
  checkUint8Array,
  copyTokens,
  describe,
  MAX_POSITION,
  notConstructible,
  wrongType,
} from '../core/check.js';
import { decodeConfig, type ModelConfig } from './config.js';
import { KV_FIELD, PROJECTIONS, type CoreState } from '../core/module.js';
import { makeDisposable } from '../core/dispose.js';
import { Needle3Error } from '../core/errors.js';
import { Heap, type Operand } from '../core/heap.js';

/**
 * Rows that a method reads (or writes, where it says so). A {@link WasmFloat32Array} is used where it lies; a
 * `Float32Array` is copied into linear memory, and back out of it where it is written. The array's length is the number
 * of rows times their width: rows are row-major, one after the other.
 *
 * @example
 * ```ts
 * const inputs: Float32Input[] = [new Float32Array(96), needle3.allocate(96)];
 * ```
 */
export type Float32Input = Float32Array | WasmFloat32Array;

/**
 * Which of a layer's projections a convolution is for: query, key or value.
 *
 * @example
 * ```ts
 * const projections: Projection[] = ['q', 'k', 'v'];
 * ```
 */
export type Projection = 'q' | 'k' | 'v';

/**
 * How keys and values are stored: as they come, or as int8 with one f32 scale a row and key/value head.
 *
 * @example
 * ```ts
 * const precision: Precision = 'int8';
 * needle3.createDecodeState(NEEDLE3, { precision });
 * ```
 */
export type Precision = 'f32' | 'int8';

/**
 * How a decode state is set up.
 *
 * @example
 * ```ts
 * const options: DecodeStateOptions = { precision: 'int8', capacityHint: 1024 };
 * const session = needle3.createDecodeState(NEEDLE3, options);
 * ```
 */
export interface DecodeStateOptions {
  /**
   * Positions that the first allocation of each layer has room for: an integer, clamped to 1…`maxSeqLen`. Layers grow
   * when more are written. Default 512.
   */
  readonly capacityHint?: number | undefined;
  /** How keys and values are stored. Default `'f32'`. */
  readonly precision?: Precision | undefined;
  /**
   * Whether each query head is quantised to int8 before it meets the keys, as the model was post-trained for. Default:
   * whether `precision` is `'int8'`; true with `'f32'` is refused (`unsupported`).
   */
  readonly quantizeQuery?: boolean | undefined;
}

/**
 * A layer's keys and values where they are stored as f32. Every field is derived afresh at each access.
 *
 * @example
 * ```ts
 * const kv = state.kv(0);
 * if (kv.precision === 'f32') console.log(kv.keys[0]);
 * ```
 */
export interface Float32KvView {
  /** `'f32'`. */
  readonly precision: 'f32';
  /** Slots that the layer has now. Position p lies in slot p mod `slots`. */
  readonly slots: number;
  /** Keys, (slots, numKvHeads, qkHeadDim), a view of linear memory. */
  readonly keys: Float32Array<ArrayBuffer>;
  /** Values, (slots, numKvHeads, vHeadDim), a view of linear memory. */
  readonly values: Float32Array<ArrayBuffer>;
}

/**
 * A layer's keys and values where they are stored as int8. Every field is derived afresh at each access.
 *
 * @example
 * ```ts
 * const kv = state.kv(0);
 * if (kv.precision === 'int8') console.log(kv.keys[0] * kv.keyScales[0]);
 * ```
 */
export interface Int8KvView {
  /** `'int8'`. */
  readonly precision: 'int8';
  /** Slots that the layer has now. Position p lies in slot p mod `slots`. */
  readonly slots: number;
  /** Quantised keys, (slots, numKvHeads, qkHeadDim), a view of linear memory. */
  readonly keys: Int8Array<ArrayBuffer>;
  /** What a key's elements are to be multiplied by, (slots, numKvHeads), a view of linear memory. */
  readonly keyScales: Float32Array<ArrayBuffer>;
  /** Quantised values, (slots, numKvHeads, vHeadDim), a view of linear memory. */
  readonly values: Int8Array<ArrayBuffer>;
  /** What a value's elements are to be multiplied by, (slots, numKvHeads), a view of linear memory. */
  readonly valueScales: Float32Array<ArrayBuffer>;
}

/**
 * A layer's keys and values as they lie in memory, live and without a copy: {@link DecodeState.kv} gives it. Slots
 * that were never written hold unspecified values.
 *
 * Read a field, use it, and read it again after the next call of the package: growth moves the layer and detaches
 * typed arrays that were kept. To post one to another thread or to keep it, take a copy first (`keys.slice()`).
 *
 * @example
 * ```ts
 * const kv: KvView = state.kv(0);
 * const copy = kv.keys.slice(); // stays as it is
 * ```
 */
export type KvView = Float32KvView | Int8KvView;

/** The core's state behind a DecodeState. @throws Needle3Error `disposed` */
export let coreOf: (state: DecodeState, method: string) => CoreState;

export let heapOf: (state: DecodeState) => Heap;

export let isDisposed: (state: DecodeState) => boolean;

export let isDecodeState: (value: unknown) => value is DecodeState;

/** Takes over `core`. Where the geometry is not at hand it is read from the core. */
export let createState: (heap: Heap, core: CoreState, config?: ModelConfig) => DecodeState;

let markOf: (owner: object, id: number) => Mark;
let isMark: (value: unknown) => value is Mark;
/** The mark's id, or 0 where it is of another state. */
let markId: (mark: Mark, owner: object) => number;

/**
 * A moment of a state that it can be rolled back to: {@link DecodeState.mark} gives it. Opaque; good for one state.
 * It needs no disposal of its own: `release` gives back what it holds, and so does the end of the state.
 *
 * @example
 * ```ts
 * const before: Mark = state.mark();
 * state.rollback(before);
 * state.release(before);
 * ```
 */
export class Mark {
  // An object that stands for the state, so that a mark that was kept keeps no state alive.
  readonly #owner: object;
  readonly #id: number;

  private constructor(owner: object, id: number) {
    this.#owner = owner;
    this.#id = id;
  }

  static {
    markOf = (owner, id) => new Mark(owner, id);
    isMark = (value): value is Mark => typeof value === 'object' && value !== null && #id in value;
    markId = (mark, owner) => (mark.#owner === owner ? mark.#id : 0);
  }
}

const MAX_FINGERPRINT_BYTES = 64;

/** A copy of a fingerprint, empty where none is given. @throws Needle3Error `type` or `range` */
export function copyFingerprint(method: string, value: unknown): Uint8Array<ArrayBuffer> {
  if (value === undefined) return new Uint8Array(0);
  checkUint8Array(method, 'fingerprint', value);
  checkInteger(method, 'fingerprint.length', value.length, 0, MAX_FINGERPRINT_BYTES);
  return new Uint8Array(value);
}

function checkProjectionType(method: string, value: unknown): void {
  if (typeof value !== 'string') wrongType(method, 'projection', "'q', 'k' or 'v'", value);
}

/** @throws Needle3Error `range` */
function projectionIndex(method: string, projection: Projection): number {
  const index = PROJECTIONS.indexOf(projection);
  if (index < 0) {
    throw new Needle3Error('range', `${method}: projection must be 'q', 'k' or 'v'; got ${describe(projection)}`);
  }
  return index;
}

class Float32Kv implements Float32KvView {
  readonly precision = 'f32' as const;
  readonly #state: DecodeState;
  readonly #layer: number;

  constructor(state: DecodeState, layer: number) {
    this.#state = state;
    this.#layer = layer;
  }

  get slots(): number {
    return this.#state.slots(this.#layer);
  }

  get keys(): Float32Array<ArrayBuffer> {
    const { numKvHeads, qkHeadDim } = this.#state.config;
    return kvField(this.#state, this.#layer, KV_FIELD.keys, numKvHeads * qkHeadDim, Float32Array);
  }

  get values(): Float32Array<ArrayBuffer> {
    const { numKvHeads, vHeadDim } = this.#state.config;
    return kvField(this.#state, this.#layer, KV_FIELD.values, numKvHeads * vHeadDim, Float32Array);
  }
}

class Int8Kv implements Int8KvView {
  readonly precision = 'int8' as const;
  readonly #state: DecodeState;
  readonly #layer: number;

  constructor(state: DecodeState, layer: number) {
    this.#state = state;
    this.#layer = layer;
  }

  get slots(): number {
    return this.#state.slots(this.#layer);
  }

  get keys(): Int8Array<ArrayBuffer> {
    const { numKvHeads, qkHeadDim } = this.#state.config;
    return kvField(this.#state, this.#layer, KV_FIELD.keys, numKvHeads * qkHeadDim, Int8Array);
  }

  get keyScales(): Float32Array<ArrayBuffer> {
    return kvField(this.#state, this.#layer, KV_FIELD.keyScales, this.#state.config.numKvHeads, Float32Array);
  }

  get values(): Int8Array<ArrayBuffer> {
    const { numKvHeads, vHeadDim } = this.#state.config;
    return kvField(this.#state, this.#layer, KV_FIELD.values, numKvHeads * vHeadDim, Int8Array);
  }

  get valueScales(): Float32Array<ArrayBuffer> {
    return kvField(this.#state, this.#layer, KV_FIELD.valueScales, this.#state.config.numKvHeads, Float32Array);
  }
}

/** A view of one of a layer's arrays, `width` elements a slot. */
function kvField<T>(
  state: DecodeState,
  layer: number,
  field: number,
  width: number,
  View: new (buffer: ArrayBuffer, byteOffset: number, length: number) => T,
): T {
  const core = coreOf(state, 'kv');
  return new View(heapOf(state).buffer, core.kvAddress(layer, field) >>> 0, core.slots(layer) * width);
}

/**
 * The decode state of one session: keys and values of every layer, the tails of the causal convolutions, and the
 * Engram's token window. {@link Needle3.createDecodeState} makes it.
 *
 * **A step** is everything at one `position` until `advance`: `pushToken`, `engramIndices`, `engramConv`, `conv`,
 * `writeKv` and `attend`, or `appendAndAttend`. It may have n rows, at positions `position` … `position + n − 1`; its
 * first call with rows sets n. Calling a method again within a step replaces what it did before. `advance(n)` commits
 * the step and `discard()` drops it, so a step that failed half way can be done again from its start.
 *
 * **Arrays** are row-major, row after row; their lengths must fit the geometry (`shape`). Widths:
 * qDim = numHeads·qkHeadDim, kDim = numKvHeads·qkHeadDim, vDim = numKvHeads·vHeadDim, attnOutDim = numHeads·vHeadDim.
 *
 * **Errors**: every method and property throws `disposed` after `dispose`, and `type`, `range` or `shape` for an
 * argument that does not fit, in that order. A call that throws has changed nothing but this: a step whose call
 * failed is still under way.
 *
 * **Memory** is the caller's to end with `dispose()` (or `using`); a state that is forgotten is freed when the garbage
 * collector finds it.
 *
 * @example
 * ```ts
 * const state = needle3.createDecodeState(NEEDLE3);
 * state.pushToken(token);
 * for (let layer = 0; layer < NEEDLE3.numLayers; layer++) {
 *   // … project the residual stream to q, k and v …
 *   state.conv(layer, 'q', qTaps[layer], q);
 *   state.conv(layer, 'k', kTaps[layer], k);
 *   state.conv(layer, 'v', vTaps[layer], v);
 *   // … normalise and rotate q and k …
 *   state.appendAndAttend(layer, q, k, v, out);
 * }
 * state.advance();
 * ```
 */
export class DecodeState {
  readonly #heap: Heap;
  readonly #config: ModelConfig;
  /** Stands for this state in its marks. */
  readonly #identity: object = {};
  #core: CoreState | null;

  private constructor(heap: Heap, core: CoreState, config: ModelConfig) {
    if (!(heap instanceof Heap)) notConstructible('DecodeState', 'Needle3.createDecodeState');
    this.#heap = heap;
    this.#core = core;
    this.#config = config;
    heap.states.register(this, core, this);
  }

  static {
    makeDisposable(this.prototype);
    coreOf = (state, method) => state.#live(method);
    heapOf = (state) => state.#heap;
    isDisposed = (state) => state.#core === null;
    isDecodeState = (value): value is DecodeState => typeof value === 'object' && value !== null && #core in value;
    createState = (heap, core, config) =>
      new DecodeState(
        heap,
        core,
        config ?? decodeConfig(heap.copyWords(core.configAddress() >>> 0, core.configLength())),
      );
  }

  /**
   * The geometry, deeply frozen.
   * @throws Needle3Error `disposed`
   */
  get config(): ModelConfig {
    this.#live('config');
    return this.#config;
  }

  /**
   * How keys and values are stored.
   * @throws Needle3Error `disposed`
   */
  get precision(): Precision {
    return this.#live('precision').isInt8() ? 'int8' : 'f32';
  }

  /**
   * Whether query heads are quantised before they meet the keys.
   * @throws Needle3Error `disposed`
   */
  get quantizeQuery(): boolean {
    return this.#live('quantizeQuery').quantizeQuery();
  }

  /**
   * Positions committed, from 0 to 2³¹−1: where the next step's first row is.
   * @throws Needle3Error `disposed`
   */
  get position(): number {
    return this.#live('position').position();
  }

  /**
   * Bytes of the state's content, exactly: slots of all layers, all tails, retained tokens. Staging, scratch, rows of a
   * step that is not committed yet and what marks hold are not in it.
   * @throws Needle3Error `disposed`
   */
  get byteLength(): number {
    return this.#live('byteLength').byteLength();
  }

  /**
   * Bytes that marks hold: overwritten rows and tails as they were.
   * @throws Needle3Error `disposed`
   */
  get markBytes(): number {
    return this.#live('markBytes').markBytes();
  }

  /**
   * Whether global layers have begun to forget: `position` is beyond `maxSeqLen` while some layer is global.
   * @throws Needle3Error `disposed`
   */
  get isSaturated(): boolean {
    return this.#live('isSaturated').isSaturated();
  }

  /**
   * The newest tokens, at most max(engram.orders) of them (1 where there are no orders), oldest first, those pushed in
   * the step under way included. A copy in its own buffer.
   * @throws Needle3Error `disposed`, or `out-of-memory`
   */
  get tokenHistory(): Uint32Array<ArrayBuffer> {
    const core = this.#live('tokenHistory');
    const count = core.tokenCount();
    const address = this.#heap.stage('tokenHistory', 4 * count);
    core.copyTokens(address);
    return this.#heap.copyWords(address, count);
  }

  /**
   * Slots that a layer has now: positions that it has room for. It grows up to min(slidingWindow, maxSeqLen), or
   * maxSeqLen for a global layer, and is a ring from there on.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @throws Needle3Error `disposed`, `type` or `range`
   *
   * @example
   * ```ts
   * state.slots(0); // 512 in a new state of the shipped geometry
   * ```
   */
  slots(layer: number): number {
    const core = this.#live('slots');
    checkNumber('slots', 'layer', layer);
    this.#checkLayer('slots', layer);
    return core.slots(layer);
  }

  /**
   * The range of positions, first and last inclusive, that a query at `position` reads.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @param position - the query's position, an integer from 0 to 2³¹−1; default: the state's
   * @throws Needle3Error `disposed`, `type` or `range`
   *
   * @example
   * ```ts
   * state.span(0, 5000); // { first: 3977, last: 5000 }: a local layer with a window of 1024
   * ```
   */
  span(
    layer: number,
    position?: number,
  ): {
    /** First position, inclusive. */
    first: number;
    /** Last position, inclusive. */
    last: number;
  } {
    const core = this.#live('span');
    const last = position === undefined ? core.position() : position;
    checkNumber('span', 'layer', layer);
    checkNumber('span', 'position', last);
    this.#checkLayer('span', layer);
    checkInteger('span', 'position', last, 0, MAX_POSITION);
    return { first: core.spanFirst(layer, last), last };
  }

  /**
   * Adds a token to the step: one for each row, in order, each before the Engram is asked about it.
   *
   * @param id - an integer from 0 to vocabSize − 1
   * @throws Needle3Error `disposed`, `type`, `range`, or `out-of-memory`
   *
   * @example
   * ```ts
   * state.pushToken(token);
   * const { indices } = state.engramIndices();
   * ```
   */
  pushToken(id: number): void {
    const core = this.#live('pushToken');
    checkNumber('pushToken', 'id', id);
    checkInteger('pushToken', 'id', id, 0, this.#config.vocabSize - 1);
    this.#heap.check('pushToken', core.pushToken(id));
  }

  /**
   * The rows of the Engram tables that the newest pushed token (or committed one) selects: one index for each of the
   * orders.length·heads tables, order by order, and whether it counts (a table of order o does from the o-th token on).
   *
   * @throws Needle3Error `disposed`, `range` where there is no token yet, or `out-of-memory`
   *
   * @example
   * ```ts
   * state.pushToken(token);
   * const { indices, valid } = state.engramIndices();
   * ```
   */
  engramIndices(): {
    /** Row of each table. */
    indices: Uint32Array<ArrayBuffer>;
    /** Whether it counts. */
    valid: boolean[];
  } {
    const core = this.#live('engramIndices');
    const heap = this.#heap;
    const { orders, heads } = this.#config.engram;
    const tables = orders.length * heads;
    const address = heap.stage('engramIndices', 5 * tables);
    const validAddress = address + 4 * tables;
    heap.check('engramIndices', core.engramIndices(address, validAddress));
    const valid: boolean[] = [];
    const bytes = heap.u8;
    for (let table = 0; table < tables; table++) valid.push(bytes[validAddress + table] !== 0);
    return { indices: heap.copyWords(address, tables), valid };
  }

  /**
   * Convolves the step's rows of one projection with those before them, in place:
   * out[c] = Σ_j taps[j][c] · x[p − j][c]. It keeps the rows as they came for the steps to follow.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @param projection - `'q'`, `'k'` or `'v'`
   * @param taps - (qkvConvTaps, dim), dim being qDim for `'q'`, kDim for `'k'`, vDim for `'v'`
   * @param rows - (n, dim), replaced by the result; must not overlap `taps`
   * @throws Needle3Error `disposed`, `type`, `range`, `shape`, or `out-of-memory`
   *
   * @example
   * ```ts
   * state.conv(layer, 'k', kTaps[layer], k);
   * ```
   */
  conv(layer: number, projection: Projection, taps: Float32Input, rows: Float32Input): void {
    const core = this.#live('conv');
    const heap = this.#heap;
    const [a, b] = heap.operands;
    checkNumber('conv', 'layer', layer);
    checkProjectionType('conv', projection);
    heap.take(a, 'conv', 'taps', taps);
    heap.take(b, 'conv', 'rows', rows);
    this.#checkLayer('conv', layer);
    const which = projectionIndex('conv', projection);
    heap.place('conv', 2, 'in-out');
    heap.check('conv', core.conv(layer, which, a.address, a.length, b.address, b.length));
    heap.finish(b);
  }

  /**
   * Convolves the step's Engram value rows with those before them, in place:
   * out[c] = Σ_j taps[j][c] · x[p − j·convDilation][c]. It keeps the rows as they came for the steps to follow.
   *
   * @param site - an index into `config.engram.sites`
   * @param taps - (engram.convTaps, dModel)
   * @param rows - (n, dModel), replaced by the result; must not overlap `taps`
   * @throws Needle3Error `disposed`, `type`, `range`, `shape`, or `out-of-memory`
   *
   * @example
   * ```ts
   * const site = NEEDLE3.engram.sites.indexOf(layer);
   * if (site >= 0) state.engramConv(site, siteTaps[site], rows);
   * ```
   */
  engramConv(site: number, taps: Float32Input, rows: Float32Input): void {
    const core = this.#live('engramConv');
    const heap = this.#heap;
    const [a, b] = heap.operands;
    checkNumber('engramConv', 'site', site);
    heap.take(a, 'engramConv', 'taps', taps);
    heap.take(b, 'engramConv', 'rows', rows);
    this.#checkSite('engramConv', site);
    heap.place('engramConv', 2, 'in-out');
    heap.check('engramConv', core.engramConv(site, a.address, a.length, b.address, b.length));
    heap.finish(b);
  }

  /**
   * Writes the step's keys and values of one layer. Written again in the same step, they replace.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @param keys - (n, kDim), normalised and rotated as attention is to see them; finite
   * @param values - (n, vDim); finite
   * @throws Needle3Error `disposed`, `type`, `range`, `shape`, `non-finite` (the message names layer, head, element and
   * position), or `out-of-memory`
   *
   * @example
   * ```ts
   * state.writeKv(layer, k, v);
   * state.attend(layer, q, out);
   * ```
   */
  writeKv(layer: number, keys: Float32Input, values: Float32Input): void;
  /**
   * Writes keys and values of a prefill that was done elsewhere, outside any step and before `setPosition`. A layer
   * holds one contiguous range of positions: a write at its end extends it, beyond its end starts a new one, below its
   * start is refused. Ends all marks.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @param keys - (n, kDim), as `attend` is to see them; finite
   * @param values - (n, vDim); finite
   * @param position - the first row's position, an integer from 0 to 2³¹−1
   * @throws Needle3Error `disposed`, `type`, `range`, `shape`, `non-finite` or `out-of-memory`
   *
   * @example
   * ```ts
   * for (let layer = 0; layer < NEEDLE3.numLayers; layer++) state.writeKv(layer, keys[layer], values[layer], 0);
   * state.setPosition(promptLength);
   * ```
   */
  // eslint-disable-next-line @typescript-eslint/unified-signatures -- two things, with rules of their own
  writeKv(layer: number, keys: Float32Input, values: Float32Input, position: number): void;
  writeKv(layer: number, keys: Float32Input, values: Float32Input, position?: number): void {
    const core = this.#live('writeKv');
    const heap = this.#heap;
    const [a, b] = heap.operands;
    checkNumber('writeKv', 'layer', layer);
    heap.take(a, 'writeKv', 'keys', keys);
    heap.take(b, 'writeKv', 'values', values);
    if (position !== undefined) checkNumber('writeKv', 'position', position);
    this.#checkLayer('writeKv', layer);
    if (position !== undefined) checkInteger('writeKv', 'position', position, 0, MAX_POSITION);
    heap.place('writeKv', 2, 'in');
    heap.check(
      'writeKv',
      position === undefined
        ? core.writeKv(layer, a.address, a.length, b.address, b.length)
        : core.writeKvAt(layer, a.address, a.length, b.address, b.length, position),
    );
    heap.release();
  }

  /**
   * Attention of one query at `position`, in a step of one row, after its `writeKv`: softmax over the span of
   * (q·k)/√qkHeadDim, then the weighted sum of the values, head by head.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @param query - (qDim)
   * @param out - (attnOutDim), replaced by the result; must not overlap `query`
   * @throws Needle3Error `disposed`, `type`, `range` (also where the span is not wholly held), `shape`, `non-finite`
   * for a query to be quantised, or `out-of-memory`
   *
   * @example
   * ```ts
   * state.writeKv(layer, k, v);
   * state.attend(layer, q, out);
   * ```
   */
  attend(layer: number, query: Float32Input, out: Float32Input): void {
    const core = this.#live('attend');
    const heap = this.#heap;
    const [a, b] = heap.operands;
    checkNumber('attend', 'layer', layer);
    heap.take(a, 'attend', 'query', query);
    heap.take(b, 'attend', 'out', out);
    this.#checkLayer('attend', layer);
    heap.place('attend', 2, 'out');
    heap.check('attend', core.attend(layer, a.address, a.length, b.address, b.length));
    heap.finish(b);
  }

  /**
   * Writes the step's keys and values of one layer and attends with its queries, each to its own span. n rows at once
   * give the bits that n steps of one give.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @param query - (n, qDim)
   * @param keys - (n, kDim), normalised and rotated as attention is to see them; finite
   * @param values - (n, vDim); finite
   * @param out - (n, attnOutDim), replaced by the result; must not overlap the inputs
   * @throws Needle3Error `disposed`, `type`, `range` (also where a span is not wholly held), `shape`, `non-finite` or
   * `out-of-memory`
   *
   * @example
   * ```ts
   * const out = new Float32Array(n * attnOutDim);
   * state.appendAndAttend(layer, q, k, v, out);
   * ```
   */
  appendAndAttend(
    layer: number,
    query: Float32Input,
    keys: Float32Input,
    values: Float32Input,
    out: Float32Input,
  ): void {
    const core = this.#live('appendAndAttend');
    const heap = this.#heap;
    const [a, b, c, d] = heap.operands;
    checkNumber('appendAndAttend', 'layer', layer);
    heap.take(a, 'appendAndAttend', 'query', query);
    heap.take(b, 'appendAndAttend', 'keys', keys);
    heap.take(c, 'appendAndAttend', 'values', values);
    heap.take(d, 'appendAndAttend', 'out', out);
    this.#checkLayer('appendAndAttend', layer);
    if (d.staged && d.origin >= 0) this.#checkOutsideKv('appendAndAttend', layer, d);
    heap.place('appendAndAttend', 4, 'out');
    heap.check(
      'appendAndAttend',
      core.appendAndAttend(layer, a.address, a.length, b.address, b.length, c.address, c.length, d.address, d.length),
    );
    heap.finish(d);
  }

  /**
   * Commits the step.
   *
   * @param count - positions to go on by: the step's n where it has rows, the number of pushed tokens where there are
   * any. Default 1
   * @throws Needle3Error `disposed`, `type` or `range`
   *
   * @example
   * ```ts
   * for (const id of prompt) state.pushToken(id);
   * // … rows of as many positions through every layer …
   * state.advance(prompt.length);
   * ```
   */
  advance(count?: number): void {
    const core = this.#live('advance');
    const positions = count === undefined ? 1 : count;
    checkIntegerArgument('advance', 'count', positions, 1, MAX_POSITION);
    this.#heap.check('advance', core.advance(positions));
  }

  /**
   * Drops the step: the state is as at the last commit. Without a step it does nothing.
   * @throws Needle3Error `disposed`
   *
   * @example
   * ```ts
   * try {
   *   await model.forward(state, Uint32Array.from(prompt));
   * } catch (error) {
   *   state.discard();
   *   throw error;
   * }
   * ```
   */
  discard(): void {
    this.#live('discard').discard();
  }

  /**
   * A layer's keys and values as they lie in memory, live and without a copy.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @throws Needle3Error `disposed`, `type` or `range`; its fields throw `disposed` after the state's `dispose`
   *
   * @example
   * ```ts
   * const kv = state.kv(0);
   * if (kv.precision === 'f32') console.log(kv.keys.length); // slots · numKvHeads · qkHeadDim
   * ```
   */
  kv(layer: number): KvView {
    const core = this.#live('kv');
    checkNumber('kv', 'layer', layer);
    this.#checkLayer('kv', layer);
    return Object.freeze(core.isInt8() ? new Int8Kv(this, layer) : new Float32Kv(this, layer));
  }

  /**
   * Sets the rows that a projection's convolution remembers, to go on from a prefill that was done elsewhere. Outside
   * any step. Ends all marks.
   *
   * @param layer - an integer from 0 to numLayers − 1
   * @param projection - `'q'`, `'k'` or `'v'`
   * @param rows - (max(qkvConvTaps − 1, 0), dim), oldest first, pre-convolution, zeros in front where history is
   * shorter
   * @throws Needle3Error `disposed`, `type`, `range`, `shape`, or `out-of-memory`
   *
   * @example
   * ```ts
   * // The last two raw key rows of a prefill, for three taps.
   * state.seedConvTail(layer, 'k', rows.subarray(-2 * 96));
   * ```
   */
  seedConvTail(layer: number, projection: Projection, rows: Float32Input): void {
    const core = this.#live('seedConvTail');
    const heap = this.#heap;
    const [a] = heap.operands;
    checkNumber('seedConvTail', 'layer', layer);
    checkProjectionType('seedConvTail', projection);
    heap.take(a, 'seedConvTail', 'rows', rows);
    this.#checkLayer('seedConvTail', layer);
    const which = projectionIndex('seedConvTail', projection);
    heap.place('seedConvTail', 1, 'in');
    heap.check('seedConvTail', core.seedConvTail(layer, which, a.address, a.length));
    heap.release();
  }

  /**
   * Sets the rows that a site's Engram convolution remembers, to go on from a prefill that was done elsewhere. Outside
   * any step. Ends all marks.
   *
   * @param site - an index into `config.engram.sites`
   * @param rows - (max(convTaps − 1, 0)·convDilation, dModel), oldest first, pre-convolution, zeros in front where
   * history is shorter
   * @throws Needle3Error `disposed`, `type`, `range`, `shape`, or `out-of-memory`
   *
   * @example
   * ```ts
   * // The last nine raw value rows of a prefill: (4 − 1) · 3 of dModel.
   * state.seedEngramTail(site, rows.subarray(-9 * 768));
   * ```
   */
  seedEngramTail(site: number, rows: Float32Input): void {
    const core = this.#live('seedEngramTail');
    const heap = this.#heap;
    const [a] = heap.operands;
    checkNumber('seedEngramTail', 'site', site);
    heap.take(a, 'seedEngramTail', 'rows', rows);
    this.#checkSite('seedEngramTail', site);
    heap.place('seedEngramTail', 1, 'in');
    heap.check('seedEngramTail', core.seedEngramTail(site, a.address, a.length));
    heap.release();
  }

  /**
   * Sets the token window, to go on from a prefill that was done elsewhere. Keeps the last max(engram.orders) of the
   * ids (1 where there are no orders). Outside any step. Ends all marks.
   *
   * @param ids - token ids, oldest first, each an integer from 0 to vocabSize − 1
   * @throws Needle3Error `disposed`, `type`, `range`, or `out-of-memory`
   *
   * @example
   * ```ts
   * state.seedTokens(prompt);
   * ```
   */
  seedTokens(ids: ArrayLike<number>): void {
    const heap = this.#heap;
    this.#live('seedTokens');
    const words = copyTokens('seedTokens', 'ids', ids, this.#config.vocabSize - 1);
    // Reading the ids may have run code of the caller's.
    const core = this.#live('seedTokens');
    heap.check('seedTokens', core.seedTokens(heap.stageWords('seedTokens', words), words.length));
  }

  /**
   * Sets the position, to go on from a prefill that was done elsewhere or to step back. Tails and tokens stay; layers
   * forget positions from there on. Outside any step. Ends all marks.
   *
   * @param position - an integer from 0 to 2³¹−1
   * @throws Needle3Error `disposed`, `type` or `range`
   *
   * @example
   * ```ts
   * state.setPosition(prompt.length); // after writeKv at explicit positions and the seeds
   * ```
   */
  setPosition(position: number): void {
    const core = this.#live('setPosition');
    checkIntegerArgument('setPosition', 'position', position, 0, MAX_POSITION);
    this.#heap.check('setPosition', core.setPosition(position));
  }

  /**
   * A copy that is independent from then on, with the same slots and `byteLength`. Marks are not copied. It is the
   * caller's to dispose of. Refused in the middle of a step (`range`).
   * @throws Needle3Error `disposed`, `range` or `out-of-memory`
   *
   * @example
   * ```ts
   * const answer = prefilled.fork();
   * for await (const token of decode(model, answer, question)) show(token);
   * answer.dispose();
   * ```
   */
  fork(): DecodeState {
    const copy = this.#live('fork').fork();
    if (copy === null) throw this.#heap.lastError('fork');
    return new DecodeState(this.#heap, copy, this.#config);
  }

  /**
   * Marks this moment, to roll back to. From then on the rows that a full ring overwrites are kept, which `markBytes`
   * counts, until the mark is released. Marks nest. Refused in the middle of a step (`range`).
   * @throws Needle3Error `disposed`, `range` or `out-of-memory`
   *
   * @example
   * ```ts
   * const before = state.mark();
   * // … some steps …
   * state.rollback(before);
   * state.release(before);
   * ```
   */
  mark(): Mark {
    const id = this.#live('mark').mark();
    if (id === 0) throw this.#heap.lastError('mark');
    return markOf(this.#identity, id);
  }

  /**
   * Goes back to a mark, bit for bit, and drops the marks made after it and the step under way. The mark stays good.
   * Slots that layers have grown since stay grown.
   *
   * @param mark - a mark of this state that still is good
   * @throws Needle3Error `disposed`, `type`, or `range` for a dead mark or one of another state
   *
   * @example
   * ```ts
   * const before = state.mark();
   * await model.forward(state, Uint32Array.of(token));
   * state.rollback(before); // as if the token had never been fed
   * ```
   */
  rollback(mark: Mark): void {
    const core = this.#live('rollback');
    this.#heap.check('rollback', core.rollback(this.#markId('rollback', mark)));
  }

  /**
   * Gives back what a mark holds, and ends it and the marks made after it. Refused in the middle of a step (`range`).
   *
   * @param mark - a mark of this state that still is good
   * @throws Needle3Error `disposed`, `type`, or `range` for a dead mark or one of another state
   *
   * @example
   * ```ts
   * const before = state.mark();
   * // … what may be taken back …
   * state.release(before);
   * ```
   */
  release(mark: Mark): void {
    const core = this.#live('release');
    this.#heap.check('release', core.release(this.#markId('release', mark)));
  }

  /**
   * The state as bytes that {@link Needle3.restoreDecodeState} takes, in their own buffer. The same state gives the same
   * bytes on every engine. Marks are not in it. Refused in the middle of a step (`range`).
   *
   * @param options - `fingerprint`: up to 64 bytes that say what the state belongs to, for instance a hash of the
   * weights; a restore that gives one takes only a snapshot with the same
   * @throws Needle3Error `disposed`, `type`, `range` or `out-of-memory`
   *
   * @example
   * ```ts
   * const snapshot = state.save({ fingerprint: weightsHash });
   * ```
   */
  save(options?: { readonly fingerprint?: Uint8Array | undefined }): Uint8Array<ArrayBuffer> {
    this.#live('save');
    if (options !== undefined) checkObject('save', 'options', options);
    const fingerprint = copyFingerprint('save', options?.fingerprint);
    // Reading the options may have run code of the caller's.
    const core = this.#live('save');
    const heap = this.#heap;
    const size = core.snapshotBytes(fingerprint.length);
    if (size < 0) throw heap.lastError('save');
    const snapshot = allocateBytes('save', size, (buffer) => new Uint8Array(buffer));
    const address = heap.stageBytes('save', fingerprint);
    let written = 0;
    const code = core.save(address, fingerprint.length, (from, length) => {
      snapshot.set(heap.u8.subarray(from, from + length), written);
      written += length;
    });
    heap.check('save', code);
    return snapshot;
  }

  /**
   * The state as it was created: position 0, no tokens, tails of zeros. Layers keep the slots that they have grown to.
   * Drops the step under way and ends all marks.
   * @throws Needle3Error `disposed`
   *
   * @example
   * ```ts
   * state.reset();
   * await decode(model, state, prompt, { maxNewTokens: 0 }).result; // another conversation, from its start
   * ```
   */
  reset(): void {
    this.#live('reset').reset();
  }

  /**
   * Frees the state at once. May be called again; every other use throws `disposed` from then on.
   *
   * @example
   * ```ts
   * const answer = prefilled.fork();
   * answer.dispose();
   * ```
   */
  dispose(): void {
    const core = this.#core;
    if (core === null) return;
    this.#core = null;
    this.#heap.states.unregister(this);
    core.delete();
  }

  /** `dispose()`, for `using`. Absent where the engine has no `Symbol.dispose`. */
  declare readonly [Symbol.dispose]: () => void;

  #live(method: string): CoreState {
    const core = this.#core;
    if (core === null) throw new Needle3Error('disposed', `${method}: this DecodeState was disposed of`);
    return core;
  }

  #checkLayer(method: string, layer: number): void {
    checkInteger(method, 'layer', layer, 0, this.#config.numLayers - 1);
  }

  #checkSite(method: string, site: number): void {
    const { length } = this.#config.engram.sites;
    if (length === 0) throw new Needle3Error('range', `${method}: site ${site} is none: the geometry has no Engram`);
    checkInteger(method, 'site', site, 0, length - 1);
  }

  #markId(method: string, mark: unknown): number {
    if (!isMark(mark)) wrongType(method, 'mark', 'a Mark', mark);
    const id = markId(mark, this.#identity);
    if (id === 0) throw new Needle3Error('range', `${method}: mark is of another state`);
    return id;
  }

  /** A write may move the layer's rows, and what is written back to the old place would hit foreign memory. */
  #checkOutsideKv(method: string, layer: number, out: Operand): void {
    const kv = this.kv(layer);
    const fields = kv.precision === 'f32' ? [kv.keys, kv.values] : [kv.keys, kv.keyScales, kv.values, kv.valueScales];
    for (const { byteOffset, byteLength } of fields) {
      if (out.origin < byteOffset + byteLength && byteOffset < out.origin + 4 * out.length) {
        throw new Needle3Error('range', `${method}: out must not lie in the layer's own keys and values`);
      }
    }
  }
}
