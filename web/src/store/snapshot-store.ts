import { allocateBytes, checkUint8Array, wrongType } from '../core/check.js';
import { Needle3Error } from '../core/errors.js';
import { MAX_NAME_LENGTH, snapshotPosition } from './record.js';

/**
 * What `list()` tells of one stored snapshot.
 *
 * @example
 * ```ts
 * const infos: SnapshotInfo[] = await store.list();
 * const newest = infos.sort((a, b) => +b.date - +a.date)[0];
 * ```
 */
export interface SnapshotInfo {
  /** What it was put under. */
  readonly name: string;
  /** Bytes of the snapshot. */
  readonly size: number;
  /** When it was put. */
  readonly date: Date;
  /** Positions the saved state had committed. */
  readonly position: number;
}

/**
 * Snapshots under names, kept by the browser (or in a folder). Names are any strings of 1 to 200 UTF-16 code units.
 *
 * Calls on one store take effect in the order they are made. Stores of the same name, in other tabs, Workers or
 * processes, hold the same snapshots. Besides the errors named below every method rejects with a Needle3Error: `type`
 * or `range` for a bad name, `disposed` after `close`, `unsupported` where the storage itself fails (`cause` says how).
 *
 * @example
 * ```ts
 * const store: SnapshotStore = await openSnapshotStore('sessions');
 * await store.put('tools prompt', state.save());
 * const bytes = await store.get('tools prompt');
 * if (bytes) needle3.restoreDecodeState(bytes).dispose();
 * await store.close();
 * ```
 */
export interface SnapshotStore {
  /**
   * Keeps a copy of `bytes` under `name` and replaces what was there, in one step: whoever reads, now or after a tab
   * was killed in the middle, finds the old snapshot or the new one. The bytes are copied before `put` returns.
   * Rejects with `snapshot` where they do not start as a snapshot does or are not as long as their header says, and
   * with `out-of-memory` where the disk or the quota is full; what was there then stays.
   */
  put(name: string, bytes: Uint8Array): Promise<void>;
  /**
   * The bytes that were put, in a buffer of their own, or undefined where there is nothing under `name`. Rejects with
   * `snapshot` where the disk has damaged the head of the record (`restoreDecodeState` checks every byte), and with
   * `out-of-memory` where there is no room for the bytes.
   */
  get(name: string): Promise<Uint8Array<ArrayBuffer> | undefined>;
  /** Removes what is under `name`; tells whether there was something. */
  delete(name: string): Promise<boolean>;
  /** What is there, by name in code-unit order, without reading the snapshots. Leaves out damaged records. */
  list(): Promise<SnapshotInfo[]>;
  /** Removes everything, damaged records too. */
  clear(): Promise<void>;
  /** Refuses calls from here on; resolves once those made before are done. May be called again. */
  close(): Promise<void>;
}

/** Where a store keeps its records. Arguments are checked; no two calls of one store run at a time. */
export interface SnapshotBackend {
  put(info: SnapshotInfo, bytes: Uint8Array<ArrayBuffer>): Promise<void>;
  get(name: string): Promise<Uint8Array<ArrayBuffer> | undefined>;
  delete(name: string): Promise<boolean>;
  /** In any order. */
  list(): Promise<SnapshotInfo[]>;
  clear(): Promise<void>;
}

/** @throws Needle3Error `type` or `range` */
export function checkName(call: string, name: unknown): asserts name is string {
  if (typeof name !== 'string') wrongType(call, 'name', 'a string', name);
  if (name.length === 0) throw new Needle3Error('range', `${call}: name must not be empty`);
}

/** As checkName, for names that are no paths. */
export function checkShortName(call: string, name: unknown): asserts name is string {
  checkName(call, name);
  if (name.length > MAX_NAME_LENGTH) {
    const rule = `name must have at most ${MAX_NAME_LENGTH} UTF-16 code units`;
    throw new Needle3Error('range', `${call}: ${rule}; got ${name.length}`);
  }
}

/** How the browsers' and the operating systems' errors say that a disk or a quota is full. */
const FULL = new Set([
  'QuotaExceededError',
  'NS_ERROR_DOM_QUOTA_EXCEEDED_ERR',
  'NS_ERROR_FILE_NO_DEVICE_SPACE',
  'ENOSPC',
  'EDQUOT',
]);

/** Turns what a backend threw into a Needle3Error with it as the cause. */
export function storageError(call: string, error: unknown): Needle3Error {
  if (error instanceof Needle3Error) return error;
  const { name, code, message } = error as { name?: unknown; code?: unknown; message?: unknown };
  if (FULL.has(String(code)) || FULL.has(String(name))) {
    const full = `${call}: the disk or the storage quota is full; what was stored before is kept`;
    return new Needle3Error('out-of-memory', full, { cause: error });
  }
  // What engines throw for an ArrayBuffer they cannot allocate.
  if (name === 'RangeError') return new Needle3Error('out-of-memory', `${call}: ${String(message)}`, { cause: error });
  return new Needle3Error('unsupported', `${call}: the storage failed: ${String(message)}`, { cause: error });
}

/** The store over a backend: checks arguments, keeps order, translates errors. */
export function createSnapshotStore(backend: SnapshotBackend): SnapshotStore {
  let closed = false;
  let lastDone: Promise<void> = Promise.resolve();

  const enqueue = <T>(call: string, work: () => Promise<T>): Promise<T> => {
    if (closed) throw new Needle3Error('disposed', `${call}: the snapshot store is closed`);
    const result = lastDone.then(work).catch((error: unknown) => {
      throw storageError(call, error);
    });
    const ignore = (): void => undefined;
    lastDone = result.then(ignore, ignore);
    return result;
  };

  return {
    async put(name, bytes) {
      checkUint8Array('put', 'bytes', bytes);
      checkShortName('put', name);
      const position = snapshotPosition('put: bytes', bytes, bytes.byteLength);
      const info = { name, size: bytes.byteLength, date: new Date(), position };
      // The caller may go on writing to its array, or let linear memory grow under it; and storing a view would store
      // the whole buffer behind it.
      const copy = allocateBytes('put', bytes.byteLength, (buffer) => new Uint8Array(buffer));
      copy.set(bytes);
      return enqueue('put', () => backend.put(info, copy));
    },
    async get(name) {
      checkShortName('get', name);
      return enqueue('get', () => backend.get(name));
    },
    async delete(name) {
      checkShortName('delete', name);
      return enqueue('delete', () => backend.delete(name));
    },
    async list() {
      const infos = await enqueue('list', () => backend.list());
      return infos.sort((a, b) => (a.name < b.name ? -1 : 1));
    },
    async clear() {
      return enqueue('clear', () => backend.clear());
    },
    async close() {
      closed = true;
      return lastDone;
    },
  };
}
