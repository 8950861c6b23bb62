import fc from 'fast-check';
import type { DecodeStateOptions, EngramConfig, ModelConfig } from 'needle3-wasm';

import { HYBRID } from './geometry.js';

/**
 * The seed of every property. A run is the same in every engine; what fast-check prints when one fails (seed and path)
 * goes into `fc.assert`'s parameters to get the case again.
 */
export const SEED = 0x6e33;

/** Some of 0 … count − 1, ascending. */
function ascending(count: number): fc.Arbitrary<number[]> {
  return fc
    .array(fc.boolean(), { minLength: count, maxLength: count })
    .map((taken) => [...taken.keys()].filter((i) => taken[i]));
}

function engram(numLayers: number): fc.Arbitrary<EngramConfig> {
  return fc.record({
    orders: fc.constantFrom([], [1], [2], [2, 3], [3, 1], [4, 1, 2]),
    heads: fc.integer({ min: 1, max: 3 }),
    slots: fc.constantFrom(1, 7, 64, 18432),
    subDim: fc.constant(1),
    sites: ascending(numLayers),
    convTaps: fc.integer({ min: 0, max: 4 }),
    convDilation: fc.integer({ min: 1, max: 4 }),
    seedHeads: fc.integer({ min: 0, max: 4 }),
  });
}

/** Small geometries at the edges: windows of one, context shorter than the window, odd widths, histories absent. */
export const geometry: fc.Arbitrary<ModelConfig> = fc
  .record({
    numLayers: fc.integer({ min: 1, max: 3 }),
    numKvHeads: fc.integer({ min: 1, max: 2 }),
    group: fc.integer({ min: 1, max: 4 }),
  })
  .chain(({ numLayers, numKvHeads, group }) =>
    fc.record({
      vocabSize: fc.integer({ min: 1, max: 40 }),
      dModel: fc.integer({ min: 1, max: 6 }),
      numHeads: fc.constant(group * numKvHeads),
      numKvHeads: fc.constant(numKvHeads),
      numLayers: fc.constant(numLayers),
      qkHeadDim: fc.constantFrom(1, 2, 3, 4, 5, 8, 17),
      vHeadDim: fc.constantFrom(1, 2, 3, 4, 5, 8, 19),
      maxSeqLen: fc.integer({ min: 1, max: 24 }),
      slidingWindow: fc.constantFrom(0, 1, 2, 3, 5, 9, 30),
      globalLayers: ascending(numLayers),
      qkvConvTaps: fc.integer({ min: 0, max: 4 }),
      engram: engram(numLayers),
    }),
  )
  .map((fields) => ({ ...HYBRID, outVocab: 0, ...fields }));

export const hint: fc.Arbitrary<number> = fc.oneof(fc.integer({ min: 0, max: 30 }), fc.constant(1000));

export const storage: fc.Arbitrary<Required<Pick<DecodeStateOptions, 'precision' | 'quantizeQuery'>>> = fc.constantFrom(
  { precision: 'f32', quantizeQuery: false },
  { precision: 'int8', quantizeQuery: false },
  { precision: 'int8', quantizeQuery: true },
);

/** Sizes of batches that follow one another: single steps mostly, and some longer than a small ring. */
export const batchSizes: fc.Arbitrary<number[]> = fc.array(
  fc.oneof({ weight: 3, arbitrary: fc.constant(1) }, { weight: 2, arbitrary: fc.integer({ min: 1, max: 13 }) }),
  { minLength: 1, maxLength: 8 },
);

/** Splits a run of rows at random places. */
export function split(total: number, cuts: readonly number[]): number[] {
  const edges = [...new Set([0, total, ...cuts.map((cut) => cut % (total + 1))])].sort((a, b) => a - b);
  return edges.slice(1).map((edge, i) => edge - edges[i]);
}
