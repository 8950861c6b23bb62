import { NEEDLE3, type DecodeState, type ModelConfig } from 'needle3-wasm';
import { describe, expect, it } from 'vitest';

import convFile from '../vectors/conv.json';
import decodeFile from '../vectors/decode.json';
import engramConvFile from '../vectors/engram_conv.json';
import engramIndicesFile from '../vectors/engram_indices.json';
import quantizeFile from '../vectors/quantize.json';
import ringFile from '../vectors/ring.json';
import shippedBytesFile from '../vectors/shipped_bytes.json';
import { expectEqualNumbers, expectSameBits, expectWithin } from './support/assert.js';
import { concatenate, PROJECTIONS } from './support/drive.js';
import { fromVector, NO_ENGRAM, PLAIN, widths } from './support/geometry.js';
import { needle3 } from './support/instance.js';

interface Row {
  readonly q: readonly number[];
  readonly k: readonly number[];
  readonly v: readonly number[];
  readonly conv_q: readonly number[];
  readonly conv_k: readonly number[];
  readonly conv_v: readonly number[];
  readonly attend: readonly number[];
  readonly span: readonly number[];
  readonly slots: number;
}
interface DecodeCase {
  readonly name: string;
  readonly config: Parameters<typeof fromVector>[0];
  readonly hint: number;
  readonly precision: string;
  readonly quantize_query: boolean;
  readonly qkv_taps: readonly {
    readonly q: readonly number[];
    readonly k: readonly number[];
    readonly v: readonly number[];
  }[];
  readonly engram_taps: readonly (readonly number[])[];
  readonly steps: readonly {
    readonly token: number;
    readonly layers: readonly Row[];
    readonly sites: readonly { readonly raw: readonly number[]; readonly conv: readonly number[] }[];
    readonly after: {
      readonly position: number;
      readonly bytes: number;
      readonly saturated: boolean;
      readonly tokens: readonly number[];
    };
  }[];
}
const decodeCases = decodeFile.cases as unknown as readonly DecodeCase[];

function precisionOf(name: string): 'f32' | 'int8' {
  if (name !== 'f32' && name !== 'int8') throw new Error(`unknown precision ${name}`);
  return name;
}

/** Splits `count` rows into batches of `size`, the last one shorter. */
function batches(count: number, size: number): { first: number; rows: number }[] {
  const list = [];
  for (let first = 0; first < count; first += size) list.push({ first, rows: Math.min(size, count - first) });
  return list;
}

describe('convolution vectors', () => {
  for (const [index, vector] of convFile.cases.entries()) {
    const { taps, dim, steps, expected } = vector;
    const weights = Float32Array.from(vector.weights);
    const raw = Float32Array.from(vector.raw);
    const config: ModelConfig = {
      ...PLAIN,
      numHeads: 1,
      numKvHeads: 1,
      qkHeadDim: dim,
      vHeadDim: dim,
      qkvConvTaps: taps,
    };
    for (const projection of PROJECTIONS) {
      for (const size of [1, 2, steps]) {
        it(`case ${index}: ${taps} taps over ${dim} channels of ${projection}, ${size} rows a step, are exact`, async () => {
          const state = (await needle3()).createDecodeState(config);
          for (const { first, rows } of batches(steps, size)) {
            const data = raw.slice(first * dim, (first + rows) * dim);
            state.conv(0, projection, weights, data);
            state.advance(rows);
            expectSameBits(
              data,
              Float32Array.from(expected.slice(first * dim, (first + rows) * dim)),
              `rows from ${first}`,
            );
          }
          state.dispose();
        });
      }
    }
  }
});

describe('Engram convolution vectors', () => {
  for (const [index, vector] of engramConvFile.cases.entries()) {
    const { taps, dilation, orders, dim, steps, expected } = vector;
    const weights = Float32Array.from(vector.weights);
    const raw = Float32Array.from(vector.raw);
    const config: ModelConfig = {
      ...PLAIN,
      dModel: dim,
      engram: { ...NO_ENGRAM, orders, slots: 16, sites: [0], convTaps: taps, convDilation: dilation },
    };
    for (const size of [1, 3, steps]) {
      it(`case ${index}: ${taps} taps ${dilation} apart, ${size} rows a step, are exact`, async () => {
        const state = (await needle3()).createDecodeState(config);
        for (const { first, rows } of batches(steps, size)) {
          const data = raw.slice(first * dim, (first + rows) * dim);
          state.engramConv(0, weights, data);
          state.advance(rows);
          expectEqualNumbers(data, expected.slice(first * dim, (first + rows) * dim), `rows from ${first}`);
        }
        state.dispose();
      });
    }
  }
});

describe('n-gram hash vectors', () => {
  for (const [index, vector] of engramIndicesFile.cases.entries()) {
    const { orders, heads, slots, tokens } = vector;
    const engram = { ...NO_ENGRAM, orders, heads, slots, seedHeads: vector.seed_heads };

    it(`case ${index}: the free function gives every position's slots`, async () => {
      const indices = (await needle3()).engramIndices(tokens, engram);
      expect(indices).toBeInstanceOf(Uint32Array);
      expect(Array.from(indices)).toEqual(vector.indices.flat());
    });

    it(`case ${index}: a state gives the slots of the newest token, and says which tables have their tokens`, async () => {
      // A state takes ids below vocabSize, which is at most 2^32 − 1: the hash of the id above them is the free function's.
      const taken = tokens.includes(4294967295) ? tokens.slice(0, tokens.indexOf(4294967295)) : tokens;
      const state = (await needle3()).createDecodeState({ ...PLAIN, vocabSize: 4294967295, engram });
      for (const [position, token] of taken.entries()) {
        state.pushToken(token);
        const { indices, valid } = state.engramIndices();
        expect(Array.from(indices)).toEqual(vector.indices[position]);
        expect(valid).toEqual(orders.flatMap((order) => Array<boolean>(heads).fill(position + 1 >= order)));
        state.advance();
      }
      state.dispose();
    });
  }
});

describe('quantisation vectors', () => {
  for (const { name, bits, input, scale, dequantized, ...rest } of quantizeFile.cases) {
    it(`${name}: fakeQuantize to ${bits} bits is exact`, async () => {
      const x = Float32Array.from(input);
      expect((await needle3()).fakeQuantize(x, bits)).toBe(x);
      expectEqualNumbers(x, dequantized, 'dequantised');
    });

    const quantized = 'quantized' in rest ? rest.quantized : undefined;
    if (quantized === undefined) continue;
    it(`${name}: quantizeRows gives the values and the scale`, async () => {
      // Three rows, so that a row's scale is seen to be its own.
      const x = concatenate([Float32Array.from(input), new Float32Array(input.length), Float32Array.from(input)]);
      const { values, scales } = (await needle3()).quantizeRows(x, input.length);
      expect(Array.from(values)).toEqual([...quantized, ...input.map(() => 0), ...quantized]);
      expectEqualNumbers(scales, Float32Array.of(scale, 1, scale), 'scales');
    });

    it(`${name}: an int8 layer stores keys and values so`, async () => {
      const width = input.length;
      const state = (await needle3()).createDecodeState(
        { ...PLAIN, numHeads: 1, numKvHeads: 1, qkHeadDim: width, vHeadDim: width },
        { precision: 'int8', quantizeQuery: false, capacityHint: 1 },
      );
      state.writeKv(0, Float32Array.from(input), Float32Array.from(input));
      const kv = state.kv(0);
      if (kv.precision !== 'int8') throw new Error('an int8 state has int8 rows');
      expect(Array.from(kv.keys)).toEqual(quantized);
      expect(Array.from(kv.values)).toEqual(quantized);
      expectEqualNumbers(kv.keyScales, Float32Array.of(scale), 'key scale');
      expectEqualNumbers(kv.valueScales, Float32Array.of(scale), 'value scale');
      state.dispose();
    });
  }
});

describe('ring vectors', () => {
  const config = fromVector(ringFile.config);
  const { k, v } = widths(config);
  for (const { hint, precision, layers, trace } of ringFile.cases) {
    it(`hint ${hint}, ${precision}: slots, spans, bytes and tokens are those of the trace`, async () => {
      const state = (await needle3()).createDecodeState(config, {
        capacityHint: hint,
        precision: precisionOf(precision),
      });
      const last = Math.max(...trace.map((entry) => entry.position));
      while (state.position < last) {
        const position = state.position;
        state.pushToken(position);
        for (const layer of layers) state.writeKv(layer, new Float32Array(k).fill(1), new Float32Array(v).fill(1));
        state.advance();
        const entry = trace.find((candidate) => candidate.position === position + 1);
        if (entry === undefined) continue;
        expect({
          position: state.position,
          slots: layers.map((layer) => state.slots(layer)),
          span: layers.map((layer) => {
            const { first, last: end } = state.span(layer, position);
            return [first, end];
          }),
          saturated: state.isSaturated,
          bytes: state.byteLength,
          tokens: Array.from(state.tokenHistory),
        }).toEqual(entry);
      }
      state.dispose();
    });
  }
});

describe('byte vectors of the shipped geometry', () => {
  it('the exported constant is the geometry of the vectors', () => {
    expect({ ...fromVector(shippedBytesFile.config), hadaN: 1024, mhcLanes: 4, ropeTheta: 100000 }).toEqual(NEEDLE3);
  });

  for (const { precision, hint, written_position: position, bytes, slots } of shippedBytesFile.rows) {
    it(`${precision}, hint ${hint}, ${position + 1} positions take ${bytes} bytes and no token`, async () => {
      const needle = await needle3();
      const options = { capacityHint: hint, precision: precisionOf(precision) };
      const state = needle.createDecodeState(NEEDLE3, options);
      const { k, v } = widths(NEEDLE3);
      for (let layer = 0; layer < NEEDLE3.numLayers; layer++) {
        state.writeKv(layer, new Float32Array(k), new Float32Array(v), position);
      }
      expect(slots.map((_, layer) => state.slots(layer))).toEqual(slots);
      expect(state.byteLength).toBe(bytes);
      state.dispose();
      const tokenBytes = 4 * Math.min(3, position + 1);
      expect(needle.decodeStateBytes(NEEDLE3, { ...options, positions: position + 1 })).toBe(bytes + tokenBytes);
    });
  }
});

describe('decode vectors', () => {
  /** Largest magnitude of one position's whole attention row. */
  const magnitude = (row: readonly number[]): number => Math.max(...row.map(Math.abs));

  function create(needle: Awaited<ReturnType<typeof needle3>>, vector: DecodeCase): DecodeState {
    return needle.createDecodeState(fromVector(vector.config), {
      capacityHint: vector.hint,
      precision: precisionOf(vector.precision),
      quantizeQuery: vector.quantize_query,
    });
  }

  for (const vector of decodeCases) {
    const config = fromVector(vector.config);
    const { out: outWidth } = widths(config);
    const tolerance = vector.precision === 'f32' ? 2e-6 : 1e-5;

    for (const size of [1, 2, 5, 7, vector.steps.length]) {
      it(`${vector.name}, ${size} rows a step: convolutions are exact, attention is within ${tolerance}`, async () => {
        const state = create(await needle3(), vector);
        for (const { first, rows } of batches(vector.steps.length, size)) {
          const batch = vector.steps.slice(first, first + rows);
          for (const { token } of batch) state.pushToken(token);
          config.engram.sites.forEach((_, site) => {
            const data = Float32Array.from(batch.flatMap((step) => step.sites[site].raw));
            state.engramConv(site, Float32Array.from(vector.engram_taps[site]), data);
            expectEqualNumbers(
              data,
              batch.flatMap((step) => step.sites[site].conv),
              `site ${site} from ${first}`,
            );
          });
          for (let layer = 0; layer < config.numLayers; layer++) {
            const what = `layer ${layer} from ${first}`;
            const [query, keys, values] = PROJECTIONS.map((projection) => {
              const data = Float32Array.from(batch.flatMap((step) => step.layers[layer][projection]));
              state.conv(layer, projection, Float32Array.from(vector.qkv_taps[layer][projection]), data);
              const expected = batch.flatMap((step) => step.layers[layer][`conv_${projection}`]);
              expectEqualNumbers(data, expected, `${what}, ${projection}`);
              return data;
            }) as [Float32Array, Float32Array, Float32Array];
            const out = new Float32Array(rows * outWidth);
            state.appendAndAttend(layer, query, keys, values, out);
            batch.forEach((step, i) => {
              const expected = step.layers[layer].attend;
              const row = out.subarray(i * outWidth, (i + 1) * outWidth);
              expectWithin(row, expected, tolerance * magnitude(expected), `${what}, attention of row ${i}`);
            });
          }
          state.advance(rows);

          const { after, layers } = batch.at(-1)!;
          expect(state.position).toBe(after.position);
          expect(state.isSaturated).toBe(after.saturated);
          expect(Array.from(state.tokenHistory)).toEqual(after.tokens);
          // A batch ends with the slots that its rows one by one would have given, so these hold of any split.
          expect(state.byteLength).toBe(after.bytes);
          layers.forEach(({ slots, span }, layer) => {
            expect(state.slots(layer)).toBe(slots);
            expect(state.span(layer, after.position - 1)).toEqual({ first: span[0], last: span[1] });
          });
        }
        state.dispose();
      });
    }

    if (vector.precision === 'f32') {
      it(`${vector.name}: position p lies in slot p mod slots`, async () => {
        const state = create(await needle3(), vector);
        const { k, v } = widths(config);
        vector.steps.forEach((step, position) => {
          step.layers.forEach((row, layer) => {
            state.writeKv(layer, Float32Array.from(row.conv_k), Float32Array.from(row.conv_v));
            const kv = state.kv(layer);
            if (kv.precision !== 'f32') throw new Error('an f32 state has f32 rows');
            const slot = position % kv.slots;
            expectEqualNumbers(kv.keys.subarray(slot * k, (slot + 1) * k), row.conv_k, `keys ${position}`);
            expectEqualNumbers(kv.values.subarray(slot * v, (slot + 1) * v), row.conv_v, `values ${position}`);
          });
          state.advance();
        });
        state.dispose();
      });
    }

    it(`${vector.name}: writeKv then attend gives the bits of appendAndAttend`, async () => {
      const needle = await needle3();
      const [apart, together] = [create(needle, vector), create(needle, vector)];
      for (const step of vector.steps) {
        step.layers.forEach((row, layer) => {
          const [query, keys, values] = [row.conv_q, row.conv_k, row.conv_v].map((list) => Float32Array.from(list)) as [
            Float32Array,
            Float32Array,
            Float32Array,
          ];
          const [outApart, outTogether] = [new Float32Array(outWidth), new Float32Array(outWidth)];
          apart.writeKv(layer, keys, values);
          apart.attend(layer, query, outApart);
          together.appendAndAttend(layer, query, keys, values, outTogether);
          expectSameBits(outApart, outTogether, `layer ${layer}, position ${apart.position}`);
        });
        apart.advance();
        together.advance();
      }
      apart.dispose();
      together.dispose();
    });
  }

  it('the vectors cover both precisions and both kinds of query', () => {
    expect(new Set(decodeCases.map((c) => `${c.precision} ${c.quantize_query}`))).toEqual(
      new Set(['f32 false', 'int8 false', 'int8 true']),
    );
  });
});
