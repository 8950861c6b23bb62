import { once } from 'node:events';
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { launch } from 'puppeteer-core';
import type { Browser, Page } from 'puppeteer-core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { browsers } from '../../scripts/lib/tools.mjs';
import { snapshotBytes } from './support/store.js';

/** Writes or checks the bytes after the header: no two positions have the same, and browsers cannot compress them. */
function bodyOf(position: number, bytes: Uint8Array, write: boolean): boolean {
  for (let i = 24; i < bytes.length; i++) {
    let mixed = Math.imul(i + position * 7919, 0x9e3779b1);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x85ebca6b);
    const byte = (mixed ^ (mixed >>> 13)) & 255;
    if (write) bytes[i] = byte;
    else if (bytes[i] !== byte) return false;
  }
  return true;
}

/** What the page gives to the functions that run in it. */
interface PageScope {
  openSnapshotStore: typeof import('needle3-wasm/store').openSnapshotStore;
  snapshotBytes: typeof snapshotBytes;
  bodyOf: typeof bodyOf;
}

const page = `<!doctype html><title>store</title><script type="module">
import { openSnapshotStore } from '/dist/store/index.js';
Object.assign(globalThis, { openSnapshotStore, snapshotBytes: ${snapshotBytes.toString()}, bodyOf: ${bodyOf.toString()} });
document.title = 'ready';
</script>`;

let server: Server;
let origin: string;
let profile: string;
const profiles: string[] = [];
const running: Browser[] = [];

beforeAll(async () => {
  server = createServer((request, response) => {
    const path = request.url ?? '/';
    if (!path.startsWith('/dist/')) {
      response.setHeader('content-type', 'text/html').end(page);
      return;
    }
    readFile(fileURLToPath(new URL(`../..${path}`, import.meta.url))).then(
      (bytes) => response.setHeader('content-type', 'text/javascript').end(bytes),
      () => response.writeHead(404).end(),
    );
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

beforeEach(async () => {
  profile = await mkdtemp(join(tmpdir(), 'needle3-profile-'));
  profiles.push(profile);
});

afterEach(async () => {
  for (const browser of running.splice(0)) await kill(browser);
  for (const used of profiles.splice(0)) await rm(used, { recursive: true, maxRetries: 10 });
});

async function start(name: 'chromium' | 'firefox', firefoxPreferences = {}): Promise<Browser> {
  const executablePath = browsers[name]();
  if (executablePath === undefined) throw new Error(`${name} is not installed`);
  const args = name === 'chromium' && process.getuid?.() === 0 ? ['--no-sandbox'] : [];
  // What was on the disk when the last browser was killed: puppeteer still tidies up in the folder that it used.
  const used = profile;
  profile = await mkdtemp(join(tmpdir(), 'needle3-profile-'));
  profiles.push(profile);
  await cp(used, profile, { recursive: true, verbatimSymlinks: true });
  const browser = await launch({
    browser: name === 'chromium' ? 'chrome' : 'firefox',
    executablePath,
    args,
    userDataDir: profile,
    extraPrefsFirefox: firefoxPreferences,
  });
  running.push(browser);
  return browser;
}

/** Ends the browser with all its processes at once, as the loss of power to it would. */
async function kill(browser: Browser): Promise<void> {
  const child = browser.process();
  if (!child?.pid || child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  process.kill(-child.pid, 'SIGKILL');
  await exited;
}

async function openTab(browser: Browser): Promise<Page> {
  const tab = await browser.newPage();
  await tab.goto(origin);
  await tab.waitForFunction(() => document.title === 'ready');
  return tab;
}

/** Puts a snapshot of that position and length; resolves with the error's code, if there was one. */
function put(tab: Page, name: string, position: number, byteLength: number): Promise<string> {
  return tab.evaluate(
    async (name, position, byteLength) => {
      const { openSnapshotStore, snapshotBytes, bodyOf } = globalThis as unknown as PageScope;
      const store = await openSnapshotStore('tabs');
      const bytes = snapshotBytes(position, byteLength);
      bodyOf(position, bytes, true);
      try {
        await store.put(name, bytes);
        return 'ok';
      } catch (error) {
        return (error as { code: string }).code;
      }
    },
    name,
    position,
    byteLength,
  );
}

/** Starts a put that stops for good after half of the snapshot is written, and waits until it is there. */
async function putAndFreeze(tab: Page, name: string): Promise<void> {
  await tab.evaluate(async (name) => {
    const { openSnapshotStore, snapshotBytes } = globalThis as unknown as PageScope;
    const store = await openSnapshotStore('tabs');
    const { prototype } = FileSystemWritableFileStream;
    const write = Object.getOwnPropertyDescriptor(prototype, 'write')!.value as (bytes: Uint8Array) => Promise<void>;
    await new Promise<void>((frozen) => {
      prototype.write = async function (bytes) {
        const part = bytes as Uint8Array;
        if (part.length < 1000) return write.call(this, part);
        await write.call(this, part.subarray(0, part.length / 2));
        frozen();
        await new Promise(() => undefined);
      };
      void store.put(name, snapshotBytes(99, 2_000_000));
    });
  }, name);
}

/** What a store opened afresh holds: of each snapshot name, position, length, and whether its bytes are of one put. */
function contents(tab: Page): Promise<[string, number, number, boolean][]> {
  return tab.evaluate(async () => {
    const { openSnapshotStore, bodyOf } = globalThis as unknown as PageScope;
    const store = await openSnapshotStore('tabs');
    const rows: [string, number, number, boolean][] = [];
    for (const { name } of await store.list()) {
      const bytes = (await store.get(name))!;
      const position = new DataView(bytes.buffer).getUint32(12, true);
      rows.push([name, position, bytes.length, bodyOf(position, bytes, false)]);
    }
    return rows;
  });
}

/** The files of all stores in the origin private file system. */
function files(tab: Page): Promise<string[]> {
  return tab.evaluate(async () => {
    const names: string[] = [];
    const walk = async (directory: FileSystemDirectoryHandle): Promise<void> => {
      for await (const [name, handle] of directory.entries()) {
        if (handle instanceof FileSystemDirectoryHandle) await walk(handle);
        else names.push(name);
      }
    };
    await walk(await navigator.storage.getDirectory());
    return names;
  });
}

describe.each(['chromium', 'firefox'] as const)('a snapshot store in %s', (name) => {
  it('holds the old snapshots and no leftovers after the browser was killed in the middle of puts', async () => {
    const browser = await start(name);
    const tab = await openTab(browser);
    expect(await put(tab, 'kept', 5, 3000)).toBe('ok');
    await putAndFreeze(tab, 'kept');
    await kill(browser);

    const second = await start(name);
    const again = await openTab(second);
    expect(await contents(again)).toEqual([['kept', 5, 3000, true]]);
    expect(await files(again)).toHaveLength(1);
    await putAndFreeze(again, 'new');
    await kill(second);

    const last = await openTab(await start(name));
    expect(await contents(last)).toEqual([['kept', 5, 3000, true]]);
    expect(await files(last)).toHaveLength(1);
  });

  it('holds the old snapshot and takes new ones in another tab after a tab was closed in the middle of a put', async () => {
    const browser = await start(name);
    const [writer, other] = [await openTab(browser), await openTab(browser)];
    expect(await put(writer, 'prompt', 5, 3000)).toBe('ok');
    await putAndFreeze(writer, 'prompt');
    const waiting = put(other, 'second', 6, 4000);
    await writer.close();
    expect(await waiting).toBe('ok');
    expect(await contents(other)).toEqual([
      ['prompt', 5, 3000, true],
      ['second', 6, 4000, true],
    ]);
    expect(await put(other, 'prompt', 7, 5000)).toBe('ok');
    expect((await contents(other))[0]).toEqual(['prompt', 7, 5000, true]);
  });

  it('holds one whole snapshot at every moment while two tabs write the same name', async () => {
    const browser = await start(name);
    const tabs = [await openTab(browser), await openTab(browser), await openTab(browser)];
    expect(await put(tabs[2], 'prompt', 0, 1000)).toBe('ok');
    const write = async (tab: Page, first: number): Promise<void> => {
      for (let i = first; i < first + 10; i++) expect(await put(tab, 'prompt', i, 1000 * i)).toBe('ok');
    };
    const progress = { done: false };
    const written = Promise.all([write(tabs[0], 101), write(tabs[1], 201)]).finally(() => (progress.done = true));
    do {
      const [[, position, length, whole], ...others] = await contents(tabs[2]);
      expect(others).toEqual([]);
      expect(length).toBe(1000 * Math.max(position, 1));
      expect(whole).toBe(true);
    } while (!progress.done);
    await written;
    expect([110, 210]).toContain((await contents(tabs[2]))[0][1]);
  });
});

describe.each(['chromium', 'firefox'] as const)('the files of a snapshot store in %s', (name) => {
  it('are refused where the disk has damaged them, left out of lists, and replaced at the next put', async () => {
    const tab = await openTab(await start(name));
    expect(await put(tab, 'damaged', 5, 3000)).toBe('ok');
    const code = await tab.evaluate(async () => {
      const truncate = async (directory: FileSystemDirectoryHandle): Promise<void> => {
        for await (const handle of directory.values()) {
          if (handle.kind === 'directory') {
            await truncate(handle as FileSystemDirectoryHandle);
          } else {
            const writer = await (handle as FileSystemFileHandle).createWritable({ keepExistingData: true });
            await writer.truncate(2000);
            await writer.close();
          }
        }
      };
      await truncate(await navigator.storage.getDirectory());
      const { openSnapshotStore } = globalThis as unknown as PageScope;
      const store = await openSnapshotStore('tabs');
      return store.get('damaged').catch((error: unknown) => (error as { code: string }).code);
    });
    expect(code).toBe('snapshot');
    expect(await put(tab, 'whole', 6, 4000)).toBe('ok');
    expect(await contents(tab)).toEqual([['whole', 6, 4000, true]]);
    expect(await put(tab, 'damaged', 7, 3000)).toBe('ok');
    expect(await contents(tab)).toHaveLength(2);
  });

  it('are not made where the browser refuses its private file system, which leaves IndexedDB', async () => {
    const tab = await openTab(await start(name));
    await tab.evaluate(() => {
      StorageManager.prototype.getDirectory = () => Promise.reject(new DOMException('not here', 'SecurityError'));
    });
    expect(await put(tab, 'prompt', 5, 3000)).toBe('ok');
    expect(await contents(tab)).toEqual([['prompt', 5, 3000, true]]);
    expect(await tab.evaluate(async () => (await indexedDB.databases()).map((database) => database.name))).toEqual([
      'needle3-wasm/tabs',
    ]);
  });
});

describe.each([
  ['chromium', 'OPFS'],
  ['firefox', 'OPFS'],
  ['firefox', 'IndexedDB'],
] as const)('a snapshot store in %s over %s', (name, storage) => {
  it('says so when the quota is full, keeps the old snapshot and works on', async () => {
    // What one site may have: in Chromium 1 MB, set below; in Firefox 10 MiB of the 20 MiB that all sites may have.
    const browser = await start(name, { 'dom.quotaManager.temporaryStorage.fixedLimit': 20 * 1024 });
    const tab = await openTab(browser);
    if (storage === 'IndexedDB') await tab.evaluate(() => Reflect.deleteProperty(globalThis, 'FileSystemFileHandle'));
    if (name === 'chromium') {
      const session = await tab.createCDPSession();
      await session.send('Storage.overrideQuotaForOrigin', { origin, quotaSize: 1_000_000 });
    }
    expect(await put(tab, 'prompt', 5, 3000)).toBe('ok');
    expect(await put(tab, 'prompt', 6, 20_000_000)).toBe('out-of-memory');
    expect(await put(tab, 'new', 7, 20_000_000)).toBe('out-of-memory');
    expect(await contents(tab)).toEqual([['prompt', 5, 3000, true]]);
    expect(await files(tab)).toHaveLength(storage === 'OPFS' ? 1 : 0);
    expect(await put(tab, 'prompt', 8, 4000)).toBe('ok');
    expect(await contents(tab)).toEqual([['prompt', 8, 4000, true]]);
  });
});
