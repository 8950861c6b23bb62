import { afterEach, describe, expect, it } from 'vitest';
import { openSnapshotStore } from 'needle3-wasm/store';
import type { SnapshotStore } from 'needle3-wasm/store';
import { isWhole, listed, newStoreName, removeStores, snapshotBytes } from './support/store.js';

afterEach(removeStores);

describe('a snapshot store', () => {
  it('gives back the bytes that were put, in a buffer of their own', async () => {
    const store = await openSnapshotStore(newStoreName());
    const bytes = snapshotBytes(7, 5000, 9);
    await store.put('prompt', bytes);
    const back = (await store.get('prompt'))!;
    expect(back).toEqual(bytes);
    expect(back.buffer.byteLength).toBe(5000);
  });

  it('has nothing under a name that was never put', async () => {
    const store = await openSnapshotStore(newStoreName());
    expect(await store.get('prompt')).toBeUndefined();
    expect(await store.delete('prompt')).toBe(false);
    expect(await store.list()).toEqual([]);
  });

  it('keeps a snapshot that is nothing but its header', async () => {
    const store = await openSnapshotStore(newStoreName());
    await store.put('empty', snapshotBytes(0, 24));
    expect(await store.get('empty')).toEqual(snapshotBytes(0, 24));
    expect(await listed(store)).toEqual([['empty', 24, 0]]);
  });

  it('replaces what was there, by something shorter or longer', async () => {
    const store = await openSnapshotStore(newStoreName());
    for (const [position, length] of [
      [1, 900],
      [2, 100],
      [3, 4000],
    ] as const) {
      await store.put('prompt', snapshotBytes(position, length, position));
      expect(await store.get('prompt')).toEqual(snapshotBytes(position, length, position));
      expect(await listed(store)).toEqual([['prompt', length, position]]);
    }
  });

  it('keeps the bytes as they were when put was called', async () => {
    const store = await openSnapshotStore(newStoreName());
    const bytes = snapshotBytes(1, 100, 5);
    const done = store.put('prompt', bytes);
    bytes.fill(0);
    await done;
    expect(await store.get('prompt')).toEqual(snapshotBytes(1, 100, 5));
  });

  it('stores of a view only the view', async () => {
    const store = await openSnapshotStore(newStoreName());
    const heap = new Uint8Array(10_000).fill(1);
    heap.set(snapshotBytes(3, 100, 5), 50);
    await store.put('prompt', heap.subarray(50, 150));
    const back = (await store.get('prompt'))!;
    expect(back).toEqual(snapshotBytes(3, 100, 5));
    expect(back.buffer.byteLength).toBe(100);
  });

  it('lists name, size, date and position, sorted by name', async () => {
    const store = await openSnapshotStore(newStoreName());
    const before = Date.now();
    await store.put('b', snapshotBytes(2 ** 31 - 1, 300));
    await store.put('a', snapshotBytes(4, 200));
    await store.put('B', snapshotBytes(5, 100));
    const after = Date.now();
    expect(await listed(store)).toEqual([
      ['B', 100, 5],
      ['a', 200, 4],
      ['b', 300, 2 ** 31 - 1],
    ]);
    for (const { date } of await store.list()) {
      expect(date).toBeInstanceOf(Date);
      expect(date.getTime()).toBeGreaterThanOrEqual(before);
      expect(date.getTime()).toBeLessThanOrEqual(after);
    }
  });

  it('keeps names of any characters apart', async () => {
    const store = await openSnapshotStore(newStoreName());
    // Case, path syntax, device names, trailing dots and spaces, both forms of é, an emoji, two lone surrogates, length.
    const names = [
      'a',
      'A',
      '.',
      '..',
      'a/b',
      'a\\b',
      'con',
      'nul.txt',
      'a.',
      'a ',
      ' a',
      '%61',
      '\0',
      '\n',
      '*?"<>|:',
    ];
    names.push(
      '\u00e9',
      'e\u0301',
      '😀',
      '\ud83d',
      '\ude00',
      'x'.repeat(200),
      'x'.repeat(199),
      '\uffff'.repeat(200),
      '__proto__',
    );
    for (const [i, name] of names.entries()) await store.put(name, snapshotBytes(i, 24 + i));
    expect(await listed(store)).toEqual(
      names.map((name, i) => [name, 24 + i, i]).sort((a, b) => (a[0] < b[0] ? -1 : 1)),
    );
    for (const [i, name] of names.entries()) expect(await store.get(name)).toEqual(snapshotBytes(i, 24 + i));
  });

  it('forgets what is deleted, and that only', async () => {
    const store = await openSnapshotStore(newStoreName());
    await store.put('a', snapshotBytes(1, 100));
    await store.put('b', snapshotBytes(2, 100));
    expect(await store.delete('a')).toBe(true);
    expect(await store.get('a')).toBeUndefined();
    expect(await listed(store)).toEqual([['b', 100, 2]]);
    expect(await store.delete('a')).toBe(false);
  });

  it('is empty after clear and takes snapshots again', async () => {
    const store = await openSnapshotStore(newStoreName());
    await store.put('a', snapshotBytes(1, 100));
    await store.put('b', snapshotBytes(2, 100));
    await store.clear();
    expect(await store.list()).toEqual([]);
    expect(await store.get('a')).toBeUndefined();
    await store.put('a', snapshotBytes(3, 100));
    expect(await listed(store)).toEqual([['a', 100, 3]]);
  });

  it('lets calls take effect in the order they are made, awaited or not', async () => {
    const store = await openSnapshotStore(newStoreName());
    const first = store.put('a', snapshotBytes(1, 2_000_000));
    const read = store.get('a');
    const second = store.put('a', snapshotBytes(2, 100));
    const deleted = store.delete('a');
    const third = store.put('b', snapshotBytes(3, 100));
    const list = listed(store);
    expect((await read)!.byteLength).toBe(2_000_000);
    expect(await deleted).toBe(true);
    expect(await list).toEqual([['b', 100, 3]]);
    await Promise.all([first, second, third]);
  });

  it('is found again under its name after closing, and by no other name', async () => {
    const name = newStoreName();
    const store = await openSnapshotStore(name);
    await store.put('a', snapshotBytes(1, 100, 8));
    await store.close();
    const other = await openSnapshotStore(newStoreName());
    expect(await other.list()).toEqual([]);
    const again = await openSnapshotStore(name);
    expect(await again.get('a')).toEqual(snapshotBytes(1, 100, 8));
  });

  it('shares its snapshots with another store of the same name', async () => {
    const name = newStoreName();
    const [one, two] = [await openSnapshotStore(name), await openSnapshotStore(name)];
    await one.put('a', snapshotBytes(1, 100));
    expect(await listed(two)).toEqual([['a', 100, 1]]);
    await two.put('a', snapshotBytes(2, 200));
    expect(await one.get('a')).toEqual(snapshotBytes(2, 200));
    await one.clear();
    expect(await two.get('a')).toBeUndefined();
  });

  it('holds one whole snapshot at every moment while two stores write the same name', async () => {
    const name = newStoreName();
    const [one, two, reader] = [
      await openSnapshotStore(name),
      await openSnapshotStore(name),
      await openSnapshotStore(name),
    ];
    await one.put('a', snapshotBytes(0, 1000, 0));
    const write = async (store: SnapshotStore, first: number): Promise<void> => {
      for (let i = first; i < first + 20; i++) await store.put('a', snapshotBytes(i, 1000 + 50_000 * (i % 7), i));
    };
    const progress = { done: false };
    const written = Promise.all([write(one, 1), write(two, 101)]).finally(() => (progress.done = true));
    while (!progress.done) {
      const bytes = (await reader.get('a'))!;
      const position = new DataView(bytes.buffer).getUint32(12, true);
      expect(bytes.byteLength).toBe(1000 + 50_000 * (position % 7));
      expect(bytes[24]).toBe(position);
      expect(isWhole(bytes)).toBe(true);
      expect((await reader.list()).length).toBe(1);
    }
    await written;
    expect([20, 120]).toContain((await reader.list())[0].position);
  });

  it('refuses names that are empty, too long or no strings, and says what is wrong', async () => {
    const store = await openSnapshotStore(newStoreName());
    const bytes = snapshotBytes(1, 100);
    const calls = [
      (name: string) => store.put(name, bytes),
      (name: string) => store.get(name),
      (name: string) => store.delete(name),
    ];
    for (const call of calls) {
      await expect(call('')).rejects.toMatchObject({ name: 'Needle3Error', code: 'range' });
      await expect(call('')).rejects.toThrow(/name must not be empty/);
      await expect(call('x'.repeat(201))).rejects.toMatchObject({ name: 'Needle3Error', code: 'range' });
      await expect(call('x'.repeat(201))).rejects.toThrow(/at most 200 .*got 201/);
      await expect(call(7 as never)).rejects.toMatchObject({ name: 'Needle3Error', code: 'type' });
      await expect(call(7 as never)).rejects.toThrow(/name must be a string; got 7/);
    }
    await expect(openSnapshotStore('')).rejects.toMatchObject({ code: 'range' });
    await expect(openSnapshotStore(null as never)).rejects.toMatchObject({ code: 'type' });
    expect(await store.list()).toEqual([]);
  });

  it('refuses bytes that are no whole snapshot and keeps the old one', async () => {
    const store = await openSnapshotStore(newStoreName());
    const good = snapshotBytes(1, 100, 3);
    await store.put('a', good);
    const otherMagic = snapshotBytes(1, 100);
    otherMagic[7] = 0x0d;
    const longer = new Uint8Array(101);
    longer.set(good);
    const huge = snapshotBytes(1, 100);
    huge[20] = 1;
    for (const bytes of [
      new Uint8Array(0),
      good.subarray(0, 8),
      good.subarray(0, 23),
      good.subarray(0, 99),
      longer,
      otherMagic,
      huge,
    ]) {
      await expect(store.put('a', bytes)).rejects.toMatchObject({ name: 'Needle3Error', code: 'snapshot' });
    }
    for (const bytes of [undefined, 'N3STATE\n', good.buffer, Array.from(good), new Int8Array(good.buffer)]) {
      await expect(store.put('a', bytes as never)).rejects.toMatchObject({ name: 'Needle3Error', code: 'type' });
    }
    expect(await store.get('a')).toEqual(good);
  });

  it('finishes the calls made before close and refuses those after', async () => {
    const name = newStoreName();
    const store = await openSnapshotStore(name);
    const put = store.put('a', snapshotBytes(1, 1_000_000));
    const closed = store.close();
    for (const call of [
      store.put('b', snapshotBytes(2, 100)),
      store.get('a'),
      store.delete('a'),
      store.list(),
      store.clear(),
    ]) {
      await expect(call).rejects.toMatchObject({ name: 'Needle3Error', code: 'disposed' });
    }
    await closed;
    const again = await openSnapshotStore(name);
    expect(await listed(again)).toEqual([['a', 1_000_000, 1]]);
    await put;
    await store.close();
  });
});
