/** Row arithmetic of the synthetic model. Sums run in float64, results are stored in float32. */

const EPSILON = 1e-6;

/** `out[r] = weights · x[r]` for `n` rows; weights (outDim, inDim), x (n, inDim), out (n, outDim), all row-major. */
export function linear(weights: Float32Array, x: Float32Array, out: Float32Array, n: number): void {
  const inDim = x.length / n;
  const outDim = out.length / n;
  for (let row = 0; row < n; row++) {
    const xBase = row * inDim;
    for (let o = 0; o < outDim; o++) {
      const wBase = o * inDim;
      let sum = 0;
      for (let i = 0; i < inDim; i++) sum += weights[wBase + i] * x[xBase + i];
      out[row * outDim + o] = sum;
    }
  }
}

/** Zero-centred RMSNorm of every group of `gain.length` elements: x / rms(x) · (1 + gain). `out` may be `x`. */
export function zcRmsNorm(x: Float32Array, gain: Float32Array, out: Float32Array): void {
  const width = gain.length;
  for (let base = 0; base < x.length; base += width) {
    let squares = 0;
    for (let i = 0; i < width; i++) squares += x[base + i] * x[base + i];
    const scale = 1 / Math.sqrt(squares / width + EPSILON);
    for (let i = 0; i < width; i++) out[base + i] = x[base + i] * scale * (1 + gain[i]);
  }
}

/** Cosines and sines of RoPE for `n` positions from `position` on, each (n, ⌊headDim/2⌋). */
export function ropeTable(
  position: number,
  n: number,
  headDim: number,
  theta: number,
): { cos: Float64Array; sin: Float64Array } {
  const half = Math.floor(headDim / 2);
  const cos = new Float64Array(n * half);
  const sin = new Float64Array(n * half);
  for (let row = 0; row < n; row++) {
    for (let i = 0; i < half; i++) {
      const angle = (position + row) * theta ** (-i / half);
      cos[row * half + i] = Math.cos(angle);
      sin[row * half + i] = Math.sin(angle);
    }
  }
  return { cos, sin };
}

/** Half-split RoPE in place: in each head, element i turns with element i + ⌊headDim/2⌋. x is (n, heads, headDim). */
export function rotate(
  x: Float32Array,
  n: number,
  headDim: number,
  { cos, sin }: { cos: Float64Array; sin: Float64Array },
): void {
  const half = Math.floor(headDim / 2);
  const rowDim = x.length / n;
  for (let row = 0; row < n; row++) {
    for (let base = row * rowDim; base < (row + 1) * rowDim; base += headDim) {
      for (let i = 0; i < half; i++) {
        const c = cos[row * half + i];
        const s = sin[row * half + i];
        const first = x[base + i];
        const second = x[base + half + i];
        x[base + i] = first * c - second * s;
        x[base + half + i] = second * c + first * s;
      }
    }
  }
}

export function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x));
}

export function silu(x: number): number {
  return x * sigmoid(x);
}
