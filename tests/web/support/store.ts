import { openSnapshotStore } from 'needle3-wasm/store';
import type { SnapshotStore } from 'needle3-wasm/store';

/**
 * Bytes that are a snapshot as far as a store looks: the header's magic, version 1, position and length, then `fill`.
 * `byteLength` is the length in all, at least 24.
 */
export function snapshotBytes(position: number, byteLength: number, fill = 0): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(byteLength).fill(fill);
  const view = new DataView(bytes.buffer);
  bytes.set([0x4e, 0x33, 0x53, 0x54, 0x41, 0x54, 0x45, 0x0a]);
  view.setUint32(8, 1, true);
  view.setUint32(12, position, true);
  view.setUint32(16, byteLength, true);
  view.setUint32(20, 0, true);
  return bytes;
}

/** Pages and Workers have a location. */
const inNode = !('location' in globalThis);
const usedNames: string[] = [];

/** A name for a store that no other test has: in Node the path of a folder that does not exist yet. */
export function newStoreName(): string {
  const name = `needle3-store-${crypto.randomUUID()}`;
  usedNames.push(inNode ? `${process.env.TMPDIR ?? '/tmp'}/${name}` : name);
  return usedNames.at(-1)!;
}

/** Removes what the stores named by newStoreName since the last call hold; for afterEach. */
export async function removeStores(): Promise<void> {
  for (const name of usedNames.splice(0)) {
    if (inNode) {
      const fileSystem = 'node:fs/promises';
      const { rm } = (await import(/* @vite-ignore */ fileSystem)) as typeof import('node:fs/promises');
      await rm(name, { recursive: true, force: true });
    } else {
      const store = await openSnapshotStore(name);
      await store.clear();
      await store.close();
    }
  }
}

/** Whether all bytes after the header are the same, as those of snapshotBytes. */
export function isWhole(bytes: Uint8Array): boolean {
  return bytes.subarray(24).every((byte) => byte === bytes[24]);
}

/** Name, size and position of what a store lists. */
export async function listed(store: SnapshotStore): Promise<[string, number, number][]> {
  return (await store.list()).map(({ name, size, position }) => [name, size, position]);
}
