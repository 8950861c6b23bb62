import { builtinTag, checkIntegerArgument, checkObject, describe, wrongType } from '../core/check.js';
import { Needle3Error } from '../core/errors.js';
import { Heap } from '../core/heap.js';
import createCore from '../needle3.js';
import type { CoreModule } from '../core/module.js';

// The public types are structural: they compile where nothing declares the DOM, and the DOM's own fit them.

/**
 * What `loadNeedle3` reads of a `URL`.
 *
 * @example
 * ```ts
 * await loadNeedle3({ wasm: new URL('/assets/needle3.wasm', 'https://example.com') });
 * ```
 */
export interface UrlLike {
  /** The whole address. */
  readonly href: string;
}

/**
 * What `loadNeedle3` reads of a `Response`.
 *
 * @example
 * ```ts
 * await loadNeedle3({ wasm: await fetch('/assets/needle3.wasm') });
 * ```
 */
export interface ResponseLike {
  /** Whether the status is a success. */
  readonly ok: boolean;
  /** The HTTP status. */
  readonly status: number;
  /** The address that answered. */
  readonly url: string;
  /** The headers; of them only `content-type` is read. */
  readonly headers: {
    /** A header's value, or null. */
    get(name: string): string | null;
  };
  /** The body. */
  arrayBuffer(): Promise<ArrayBuffer>;
}

/**
 * A `WebAssembly.Module`, whose type has no members: at run time nothing else will do.
 *
 * @example
 * ```ts
 * const module = await WebAssembly.compileStreaming(fetch('/assets/needle3.wasm'));
 * await loadNeedle3({ wasm: module });
 * ```
 */
export type WebAssemblyModule = object;

/**
 * Where the .wasm is, or what is in it: an address (a string or a `URL`; in Node also a path or a `file:` URL), a
 * `Response` or a promise of one, the bytes, or a compiled `WebAssembly.Module`, which Workers may share.
 *
 * @example
 * ```ts
 * const source: WasmSource = fetch('/assets/needle3.wasm');
 * await loadNeedle3({ wasm: source });
 * ```
 */
export type WasmSource =
  | string
  | UrlLike
  | ResponseLike
  | PromiseLike<ResponseLike>
  | ArrayBuffer
  | ArrayBufferView<ArrayBuffer>
  | WebAssemblyModule;

/**
 * How the module is loaded.
 *
 * @example
 * ```ts
 * const options: LoadOptions = { wasm: '/assets/needle3.wasm', maximumMemoryBytes: 256 * 2 ** 20 };
 * ```
 */
export interface LoadOptions {
  /** Where the .wasm is, or what is in it. Default: beside the module (fetched in browsers, read from disk in Node). */
  readonly wasm?: WasmSource | undefined;
  /**
   * Upper bound of linear memory in bytes: an integer from 1 MiB to 4 GiB, rounded down to whole pages of 64 KiB.
   * Memory starts small and grows on demand; what does not fit under the bound is `out-of-memory`. Default 4 GiB. Lower
   * it where an engine will not set aside so much address space.
   */
  readonly maximumMemoryBytes?: number | undefined;
}

/** How a platform gets at the .wasm. */
export interface Platform {
  /** Where the package's own .wasm is. Called at each load, so that importing the package resolves nothing. */
  defaultLocation(): UrlLike;
  /** A response, or the bytes. */
  open(location: string): Promise<ResponseLike | Uint8Array<ArrayBuffer>>;
}

const PAGE_BYTES = 65536;
/** What the .wasm asks of the memory that it imports (INITIAL_MEMORY and MAXIMUM_MEMORY in bindings/CMakeLists.txt). */
export const INITIAL_PAGES = 16;
const MAX_PAGES = 65536;

const WASM_MAGIC = [0x00, 0x61, 0x73, 0x6d];
/** A module of nothing: where even this does not compile, something forbids compiling. */
const EMPTY_MODULE = [...WASM_MAGIC, 1, 0, 0, 0];
/** A function () → v128 of `i32.const 0; i8x16.splat`. */
const SIMD_MODULE = [...EMPTY_MODULE, 1, 5, 1, 0x60, 0, 1, 0x7b, 3, 2, 1, 0, 10, 8, 1, 6, 0, 0x41, 0, 0xfd, 15, 0x0b];

function loadError(message: string, cause: unknown): Needle3Error {
  return new Needle3Error('load', `loadNeedle3: ${message}`, { cause });
}

function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The default `open`: whatever `fetch` takes. */
export async function fetchLocation(location: string): Promise<ResponseLike> {
  return fetch(location);
}

/** Loads the module and starts an instance of it. Nothing is kept from one load to the next. */
export async function loadCore(platform: Platform, options: LoadOptions): Promise<Heap> {
  checkObject('loadNeedle3', 'options', options);
  const { wasm: source, maximumMemoryBytes = MAX_PAGES * PAGE_BYTES } = options;
  checkIntegerArgument(
    'loadNeedle3',
    'maximumMemoryBytes',
    maximumMemoryBytes,
    INITIAL_PAGES * PAGE_BYTES,
    MAX_PAGES * PAGE_BYTES,
  );
  await checkEngine();
  const module = await compileSource(platform, source === undefined ? platform.defaultLocation() : source);
  let memory: WebAssembly.Memory;
  try {
    memory = new WebAssembly.Memory({
      initial: INITIAL_PAGES,
      maximum: Math.floor(maximumMemoryBytes / PAGE_BYTES),
    });
  } catch (cause) {
    throw loadError(
      `no room for a linear memory of ${INITIAL_PAGES * PAGE_BYTES} bytes that may grow to ${maximumMemoryBytes}; ` +
        `a smaller maximumMemoryBytes may help: ${reason(cause)}`,
      cause,
    );
  }
  return new Heap(await start(module, memory), memory);
}

/** @throws Needle3Error `load` where the engine lacks what the package needs, before anything is fetched */
async function checkEngine(): Promise<void> {
  let hasSimd: boolean;
  try {
    hasSimd = WebAssembly.validate(new Uint8Array(SIMD_MODULE));
  } catch (cause) {
    throw loadError('this engine has no WebAssembly', cause);
  }
  if (hasSimd) return;
  throw loadError(
    'this engine has no WebAssembly SIMD (128-bit), which the package needs',
    await failureOf(WebAssembly.compile(new Uint8Array(SIMD_MODULE))),
  );
}

/** What a promise rejects with, or undefined. */
async function failureOf(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => undefined,
    (error: unknown) => error,
  );
}

/** An instance of the compiled module. */
async function start(module: WebAssembly.Module, memory: WebAssembly.Memory): Promise<CoreModule> {
  try {
    return await new Promise<CoreModule>((resolve, reject) => {
      createCore({
        wasmMemory: memory,
        instantiateWasm: (imports, done) => {
          // The glue's own promise never settles where this fails, nor where the module is none of its own.
          WebAssembly.instantiate(module, imports as WebAssembly.Imports)
            .then(done)
            .catch(reject);
          return {};
        },
      }).then(resolve, reject);
    });
  } catch (cause) {
    throw loadError(
      `the module could not be started; is the .wasm the one of this version of the package? ${reason(cause)}`,
      cause,
    );
  }
}

function isResponse(value: object): value is ResponseLike {
  const { arrayBuffer, headers } = value as Partial<ResponseLike>;
  return typeof arrayBuffer === 'function' && typeof headers === 'object' && headers !== null;
}

function isPromiseLike(value: object): value is PromiseLike<unknown> {
  return typeof (value as Partial<PromiseLike<unknown>>).then === 'function';
}

async function compileSource(platform: Platform, source: WasmSource): Promise<WebAssembly.Module> {
  if (typeof source === 'string') return openAndCompile(platform, source);
  if (typeof source !== 'object' || source === null) return wrongSource(source);
  if (builtinTag(source) === 'WebAssembly.Module') return source;
  if (builtinTag(source) === 'ArrayBuffer') return compileBytes(new Uint8Array(source as ArrayBuffer), 'wasm');
  if (ArrayBuffer.isView(source)) {
    const { buffer, byteOffset, byteLength } = source;
    // A copy, since engines refuse views of shared memory.
    return compileBytes(new Uint8Array(buffer, byteOffset, byteLength).slice(), 'wasm');
  }
  if (isPromiseLike(source)) {
    let response: unknown;
    try {
      response = await source;
    } catch (cause) {
      throw loadError(`the .wasm could not be fetched: ${reason(cause)}`, cause);
    }
    if (typeof response !== 'object' || response === null || !isResponse(response)) {
      wrongType('loadNeedle3', 'what the promise wasm gives', 'a Response', response);
    }
    return compileResponse(response);
  }
  if (isResponse(source)) return compileResponse(source);
  if (typeof (source as Partial<UrlLike>).href === 'string') return openAndCompile(platform, (source as UrlLike).href);
  return wrongSource(source);
}

function wrongSource(source: unknown): never {
  wrongType(
    'loadNeedle3',
    'wasm',
    'a string, URL, Response, promise of a Response, ArrayBuffer or view of one, or WebAssembly.Module',
    source,
  );
}

async function openAndCompile(platform: Platform, location: string): Promise<WebAssembly.Module> {
  let opened: ResponseLike | Uint8Array<ArrayBuffer>;
  try {
    opened = await platform.open(location);
  } catch (cause) {
    throw loadError(`${location} could not be read: ${reason(cause)}`, cause);
  }
  return ArrayBuffer.isView(opened) ? compileBytes(opened, location) : compileResponse(opened, location);
}

async function compileResponse(response: ResponseLike, location = 'the .wasm'): Promise<WebAssembly.Module> {
  const where = response.url || location;
  if (!response.ok) throw loadError(`${where} answered with status ${response.status}`, response);
  const contentType = response.headers.get('content-type');
  // The header is looked at first: a response whose streaming compilation has failed cannot be read again.
  if (
    contentType?.trim().toLowerCase() === 'application/wasm' &&
    typeof WebAssembly.compileStreaming === 'function' &&
    builtinTag(response) === 'Response'
  ) {
    return compiled(() => WebAssembly.compileStreaming(response as Response), where);
  }
  let bytes: ArrayBuffer;
  try {
    bytes = await response.arrayBuffer();
  } catch (cause) {
    throw loadError(`${where} could not be read to its end: ${reason(cause)}`, cause);
  }
  return compileBytes(new Uint8Array(bytes), where, contentType);
}

async function compileBytes(
  bytes: Uint8Array<ArrayBuffer>,
  where: string,
  contentType: string | null = null,
): Promise<WebAssembly.Module> {
  if (WASM_MAGIC.some((byte, i) => bytes[i] !== byte)) {
    const begin = describe(String.fromCharCode(...bytes.subarray(0, 24)));
    const type = contentType === null ? '' : ` of type ${contentType}`;
    throw loadError(
      `${where} is not WebAssembly: ${bytes.length} bytes${type} that begin with ${begin}; ` +
        'is a page served in its place?',
      await failureOf(WebAssembly.compile(bytes)),
    );
  }
  return compiled(() => WebAssembly.compile(bytes), where);
}

async function compiled(compile: () => Promise<WebAssembly.Module>, where: string): Promise<WebAssembly.Module> {
  try {
    return await compile();
  } catch (cause) {
    const allowed = (await failureOf(WebAssembly.compile(new Uint8Array(EMPTY_MODULE)))) === undefined;
    throw loadError(
      allowed
        ? `${where} could not be compiled; is it damaged or cut short? ${reason(cause)}`
        : `compiling WebAssembly is not allowed here; a Content-Security-Policy needs 'wasm-unsafe-eval' in ` +
            `script-src: ${reason(cause)}`,
      cause,
    );
  }
}
