/**
 * What went wrong, as a word that programs can switch on.
 *
 * | code | thrown when |
 * |---|---|
 * | `config` | a field of a geometry is wrong |
 * | `shape` | an array's length does not fit the geometry, or rows disagree in number |
 * | `range` | a layer, site, position, count, token, mark or option is out of range or no integer; a span is not wholly held; a step's count is wrong; an array belongs to another instance; `out` is also an input; the middle of a step refuses the call; `engramIndices` is called before any token |
 * | `type` | an argument has the wrong JavaScript type |
 * | `non-finite` | keys or values, rows to quantise, or a query to be quantised hold NaN or an infinity; logits hold NaN |
 * | `out-of-memory` | an allocation failed; the state is as it was and still usable |
 * | `disposed` | an object is used after `dispose` |
 * | `snapshot` | bytes are no valid snapshot, or one of another geometry or fingerprint than asked for |
 * | `unsupported` | a precision, bit width or combination does not exist here |
 * | `load` | the module could not be fetched, compiled or started; `cause` holds the engine's own error |
 *
 * @example
 * ```ts
 * const hints: Partial<Record<ErrorCode, string>> = { 'out-of-memory': 'close another session', load: 'reload the page' };
 * ```
 */
export type ErrorCode =
  | 'config'
  | 'shape'
  | 'range'
  | 'type'
  | 'non-finite'
  | 'out-of-memory'
  | 'disposed'
  | 'snapshot'
  | 'unsupported'
  | 'load';

/**
 * Every error that this package throws. The message names the method, the argument, its value and the rule.
 *
 * A call that throws has changed nothing: the state's next step gives the bits it would have given.
 *
 * @example
 * ```ts
 * try {
 *   state.attend(20, query, out);
 * } catch (error) {
 *   if (error instanceof Needle3Error && error.code === 'range') console.log(error.message);
 *   // attend: layer must be an integer from 0 to 19; got 20
 * }
 * ```
 */
export class Needle3Error extends Error {
  /** What went wrong, as a word that programs can switch on. */
  readonly code: ErrorCode;

  /**
   * For code that reports in the same way, such as a stand-in for the package in a test.
   *
   * @param code - what went wrong, as a word
   * @param message - what went wrong, in words
   * @param options - `cause`: the error that led to this one
   */
  constructor(code: ErrorCode, message: string, options?: { readonly cause?: unknown }) {
    super(message, options);
    this.code = code;
  }

  static {
    // On the prototype and not enumerable, as the built-in errors have it.
    Object.defineProperty(this.prototype, 'name', { value: 'Needle3Error', configurable: true, writable: true });
  }
}
