// A program that knows ECMAScript and nothing else: no DOM, no Node. It uses every name of the package.
import {
  decode,
  DecodeState,
  loadNeedle3,
  NEEDLE3,
  Needle3,
  Needle3Error,
  WasmFloat32Array,
  type DecodeModel,
  type DecodeOptions,
  type DecodeResult,
  type DecodeStateOptions,
  type DecodeStream,
  type EngramConfig,
  type ErrorCode,
  type Float32Input,
  type KvView,
  type LoadOptions,
  type Mark,
  type ModelConfig,
  type Projection,
} from 'needle3-wasm';

/** Exactly the same type, both ways round. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(holds: Same<A, B>): void {
  void holds;
}

export const engram: EngramConfig = { ...NEEDLE3.engram, orders: [2], sites: [] };
export const config: ModelConfig = { ...NEEDLE3, dModel: 64, engram };
// @ts-expect-error a geometry is not to be changed
NEEDLE3.numLayers = 3;
// @ts-expect-error nor are its lists
NEEDLE3.globalLayers.push(3);
// @ts-expect-error every field has to be there
export const incomplete: ModelConfig = { vocabSize: 1 };

export const bytes: LoadOptions = { wasm: new Uint8Array(8), maximumMemoryBytes: 2 ** 26 };
export const buffer: LoadOptions = { wasm: new ArrayBuffer(8) };
export const path: LoadOptions = { wasm: './needle3.wasm' };

export async function use(): Promise<void> {
  const needle: Needle3 = await loadNeedle3();
  const { linearBytes, allocatedBytes } = needle.memory;
  same<typeof linearBytes, number>(true);
  same<typeof allocatedBytes, number>(true);

  const options: DecodeStateOptions = { capacityHint: 16, precision: 'int8', quantizeQuery: true };
  const state: DecodeState = needle.createDecodeState(config, options);
  const total: number = needle.decodeStateBytes(config, { ...options, positions: total0() });
  // @ts-expect-error positions have to be given
  needle.decodeStateBytes(config, options);
  // @ts-expect-error there is no such precision
  needle.createDecodeState(config, { precision: 'f16' });

  same<typeof state.precision, 'f32' | 'int8'>(true);
  same<typeof state.quantizeQuery, boolean>(true);
  const facts: number[] = [state.position, state.byteLength, state.markBytes, state.slots(0), total];
  const saturated: boolean = state.isSaturated;
  const history: Uint32Array = state.tokenHistory;
  const { first, last }: { first: number; last: number } = state.span(0, 5);
  // @ts-expect-error properties are read-only
  state.position = 3;

  const array: WasmFloat32Array = needle.allocate(16);
  const view: Float32Array = array.view;
  const part: WasmFloat32Array = array.subarray(2).subarray(0, 3);
  const rows: Float32Input = new Float32Array(4);
  const projection: Projection = 'q';
  state.pushToken(1);
  const { indices, valid }: { indices: Uint32Array; valid: boolean[] } = state.engramIndices();
  state.conv(0, projection, array, rows);
  // @ts-expect-error there is no such projection
  state.conv(0, 'o', array, rows);
  state.engramConv(0, array, rows);
  state.writeKv(0, rows, array);
  state.writeKv(0, rows, array, 7);
  state.attend(0, rows, view);
  state.appendAndAttend(0, rows, rows, array, part);
  // @ts-expect-error rows are f32
  state.attend(0, new Float64Array(4), view);
  state.advance();
  state.advance(2);
  state.discard();

  state.seedConvTail(0, 'v', rows);
  state.seedEngramTail(0, rows);
  state.seedTokens([1, 2]);
  state.seedTokens(new Uint16Array(2));
  state.setPosition(3);

  const fork: DecodeState = state.fork();
  const mark: Mark = fork.mark();
  fork.rollback(mark);
  fork.release(mark);
  // @ts-expect-error a mark comes of a state
  fork.release({});
  const snapshot: Uint8Array<ArrayBuffer> = fork.save({ fingerprint: new Uint8Array(4) });
  const restored: DecodeState = needle.restoreDecodeState(snapshot, { fingerprint: new Uint8Array(4), config });
  restored.reset();
  restored.dispose();
  // The method's name is there to be called even where `lib` does not know it.
  fork[Symbol.dispose]();
  array[Symbol.dispose]();
  array.dispose();

  const kv: KvView = state.kv(0);
  if (kv.precision === 'f32') {
    const floats: Float32Array[] = [kv.keys, kv.values];
    facts.push(floats.length, kv.slots);
    // @ts-expect-error f32 has no scales
    void kv.keyScales;
  } else {
    const narrow: Int8Array[] = [kv.keys, kv.values];
    const scales: Float32Array[] = [kv.keyScales, kv.valueScales];
    facts.push(narrow.length, scales.length);
  }

  const x: Float32Array = needle.fakeQuantize(new Float32Array(3), 4);
  const { values, scales }: { values: Int8Array; scales: Float32Array } = needle.quantizeRows(x, 3);
  const table: Uint32Array = needle.engramIndices([1, 2], engram);
  void [saturated, history, first, last, indices, valid, values, scales, table];
}

declare function total0(): number;

export const model: DecodeModel = {
  forward(state: DecodeState, tokens: Uint32Array): Float32Array {
    state.advance(tokens.length);
    return new Float32Array(8);
  },
};
export const slow: DecodeModel = { forward: async () => new Float32Array(8) };

export async function loop(state: DecodeState): Promise<DecodeResult> {
  const options: DecodeOptions = {
    maxNewTokens: 3,
    stopTokens: new Set([1]).size > 0 ? [1] : new Uint8Array(1),
    temperature: 0.5,
    topK: 4,
    topP: 0.9,
    seed: 1,
    promptBatch: 8,
    onPrompt: (done: number, all: number) => void [done, all],
    logits: (logits: Float32Array, generated: readonly number[]) => void [logits, generated],
    signal: { aborted: false },
  };
  const stream: DecodeStream = decode(model, state, [1, 2, 3], options);
  for await (const token of stream) {
    const id: number = token;
    void id;
  }
  const result = await stream.result;
  same<typeof result.stopReason, 'stop-token' | 'max-new-tokens' | 'max-seq-len' | 'aborted'>(true);
  const counts: number[] = [result.tokens, result.position];
  void counts;
  return result;
}

export function explain(error: unknown): string {
  if (!(error instanceof Needle3Error)) return 'another error';
  const plain: Error = error;
  const code: ErrorCode = error.code;
  switch (code) {
    case 'config':
    case 'shape':
    case 'range':
    case 'type':
    case 'non-finite':
    case 'out-of-memory':
    case 'disposed':
    case 'snapshot':
    case 'unsupported':
    case 'load':
      return `${code}: ${plain.message}`;
  }
  // Every code is among these.
  const none: never = code;
  return none;
}

same<Needle3Error['code'], ErrorCode>(true);
// @ts-expect-error only the package makes instances
export const forgedInstance = new Needle3();
// @ts-expect-error only an instance makes states
export const forgedState = new DecodeState();
// @ts-expect-error only an instance makes arrays
export const forgedArray = new WasmFloat32Array();
