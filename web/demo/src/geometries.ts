import { NEEDLE3, type ModelConfig } from 'needle3-wasm';
import { OUTPUT_IDS } from './vocabulary.js';

export type GeometryName = 'pocket' | 'small' | 'plain' | 'shipped';

export interface Geometry {
  readonly name: GeometryName;
  readonly label: string;
  readonly about: string;
  readonly config: ModelConfig;
  /** First allocation, in positions, low enough for growth to be seen. */
  readonly capacityHint: number;
  /** Rows of the prompt in one forward call. */
  readonly promptBatch: number;
}

const shared = { vocabSize: 512, outVocab: OUTPUT_IDS, hadaN: 64, mhcLanes: 4, ropeTheta: 100000 } as const;

/** Every geometry the page offers. All are small in dModel: the synthetic weights grow with it, the cache does not. */
export const GEOMETRIES: readonly Geometry[] = [
  {
    name: 'pocket',
    label: 'Pocket',
    about: '6 layers, window 32, context 160. Rings wrap and the context fills within seconds.',
    capacityHint: 8,
    promptBatch: 4,
    config: {
      ...shared,
      dModel: 48,
      numHeads: 4,
      numKvHeads: 2,
      numLayers: 6,
      qkHeadDim: 12,
      vHeadDim: 16,
      maxSeqLen: 160,
      slidingWindow: 32,
      globalLayers: [2, 5],
      qkvConvTaps: 3,
      engram: {
        orders: [2, 3],
        heads: 2,
        slots: 509,
        subDim: 8,
        sites: [1, 4],
        convTaps: 4,
        convDilation: 3,
        seedHeads: 0,
      },
    },
  },
  {
    name: 'small',
    label: 'Small',
    about: '10 layers, window 128, context 1024.',
    capacityHint: 32,
    promptBatch: 16,
    config: {
      ...shared,
      dModel: 64,
      numHeads: 6,
      numKvHeads: 2,
      numLayers: 10,
      qkHeadDim: 24,
      vHeadDim: 32,
      maxSeqLen: 1024,
      slidingWindow: 128,
      globalLayers: [4, 9],
      qkvConvTaps: 3,
      engram: {
        orders: [2, 3],
        heads: 3,
        slots: 4093,
        subDim: 16,
        sites: [2, 5, 8],
        convTaps: 4,
        convDilation: 3,
        seedHeads: 0,
      },
    },
  },
  {
    name: 'plain',
    label: 'Plain transformer',
    about: '4 global layers, equal heads, no window, no convolution, no Engram: a classic KV cache. Context 256.',
    capacityHint: 16,
    promptBatch: 8,
    config: {
      ...shared,
      dModel: 64,
      numHeads: 4,
      numKvHeads: 4,
      numLayers: 4,
      qkHeadDim: 16,
      vHeadDim: 16,
      maxSeqLen: 256,
      slidingWindow: 0,
      globalLayers: [],
      qkvConvTaps: 0,
      engram: { orders: [], heads: 1, slots: 1, subDim: 1, sites: [], convTaps: 0, convDilation: 1, seedHeads: 0 },
    },
  },
  {
    name: 'shipped',
    label: 'Needle 3 cache',
    about: '20 layers, window 1024, context 8192: the shipped cache, on a 64-wide model.',
    capacityHint: 512,
    promptBatch: 64,
    config: { ...NEEDLE3, vocabSize: shared.vocabSize, outVocab: shared.outVocab, dModel: 64 },
  },
];

export function geometryNamed(name: GeometryName): Geometry {
  const found = GEOMETRIES.find((geometry) => geometry.name === name);
  if (!found) throw new RangeError(`no geometry is called ${name}`);
  return found;
}

export function isGlobalLayer(config: ModelConfig, layer: number): boolean {
  return config.slidingWindow === 0 || config.globalLayers.includes(layer);
}

/** Slots that a layer's ring grows to and no further. */
export function layerCap(config: ModelConfig, layer: number): number {
  return isGlobalLayer(config, layer) ? config.maxSeqLen : Math.min(config.slidingWindow, config.maxSeqLen);
}
