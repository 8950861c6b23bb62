// A program for the web: what the DOM has fits the package's structural types, and `using` works.
import { decode, loadNeedle3, type DecodeModel, type DecodeOptions, type LoadOptions } from 'needle3-wasm';
import { openSnapshotStore } from 'needle3-wasm/store';

export const sources: LoadOptions[] = [
  { wasm: '/needle3.wasm' },
  { wasm: new URL('./needle3.wasm', import.meta.url) },
  { wasm: fetch('/needle3.wasm') },
  { wasm: new Response() },
  { wasm: new Uint8Array(8) },
  { wasm: new ArrayBuffer(8) },
  { wasm: new DataView(new ArrayBuffer(8)) },
  { wasm: WebAssembly.compileStreaming(fetch('/needle3.wasm')) as unknown as WebAssembly.Module },
];
// @ts-expect-error a number is no source
export const wrong: LoadOptions = { wasm: 5 };

export const bufferSource = (wasm: ArrayBuffer | ArrayBufferView<ArrayBuffer>): LoadOptions => ({ wasm });

export async function use(model: DecodeModel, signal: AbortSignal): Promise<void> {
  const needle = await loadNeedle3({ wasm: await fetch('/needle3.wasm') });
  const { NEEDLE3 } = await import('needle3-wasm');
  using state = needle.createDecodeState(NEEDLE3);
  using weights = needle.allocate(64);
  weights.view.set(new Float32Array(64));
  const options: DecodeOptions = { signal };
  for await (const token of decode(model, state, [1], options)) document.title = String(token);

  const bytes = state.save();
  await navigator.locks.request('save', async () => {
    const store = await openSnapshotStore('app');
    await store.put('prompt', bytes);
    const back: Uint8Array | undefined = await store.get('prompt');
    if (back !== undefined) needle.restoreDecodeState(back).dispose();
    for (const { name, size, date, position } of await store.list())
      void [name.length, size + position, date.getTime()];
    await store.delete('prompt');
    await store.clear();
    await store.close();
  });
  // A view of linear memory goes wherever the DOM takes arrays of its kind.
  const kv = state.kv(0);
  new Blob([kv.keys]);
  postMessage(kv.keys.slice());
}
