/**
 * Argument checks. Embind coerces without a word ("x" arrives as 0, 1.5 as 1), so everything is checked here first.
 * Callers check all types before any range, so that the same mistakes give the same code whatever their order.
 */
import { Needle3Error } from './errors.js';

export const MAX_UINT32 = 0xffffffff;
/** Positions are signed 32-bit integers in the core. */
export const MAX_POSITION = 0x7fffffff;

// The getter looks at the object's own kind: it is right for arrays of another realm and cannot be fooled by a
// prototype. It gives undefined for everything that is not a typed array.
const tagGetter = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag) as {
  readonly get: (this: unknown) => string | undefined;
};
const typedArrayTag = tagGetter.get;

export function isFloat32Array(value: unknown): value is Float32Array {
  return typedArrayTag.call(value) === 'Float32Array';
}

const lengthGetter = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), 'length') as {
  readonly get: (this: unknown) => number;
};
const typedArrayLength = lengthGetter.get;

/** Elements of a typed array, also where a subclass says otherwise. */
export function elementsOf(array: Float32Array): number {
  return typedArrayLength.call(array);
}

export function isUint8Array(value: unknown): value is Uint8Array {
  return typedArrayTag.call(value) === 'Uint8Array';
}

/** The class name of built-in objects, whatever their realm: 'ArrayBuffer', 'Array', 'Object'… */
export function builtinTag(value: unknown): string {
  return Object.prototype.toString.call(value).slice(8, -1);
}

/** What a value is, for messages: `3`, `"x"`, `undefined`, `an Array`, `a Float64Array`. */
export function describe(value: unknown): string {
  switch (typeof value) {
    case 'string':
      return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}…` : value);
    case 'bigint':
      return `the bigint ${value}`;
    case 'symbol':
      return 'a symbol';
    case 'function':
      return 'a function';
    case 'object': {
      if (value === null) return 'null';
      const name = typedArrayTag.call(value) ?? builtinTag(value);
      return `${/^[AEIO]/.test(name) ? 'an' : 'a'} ${name}`;
    }
    default:
      return String(value);
  }
}

/** @throws Needle3Error `type`: "method: name must be what; got value" */
export function wrongType(method: string, name: string, what: string, value: unknown): never {
  throw new Needle3Error('type', `${method}: ${name} must be ${what}; got ${describe(value)}`);
}

export function checkNumber(method: string, name: string, value: unknown): asserts value is number {
  if (typeof value !== 'number') wrongType(method, name, 'a number', value);
}

export function checkBoolean(method: string, name: string, value: unknown): asserts value is boolean {
  if (typeof value !== 'boolean') wrongType(method, name, 'a boolean', value);
}

export function checkFunction(method: string, name: string, value: unknown): void {
  if (typeof value !== 'function') wrongType(method, name, 'a function', value);
}

export function checkObject(method: string, name: string, value: unknown): asserts value is object {
  if (typeof value !== 'object' || value === null) wrongType(method, name, 'an object', value);
}

export function checkUint8Array(method: string, name: string, value: unknown): asserts value is Uint8Array {
  if (!isUint8Array(value)) wrongType(method, name, 'a Uint8Array', value);
}

/** For constructors that only the package itself may call. @throws Needle3Error `type` */
export function notConstructible(name: string, maker: string): never {
  throw new Needle3Error('type', `${name} has no public constructor; use ${maker}`);
}

/** Of a value that is known to be a number. @throws Needle3Error `range` */
export function checkInteger(method: string, name: string, value: number, min: number, max: number): void {
  if (Number.isInteger(value) && value >= min && value <= max) return;
  const bounds = max === Number.MAX_SAFE_INTEGER ? `of at least ${min}` : `from ${min} to ${max}`;
  throw new Needle3Error('range', `${method}: ${name} must be an integer ${bounds}; got ${value}`);
}

/** Of a value of which nothing is known. @throws Needle3Error `type` or `range` */
export function checkIntegerArgument(
  method: string,
  name: string,
  value: unknown,
  min: number,
  max: number,
): asserts value is number {
  checkNumber(method, name, value);
  checkInteger(method, name, value, min, max);
}

/** Whether `value` has the form of an `ArrayLike`; its elements are not looked at. */
export function isArrayLike(value: unknown): value is ArrayLike<unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const { length } = value as { length?: unknown };
  return typeof length === 'number' && Number.isInteger(length) && length >= 0 && length <= MAX_UINT32;
}

/** The types half of `copyTokens`, for methods with more arguments to check. @throws Needle3Error `type` */
export function checkArrayLike(method: string, name: string, value: unknown): asserts value is ArrayLike<unknown> {
  if (!isArrayLike(value)) wrongType(method, name, 'an array of integers', value);
}

/**
 * A copy of an array-like of integers from 0 to `max`. Each element is read once.
 * @throws Needle3Error `type`, `range`, or `out-of-memory` where there is no room for the copy
 */
export function copyTokens(method: string, name: string, value: unknown, max: number): Uint32Array<ArrayBuffer> {
  checkArrayLike(method, name, value);
  const { length } = value;
  const copy = allocateBytes(method, length * 4, (buffer) => new Uint32Array(buffer));
  for (let i = 0; i < length; i++) {
    const element = value[i];
    if (typeof element !== 'number') wrongType(method, `${name}[${i}]`, 'a number', element);
    if (!Number.isInteger(element) || element < 0 || element > max) {
      checkInteger(method, `${name}[${i}]`, element, 0, max);
    }
    copy[i] = element;
  }
  return copy;
}

/** A typed array over a new buffer of its own. @throws Needle3Error `out-of-memory` */
export function allocateBytes<T>(method: string, bytes: number, wrap: (buffer: ArrayBuffer) => T): T {
  let buffer: ArrayBuffer;
  try {
    buffer = new ArrayBuffer(bytes);
  } catch (cause) {
    throw new Needle3Error('out-of-memory', `${method}: no room for a buffer of ${bytes} bytes`, { cause });
  }
  return wrap(buffer);
}
