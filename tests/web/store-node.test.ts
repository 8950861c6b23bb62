import { spawn } from 'node:child_process';
import type { ChildProcessByStdio } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, open, readdir, readFile, rm, truncate, utimes, writeFile } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { openSnapshotStore } from 'needle3-wasm/store';
import { isWhole, listed, snapshotBytes } from './support/store.js';

type Child = ChildProcessByStdio<null, Readable, null>;

let root: string;
let folder: string;
let snapshotFiles: string[];
const children: Child[] = [];

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'needle3-store-'));
  folder = join(root, 'made', 'by', 'the store');
  snapshotFiles = [join(root, 'one'), join(root, 'two')];
  await writeFile(snapshotFiles[0], snapshotBytes(1, 3_000_000, 1));
  await writeFile(snapshotFiles[1], snapshotBytes(2, 1_000_000, 2));
});

afterEach(async () => {
  vi.restoreAllMocks();
  for (const child of children.splice(0)) await kill(child);
  await rm(root, { recursive: true });
});

/** Starts a process that puts the snapshot files in turn; see store-child.mjs. */
function startWriter(name: string, rounds: number, freeze = 0): Child {
  const script = fileURLToPath(new URL('./support/store-child.mjs', import.meta.url));
  const args = [script, folder, name, String(rounds), String(freeze), ...snapshotFiles];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(child);
  return child;
}

async function kill(child: Child): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  child.kill('SIGKILL');
  await exited;
}

/** Waits until the process has printed `text`; fails if it ends without. */
async function printed(child: Child, text: string): Promise<void> {
  let output = '';
  for await (const chunk of child.stdout.iterator({ destroyOnReturn: false })) {
    output += String(chunk);
    if (output.includes(text)) return;
  }
  throw new Error(`the writer ended before it printed ${text}; it printed: ${output}`);
}

async function temporaryFiles(): Promise<string[]> {
  return (await readdir(folder)).filter((file) => file.endsWith('.tmp'));
}

/** The prototype of open files, to make their operations fail. */
async function fileHandlePrototype(): Promise<FileHandle> {
  const file = await open(snapshotFiles[0], 'r');
  await file.close();
  return Object.getPrototypeOf(file) as FileHandle;
}

describe('a snapshot store in Node', () => {
  it.each([
    ['the head is half written', 1],
    ['the snapshot is half written', 2],
    ['all is written and nothing flushed', 3],
  ])('holds the old snapshot and no leftovers after a process was killed when %s', async (_, freeze) => {
    const store = await openSnapshotStore(folder);
    const old = snapshotBytes(9, 500, 9);
    await store.put('kept', old);
    for (const name of ['kept', 'new']) {
      const child = startWriter(name, 1, freeze);
      await printed(child, 'frozen');
      expect(await temporaryFiles()).toHaveLength(1);
      await kill(child);
      const reopened = await openSnapshotStore(folder);
      expect(await listed(reopened)).toEqual([['kept', 500, 9]]);
      expect(await reopened.get('kept')).toEqual(old);
      expect(await temporaryFiles()).toEqual([]);
    }
  });

  it('holds one whole snapshot whenever a writing process is killed', async () => {
    for (let round = 0; round < 8; round++) {
      const child = startWriter('prompt', 1_000_000);
      await printed(child, `put ${2 * round}\n`);
      // Somewhere in the puts that follow, a bit later each time.
      await new Promise((resolve) => setTimeout(resolve, round));
      await kill(child);
      const store = await openSnapshotStore(folder);
      const bytes = (await store.get('prompt'))!;
      expect([3_000_000, 1_000_000]).toContain(bytes.byteLength);
      expect(isWhole(bytes)).toBe(true);
      expect((await readdir(folder)).length).toBe(1);
    }
  });

  it('leaves the files of a living writer alone when it is opened', async () => {
    const child = startWriter('prompt', 1, 2);
    await printed(child, 'frozen');
    const before = await temporaryFiles();
    expect(before).toHaveLength(1);
    await openSnapshotStore(folder);
    expect(await temporaryFiles()).toEqual(before);
  });

  it('sweeps what an unknown writer has not touched for an hour, and nothing younger', async () => {
    await mkdir(folder, { recursive: true });
    const [stale, young] = [join(folder, 'elsewhere.1.a.tmp'), join(folder, 'elsewhere.1.b.tmp')];
    await writeFile(stale, 'half');
    await writeFile(young, 'half');
    const now = Date.now() / 1000;
    await utimes(stale, now, now - 3700);
    await utimes(young, now, now - 3500);
    await openSnapshotStore(folder);
    expect(await temporaryFiles()).toEqual(['elsewhere.1.b.tmp']);
  });

  it('holds one whole snapshot at every moment while two processes write the same name', async () => {
    const writers = [startWriter('prompt', 40), startWriter('prompt', 40)];
    const exits = Promise.all(writers.map((writer) => once(writer, 'exit')));
    await Promise.all(writers.map((writer) => printed(writer, 'put 0')));
    for (const writer of writers) writer.stdout.resume();
    const store = await openSnapshotStore(folder);
    const progress = { done: false };
    void exits.finally(() => (progress.done = true));
    do {
      const bytes = (await store.get('prompt'))!;
      expect(bytes.byteLength).toBe(bytes[24] === 1 ? 3_000_000 : 1_000_000);
      expect(isWhole(bytes)).toBe(true);
      expect(await store.list()).toHaveLength(1);
    } while (!progress.done);
    expect(await exits).toEqual([
      [0, null],
      [0, null],
    ]);
    expect(await readdir(folder)).toHaveLength(1);
  });

  it.each(['ENOSPC', 'EDQUOT'])(
    'says that the disk is full on %s, keeps the old snapshot and no leftovers',
    async (code) => {
      const store = await openSnapshotStore(folder);
      await store.put('prompt', snapshotBytes(1, 500, 1));
      const prototype = await fileHandlePrototype();
      const write = Object.getOwnPropertyDescriptor(prototype, 'writeFile')!.value as FileHandle['writeFile'];
      const cause = Object.assign(new Error(`${code}: no room`), { code });
      vi.spyOn(prototype, 'writeFile').mockImplementation(async function (this: FileHandle, data) {
        const bytes = data as Uint8Array;
        await write.call(this, bytes.subarray(0, 300));
        if (bytes.length > 300) throw cause;
      });
      const put = store.put('prompt', snapshotBytes(2, 600, 2));
      await expect(put).rejects.toMatchObject({ name: 'Needle3Error', code: 'out-of-memory', cause });
      await expect(put).rejects.toThrow(/full/);
      vi.restoreAllMocks();
      expect(await readdir(folder)).toHaveLength(1);
      expect(await store.get('prompt')).toEqual(snapshotBytes(1, 500, 1));
      await store.put('prompt', snapshotBytes(2, 600, 2));
      expect(await store.get('prompt')).toEqual(snapshotBytes(2, 600, 2));
    },
  );

  it('refuses to give a record that the disk has damaged, lists the others, and replaces it at the next put', async () => {
    const store = await openSnapshotStore(folder);
    await store.put('damaged', snapshotBytes(1, 500, 1));
    const record = join(folder, (await readdir(folder))[0]);
    await store.put('whole', snapshotBytes(2, 500, 2));
    const bytes = await readFile(record);
    for (const length of [bytes.length - 1, bytes.length - 500 + 10, 30, 23, 0]) {
      await writeFile(record, bytes);
      await truncate(record, length);
      await expect(store.get('damaged')).rejects.toMatchObject({ name: 'Needle3Error', code: 'snapshot' });
      expect(await listed(store)).toEqual([['whole', 500, 2]]);
    }
    for (const [offset, value] of [
      [0, 0],
      [8, 2],
      [13, 0xff],
    ] as const) {
      const flipped = Buffer.from(bytes);
      flipped[offset] = value;
      await writeFile(record, flipped);
      await expect(store.get('damaged')).rejects.toMatchObject({ name: 'Needle3Error', code: 'snapshot' });
    }
    await store.put('damaged', snapshotBytes(3, 100, 3));
    expect(await store.get('damaged')).toEqual(snapshotBytes(3, 100, 3));
  });

  it('leaves files that are not its own alone', async () => {
    const store = await openSnapshotStore(folder);
    await writeFile(join(folder, 'notes.txt'), 'mine');
    await store.put('prompt', snapshotBytes(1, 100));
    expect(await store.list()).toHaveLength(1);
    await store.clear();
    expect(await readdir(folder)).toEqual(['notes.txt']);
  });

  it('is refused as unsupported, with the cause, where there can be no folder', async () => {
    const opening = openSnapshotStore(join(snapshotFiles[0], 'below a file'));
    await expect(opening).rejects.toMatchObject({ code: 'unsupported', cause: { code: 'ENOTDIR' } });
  });

  it('has an entry for browsers that loads where there is no browser and is refused there as unsupported', async () => {
    const entry = (await import(
      new URL('../../dist/store/index.js', import.meta.url).href
    )) as typeof import('needle3-wasm/store');
    await expect(entry.openSnapshotStore('nowhere')).rejects.toMatchObject({ code: 'unsupported' });
  });
});
