import type { DecodeState, Needle3 } from 'needle3-wasm';
import type { SyntheticModel } from './model.js';
import { compareRows, WholeSequence, type Breathe } from './reference.js';

export interface CheckResult {
  readonly positions: number;
  readonly layers: number;
  /** How the recomputation ran: free from the first layer on, or each layer from the rows that the state's had. */
  readonly method: 'end-to-end' | 'layer-by-layer';
  /** Largest difference of any element of any layer's output rows, and the largest such element. */
  readonly difference: number;
  readonly magnitude: number;
  /** What `difference / magnitude` must stay below to be rounding. */
  readonly limit: number;
  /** A new state, fed the sequence in other batches from a hint of 1, gives the next token's logits bit for bit. */
  readonly sameBits: boolean;
}

const REPLAY_BATCH = 48;

/**
 * Checks `state`, which holds `tokens`, in two ways: against a recomputation of the whole sequence without a cache, and
 * against a second state fed in another way. `next` is fed to copies of both states to compare what they do next.
 *
 * In int8 the recomputation takes each layer's input from the second state: a difference in the last bit may carry a
 * later key over the edge between two integers, which is right in both, and would hide an error behind it.
 */
export async function checkState(
  needle3: Needle3,
  model: SyntheticModel,
  state: DecodeState,
  tokens: readonly number[],
  next: number,
  breathe: Breathe,
  onLayer: (done: number, total: number) => void = () => undefined,
): Promise<CheckResult> {
  const { config, precision, quantizeQuery } = state;
  const { dModel, numLayers } = config;
  const n = tokens.length;
  const trace = Array.from({ length: numLayers + 1 }, () => new Float32Array(n * dModel));
  const replay = needle3.createDecodeState(config, { precision, quantizeQuery, capacityHint: 1 });
  let sameBits: boolean;
  try {
    model.observer = (layer, residual, position) => trace[layer].set(residual, position * dModel);
    try {
      for (let from = 0; from < n; from += REPLAY_BATCH) {
        model.forward(replay, Uint32Array.from(tokens.slice(from, from + REPLAY_BATCH)));
      }
    } finally {
      model.observer = undefined;
    }
    const continued = state.fork();
    try {
      const step = Uint32Array.of(next);
      sameBits = bitsEqual(model.forward(continued, step), model.forward(replay, step));
    } finally {
      continued.dispose();
    }
  } finally {
    replay.dispose();
  }

  const endToEnd = precision === 'f32';
  const sequence = new WholeSequence(model.weights, { precision, quantizeQuery }, tokens);
  let difference = 0;
  let magnitude = 0;
  for (let layer = 0; layer < numLayers; layer++) {
    await breathe();
    if (!endToEnd) sequence.rows.residual.set(trace[layer]);
    await sequence.layer(layer, breathe);
    const compared = compareRows(sequence.rows.residual, trace[layer + 1]);
    difference = Math.max(difference, compared.difference);
    magnitude = Math.max(magnitude, compared.magnitude);
    onLayer(layer + 1, numLayers);
  }
  return {
    positions: n,
    layers: numLayers,
    method: endToEnd ? 'end-to-end' : 'layer-by-layer',
    difference,
    magnitude,
    limit: 1e-5,
    sameBits,
  };
}

export function isRounding({ difference, magnitude, limit, sameBits }: CheckResult): boolean {
  return sameBits && difference <= limit * magnitude;
}

function bitsEqual(a: Float32Array, b: Float32Array): boolean {
  const left = new Uint32Array(a.buffer, a.byteOffset, a.length);
  const right = new Uint32Array(b.buffer, b.byteOffset, b.length);
  return left.length === right.length && left.every((bits, index) => bits === right[index]);
}
