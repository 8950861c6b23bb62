/**
 * Records as files of the origin private file system, in the directory needle3-wasm/<hash of the store's name>.
 *
 * `createWritable()` writes to a swap file that `close()` puts in the place of the old file in one step, so a writer
 * that dies leaves the old file, or an empty one where there was none. All calls, one at a time, go through a Web Lock
 * of the store: the browser gives it back when its holder dies, and none is ever asked for while holding another, so
 * it cannot deadlock.
 */
import {
  decodeRecordHead,
  encodeRecordHead,
  hashName,
  isRecordFileName,
  RECORD_HEAD_BYTES,
  recordFileName,
  unlessDamaged,
} from './record.js';
import type { RecordHead } from './record.js';
import type { SnapshotBackend, SnapshotInfo } from './snapshot-store.js';

const ROOT = 'needle3-wasm';

function hasName(error: unknown, name: string): boolean {
  return (error as { name?: unknown } | null)?.name === name;
}

/**
 * What a failed write means. Chromium says that the quota is full, or else, when the write is still under way at the
 * moment it finds out, cuts the pipe to the file: an AbortError, though nobody aborted. (What `estimate()` gives tells
 * nothing: Chromium always reports 10 GiB to spare.)
 */
function writeError(error: unknown): unknown {
  if (!hasName(error, 'AbortError')) return error;
  return Object.assign(new Error('the write was cut off', { cause: error }), { name: 'QuotaExceededError' });
}

/** Undefined where there is no such file, or only the empty one that a first put leaves when it dies. */
async function openRecord(directory: FileSystemDirectoryHandle, fileName: string): Promise<File | undefined> {
  try {
    const file = await (await directory.getFileHandle(fileName)).getFile();
    return file.size === 0 ? undefined : file;
  } catch (error) {
    if (hasName(error, 'NotFoundError')) return undefined;
    throw error;
  }
}

async function readHead(file: File): Promise<RecordHead> {
  const bytes = await file.slice(0, RECORD_HEAD_BYTES).arrayBuffer();
  return decodeRecordHead(new Uint8Array(bytes), file.size);
}

async function fileNames(directory: FileSystemDirectoryHandle): Promise<string[]> {
  const names: string[] = [];
  for await (const name of directory.keys()) names.push(name);
  return names;
}

/**
 * The private file system's store, or undefined where this browser has none that pages and Workers alike can write:
 * engines without `createWritable` (WebKit before 26) would let a Worker see one store and its page another.
 */
export async function openPrivateFileStore(name: string): Promise<SnapshotBackend | undefined> {
  const { navigator } = globalThis as { navigator?: { storage?: Partial<StorageManager>; locks?: LockManager } };
  const { storage, locks } = navigator ?? {};
  const getRoot = storage?.getDirectory?.bind(storage);
  const writable = typeof FileSystemFileHandle === 'function' && 'createWritable' in FileSystemFileHandle.prototype;
  if (!writable || !getRoot || !locks) return undefined;

  const directoryName = await hashName(name);
  const lockName = `${ROOT}/${directoryName}`;
  // Looked up at every call: the user may clear the site's data while a store is open.
  const directory = async (): Promise<FileSystemDirectoryHandle> => {
    const root = await getRoot();
    const shared = await root.getDirectoryHandle(ROOT, { create: true });
    return shared.getDirectoryHandle(directoryName, { create: true });
  };
  const withLock = async <T>(mode: LockMode, work: (files: FileSystemDirectoryHandle) => Promise<T>): Promise<T> =>
    await locks.request(lockName, { mode }, async () => work(await directory()));

  try {
    await directory();
  } catch {
    // Private windows of some browsers have the interface and refuse its use.
    return undefined;
  }

  // What killed writers left: swap files that the browser did not remove, and empty files. A writer at work holds the
  // lock; then there is nothing to sweep now.
  await locks.request(lockName, { ifAvailable: true }, async (lock) => {
    if (lock === null) return;
    const files = await directory();
    for (const fileName of await fileNames(files)) {
      const held = isRecordFileName(fileName) && (await openRecord(files, fileName)) !== undefined;
      // The browser may be about to remove it, too; what cannot be removed now is tried again at the next opening.
      if (!held) await files.removeEntry(fileName).catch(() => undefined);
    }
  });

  return {
    put: (info, bytes) =>
      withLock('exclusive', async (files) => {
        const fileName = await recordFileName(info.name);
        const handle = await files.getFileHandle(fileName, { create: true });
        let writer: FileSystemWritableFileStream | undefined;
        try {
          writer = await handle.createWritable();
          await writer.write(encodeRecordHead(info.name, info.date));
          await writer.write(bytes);
          await writer.close();
        } catch (error) {
          // Each of these may fail in its turn, as on a stream that has failed; the error to tell is the first.
          await writer?.abort().catch(() => undefined);
          const left = await handle.getFile().catch(() => undefined);
          if (left?.size === 0) await files.removeEntry(fileName).catch(() => undefined);
          throw writeError(error);
        }
      }),
    get: (name) =>
      withLock('shared', async (files) => {
        const file = await openRecord(files, await recordFileName(name));
        if (file === undefined) return undefined;
        const { offset } = await readHead(file);
        return new Uint8Array(await file.slice(offset).arrayBuffer());
      }),
    delete: (name) =>
      withLock('exclusive', async (files) => {
        const fileName = await recordFileName(name);
        if ((await openRecord(files, fileName)) === undefined) return false;
        await files.removeEntry(fileName);
        return true;
      }),
    list: () =>
      withLock('shared', async (files) => {
        const infos: SnapshotInfo[] = [];
        for (const fileName of (await fileNames(files)).filter(isRecordFileName)) {
          const file = await openRecord(files, fileName);
          const head = file && (await unlessDamaged(readHead(file)));
          if (head !== undefined) infos.push(head.info);
        }
        return infos;
      }),
    clear: () =>
      withLock('exclusive', async (files) => {
        for (const fileName of await fileNames(files)) await files.removeEntry(fileName);
      }),
  };
}
