// One decode step of attention in ONNX Runtime Web, in the forms that its users have. Each gives a function that runs
// one step and resolves with the output in this project's layout.
import * as ort from 'onnxruntime-web';

import { geometry, kDim, vDim } from '../lib/inputs.mjs';
import { dataType, encodeModel } from './model-proto.mjs';

const { heads, kvHeads, qkHeadDim, vHeadDim } = geometry;
const group = heads / kvHeads;
const { float, int8, int32, int64 } = dataType;

ort.env.wasm.numThreads = 1;

/**
 * @typedef {{ keys: Float32Array, values: Float32Array, query: Float32Array }} Inputs
 * @typedef {{ step: () => Promise<Float32Array>, close: () => Promise<void> }} Peer
 */

/** (positions, kvHeads, width) as (kvHeads, positions, padded), zeros behind each row. */
function perHead(/** @type {Float32Array} */ rows, /** @type {number} */ width, padded = width) {
  const positions = rows.length / (kvHeads * width);
  const out = new Float32Array(kvHeads * positions * padded);
  for (let p = 0; p < positions; ++p) {
    for (let h = 0; h < kvHeads; ++h) {
      const from = (p * kvHeads + h) * width;
      out.set(rows.subarray(from, from + width), (h * positions + p) * padded);
    }
  }
  return out;
}

/** (rows, width) with zeros behind each row. @param {Float32Array} rows @param {number} width @param {number} padded */
function padRows(rows, width, padded) {
  const out = new Float32Array((rows.length / width) * padded);
  for (let r = 0; r * width < rows.length; ++r) out.set(rows.subarray(r * width, (r + 1) * width), r * padded);
  return out;
}

/**
 * @param {Parameters<typeof encodeModel>[0]} graph
 * @param {() => Record<string, ort.Tensor>} feeds  made afresh for every step: what JavaScript holds
 * @returns {Promise<Peer>}
 */
async function open(graph, feeds) {
  const session = await ort.InferenceSession.create(encodeModel(graph), { executionProviders: ['wasm'] });
  return {
    step: async () => /** @type {Float32Array} */ ((await session.run(feeds())).y.data),
    close: () => session.release(),
  };
}

/** `Attention`-23 by itself: keys and values are constants, nothing but the query goes in. @param {Inputs} inputs */
export function attentionKernel({ keys, values, query }) {
  const positions = keys.length / kDim;
  return open(
    {
      nodes: [{ op: 'Attention', inputs: ['q', 'k', 'v'], outputs: ['y'] }],
      inputs: [{ name: 'q', type: float, dims: [1, heads, 1, qkHeadDim] }],
      outputs: [{ name: 'y', type: float, dims: [1, heads, 1, vHeadDim] }],
      initializers: [
        { name: 'k', type: float, dims: [1, kvHeads, positions, qkHeadDim], data: perHead(keys, qkHeadDim) },
        { name: 'v', type: float, dims: [1, kvHeads, positions, vHeadDim], data: perHead(values, vHeadDim) },
      ],
    },
    () => ({ q: new ort.Tensor('float32', query, [1, heads, 1, qkHeadDim]) }),
  );
}

/**
 * MatMul, Softmax, MatMul with constant keys and values, which the runtime packs for its matrix kernel beforehand. A
 * bound and no decode step: what is packed cannot be appended to.
 * @param {Inputs} inputs
 */
export function prepackedBound({ keys, values, query }) {
  const positions = keys.length / kDim;
  const headKeys = perHead(keys, qkHeadDim);
  const headValues = perHead(values, vHeadDim);
  const perKvHead = [...Array(kvHeads).keys()];
  return open(
    {
      nodes: [
        { op: 'Mul', inputs: ['q', 'scale'], outputs: ['scaled'] },
        {
          op: 'Split',
          inputs: ['scaled', 'sizes'],
          outputs: perKvHead.map((h) => `q${h}`),
          attributes: { axis: { int: 0 } },
        },
        ...perKvHead.flatMap((h) => [
          { op: 'MatMul', inputs: [`q${h}`, `k${h}`], outputs: [`s${h}`] },
          { op: 'Softmax', inputs: [`s${h}`], outputs: [`w${h}`], attributes: { axis: { int: -1 } } },
          { op: 'MatMul', inputs: [`w${h}`, `v${h}`], outputs: [`y${h}`] },
        ]),
        { op: 'Concat', inputs: perKvHead.map((h) => `y${h}`), outputs: ['y'], attributes: { axis: { int: 0 } } },
      ],
      inputs: [{ name: 'q', type: float, dims: [heads, qkHeadDim] }],
      outputs: [{ name: 'y', type: float, dims: [heads, vHeadDim] }],
      initializers: [
        { name: 'scale', type: float, dims: [1], data: Float32Array.of(1 / Math.sqrt(qkHeadDim)) },
        { name: 'sizes', type: int64, dims: [kvHeads], data: new BigInt64Array(kvHeads).fill(BigInt(group)) },
        ...perKvHead.flatMap((h) => {
          const k = headKeys.subarray(h * positions * qkHeadDim, (h + 1) * positions * qkHeadDim);
          const transposed = new Float32Array(k.length);
          for (let p = 0; p < positions; ++p) {
            for (let d = 0; d < qkHeadDim; ++d) transposed[d * positions + p] = k[p * qkHeadDim + d];
          }
          const v = headValues.subarray(h * positions * vHeadDim, (h + 1) * positions * vHeadDim);
          return [
            { name: `k${h}`, type: float, dims: [qkHeadDim, positions], data: transposed },
            { name: `v${h}`, type: float, dims: [positions, vHeadDim], data: v },
          ];
        }),
      ],
    },
    () => ({ q: new ort.Tensor('float32', query, [heads, qkHeadDim]) }),
  );
}

/** Splits off the newest position: what a step appends. @param {Inputs} inputs */
function split({ keys, values }) {
  return {
    pastKeys: keys.subarray(0, keys.length - kDim),
    pastValues: values.subarray(0, values.length - vDim),
    newKeys: keys.subarray(keys.length - kDim),
    newValues: values.subarray(values.length - vDim),
  };
}

/** `Attention`-23 from past to present, as exported models have it. @param {Inputs} inputs */
export function attentionPastToPresent(inputs) {
  const positions = inputs.keys.length / kDim;
  const { pastKeys, pastValues, newKeys, newValues } = split(inputs);
  const [pastK, pastV] = [perHead(pastKeys, qkHeadDim), perHead(pastValues, vHeadDim)];
  const [newK, newV] = [perHead(newKeys, qkHeadDim), perHead(newValues, vHeadDim)];
  /** @param {number} n @param {number} width */
  const dims = (n, width) => [1, kvHeads, n, width];
  return open(
    {
      nodes: [
        {
          op: 'Attention',
          inputs: ['q', 'k', 'v', '', 'pastK', 'pastV'],
          outputs: ['y', 'presentK', 'presentV'],
        },
      ],
      inputs: [
        { name: 'q', type: float, dims: [1, heads, 1, qkHeadDim] },
        { name: 'k', type: float, dims: dims(1, qkHeadDim) },
        { name: 'v', type: float, dims: dims(1, vHeadDim) },
        { name: 'pastK', type: float, dims: dims(positions - 1, qkHeadDim) },
        { name: 'pastV', type: float, dims: dims(positions - 1, vHeadDim) },
      ],
      outputs: [
        { name: 'y', type: float, dims: [1, heads, 1, vHeadDim] },
        { name: 'presentK', type: float, dims: dims(positions, qkHeadDim) },
        { name: 'presentV', type: float, dims: dims(positions, vHeadDim) },
      ],
    },
    () => ({
      q: new ort.Tensor('float32', inputs.query, [1, heads, 1, qkHeadDim]),
      k: new ort.Tensor('float32', newK, dims(1, qkHeadDim)),
      v: new ort.Tensor('float32', newV, dims(1, vHeadDim)),
      pastK: new ort.Tensor('float32', pastK, dims(positions - 1, qkHeadDim)),
      pastV: new ort.Tensor('float32', pastV, dims(positions - 1, vHeadDim)),
    }),
  );
}

/**
 * com.microsoft `GroupQueryAttention`, which wants query, key and value heads of one width: 48 are padded to 64. With
 * `int8` its cache is quantised by one scale a tensor, the only form beside one a channel.
 * @param {Inputs} inputs
 * @param {{ quantized: boolean }} options
 */
export function groupQueryAttention(inputs, { quantized }) {
  const width = vHeadDim;
  const positions = inputs.keys.length / kDim;
  const past = positions - 1;
  const { pastKeys, pastValues, newKeys, newValues } = split(inputs);
  const pastK = perHead(pastKeys, qkHeadDim, width);
  const pastV = perHead(pastValues, vHeadDim);
  const query = padRows(inputs.query, qkHeadDim, width);
  const newK = padRows(newKeys, qkHeadDim, width);
  const scaleOf = (/** @type {Float32Array} */ x) => x.reduce((m, value) => Math.max(m, Math.abs(value)), 0) / 127;
  const [kScale, vScale] = [scaleOf(inputs.keys), scaleOf(inputs.values)];
  const cacheType = quantized ? int8 : float;
  const cacheDims = [1, kvHeads, past, width];
  const cacheTensor = (/** @type {Float32Array} */ x, /** @type {number} */ scale) => {
    if (!quantized) return () => new ort.Tensor('float32', x, cacheDims);
    const q = Int8Array.from(x, (value) => Math.round(value / scale));
    return () => new ort.Tensor('int8', q, cacheDims);
  };
  const [pastKTensor, pastVTensor] = [cacheTensor(pastK, kScale), cacheTensor(pastV, vScale)];
  const presentDims = [1, kvHeads, positions, width];
  return open(
    {
      nodes: [
        {
          op: 'GroupQueryAttention',
          domain: 'com.microsoft',
          inputs: [
            ...['q', 'k', 'v', 'pastK', 'pastV', 'seqlens', 'total'],
            ...(quantized ? ['', '', '', '', '', 'kScale', 'vScale'] : []),
          ],
          outputs: ['y', 'presentK', 'presentV'],
          attributes: {
            num_heads: { int: heads },
            kv_num_heads: { int: kvHeads },
            scale: { float: 1 / Math.sqrt(qkHeadDim) },
            ...(quantized && {
              k_quant_type: { string: 'PER_TENSOR' },
              v_quant_type: { string: 'PER_TENSOR' },
              kv_cache_bit_width: { int: 8 },
            }),
          },
        },
      ],
      inputs: [
        { name: 'q', type: float, dims: [1, 1, heads * width] },
        { name: 'k', type: float, dims: [1, 1, kvHeads * width] },
        { name: 'v', type: float, dims: [1, 1, kvHeads * width] },
        { name: 'pastK', type: cacheType, dims: cacheDims },
        { name: 'pastV', type: cacheType, dims: cacheDims },
      ],
      outputs: [
        { name: 'y', type: float, dims: [1, 1, heads * width] },
        { name: 'presentK', type: cacheType, dims: presentDims },
        { name: 'presentV', type: cacheType, dims: presentDims },
      ],
      initializers: [
        { name: 'seqlens', type: int32, dims: [1, 1], data: Int32Array.of(past) },
        { name: 'total', type: int32, dims: [], data: Int32Array.of(positions) },
        ...(quantized
          ? [
              { name: 'kScale', type: float, dims: [1], data: Float32Array.of(kScale) },
              { name: 'vScale', type: float, dims: [1], data: Float32Array.of(vScale) },
            ]
          : []),
      ],
    },
    () => ({
      q: new ort.Tensor('float32', query, [1, 1, heads * width]),
      k: new ort.Tensor('float32', newK, [1, 1, kvHeads * width]),
      v: new ort.Tensor('float32', newValues, [1, 1, kvHeads * width]),
      pastK: pastKTensor(),
      pastV: pastVTensor(),
    }),
  );
}
