import { describe, expect, it } from 'vitest';

import { attendSequence, convolveSequence, engramSlot, quantizeRow } from '../../web/demo/src/reference.js';
import { configOf, vectors, type ConfigVector } from './vectors.js';

interface ConvCase {
  readonly taps: number;
  readonly dim: number;
  readonly steps: number;
  readonly weights: readonly number[];
  readonly raw: readonly number[];
  readonly expected: readonly number[];
}

interface EngramConvCase extends ConvCase {
  readonly dilation: number;
  readonly orders: readonly number[];
}

interface IndicesCase {
  readonly orders: readonly number[];
  readonly heads: number;
  readonly slots: number;
  readonly seed_heads: number;
  readonly tokens: readonly number[];
  readonly indices: readonly (readonly number[])[];
}

interface QuantizeCase {
  readonly name: string;
  readonly bits: number;
  readonly input: readonly number[];
  readonly scale: number;
  readonly quantized: readonly number[];
}

interface DecodeCase {
  readonly name: string;
  readonly config: ConfigVector;
  readonly precision: 'f32' | 'int8';
  readonly quantize_query: boolean;
  readonly steps: readonly {
    readonly layers: readonly {
      readonly conv_q: readonly number[];
      readonly conv_k: readonly number[];
      readonly conv_v: readonly number[];
      readonly attend: readonly number[];
    }[];
  }[];
}

const conv = vectors('conv') as readonly ConvCase[];
const engramConv = vectors('engram_conv') as readonly EngramConvCase[];
const indices = vectors('engram_indices') as readonly IndicesCase[];
const quantize = (vectors('quantize') as readonly QuantizeCase[]).filter(({ bits }) => bits === 8);
const decoding = vectors('decode') as readonly DecodeCase[];

describe('the recomputation without a cache', () => {
  it.each(conv)('convolves $steps rows by $taps taps exactly', ({ weights, raw, steps, expected }) => {
    const out = convolveSequence(Float32Array.from(weights), Float32Array.from(raw), steps, 1, (tap) => tap);
    expect(out).toEqual(Float32Array.from(expected));
  });

  it.each(engramConv)(
    'convolves the Engram stream by $taps taps at dilation $dilation and orders $orders exactly',
    ({ weights, raw, steps, dilation, orders, expected }) => {
      const wake = (tap: number) => tap * Math.max(dilation, 1, ...orders);
      const out = convolveSequence(Float32Array.from(weights), Float32Array.from(raw), steps, dilation, wake);
      // The sign of zero is free.
      expect(out.map((x) => x + 0)).toEqual(Float32Array.from(expected, (x) => x + 0));
    },
  );

  it.each(indices)('hashes n-grams of orders $orders by $heads heads to $slots slots', (vector) => {
    const { orders, heads, slots, tokens } = vector;
    const engram = {
      orders,
      heads,
      slots,
      seedHeads: vector.seed_heads,
      subDim: 1,
      sites: [],
      convTaps: 0,
      convDilation: 1,
    };
    const hashed = tokens.map((_, p) =>
      orders.flatMap((_order, orderIndex) =>
        Array.from({ length: heads }, (_head, head) => engramSlot(engram, tokens, p, orderIndex, head)),
      ),
    );
    expect(hashed).toEqual(vector.indices);
  });

  it.each(quantize)('quantises row $name to the same integers and scale', ({ input, scale, quantized }) => {
    const row = quantizeRow(Float32Array.from(input));
    expect(row.scale).toBe(Math.fround(scale));
    expect([...row.values].map((x) => x + 0)).toEqual(quantized.map((x) => x + 0));
  });

  it.each(decoding)('attends over the whole sequence of $name as the vectors do', async (vector) => {
    const config = configOf(vector.config);
    const precision = { precision: vector.precision, quantizeQuery: vector.quantize_query };
    const n = vector.steps.length;
    const bound = vector.precision === 'f32' ? 2e-6 : 1e-5;
    for (let layer = 0; layer < config.numLayers; layer++) {
      const rows = (name: 'conv_q' | 'conv_k' | 'conv_v') =>
        Float32Array.from(vector.steps.flatMap((step) => step.layers[layer][name]));
      const out = await attendSequence(config, layer, precision, rows('conv_q'), rows('conv_k'), rows('conv_v'), n);
      vector.steps.forEach((step, p) => {
        const expected = step.layers[layer].attend;
        const largest = Math.max(...expected.map(Math.abs));
        const actual = out.subarray(p * expected.length, (p + 1) * expected.length);
        const difference = Math.max(...expected.map((x, i) => Math.abs(x - actual[i])));
        expect(difference, `layer ${layer}, position ${p}`).toBeLessThanOrEqual(bound * largest);
      });
    }
  });
});
