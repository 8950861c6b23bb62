/** A module Worker that puts the snapshots it is sent in turn, posts what the store lists after each put, and ends. */
import { openSnapshotStore } from 'needle3-wasm/store';

interface Job {
  store: string;
  name: string;
  snapshots: Uint8Array[];
  rounds: number;
}

async function run({ store: storeName, name, snapshots, rounds }: Job): Promise<void> {
  const store = await openSnapshotStore(storeName);
  for (let i = 0; i < rounds; i++) {
    await store.put(name, snapshots[i % snapshots.length]);
    postMessage(await store.list());
  }
  await store.close();
  close();
}

addEventListener('message', (event: MessageEvent<Job>) => void run(event.data));
