// @ts-check
// A whole step of 20 layers through the package: the calls that class Step of bench/works/state_work.cpp makes in
// WebAssembly, with the same inputs.
import { now } from './clock.mjs';
import { attnOutDim, averagingTaps, kDim, qDim, randomFloats, vDim } from './inputs.mjs';

const dModel = 768;

/**
 * @param {typeof import('../../web/src/api.js') & { loadNeedle3: typeof import('../../web/src/node.js').loadNeedle3 }} api
 * @param {'f32' | 'int8'} precision
 * @param {number} positions
 * @param {'wasm' | 'typed'} arrays  inputs that lie in wasm memory, or ordinary ones that are copied in and out
 * @returns {Promise<import('./wasm.mjs').PreparedWork>}
 */
export async function openPackageStep({ NEEDLE3, loadNeedle3 }, precision, positions, arrays) {
  const needle3 = await loadNeedle3();
  const config = { ...NEEDLE3, maxSeqLen: positions };
  const state = needle3.createDecodeState(config, { precision, capacityHint: positions });

  /** @param {Float32Array} values */
  const place = (values) => {
    if (arrays === 'typed') return values;
    const array = needle3.allocate(values.length);
    array.view.set(values);
    return array;
  };
  const random = randomFloats(2);
  const layers = Array.from({ length: config.numLayers }, (_, layer) => ({
    qTaps: place(averagingTaps(3, qDim, random)),
    kTaps: place(averagingTaps(3, kDim, random)),
    vTaps: place(averagingTaps(3, vDim, random)),
    query: place(random(qDim)),
    keys: place(random(kDim)),
    values: place(random(vDim)),
    engram: config.engram.sites.includes(layer)
      ? { taps: place(averagingTaps(4, dModel, random)), row: place(random(dModel)) }
      : undefined,
  }));
  const out = place(new Float32Array(attnOutDim));

  const cache = randomFloats(1);
  const [keys, values] = [cache(positions * kDim), cache(positions * vDim)];
  for (let layer = 0; layer < config.numLayers; ++layer) state.writeKv(layer, keys, values, 0);
  state.setPosition(positions);

  const step = () => {
    state.pushToken(state.position % 8192);
    state.engramIndices();
    let site = 0;
    for (const [layer, l] of layers.entries()) {
      if (l.engram) state.engramConv(site++, l.engram.taps, l.engram.row);
      state.conv(layer, 'q', l.qTaps, l.query);
      state.conv(layer, 'k', l.kTaps, l.keys);
      state.conv(layer, 'v', l.vTaps, l.values);
      state.appendAndAttend(layer, l.query, l.keys, l.values, out);
    }
    state.advance();
  };
  step();
  return {
    run: (iterations) => {
      const start = now();
      for (let i = 0; i < iterations; ++i) step();
      return now() - start;
    },
    output: out instanceof Float32Array ? out.slice() : out.view.slice(),
    close: () => state.dispose(),
  };
}
