// What every consumer does with the package, in numbers that can be told beforehand.

const HEADS = 2;
const KEY_DIM = 4;
const VALUE_DIM = 8;
const VOCAB = 16;

/** One global layer without convolutions and Engram. */
const config = {
  vocabSize: VOCAB,
  outVocab: 0,
  dModel: HEADS * VALUE_DIM,
  numHeads: HEADS,
  numKvHeads: 1,
  numLayers: 1,
  qkHeadDim: KEY_DIM,
  vHeadDim: VALUE_DIM,
  maxSeqLen: 64,
  hadaN: 16,
  mhcLanes: 1,
  ropeTheta: 10000,
  slidingWindow: 0,
  globalLayers: [],
  qkvConvTaps: 0,
  engram: { orders: [], heads: 1, slots: 1, subDim: 1, sites: [], convTaps: 0, convDilation: 1, seedHeads: 0 },
};

/**
 * A model that attends to every token alike, since its keys are zero, so that attention gives the mean of the tokens.
 * After 1, 2, …, n that is (n + 1) / 2, and twice the mean is the next token.
 */
const model = {
  forward(state, tokens) {
    const n = tokens.length;
    const queries = new Float32Array(n * HEADS * KEY_DIM).fill(1);
    const keys = new Float32Array(n * KEY_DIM);
    const values = Float32Array.from({ length: n * VALUE_DIM }, (_, i) => tokens[Math.floor(i / VALUE_DIM)]);
    const out = new Float32Array(n * HEADS * VALUE_DIM);
    for (const token of tokens) state.pushToken(token);
    state.appendAndAttend(0, queries, keys, values, out);
    state.advance(n);
    const mean = out.at(-1);
    return Float32Array.from({ length: VOCAB }, (_, token) => -Math.abs(token - 2 * mean));
  },
};

/**
 * @param {typeof import('needle3-wasm')} needle3Wasm
 * @param {typeof import('needle3-wasm/store')} store
 * @param {string} storeName a name or, in Node, a folder
 * @param {import('needle3-wasm').LoadOptions} [options]
 */
export async function session({ decode, loadNeedle3 }, { openSnapshotStore }, storeName, options) {
  const needle3 = await loadNeedle3(options);
  const state = needle3.createDecodeState(config);

  // Three rows at once: the last query sees the mean of 1, 2 and 6.
  const out = new Float32Array(3 * HEADS * VALUE_DIM);
  const values = Float32Array.from({ length: 3 * VALUE_DIM }, (_, i) => [1, 2, 6][Math.floor(i / VALUE_DIM)]);
  state.appendAndAttend(0, new Float32Array(3 * HEADS * KEY_DIM), new Float32Array(3 * KEY_DIM), values, out);
  state.advance(3);
  const attended = out.at(-1).toFixed(5);
  state.reset();

  const stream = decode(model, state, [1, 2], { maxNewTokens: 6 });
  const tokens = [];
  for await (const token of stream) tokens.push(token);
  const { stopReason } = await stream.result;

  const snapshots = await openSnapshotStore(storeName);
  await snapshots.put('session', state.save());
  const restored = needle3.restoreDecodeState(await snapshots.get('session'));
  await snapshots.close();
  const { position } = restored;
  restored.dispose();
  state.dispose();
  return { attended, tokens, stopReason, position };
}
