import { wasmArraySpan, type Allocation } from './arrays.js';
import { elementsOf, isFloat32Array, wrongType } from './check.js';
import { ERROR_CODES, type CoreModule, type CoreState, type WasmMemory } from './module.js';
import { Needle3Error } from './errors.js';

/** The bound of 32-bit linear memory: nothing longer is asked of the core, whose sizes would wrap. */
const MAX_BYTES = 0xffffffff;

/** Not by masks: they would wrap at 2 GiB. */
function align16(bytes: number): number {
  return bytes + 15 - ((bytes + 15) % 16);
}

/** What the core does with an operand. */
export type Role = 'in' | 'out' | 'in-out';

/**
 * One Float32Input of the call under way: where it came from and where the core finds it. The records live as long as
 * the heap and are filled anew by each call, so that a decode step makes no garbage.
 */
export class Operand {
  /** Elements. */
  length = 0;
  /** Where the core finds it, a byte offset into linear memory. Set by `Heap.place`. */
  address = 0;
  /** Where its own elements lie in linear memory, or -1 where they lie in a buffer of JavaScript's. */
  origin = -1;
  /** The array in a buffer of JavaScript's, or null where the elements lie in linear memory. */
  source: Float32Array | null = null;
  /** Whether the core works on a copy in the staging area. */
  staged = false;
  /** Whether it is an array of another instance. */
  foreign = false;
  name = '';
}

/** Whether two operands share an element. */
function overlap(a: Operand, b: Operand): boolean {
  if (a.source !== null && b.source !== null) {
    if (a.source.buffer !== b.source.buffer) return false;
    const beginA = a.source.byteOffset;
    const beginB = b.source.byteOffset;
    return beginA < beginB + 4 * b.length && beginB < beginA + 4 * a.length;
  }
  if (a.origin < 0 || b.origin < 0) return false;
  return a.origin < b.origin + 4 * b.length && b.origin < a.origin + 4 * a.length;
}

/**
 * One instance's linear memory: views of it, the staging area, and the core's errors.
 *
 * Growth detaches every view, and any call into the core may grow. So the views here are looked at anew after each
 * call and made again where they were detached, and what is kept across a call is an address.
 */
export class Heap {
  readonly core: CoreModule;
  readonly memory: WasmMemory;
  /** Operands of the call under way; no call has more. */
  readonly operands: readonly [Operand, Operand, Operand, Operand] = [
    new Operand(),
    new Operand(),
    new Operand(),
    new Operand(),
  ];
  /** Frees the states and arrays that were forgotten. What it holds refers to no object that it watches. */
  readonly states = new FinalizationRegistry<CoreState>((state) => state.delete());
  readonly arrays: FinalizationRegistry<Pick<Allocation, 'address' | 'length'>>;

  private floats: Float32Array<ArrayBuffer>;
  private bytes: Uint8Array<ArrayBuffer>;

  constructor(core: CoreModule, memory: WasmMemory) {
    this.core = core;
    this.memory = memory;
    this.floats = new Float32Array(memory.buffer);
    this.bytes = new Uint8Array(memory.buffer);
    this.arrays = new FinalizationRegistry(({ address, length }) => core.releaseArray(address, length));
  }

  /** All of linear memory as f32. Do not keep it across a call into the core. */
  get f32(): Float32Array<ArrayBuffer> {
    // A detached view has no elements, and linear memory is never empty.
    if (this.floats.length === 0) this.renew();
    return this.floats;
  }

  /** All of linear memory as bytes. Do not keep it across a call into the core. */
  get u8(): Uint8Array<ArrayBuffer> {
    if (this.bytes.length === 0) this.renew();
    return this.bytes;
  }

  get buffer(): ArrayBuffer {
    return this.f32.buffer;
  }

  private renew(): void {
    this.floats = new Float32Array(this.memory.buffer);
    this.bytes = new Uint8Array(this.memory.buffer);
  }

  /** The error that the core's last call ended with. */
  error(method: string, code: number): Needle3Error {
    const begin = this.core.lastMessage() >>> 0;
    const text = new TextDecoder().decode(this.u8.slice(begin, this.u8.indexOf(0, begin)));
    return new Needle3Error(ERROR_CODES[code] as Needle3Error['code'], `${method}: ${text}`);
  }

  /** The error of a call that says only that it failed. */
  lastError(method: string): Needle3Error {
    return this.error(method, this.core.lastCode());
  }

  check(method: string, code: number): void {
    if (code !== 0) throw this.error(method, code);
  }

  /** The staging area, at least so large, 16-byte aligned. @throws Needle3Error `out-of-memory` */
  stage(method: string, bytes: number): number {
    const address = bytes <= MAX_BYTES ? this.core.reserveStaging(Math.max(bytes, 16)) >>> 0 : 0;
    if (address === 0) throw new Needle3Error('out-of-memory', `${method}: no room for ${bytes} bytes of staging`);
    return address;
  }

  /** Copies bytes, which must not lie in linear memory, into the staging area. Gives their address. */
  stageBytes(method: string, bytes: Uint8Array<ArrayBuffer>): number {
    const address = this.stage(method, bytes.length);
    this.u8.set(bytes, address);
    return address;
  }

  /** The same for words, with `extraBytes` after them for the core's answer. */
  stageWords(method: string, words: Uint32Array<ArrayBuffer>, extraBytes = 0): number {
    const address = this.stage(method, words.byteLength + extraBytes);
    this.u8.set(new Uint8Array(words.buffer), address);
    return address;
  }

  /** A copy in its own buffer. */
  copyWords(address: number, length: number): Uint32Array<ArrayBuffer> {
    return new Uint32Array(this.buffer.slice(address, address + 4 * length));
  }

  /**
   * Reads an argument into an operand. An array of another instance is only noted, for `place` to refuse after the
   * caller has checked the types of the arguments that follow.
   * @throws Needle3Error `type` or `disposed`
   */
  take(operand: Operand, method: string, name: string, value: unknown): void {
    operand.name = name;
    operand.foreign = false;
    if (isFloat32Array(value)) {
      operand.length = elementsOf(value);
      operand.staged = true;
      // A caller's view of linear memory is kept as an address: reserving the staging area may detach it.
      if (value.buffer === this.buffer) {
        operand.source = null;
        operand.origin = value.byteOffset;
      } else {
        operand.source = value;
        operand.origin = -1;
      }
      return;
    }
    const span = wasmArraySpan(value);
    if (span === undefined) wrongType(method, name, 'a Float32Array or a WasmFloat32Array', value);
    span.checkLive(method);
    operand.length = span.length;
    operand.staged = false;
    operand.source = null;
    operand.origin = span.address;
    operand.foreign = span.allocation.heap !== this;
  }

  /**
   * Gives the first `count` operands their addresses: arrays of this instance where they lie, all others in the
   * staging area. `last` says what the core does with the last one; the others it reads.
   * @returns the address of `extraBytes` more in the staging area, for what the core writes beside the operands
   * @throws Needle3Error `range` for an array of another instance or an output that is an input, or `out-of-memory`
   */
  place(method: string, count: number, last: Role, extraBytes = 0): number {
    const { operands } = this;
    let bytes = extraBytes;
    let staged = extraBytes > 0;
    for (let i = 0; i < count; i++) {
      const operand = operands[i];
      if (operand.foreign) {
        throw new Needle3Error('range', `${method}: ${operand.name} belongs to another instance`);
      }
      if (!operand.staged) continue;
      staged = true;
      bytes += align16(4 * operand.length);
    }
    if (last !== 'in') this.checkDistinct(method, count - 1);
    let next = staged ? this.stage(method, bytes) : 0;
    for (let i = 0; i < count; i++) {
      const operand = operands[i];
      if (!operand.staged) {
        operand.address = operand.origin;
        continue;
      }
      operand.address = next;
      next += align16(4 * operand.length);
      if (i < count - 1 || last !== 'out') this.copyIn(operand);
    }
    return next;
  }

  /** Copies an operand that the core has written back to where it came from, and lets go of the arrays. */
  finish(output: Operand): void {
    if (output.staged) this.copyOut(output);
    this.release();
  }

  /** Lets go of the caller's arrays, so that an idle instance keeps none of them alive. */
  release(): void {
    for (let i = 0; i < 4; i++) this.operands[i].source = null;
  }

  private checkDistinct(method: string, outputIndex: number): void {
    const output = this.operands[outputIndex];
    for (let i = 0; i < outputIndex; i++) {
      const input = this.operands[i];
      if (overlap(input, output)) {
        throw new Needle3Error('range', `${method}: ${output.name} must not overlap ${input.name}`);
      }
    }
  }

  private copyIn(operand: Operand): void {
    const { source, length } = operand;
    const heap = this.f32;
    if (source !== null) heap.set(source, operand.address >>> 2);
    else heap.copyWithin(operand.address >>> 2, operand.origin >>> 2, (operand.origin >>> 2) + length);
  }

  private copyOut(operand: Operand): void {
    const { source, length } = operand;
    const heap = this.f32;
    const begin = operand.address >>> 2;
    if (source === null) heap.copyWithin(operand.origin >>> 2, begin, begin + length);
    else source.set(heap.subarray(begin, begin + length));
  }
}
