/**
 * Snapshots of decode states, kept by the browser or in a folder. Importing does nothing.
 *
 * @module needle3-wasm/store
 */
import { Needle3Error } from '../core/errors.js';
import { openIndexedDbStore } from './indexed-db.js';
import { openPrivateFileStore } from './opfs.js';
import { checkShortName, createSnapshotStore, storageError } from './snapshot-store.js';
import type { SnapshotStore } from './snapshot-store.js';

export type { SnapshotInfo, SnapshotStore } from './snapshot-store.js';

/**
 * Opens the store `name` of this origin, and makes it where there is none: in the origin private file system where
 * the browser has one that pages and Workers can write, else in IndexedDB. Works on pages and in Workers. In Node
 * `name` is the path of a folder, made where it is missing. Rejects with `type` or `range` for a bad name, with
 * `out-of-memory` where the disk is full, and with `unsupported` where there is nowhere to keep anything.
 *
 * @example
 * ```ts
 * const store = await openSnapshotStore('sessions');
 * await store.put('tools prompt', state.save());
 * ```
 */
export async function openSnapshotStore(name: string): Promise<SnapshotStore> {
  checkShortName('openSnapshotStore', name);
  try {
    const backend = (await openPrivateFileStore(name)) ?? (await openIndexedDbStore(name));
    if (backend !== undefined) return createSnapshotStore(backend);
  } catch (error) {
    throw storageError('openSnapshotStore', error);
  }
  throw new Needle3Error('unsupported', 'openSnapshotStore: there is no storage here: neither OPFS nor IndexedDB');
}
