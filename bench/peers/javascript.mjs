// The same step in plain JavaScript on typed arrays, as one writes it by hand.
import { attnOutDim, geometry, kDim, vDim } from '../lib/inputs.mjs';

const { heads, kvHeads, qkHeadDim, vHeadDim } = geometry;

/** @param {Float32Array} scores */
function softmax(scores) {
  let maximum = -Infinity;
  for (let i = 0; i < scores.length; ++i) maximum = Math.max(maximum, scores[i]);
  let sum = 0;
  for (let i = 0; i < scores.length; ++i) {
    scores[i] = Math.exp(scores[i] - maximum);
    sum += scores[i];
  }
  for (let i = 0; i < scores.length; ++i) scores[i] /= sum;
}

/**
 * @param {{ keys: Float32Array, values: Float32Array, query: Float32Array }} inputs
 * @returns {() => Float32Array} one step; the result is overwritten by the next
 */
export function javascriptAttend({ keys, values, query }) {
  const positions = keys.length / kDim;
  const scores = new Float32Array(positions);
  const out = new Float32Array(attnOutDim);
  return () => {
    for (let head = 0; head < heads; ++head) {
      const kvHead = Math.floor(head / (heads / kvHeads));
      const q = head * qkHeadDim;
      for (let p = 0; p < positions; ++p) {
        const k = p * kDim + kvHead * qkHeadDim;
        let dot = 0;
        for (let d = 0; d < qkHeadDim; ++d) dot += query[q + d] * keys[k + d];
        scores[p] = dot / Math.sqrt(qkHeadDim);
      }
      softmax(scores);
      const o = head * vHeadDim;
      out.fill(0, o, o + vHeadDim);
      for (let p = 0; p < positions; ++p) {
        const weight = scores[p];
        const v = p * vDim + kvHead * vHeadDim;
        for (let d = 0; d < vHeadDim; ++d) out[o + d] += weight * values[v + d];
      }
    }
    return out;
  };
}

/** Symmetric int8 per row of `rowLength`. @param {Float32Array} x @param {number} rowLength */
function quantizeRows(x, rowLength) {
  const q = new Int8Array(x.length);
  const scales = new Float32Array(x.length / rowLength);
  for (let row = 0; row < scales.length; ++row) {
    const part = x.subarray(row * rowLength, (row + 1) * rowLength);
    const scale = part.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0) / 127 || 1;
    scales[row] = scale;
    for (let i = 0; i < rowLength; ++i) q[row * rowLength + i] = Math.round(part[i] / scale);
  }
  return { q, scales };
}

/**
 * The same over int8 rows, each element converted where it is used.
 * @param {{ keys: Float32Array, values: Float32Array, query: Float32Array }} inputs
 * @returns {() => Float32Array}
 */
export function javascriptAttendInt8({ keys, values, query }) {
  const positions = keys.length / kDim;
  const { q: int8Keys, scales: keyScales } = quantizeRows(keys, qkHeadDim);
  const { q: int8Values, scales: valueScales } = quantizeRows(values, vHeadDim);
  const scores = new Float32Array(positions);
  const out = new Float32Array(attnOutDim);
  return () => {
    for (let head = 0; head < heads; ++head) {
      const kvHead = Math.floor(head / (heads / kvHeads));
      const q = head * qkHeadDim;
      for (let p = 0; p < positions; ++p) {
        const k = p * kDim + kvHead * qkHeadDim;
        let dot = 0;
        for (let d = 0; d < qkHeadDim; ++d) dot += query[q + d] * int8Keys[k + d];
        scores[p] = (dot * keyScales[p * kvHeads + kvHead]) / Math.sqrt(qkHeadDim);
      }
      softmax(scores);
      const o = head * vHeadDim;
      out.fill(0, o, o + vHeadDim);
      for (let p = 0; p < positions; ++p) {
        const weight = scores[p] * valueScales[p * kvHeads + kvHead];
        const v = p * vDim + kvHead * vHeadDim;
        for (let d = 0; d < vHeadDim; ++d) out[o + d] += weight * int8Values[v + d];
      }
    }
    return out;
  };
}
