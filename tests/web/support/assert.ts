import { Needle3Error } from 'needle3-wasm';
import { expect } from 'vitest';

/** What an error's `code` can be. */
export type ErrorCode = Needle3Error['code'];

function words(values: Float32Array): Uint32Array {
  return new Uint32Array(values.buffer, values.byteOffset, values.length);
}

/** Equal bit for bit: −0 is not 0, and a NaN is its payload. */
export function expectSameBits(actual: Float32Array, expected: Float32Array, what: string): void {
  expect(actual.length, `${what}: length`).toBe(expected.length);
  const a = words(actual);
  const e = words(expected);
  for (let i = 0; i < a.length; i++) {
    if (a[i] !== e[i]) expect.fail(`${what}: element ${i} is ${actual[i]}, expected the bits of ${expected[i]}`);
  }
}

/** Equal as numbers, where f32 is expected once rounded to it: the sign of zero is free. */
export function expectEqualNumbers(actual: ArrayLike<number>, expected: ArrayLike<number>, what: string): void {
  expect(actual.length, `${what}: length`).toBe(expected.length);
  const rounded = actual instanceof Float32Array ? Float32Array.from(expected) : expected;
  for (let i = 0; i < actual.length; i++) {
    if (actual[i] !== rounded[i]) expect.fail(`${what}: element ${i} is ${actual[i]}, expected ${expected[i]}`);
  }
}

/** Each element within `tolerance`, which may be one number or one for each element. */
export function expectWithin(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  tolerance: number | ArrayLike<number>,
  what: string,
): void {
  expect(actual.length, `${what}: length`).toBe(expected.length);
  for (let i = 0; i < actual.length; i++) {
    const bound = typeof tolerance === 'number' ? tolerance : tolerance[i];
    const difference = Math.abs(actual[i] - expected[i]);
    // Written so that a NaN fails.
    if (!(difference <= bound)) {
      expect.fail(`${what}: element ${i} is ${actual[i]}, expected ${expected[i]} to within ${bound}`);
    }
  }
}

function check(error: unknown, code: ErrorCode, says: readonly (string | RegExp)[]): Needle3Error {
  if (!(error instanceof Needle3Error)) expect.fail(`threw ${String(error)}, which is no Needle3Error`);
  expect(error, 'is an Error').toBeInstanceOf(Error);
  expect(error.name).toBe('Needle3Error');
  expect(error.code, error.message).toBe(code);
  for (const part of says) {
    const found = typeof part === 'string' ? error.message.includes(part) : part.test(error.message);
    if (!found) expect.fail(`the message «${error.message}» does not say ${String(part)}`);
  }
  return error;
}

/** `call` throws a Needle3Error of that code, whose message holds every part. */
export function expectError(call: () => unknown, code: ErrorCode, ...says: (string | RegExp)[]): Needle3Error {
  let result: unknown;
  try {
    result = call();
  } catch (error) {
    return check(error, code, says);
  }
  return expect.fail(`expected a Needle3Error of code ${code}; the call returned ${String(result)}`);
}

/** The same of a promise. */
export async function expectRejection(
  promise: PromiseLike<unknown>,
  code: ErrorCode,
  ...says: (string | RegExp)[]
): Promise<Needle3Error> {
  let result: unknown;
  try {
    result = await promise;
  } catch (error) {
    return check(error, code, says);
  }
  return expect.fail(`expected a Needle3Error of code ${code}; the promise resolved to ${String(result)}`);
}
