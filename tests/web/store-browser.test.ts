import { afterEach, describe, expect, it, vi } from 'vitest';
import { openSnapshotStore } from 'needle3-wasm/store';
import type { SnapshotInfo } from 'needle3-wasm/store';
import { isWhole, listed, newStoreName, removeStores, snapshotBytes } from './support/store.js';

/** As engines are that have no file system that pages and Workers alike can write. */
function withoutPrivateFileSystem(): void {
  vi.stubGlobal('FileSystemFileHandle', undefined);
}

function startWorker(): Worker {
  return new Worker(new URL('./support/store-worker.ts', import.meta.url), { type: 'module' });
}

/** What the Worker posts next; rejects if it fails before. */
function nextAnswer(worker: Worker): Promise<SnapshotInfo[]> {
  return new Promise((resolve, reject) => {
    worker.onmessage = (event) => resolve(event.data as SnapshotInfo[]);
    worker.onerror = (event) => reject(new Error(event.message));
  });
}

/** The names of the databases of this origin. */
async function databaseNames(): Promise<(string | undefined)[]> {
  return (await indexedDB.databases()).map(({ name }) => name);
}

afterEach(async () => {
  await removeStores();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

describe('a snapshot store in a browser', () => {
  it('is the same one in a Worker', async () => {
    const name = newStoreName();
    const store = await openSnapshotStore(name);
    const worker = startWorker();
    const answer = nextAnswer(worker);
    worker.postMessage({ store: name, name: 'from the worker', snapshots: [snapshotBytes(5, 70_000, 1)], rounds: 1 });
    expect(await answer).toEqual(await store.list());
    expect(await listed(store)).toEqual([['from the worker', 70_000, 5]]);
  });

  it('does everything in IndexedDB where there is no private file system', async () => {
    withoutPrivateFileSystem();
    const name = newStoreName();
    const [one, two] = [await openSnapshotStore(name), await openSnapshotStore(name)];
    expect(await databaseNames()).toContain(`needle3-wasm/${name}`);
    const heap = new Uint8Array(1_000_000);
    heap.set(snapshotBytes(1, 300, 4), 77);
    await one.put('a', heap.subarray(77, 377));
    await one.put('\ud83d', snapshotBytes(2, 200, 5));
    await two.put('\ude00', snapshotBytes(3, 100, 6));
    expect(await listed(one)).toEqual([
      ['a', 300, 1],
      ['\ud83d', 200, 2],
      ['\ude00', 100, 3],
    ]);
    const back = (await two.get('a'))!;
    expect(back).toEqual(snapshotBytes(1, 300, 4));
    expect(back.buffer.byteLength).toBe(300);
    expect((await two.list())[0].date).toBeInstanceOf(Date);
    await two.put('a', snapshotBytes(9, 50, 7));
    expect(await one.get('a')).toEqual(snapshotBytes(9, 50, 7));
    expect(await one.delete('a')).toBe(true);
    expect(await two.delete('a')).toBe(false);
    expect(await two.get('a')).toBeUndefined();
    await one.clear();
    expect(await two.list()).toEqual([]);
  });

  it('lets others delete its database while it is open', async () => {
    withoutPrivateFileSystem();
    const name = newStoreName();
    const store = await openSnapshotStore(name);
    await store.put('a', snapshotBytes(1, 100));
    await new Promise((resolve, reject) => {
      const request = indexedDB.deleteDatabase(`needle3-wasm/${name}`);
      request.onsuccess = resolve;
      request.onerror = reject;
      request.onblocked = () => reject(new Error('blocked by an open connection'));
    });
    expect(await store.list()).toEqual([]);
    await store.put('a', snapshotBytes(2, 100));
    expect(await listed(store)).toEqual([['a', 100, 2]]);
  });

  it('says so where the IndexedDB quota is full, and keeps the old snapshot', async () => {
    withoutPrivateFileSystem();
    const store = await openSnapshotStore(newStoreName());
    await store.put('a', snapshotBytes(1, 100, 3));
    vi.spyOn(IDBObjectStore.prototype, 'put').mockImplementation(() => {
      throw new DOMException('no room', 'QuotaExceededError');
    });
    const put = store.put('a', snapshotBytes(2, 100, 4));
    await expect(put).rejects.toMatchObject({ name: 'Needle3Error', code: 'out-of-memory' });
    await expect(put).rejects.toThrow(/full/);
    expect(await store.get('a')).toEqual(snapshotBytes(1, 100, 3));
  });

  it('is refused as unsupported where there is no storage at all', async () => {
    withoutPrivateFileSystem();
    vi.stubGlobal('indexedDB', undefined);
    await expect(openSnapshotStore('nowhere')).rejects.toMatchObject({ name: 'Needle3Error', code: 'unsupported' });
  });

  it('is refused as unsupported, with the cause, where the browser forbids its storage', async () => {
    withoutPrivateFileSystem();
    const cause = new DOMException('forbidden here', 'SecurityError');
    vi.spyOn(indexedDB, 'open').mockImplementation(() => {
      throw cause;
    });
    const opening = openSnapshotStore('forbidden');
    await expect(opening).rejects.toMatchObject({ name: 'Needle3Error', code: 'unsupported', cause });
  });
});

// On the page alone: a Worker that terminates Workers of its own, storage or not, may hang for good in Firefox.
if ('document' in globalThis) {
  describe('a snapshot store on a page', () => {
    it('holds one whole snapshot after a Worker was terminated in the middle of puts', async () => {
      const name = newStoreName();
      const store = await openSnapshotStore(name);
      for (let round = 0; round < 5; round++) {
        const worker = startWorker();
        const started = nextAnswer(worker);
        const snapshots = [snapshotBytes(1, 1_000_000, 1), snapshotBytes(2, 3_000_000, 2)];
        worker.postMessage({ store: name, name: 'prompt', snapshots, rounds: 1_000_000 });
        await started;
        // Somewhere in the puts that follow, a bit later each time.
        await new Promise((resolve) => setTimeout(resolve, 3 * round));
        worker.terminate();
        const bytes = (await store.get('prompt'))!;
        expect(bytes.byteLength).toBe(bytes[24] === 1 ? 1_000_000 : 3_000_000);
        expect(isWhole(bytes)).toBe(true);
        await store.put('prompt', snapshotBytes(3, 100, 3));
        expect(await listed(store)).toEqual([['prompt', 100, 3]]);
      }
    });
  });
}
