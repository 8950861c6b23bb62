import { describe, isArrayLike, MAX_UINT32, wrongType } from '../core/check.js';
import { Needle3Error } from '../core/errors.js';

/**
 * Hashed n-gram memory: tables that are read by a hash of the newest tokens, at some of the layers.
 *
 * All fields are integers from 0 to 2³²−1, and at least 1 where nothing else is said.
 *
 * @example
 * ```ts
 * const none: EngramConfig = { ...NEEDLE3.engram, orders: [], sites: [] };
 * ```
 */
export interface EngramConfig {
  /** Lengths of the n-grams, in tokens. May be empty. There are `orders.length * heads` tables. */
  readonly orders: readonly number[];
  /** Hash tables an order. */
  readonly heads: number;
  /** Rows a table; indices are below it. */
  readonly slots: number;
  /** Width of a table's row. Carried for the forward pass; the state does not read it. */
  readonly subDim: number;
  /** Layers that carry an Engram, ascending. May be empty. A `site` argument is an index into this list. */
  readonly sites: readonly number[];
  /** Taps of the causal convolution of the value stream. 0: none. */
  readonly convTaps: number;
  /** Positions from one tap to the next. */
  readonly convDilation: number;
  /** Stride of the hash seeds from one order to the next. 0: `heads`. */
  readonly seedHeads: number;
}

/**
 * The geometry of a model: what a Needle 3 container declares. Checked whole, once, where a state is created.
 *
 * All fields but `ropeTheta` are integers from 0 to 2³²−1, and at least 1 where nothing else is said.
 *
 * @example
 * ```ts
 * const small: ModelConfig = { ...NEEDLE3, dModel: 64, numLayers: 4, globalLayers: [3], maxSeqLen: 512,
 *   engram: { ...NEEDLE3.engram, sites: [1, 3] } };
 * ```
 */
export interface ModelConfig {
  /** Rows of the embedding; token ids are below it. */
  readonly vocabSize: number;
  /** Rows of the embedding that give logits. 0: all. */
  readonly outVocab: number;
  /** Width of the residual stream and of an Engram value row. */
  readonly dModel: number;
  /** Query heads. A multiple of `numKvHeads`. */
  readonly numHeads: number;
  /** Key/value heads. Query head h reads key/value head ⌊h / (numHeads / numKvHeads)⌋. */
  readonly numKvHeads: number;
  /** Layers. */
  readonly numLayers: number;
  /** Width of a query or key head. */
  readonly qkHeadDim: number;
  /** Width of a value head. */
  readonly vHeadDim: number;
  /** Context, in positions. */
  readonly maxSeqLen: number;
  /** Carried for the forward pass; the state does not read it. */
  readonly hadaN: number;
  /** Carried for the forward pass; the state does not read it. */
  readonly mhcLanes: number;
  /** Base of the rotary embedding. Carried for the forward pass; the state does not read it. */
  readonly ropeTheta: number;
  /** Positions that a local layer sees, its own included. 0: every layer is global. */
  readonly slidingWindow: number;
  /** Layers that see everything, ascending. May be empty. */
  readonly globalLayers: readonly number[];
  /** Taps of the causal convolution of Q, K and V. 0: none. */
  readonly qkvConvTaps: number;
  /** Hashed n-gram memory. */
  readonly engram: EngramConfig;
}

/** Freezes a geometry and all in it. */
function freeze(config: ModelConfig): ModelConfig {
  Object.freeze(config.engram.orders);
  Object.freeze(config.engram.sites);
  Object.freeze(config.engram);
  Object.freeze(config.globalLayers);
  return Object.freeze(config);
}

/**
 * The geometry of the shipped Needle 3 model. Deeply frozen.
 *
 * @example
 * ```ts
 * using state = needle3.createDecodeState(NEEDLE3, { precision: 'int8' });
 * ```
 */
export const NEEDLE3: ModelConfig = /* @__PURE__ */ freeze({
  vocabSize: 8192,
  outVocab: 8192,
  dModel: 768,
  numHeads: 12,
  numKvHeads: 2,
  numLayers: 20,
  qkHeadDim: 48,
  vHeadDim: 64,
  maxSeqLen: 8192,
  hadaN: 1024,
  mhcLanes: 4,
  ropeTheta: 100000,
  slidingWindow: 1024,
  globalLayers: [4, 9, 14, 19],
  qkvConvTaps: 3,
  engram: {
    orders: [2, 3],
    heads: 3,
    slots: 18432,
    subDim: 128,
    sites: [3, 7, 11, 15, 19],
    convTaps: 4,
    convDilation: 3,
    seedHeads: 0,
  },
});

type IntegerField = Exclude<keyof ModelConfig, 'ropeTheta' | 'globalLayers' | 'engram'>;
type EngramIntegerField = Exclude<keyof EngramConfig, 'orders' | 'sites'>;

// The order of a geometry's words, in the core and in snapshots: these integers, those of the Engram, ropeTheta as a
// double (low word first), the lengths of the three lists, then their elements.
const INTEGER_FIELDS: readonly IntegerField[] = [
  'vocabSize',
  'outVocab',
  'dModel',
  'numHeads',
  'numKvHeads',
  'numLayers',
  'qkHeadDim',
  'vHeadDim',
  'maxSeqLen',
  'hadaN',
  'mhcLanes',
  'slidingWindow',
  'qkvConvTaps',
];
const ENGRAM_INTEGER_FIELDS: readonly EngramIntegerField[] = [
  'heads',
  'slots',
  'subDim',
  'convTaps',
  'convDilation',
  'seedHeads',
];
const ROPE_THETA_WORD = INTEGER_FIELDS.length + ENGRAM_INTEGER_FIELDS.length;
const LIST_LENGTHS_WORD = ROPE_THETA_WORD + 2;
const FIXED_WORDS = LIST_LENGTHS_WORD + 3;

/** A longer list could only hold repeated or unsorted entries, or layers of a model beyond 32-bit memory. */
const MAX_LIST_LENGTH = 1 << 20;

function invalid(method: string, field: string, rule: string, value: unknown): never {
  throw new Needle3Error('config', `${method}: ${field} must be ${rule}; got ${describe(value)}`);
}

function checkFieldInteger(method: string, field: string, value: unknown): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 0 || value > MAX_UINT32) {
    invalid(method, field, `an integer from 0 to ${MAX_UINT32}`, value);
  }
  return value;
}

function readList(method: string, field: string, value: unknown): number[] {
  if (!isArrayLike(value)) invalid(method, field, 'an array of integers', value);
  const { length } = value;
  if (length > MAX_LIST_LENGTH) invalid(method, `${field}.length`, `at most ${MAX_LIST_LENGTH}`, length);
  const list: number[] = [];
  for (let i = 0; i < length; i++) list.push(checkFieldInteger(method, `${field}[${i}]`, value[i]));
  return list;
}

/**
 * A plain copy of the Engram's fields, each read once and known to be a number or a list of them. Which numbers make
 * sense is for the core to say.
 * @throws Needle3Error `type` where it is no object, else `config`
 */
export function readEngram(method: string, value: unknown): EngramConfig {
  if (typeof value !== 'object' || value === null) wrongType(method, 'engram', 'an object', value);
  const source = value as Record<keyof EngramConfig, unknown>;
  const integer = (field: EngramIntegerField): number => checkFieldInteger(method, `engram.${field}`, source[field]);
  return {
    orders: readList(method, 'engram.orders', source.orders),
    heads: integer('heads'),
    slots: integer('slots'),
    subDim: integer('subDim'),
    sites: readList(method, 'engram.sites', source.sites),
    convTaps: integer('convTaps'),
    convDilation: integer('convDilation'),
    seedHeads: integer('seedHeads'),
  };
}

/**
 * The geometry as the core takes it. Types are checked here; which numbers make sense is for the core to say.
 * @throws Needle3Error `type` where it is no object, else `config`
 */
export function encodeConfig(method: string, value: unknown): Uint32Array<ArrayBuffer> {
  if (typeof value !== 'object' || value === null) wrongType(method, 'config', 'an object', value);
  const source = value as Record<keyof ModelConfig, unknown>;
  const fixed = INTEGER_FIELDS.map((field) => checkFieldInteger(method, field, source[field]));
  const { ropeTheta } = source;
  if (typeof ropeTheta !== 'number' || !Number.isFinite(ropeTheta) || ropeTheta <= 0) {
    invalid(method, 'ropeTheta', 'a positive finite number', ropeTheta);
  }
  const globalLayers = readList(method, 'globalLayers', source.globalLayers);
  const engramSource = source.engram;
  if (typeof engramSource !== 'object' || engramSource === null) {
    invalid(method, 'engram', 'an object', engramSource);
  }
  const engram = readEngram(method, engramSource);

  const { orders, sites } = engram;
  const words = new Uint32Array(FIXED_WORDS + globalLayers.length + orders.length + sites.length);
  words.set(fixed);
  words.set(
    ENGRAM_INTEGER_FIELDS.map((field) => engram[field]),
    INTEGER_FIELDS.length,
  );
  const theta = new DataView(new ArrayBuffer(8));
  theta.setFloat64(0, ropeTheta, true);
  words[ROPE_THETA_WORD] = theta.getUint32(0, true);
  words[ROPE_THETA_WORD + 1] = theta.getUint32(4, true);
  words.set([globalLayers.length, orders.length, sites.length], LIST_LENGTHS_WORD);
  words.set(globalLayers, FIXED_WORDS);
  words.set(orders, FIXED_WORDS + globalLayers.length);
  words.set(sites, FIXED_WORDS + globalLayers.length + orders.length);
  return words;
}

/** The geometry that `encodeConfig` made these words of, deeply frozen. */
export function decodeConfig(words: Uint32Array): ModelConfig {
  const theta = new DataView(new ArrayBuffer(8));
  theta.setUint32(0, words[ROPE_THETA_WORD], true);
  theta.setUint32(4, words[ROPE_THETA_WORD + 1], true);
  let next = FIXED_WORDS;
  const list = (index: number): number[] => {
    const begin = next;
    next += words[LIST_LENGTHS_WORD + index];
    return Array.from(words.subarray(begin, next));
  };
  const integers = Object.fromEntries(INTEGER_FIELDS.map((field, i) => [field, words[i]])) as Record<
    IntegerField,
    number
  >;
  const engramIntegers = Object.fromEntries(
    ENGRAM_INTEGER_FIELDS.map((field, i) => [field, words[INTEGER_FIELDS.length + i]]),
  ) as Record<EngramIntegerField, number>;
  const globalLayers = list(0);
  const orders = list(1);
  const sites = list(2);
  return freeze({
    ...integers,
    ropeTheta: theta.getFloat64(0, true),
    globalLayers,
    engram: { ...engramIntegers, orders, sites },
  });
}

/** The first field in which two geometries differ and its values there, for messages; undefined where they agree. */
export function configDifference(
  a: ModelConfig,
  b: ModelConfig,
): { readonly field: string; readonly a: string; readonly b: string } | undefined {
  const fields: [string, unknown, unknown][] = [
    ...INTEGER_FIELDS.map((field): [string, unknown, unknown] => [field, a[field], b[field]]),
    ['ropeTheta', a.ropeTheta, b.ropeTheta],
    ['globalLayers', a.globalLayers, b.globalLayers],
    ...(['orders', 'sites', ...ENGRAM_INTEGER_FIELDS] as const).map((field): [string, unknown, unknown] => [
      `engram.${field}`,
      a.engram[field],
      b.engram[field],
    ]),
  ];
  for (const [field, left, right] of fields) {
    if (JSON.stringify(left) !== JSON.stringify(right)) {
      return { field, a: JSON.stringify(left), b: JSON.stringify(right) };
    }
  }
  return undefined;
}
