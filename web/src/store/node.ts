import { openFolderStore } from './folder.js';
import { checkName, createSnapshotStore, storageError } from './snapshot-store.js';
import type { SnapshotStore } from './snapshot-store.js';

export type { SnapshotInfo, SnapshotStore } from './snapshot-store.js';

/**
 * As in browsers, over the folder whose path is `name`, which is made where it is missing.
 *
 * @example
 * ```ts
 * const store = await openSnapshotStore('/var/lib/app/sessions');
 * ```
 */
export async function openSnapshotStore(name: string): Promise<SnapshotStore> {
  checkName('openSnapshotStore', name);
  try {
    return createSnapshotStore(await openFolderStore(name));
  } catch (error) {
    throw storageError('openSnapshotStore', error);
  }
}
