/**
 * Records as files of a folder. A put writes a file of its own beside the record, flushes it and renames it over the
 * record: rename is atomic, so readers and other writers, in any process, see the old record or the new one and need
 * no lock.
 */
import { randomUUID } from 'node:crypto';
import { mkdir, open, readdir, rename, stat, unlink } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join, resolve } from 'node:path';
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

/** A writer at work touches its file all the time, so one untouched for so long has none, whoever it was. */
const STALE_MILLISECONDS = 60 * 60 * 1000;

function hasCode(error: unknown, code: string): boolean {
  return (error as { code?: unknown } | null)?.code === code;
}

/** The result, or undefined where the file is not there (any more). */
async function unlessMissing<T>(result: Promise<T>): Promise<T | undefined> {
  try {
    return await result;
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined;
    throw error;
  }
}

/** Reads `length` bytes at `offset`, fewer where the file ends. */
async function readAt(file: FileHandle, offset: number, length: number): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = new Uint8Array(length);
  let filled = 0;
  while (filled < length) {
    const { bytesRead } = await file.read(bytes, filled, length - filled, offset + filled);
    if (bytesRead === 0) break;
    filled += bytesRead;
  }
  return filled === length ? bytes : bytes.slice(0, filled);
}

async function readHead(file: FileHandle): Promise<RecordHead> {
  const { size } = await file.stat();
  return decodeRecordHead(await readAt(file, 0, RECORD_HEAD_BYTES), size);
}

function isRunning(processId: number): boolean {
  try {
    process.kill(processId, 0);
    return true;
  } catch (error) {
    return !hasCode(error, 'ESRCH');
  }
}

/** Opens the store in the folder at `path`, relative to the working directory of now. */
export async function openFolderStore(path: string): Promise<SnapshotBackend> {
  const folder = resolve(path);
  await mkdir(folder, { recursive: true });

  // A writer's file is named <host>.<process>.<random>.tmp: a process id means something on its own host only.
  const host = (await hashName(hostname())).slice(0, 16);
  const newPath = (): string => join(folder, `${host}.${process.pid}.${randomUUID()}.tmp`);
  const isAbandoned = async (fileName: string): Promise<boolean> => {
    const [writerHost, writer] = fileName.split('.');
    if (writerHost === host && !isRunning(Number(writer))) return true;
    const found = await unlessMissing(stat(join(folder, fileName)));
    return found !== undefined && Date.now() - found.mtimeMs > STALE_MILLISECONDS;
  };
  const recordPath = async (name: string): Promise<string> => join(folder, await recordFileName(name));
  const remove = async (file: string): Promise<boolean> =>
    (await unlessMissing(unlink(file).then(() => true))) ?? false;
  /** Runs `read` on the open file; undefined where there is none. A file replaced meanwhile is still read whole. */
  const reading = async <T>(file: string, read: (opened: FileHandle) => Promise<T>): Promise<T | undefined> => {
    const opened = await unlessMissing(open(file, 'r'));
    if (opened === undefined) return undefined;
    try {
      return await read(opened);
    } finally {
      await opened.close();
    }
  };

  for (const fileName of await readdir(folder)) {
    if (fileName.endsWith('.tmp') && (await isAbandoned(fileName))) await remove(join(folder, fileName));
  }

  return {
    async put(info, bytes) {
      const temporary = newPath();
      try {
        const file = await open(temporary, 'wx');
        try {
          await file.writeFile(encodeRecordHead(info.name, info.date));
          await file.writeFile(bytes);
          await file.sync();
        } finally {
          await file.close();
        }
        await rename(temporary, await recordPath(info.name));
      } catch (error) {
        await remove(temporary);
        throw error;
      }
      // The rename itself reaches the disk with the folder. Windows has no handle to flush a folder by.
      if (process.platform !== 'win32') await reading(folder, (opened) => opened.sync());
    },
    async get(name) {
      return reading(await recordPath(name), async (file) => {
        const { info, offset } = await readHead(file);
        return readAt(file, offset, info.size);
      });
    },
    async delete(name) {
      return remove(await recordPath(name));
    },
    async list() {
      const infos: SnapshotInfo[] = [];
      for (const fileName of (await readdir(folder)).filter(isRecordFileName)) {
        const head = await reading(join(folder, fileName), (file) => unlessDamaged(readHead(file)));
        if (head !== undefined) infos.push(head.info);
      }
      return infos;
    },
    async clear() {
      for (const fileName of (await readdir(folder)).filter(isRecordFileName)) await remove(join(folder, fileName));
    },
  };
}
