/**
 * The Embind surface of the WebAssembly core, as bindings/bindings.cpp registers it.
 *
 * Addresses are byte offsets into linear memory. Lengths count elements, not bytes. A method that returns `code`
 * gives 0 for success or an index into `ERROR_CODES`; `lastMessage()` then says where to read what was wrong, in the core's words.
 * Nothing here checks JavaScript types: Embind coerces silently, so the callers in this package check first.
 */

/** Mirrors `enum class ErrorCode` in src/status.h, in the same order; index 0 is success. */
export const ERROR_CODES = [
  'ok',
  'config',
  'shape',
  'range',
  'type',
  'non-finite',
  'out-of-memory',
  'disposed',
  'snapshot',
  'unsupported',
  'load',
] as const;

/** Mirrors `enum class Projection` in src/decode_state.h. */
export const PROJECTIONS = ['q', 'k', 'v'] as const;

/** Mirrors `enum class KvField` in src/kv_ring.h. */
export const KV_FIELD = { keys: 0, values: 1, keyScales: 2, valueScales: 3 } as const;

/** Which part of linear memory a snapshot piece comes from or goes to: `length` bytes at `address`. */
export type SnapshotSink = (address: number, length: number) => void;
/** Copies `length` bytes at `offset` of the snapshot to `address`. */
export type SnapshotSource = (offset: number, address: number, length: number) => void;

/** One decode state in the core. `delete()` frees it and all that it owns at once. */
export interface CoreState {
  delete(): void;

  position(): number;
  byteLength(): number;
  markBytes(): number;
  isSaturated(): boolean;
  isInt8(): boolean;
  quantizeQuery(): boolean;
  /** Words of the geometry, as `CoreModule.createState` takes them, and where they lie (valid while the state lives). */
  configAddress(): number;
  configLength(): number;
  /** Retained tokens, pushed ones included. */
  tokenCount(): number;
  copyTokens(destination: number): void;

  slots(layer: number): number;
  spanFirst(layer: number, position: number): number;
  kvAddress(layer: number, field: number): number;

  pushToken(id: number): number;
  /** Writes one u32 per table at `indices` and one byte (0 or 1) per table at `valid`. */
  engramIndices(indices: number, valid: number): number;
  conv(layer: number, projection: number, taps: number, tapsLength: number, rows: number, rowsLength: number): number;
  engramConv(site: number, taps: number, tapsLength: number, rows: number, rowsLength: number): number;
  writeKv(layer: number, keys: number, keysLength: number, values: number, valuesLength: number): number;
  writeKvAt(
    layer: number,
    keys: number,
    keysLength: number,
    values: number,
    valuesLength: number,
    position: number,
  ): number;
  attend(layer: number, query: number, queryLength: number, out: number, outLength: number): number;
  appendAndAttend(
    layer: number,
    query: number,
    queryLength: number,
    keys: number,
    keysLength: number,
    values: number,
    valuesLength: number,
    out: number,
    outLength: number,
  ): number;
  advance(count: number): number;
  discard(): void;
  /** True between the first call of a step and its `advance` or `discard`. */
  inStep(): boolean;

  seedConvTail(layer: number, projection: number, rows: number, rowsLength: number): number;
  seedEngramTail(site: number, rows: number, rowsLength: number): number;
  seedTokens(ids: number, length: number): number;
  setPosition(position: number): number;
  reset(): void;

  /** An independent state, or null: see `CoreModule.lastCode`. */
  fork(): CoreState | null;
  /** A mark's id (never 0), or 0: see `CoreModule.lastCode`. */
  mark(): number;
  rollback(mark: number): number;
  release(mark: number): number;
  /** Bytes that `save` will write, or -1: see `CoreModule.lastCode`. */
  snapshotBytes(fingerprintLength: number): number;
  save(fingerprint: number, fingerprintLength: number, sink: SnapshotSink): number;
}

/** The module: what is not tied to one state. */
export interface CoreModule {
  lastCode(): number;
  /** Address of the message of the last call that failed: UTF-8, null-terminated. */
  lastMessage(): number;
  /** Bytes that live states, marks and arrays own (not staging or scratch). */
  allocatedBytes(): number;

  /** `length` floats, zero-filled and 16-byte aligned, or 0. */
  allocateArray(length: number): number;
  releaseArray(address: number, length: number): void;
  /** One area for everything that a call passes by copy; 16-byte aligned; stays valid until the next call. 0: out of memory. */
  reserveStaging(bytes: number): number;

  /** `config`: address of the words that `encodeConfig` makes. Null: see `lastCode`. */
  createState(
    config: number,
    configLength: number,
    capacityHint: number,
    int8: boolean,
    quantizeQuery: boolean,
  ): CoreState | null;
  /** -1: see `lastCode`. */
  stateBytes(config: number, configLength: number, capacityHint: number, int8: boolean, positions: number): number;
  restoreState(
    source: SnapshotSource,
    length: number,
    fingerprint: number,
    fingerprintLength: number,
  ): CoreState | null;

  fakeQuantize(x: number, length: number, bits: number): number;
  quantizeRows(x: number, length: number, rowLength: number, values: number, scales: number): number;
  engramIndices(
    tokens: number,
    length: number,
    orders: number,
    ordersLength: number,
    heads: number,
    slots: number,
    seedHeads: number,
    out: number,
  ): number;
  /**
   * Draws one token from `length` logits at `logits`. `draw` counts the draws made with this seed (0, 1, …), so a draw
   * depends on nothing but its arguments. The token, or -1: see `lastCode`.
   */
  sample(
    logits: number,
    length: number,
    temperature: number,
    topK: number,
    topP: number,
    seed: number,
    draw: number,
  ): number;
}

/** Structural, as all types here: the package's declarations must compile where nothing declares `WebAssembly`. */
export interface WasmMemory {
  /** Replaced at each growth; the one before is detached then. */
  readonly buffer: ArrayBuffer;
}

/** What the glue exports. `imports` is a `WebAssembly.Imports`, `instance` a `WebAssembly.Instance`. */
export type CoreFactory = (options: {
  wasmMemory: WasmMemory;
  instantiateWasm: (imports: object, done: (instance: object) => void) => object;
}) => Promise<CoreModule>;
