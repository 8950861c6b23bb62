import { checkInteger, checkNumber, notConstructible } from './check.js';
import { makeDisposable } from './dispose.js';
import { Needle3Error } from './errors.js';
import type { Heap } from './heap.js';

/** Memory that one `allocate` call gave. It is what the garbage collector watches, and all arrays over it share it. */
export interface Allocation {
  readonly heap: Heap;
  readonly address: number;
  /** Elements. */
  readonly length: number;
  live: boolean;
}

/** A part of an allocation, and whether the array that stands for it was disposed of. */
export class Span {
  readonly allocation: Allocation;
  readonly address: number;
  /** Elements. */
  readonly length: number;
  private live = true;

  constructor(allocation: Allocation, address: number, length: number) {
    this.allocation = allocation;
    this.address = address;
    this.length = length;
  }

  end(): void {
    this.live = false;
  }

  /** @throws Needle3Error `disposed`; `what` opens the message */
  checkLive(what: string): void {
    if (!this.live || !this.allocation.live) {
      throw new Needle3Error('disposed', `${what}: this WasmFloat32Array was disposed of`);
    }
  }
}

/** The part of linear memory that a WasmFloat32Array stands for, or undefined where the value is none. */
export let wasmArraySpan: (value: unknown) => Span | undefined;

/** A WasmFloat32Array over all of an allocation. */
export let createWasmArray: (allocation: Allocation) => WasmFloat32Array;

// While a view is reachable its memory must not be given back, even where the array itself was forgotten.
const allocationOfView = new WeakMap<Float32Array, Allocation>();

/**
 * An array of f32 that lives in linear memory, made by {@link Needle3.allocate}. Where a method takes a
 * {@link Float32Input} it is used where it lies, without a copy: keep weights and the rows of a step in such arrays.
 *
 * The caller owns it and ends it with `dispose()` (or `using`); one that is forgotten is freed when the garbage
 * collector finds it. It belongs to the instance that made it: another refuses it (`range`).
 *
 * @example
 * ```ts
 * const taps = needle3.allocate(3 * 576);
 * taps.view.set(weights);
 * state.conv(0, 'q', taps, rows);
 * taps.dispose();
 * ```
 */
export class WasmFloat32Array {
  readonly #span: Span;
  readonly #isOwner: boolean;
  #view: Float32Array<ArrayBuffer> | undefined;

  private constructor(span: Span, isOwner: boolean) {
    if (!(span instanceof Span)) notConstructible('WasmFloat32Array', 'Needle3.allocate');
    this.#span = span;
    this.#isOwner = isOwner;
  }

  static {
    makeDisposable(this.prototype);

    wasmArraySpan = (value) =>
      typeof value === 'object' && value !== null && #span in value ? value.#span : undefined;

    createWasmArray = (allocation) => {
      const { heap, address, length } = allocation;
      heap.arrays.register(allocation, { address, length }, allocation);
      return new WasmFloat32Array(new Span(allocation, address, length), true);
    };
  }

  /**
   * Elements.
   * @throws Needle3Error `disposed`
   */
  get length(): number {
    this.#span.checkLive('length');
    return this.#span.length;
  }

  /**
   * The elements, as a view of linear memory that is good now. Growth of linear memory detaches views, and any call
   * of the package may grow it, so read `view` again after a call instead of keeping it. It must not be used once the
   * array is disposed of: the memory may hold something else by then.
   * @throws Needle3Error `disposed`
   */
  get view(): Float32Array<ArrayBuffer> {
    const span = this.#span;
    span.checkLive('view');
    const { buffer } = span.allocation.heap;
    let view = this.#view;
    if (view?.buffer !== buffer) {
      view = new Float32Array(buffer, span.address, span.length);
      allocationOfView.set(view, span.allocation);
      this.#view = view;
    }
    return view;
  }

  /**
   * The elements from `begin` up to `end`, sharing memory. It is good until the array that `allocate` gave is
   * disposed of; disposing of it ends only itself.
   *
   * @param begin - first element, an integer from 0 to `length`
   * @param end - one past the last element, an integer from `begin` to `length`; default `length`
   * @throws Needle3Error `disposed`, `type` or `range` (there is no counting from the end and no clamping)
   *
   * @example
   * ```ts
   * const row = array.subarray(0, 96); // the first 96 elements, no copy
   * ```
   */
  subarray(begin: number, end?: number): WasmFloat32Array {
    const { allocation, address, length } = this.#span;
    this.#span.checkLive('subarray');
    const last = end === undefined ? length : end;
    checkNumber('subarray', 'begin', begin);
    checkNumber('subarray', 'end', last);
    checkInteger('subarray', 'begin', begin, 0, length);
    checkInteger('subarray', 'end', last, begin, length);
    return new WasmFloat32Array(new Span(allocation, address + 4 * begin, last - begin), false);
  }

  /**
   * Gives the memory back at once. On an array that `subarray` made it ends that array alone and gives nothing back.
   * May be called again.
   *
   * @example
   * ```ts
   * const array = needle3.allocate(96);
   * array.dispose();
   * ```
   */
  dispose(): void {
    this.#span.end();
    this.#view = undefined;
    const { allocation } = this.#span;
    if (!this.#isOwner || !allocation.live) return;
    allocation.live = false;
    allocation.heap.arrays.unregister(allocation);
    allocation.heap.core.releaseArray(allocation.address, allocation.length);
  }

  /** `dispose()`, for `using`. Absent where the engine has no `Symbol.dispose`. */
  declare readonly [Symbol.dispose]: () => void;
}
