import { decode, loadNeedle3, NEEDLE3 } from 'needle3-wasm';
import { openSnapshotStore } from 'needle3-wasm/store';

export { loadNeedle3 };

/** What a server sends before any browser has loaded the module. */
export function render() {
  const ready = [decode, loadNeedle3, openSnapshotStore].every((part) => typeof part === 'function');
  return `<p>${NEEDLE3.numLayers} layers, ${ready ? 'ready' : 'not ready'}</p>`;
}
