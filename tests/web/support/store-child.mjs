/**
 * A process that writes to a store: node store-child.mjs <folder> <name> <rounds> <freeze> <snapshot file>...
 *
 * Puts the files' contents under the name in turn, `rounds` times, and prints a line after each. With `freeze` k > 0,
 * the k-th file operation of a put (its two writes, then the flush) does half its work, prints "frozen" and sleeps for
 * weeks.
 */
import { open, readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { openSnapshotStore } from 'needle3-wasm/store';

const [folder, name, rounds, freeze, ...files] = process.argv.slice(2);
const snapshots = await Promise.all(files.map(async (file) => new Uint8Array(await readFile(file))));

const anyFile = await open(files[0], 'r');
const prototype = Object.getPrototypeOf(anyFile);
const { writeFile } = prototype;
await anyFile.close();
let operations = 0;
const freezeHere = async () => {
  console.log('frozen');
  await sleep(2 ** 31 - 1);
};
prototype.writeFile = async function (bytes) {
  if (++operations !== Number(freeze)) return writeFile.call(this, bytes);
  await writeFile.call(this, bytes.subarray(0, bytes.length >> 1));
  return freezeHere();
};
const { sync } = prototype;
prototype.sync = async function () {
  return ++operations === Number(freeze) ? freezeHere() : sync.call(this);
};

const store = await openSnapshotStore(folder);
for (let i = 0; i < Number(rounds); i++) {
  await store.put(name, snapshots[i % snapshots.length]);
  console.log(`put ${i}`);
}
