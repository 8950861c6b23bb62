// @ts-check
// The same step as a user of this package takes it: typed arrays in and out, append, attend, commit.
import { attnOutDim, geometry, kDim, vDim } from '../lib/inputs.mjs';
import { loadPackage } from '../lib/package.mjs';

/**
 * @param {{ keys: Float32Array, values: Float32Array, query: Float32Array }} inputs
 * @param {'f32' | 'int8'} precision
 * @returns {Promise<() => Float32Array>}
 */
export async function packageStep({ keys, values, query }, precision) {
  const { NEEDLE3, loadNeedle3 } = await loadPackage();
  const needle3 = await loadNeedle3();
  const positions = keys.length / kDim;
  const last = positions - 1;
  // A context of so many positions: the ring then stays full, and each step costs what the last one did.
  const config = { ...NEEDLE3, ...oneLayer, maxSeqLen: positions };
  const state = needle3.createDecodeState(config, { precision, capacityHint: positions });
  state.writeKv(0, keys.subarray(0, last * kDim), values.subarray(0, last * vDim), 0);
  state.setPosition(last);
  const newKeys = keys.slice(last * kDim);
  const newValues = values.slice(last * vDim);
  const out = new Float32Array(attnOutDim);
  return () => {
    state.appendAndAttend(0, query, newKeys, newValues, out);
    state.advance();
    return out;
  };
}

const oneLayer = {
  numLayers: 1,
  numHeads: geometry.heads,
  globalLayers: [0],
  engram: { orders: [], heads: 1, slots: 1, subDim: 1, sites: [], convTaps: 0, convDilation: 1, seedHeads: 0 },
};
