/**
 * Snapshots in IndexedDB, whose transactions are atomic and keep other tabs out. The database is
 * `needle3-wasm/<store>`, with one object store for what `list()` tells and one for the bytes, so that a list reads no
 * snapshot. Every call opens a connection of its own: a lasting one would block whoever clears the site's data, and
 * WebKit loses it when it suspends a page.
 */
import type { SnapshotBackend, SnapshotInfo } from './snapshot-store.js';

const INFOS = 'infos';
const BYTES = 'bytes';

/** Resolves with the request's result. */
function succeeded<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error('the request failed'));
  });
}

function openDatabase(name: string): Promise<IDBDatabase> {
  const request = indexedDB.open(`needle3-wasm/${name}`, 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore(INFOS);
    request.result.createObjectStore(BYTES);
  };
  return succeeded(request);
}

/** The IndexedDB store, or undefined where there is no IndexedDB. Rejects where the browser refuses its use. */
export async function openIndexedDbStore(name: string): Promise<SnapshotBackend | undefined> {
  if (typeof indexedDB === 'undefined') return undefined;
  (await openDatabase(name)).close();

  /** Runs `work` in one transaction over both object stores; resolves once it is committed. */
  const transact = async <T>(
    mode: IDBTransactionMode,
    work: (infos: IDBObjectStore, bytes: IDBObjectStore) => IDBRequest<T>,
  ): Promise<T> => {
    const database = await openDatabase(name);
    try {
      const transaction = database.transaction([INFOS, BYTES], mode, { durability: 'strict' });
      const committed = new Promise<void>((resolve, reject) => {
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => reject(transaction.error ?? new Error('the transaction was aborted'));
      });
      const request = work(transaction.objectStore(INFOS), transaction.objectStore(BYTES));
      await committed;
      return request.result;
    } finally {
      database.close();
    }
  };

  return {
    put: async (info, bytes) => {
      await transact('readwrite', (infos, contents) => {
        infos.put(info, info.name);
        return contents.put(bytes, info.name);
      });
    },
    get: (snapshot) => transact('readonly', (_, contents) => contents.get(snapshot)),
    delete: async (snapshot) => {
      const held = await transact('readwrite', (infos, contents) => {
        const count = infos.count(snapshot);
        infos.delete(snapshot);
        contents.delete(snapshot);
        return count;
      });
      return held > 0;
    },
    list: () => transact('readonly', (infos) => infos.getAll() as IDBRequest<SnapshotInfo[]>),
    clear: async () => {
      await transact('readwrite', (infos, contents) => {
        infos.clear();
        return contents.clear();
      });
    },
  };
}
