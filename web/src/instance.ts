import { createWasmArray, type WasmFloat32Array } from './core/arrays.js';
import {
  allocateBytes,
  checkArrayLike,
  checkBoolean,
  checkInteger,
  checkIntegerArgument,
  checkNumber,
  checkObject,
  checkUint8Array,
  copyTokens,
  describe,
  isFloat32Array,
  MAX_POSITION,
  MAX_UINT32,
  notConstructible,
  wrongType,
} from './core/check.js';
import {
  configDifference,
  decodeConfig,
  encodeConfig,
  readEngram,
  type EngramConfig,
  type ModelConfig,
} from './state/config.js';
import { copyFingerprint, createState, type DecodeState, type DecodeStateOptions } from './state/decode-state.js';
import { Needle3Error } from './core/errors.js';
import { Heap } from './core/heap.js';

export let createNeedle3: (heap: Heap) => Needle3;

const DEFAULT_CAPACITY_HINT = 512;
const DEFAULT_BITS = 8;
const MIN_BITS = 2;
const MAX_BITS = 16;

const SMALLEST: Omit<ModelConfig, 'engram'> = {
  vocabSize: 1,
  outVocab: 0,
  dModel: 1,
  numHeads: 1,
  numKvHeads: 1,
  numLayers: 1,
  qkHeadDim: 1,
  vHeadDim: 1,
  maxSeqLen: 1,
  hadaN: 1,
  mhcLanes: 1,
  ropeTheta: 1,
  slidingWindow: 1,
  globalLayers: [],
  qkvConvTaps: 0,
};

/** DecodeStateOptions, checked and filled in. */
interface Storage {
  readonly capacityHint: number;
  readonly int8: boolean;
  readonly quantizeQuery: boolean;
}

function readStorage(method: string, options: DecodeStateOptions): Storage {
  const { capacityHint = DEFAULT_CAPACITY_HINT, precision = 'f32', quantizeQuery = precision === 'int8' } = options;
  checkNumber(method, 'capacityHint', capacityHint);
  if (typeof precision !== 'string') wrongType(method, 'precision', "'f32' or 'int8'", precision);
  checkBoolean(method, 'quantizeQuery', quantizeQuery);
  checkInteger(method, 'capacityHint', capacityHint, 0, Number.MAX_SAFE_INTEGER);
  if (precision !== 'f32' && precision !== 'int8') {
    throw new Needle3Error('unsupported', `${method}: precision must be 'f32' or 'int8'; got ${describe(precision)}`);
  }
  if (quantizeQuery && precision === 'f32') {
    throw new Needle3Error('unsupported', `${method}: quantizeQuery true needs precision 'int8'; got 'f32'`);
  }
  // The core clamps to the context; here only what 32 bits hold is passed on.
  return { capacityHint: Math.min(capacityHint, MAX_UINT32), int8: precision === 'int8', quantizeQuery };
}

/**
 * One instance of the WebAssembly module, with a linear memory of its own: {@link loadNeedle3} gives it. States and
 * arrays belong to the instance that made them. It is freed when nothing refers to it any more.
 *
 * @example
 * ```ts
 * const needle3 = await loadNeedle3();
 * const state = needle3.createDecodeState(NEEDLE3, { precision: 'int8' });
 * ```
 */
export class Needle3 {
  readonly #heap: Heap;

  private constructor(heap: Heap) {
    if (!(heap instanceof Heap)) notConstructible('Needle3', 'loadNeedle3');
    this.#heap = heap;
  }

  static {
    createNeedle3 = (heap) => new Needle3(heap);
  }

  /**
   * What the instance uses now, in bytes: `linearBytes` of linear memory, which grows and never shrinks, and in it
   * `allocatedBytes` that live states, marks and arrays own (without staging and scratch).
   */
  get memory(): {
    /** Bytes of linear memory. */
    linearBytes: number;
    /** Bytes in it that live states, marks and arrays own. */
    allocatedBytes: number;
  } {
    const { core, memory } = this.#heap;
    return { linearBytes: memory.buffer.byteLength, allocatedBytes: core.allocatedBytes() };
  }

  /**
   * A new decode state at position 0. It is the caller's to dispose of.
   *
   * @param config - the geometry; checked whole
   * @param options - how keys and values are stored, and for how many positions at first
   * @throws Needle3Error `config` (the message names field, value and rule), `type`, `range`, `unsupported` or
   * `out-of-memory`
   *
   * @example
   * ```ts
   * using state = needle3.createDecodeState(NEEDLE3, { precision: 'int8', capacityHint: 256 });
   * ```
   */
  createDecodeState(config: ModelConfig, options: DecodeStateOptions = {}): DecodeState {
    const method = 'createDecodeState';
    checkObject(method, 'options', options);
    const { capacityHint, int8, quantizeQuery } = readStorage(method, options);
    const words = encodeConfig(method, config);
    const heap = this.#heap;
    const address = heap.stageWords(method, words);
    const state = heap.core.createState(address, words.length, capacityHint, int8, quantizeQuery);
    if (state === null) throw heap.lastError(method);
    return createState(heap, state, decodeConfig(words));
  }

  /**
   * What the `byteLength` of such a state will be once `positions` rows and tokens are written one by one, without
   * creating anything.
   *
   * @param config - the geometry; checked whole
   * @param options - as for `createDecodeState`, and `positions`: an integer from 0 to 2³¹−1
   * @returns bytes
   * @throws Needle3Error `config`, `type`, `range`, `unsupported`, or `out-of-memory`
   *
   * @example
   * ```ts
   * needle3.decodeStateBytes(NEEDLE3, { precision: 'int8', positions: 512 }) / 2 ** 20; // MiB
   * ```
   */
  decodeStateBytes(config: ModelConfig, options: DecodeStateOptions & { readonly positions: number }): number {
    const method = 'decodeStateBytes';
    checkObject(method, 'options', options);
    const { positions } = options;
    checkNumber(method, 'positions', positions);
    const { capacityHint, int8 } = readStorage(method, options);
    checkInteger(method, 'positions', positions, 0, MAX_POSITION);
    const words = encodeConfig(method, config);
    const heap = this.#heap;
    const address = heap.stageWords(method, words);
    const bytes = heap.core.stateBytes(address, words.length, capacityHint, int8, positions);
    if (bytes < 0) throw heap.lastError(method);
    return bytes;
  }

  /**
   * The state that {@link DecodeState.save} made these bytes of. It goes on bit for bit and is the caller's to dispose
   * of. All of the bytes are checked before anything is allocated.
   *
   * @param snapshot - bytes of `save`
   * @param options - `fingerprint` (up to 64 bytes) and `config`: where given, they must be the snapshot's own
   * @throws Needle3Error `snapshot` (the message says what is wrong), `type`, `range`, `config` or `out-of-memory`
   *
   * @example
   * ```ts
   * const state = needle3.restoreDecodeState(bytes, { fingerprint: weightsHash, config: NEEDLE3 });
   * ```
   */
  restoreDecodeState(
    snapshot: Uint8Array,
    options: { readonly fingerprint?: Uint8Array | undefined; readonly config?: ModelConfig | undefined } = {},
  ): DecodeState {
    const method = 'restoreDecodeState';
    const heap = this.#heap;
    checkUint8Array(method, 'snapshot', snapshot);
    checkObject(method, 'options', options);
    if (snapshot.length > MAX_UINT32) {
      throw new Needle3Error('snapshot', `${method}: ${snapshot.length} bytes are more than a snapshot can have`);
    }
    const { fingerprint: givenFingerprint, config } = options;
    const fingerprint = copyFingerprint(method, givenFingerprint);
    const wanted = config === undefined ? undefined : decodeConfig(encodeConfig(method, config));
    // Linear memory may be detached, and shared memory changed by another thread, while the core reads.
    const { buffer } = snapshot;
    const bytes =
      buffer === heap.buffer || !(buffer instanceof ArrayBuffer)
        ? allocateBytes(method, snapshot.length, (copy) => new Uint8Array(copy))
        : snapshot;
    if (bytes !== snapshot) bytes.set(snapshot);

    const address = heap.stageBytes(method, fingerprint);
    const core = heap.core.restoreState(
      (offset, destination, length) => heap.u8.set(bytes.subarray(offset, offset + length), destination),
      bytes.length,
      address,
      fingerprint.length,
    );
    if (core === null) throw heap.lastError(method);
    const state = createState(heap, core);
    const difference = wanted && configDifference(state.config, wanted);
    if (difference) {
      state.dispose();
      throw new Needle3Error(
        'snapshot',
        `${method}: the snapshot has another geometry: ${difference.field} is ${difference.a} in it, ` +
          `${difference.b} in the config`,
      );
    }
    return state;
  }

  /**
   * An array of f32 in linear memory, zero-filled: for weights and for the rows of a step, which are then used without
   * a copy. It is the caller's to dispose of.
   *
   * @param length - elements, an integer of at least 0
   * @throws Needle3Error `type`, `range` or `out-of-memory`
   *
   * @example
   * ```ts
   * const q = needle3.allocate(12 * 48);
   * q.view.fill(0.5);
   * ```
   */
  allocate(length: number): WasmFloat32Array {
    checkIntegerArgument('allocate', 'length', length, 0, Number.MAX_SAFE_INTEGER);
    const heap = this.#heap;
    const address = length * 4 <= MAX_UINT32 ? heap.core.allocateArray(length) >>> 0 : 0;
    if (address === 0) {
      throw new Needle3Error('out-of-memory', `allocate: no room for ${length} elements (${length * 4} bytes)`);
    }
    return createWasmArray({ heap, address, length, live: true });
  }

  /**
   * Quantises symmetrically to `bits` and back, in place, with one scale for all of `x`: what a tensor would be after
   * being stored so. Rounds to nearest, ties away from zero.
   *
   * @param x - any number of finite elements, replaced
   * @param bits - bit width, an integer from 2 to 16. Default 8
   * @returns `x`
   * @throws Needle3Error `type`, `range`, `unsupported` for another bit width, `non-finite` or `out-of-memory`
   *
   * @example
   * ```ts
   * needle3.fakeQuantize(new Float32Array([1, -0.5, 0.25]), 4);
   * ```
   */
  fakeQuantize(x: Float32Array, bits?: number): Float32Array {
    const method = 'fakeQuantize';
    const width = bits === undefined ? DEFAULT_BITS : bits;
    const heap = this.#heap;
    const [a] = heap.operands;
    if (!isFloat32Array(x)) wrongType(method, 'x', 'a Float32Array', x);
    heap.take(a, method, 'x', x);
    checkNumber(method, 'bits', width);
    if (!Number.isInteger(width)) {
      throw new Needle3Error('range', `${method}: bits must be an integer; got ${width}`);
    }
    if (width < MIN_BITS || width > MAX_BITS) {
      throw new Needle3Error('unsupported', `${method}: bits must be from ${MIN_BITS} to ${MAX_BITS}; got ${width}`);
    }
    heap.place(method, 1, 'in-out');
    heap.check(method, heap.core.fakeQuantize(a.address, a.length, width));
    heap.finish(a);
    return x;
  }

  /**
   * Quantises rows to int8, each with its own scale, as an int8 state stores a key or value head: element ≈ value ·
   * scale. Rounds to nearest, ties away from zero.
   *
   * @param x - (n, rowLength), finite
   * @param rowLength - elements a row, an integer of at least 1
   * @returns `values` (n, rowLength) and `scales` (n), in buffers of their own
   * @throws Needle3Error `type`, `range`, `shape`, `non-finite` or `out-of-memory`
   *
   * @example
   * ```ts
   * const { values, scales } = needle3.quantizeRows(rows, 48);
   * ```
   */
  quantizeRows(
    x: Float32Array,
    rowLength: number,
  ): {
    /** Quantised elements, (n, rowLength). */
    values: Int8Array<ArrayBuffer>;
    /** Scale of each row, (n). */
    scales: Float32Array<ArrayBuffer>;
  } {
    const method = 'quantizeRows';
    const heap = this.#heap;
    const [a] = heap.operands;
    if (!isFloat32Array(x)) wrongType(method, 'x', 'a Float32Array', x);
    heap.take(a, method, 'x', x);
    checkNumber(method, 'rowLength', rowLength);
    checkInteger(method, 'rowLength', rowLength, 1, Number.MAX_SAFE_INTEGER);
    const { length } = a;
    if (length % rowLength !== 0) {
      throw new Needle3Error('shape', `${method}: x must hold whole rows of ${rowLength}; got ${length} elements`);
    }
    const rows = length / rowLength;
    const scalesAddress = heap.place(method, 1, 'in', 4 * rows + length);
    const valuesAddress = scalesAddress + 4 * rows;
    // An empty x may come with any row length, even one that the core cannot hold.
    if (rows > 0) {
      heap.check(method, heap.core.quantizeRows(a.address, length, rowLength, valuesAddress, scalesAddress));
    }
    heap.release();
    const { buffer } = heap;
    return {
      values: new Int8Array(buffer.slice(valuesAddress, valuesAddress + length)),
      scales: new Float32Array(buffer.slice(scalesAddress, valuesAddress)),
    };
  }

  /**
   * The rows of the Engram tables that each position of a sequence selects, whatever the vocabulary.
   *
   * @param tokens - the sequence from its start: integers from 0 to 2³²−1
   * @param engram - the Engram part of a geometry
   * @returns (positions, orders.length·heads), row-major, in a buffer of its own
   * @throws Needle3Error `type`, `range`, `config` or `out-of-memory`
   *
   * @example
   * ```ts
   * const indices = needle3.engramIndices([17, 4, 99], NEEDLE3.engram); // 3 rows of 6
   * ```
   */
  engramIndices(tokens: ArrayLike<number>, engram: EngramConfig): Uint32Array<ArrayBuffer> {
    const method = 'engramIndices';
    checkArrayLike(method, 'tokens', tokens);
    const checked = readEngram(method, engram);
    this.#checkEngram(method, checked);
    const { orders, heads, slots, seedHeads } = checked;
    const tokenWords = copyTokens(method, 'tokens', tokens, MAX_UINT32);
    const { length } = tokenWords;
    const results = length * orders.length * heads;
    const words = new Uint32Array(length + orders.length);
    words.set(tokenWords);
    words.set(orders, length);
    const heap = this.#heap;
    const address = heap.stageWords(method, words, 4 * results);
    const ordersAddress = address + 4 * length;
    const out = ordersAddress + 4 * orders.length;
    heap.check(
      method,
      heap.core.engramIndices(address, length, ordersAddress, orders.length, heads, slots, seedHeads, out),
    );
    return heap.copyWords(out, results);
  }

  /** Has the core check an Engram by the rules that it has for one in a geometry: the smallest that can hold it. */
  #checkEngram(method: string, engram: EngramConfig): void {
    const lastSite = engram.sites.reduce((a, b) => Math.max(a, b), 0);
    const words = encodeConfig(method, { ...SMALLEST, numLayers: Math.min(lastSite + 1, MAX_UINT32), engram });
    const heap = this.#heap;
    const address = heap.stageWords(method, words);
    if (heap.core.stateBytes(address, words.length, 1, false, 0) < 0) throw heap.lastError(method);
  }
}
