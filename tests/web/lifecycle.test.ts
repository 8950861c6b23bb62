import { DecodeState, loadNeedle3, NEEDLE3, Needle3, WasmFloat32Array } from 'needle3-wasm';
import { afterEach, describe, expect, it, vi } from 'vitest';

import { expectRejection, expectSameBits } from './support/assert.js';
import { concatenate, Inputs, observe, openStep, steps } from './support/drive.js';
import { HYBRID, PLAIN } from './support/geometry.js';
import { needle3 } from './support/instance.js';
import { wasmBytes, wasmUrl } from './support/wasm.js';

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

describe('a state', () => {
  for (const precision of ['f32', 'int8'] as const) {
    it(`gives byte for byte the same in a second run after reset, and in a new state (${precision})`, async () => {
      const needle = await needle3();
      const inputs = new Inputs(HYBRID, 21);
      const state = needle.createDecodeState(HYBRID, { precision, capacityHint: 1 });
      const run = (each: DecodeState): Float32Array => concatenate(steps(each, inputs, 1, 1, 6, 1, 9, 1));
      const first = run(state);
      const saved = state.save();
      openStep(state, inputs, 2);
      state.reset();
      expect(observe(state)).toMatchObject({ position: 0, tokenHistory: [], markBytes: 0, isSaturated: false });
      expectSameBits(run(state), first, 'after reset');
      expect(state.save()).toEqual(saved);
      const fresh = needle.createDecodeState(HYBRID, { precision, capacityHint: 1 });
      expectSameBits(run(fresh), first, 'in a new state');
      state.dispose();
      fresh.dispose();
    });
  }

  it('keeps the slots it has grown to over reset', async () => {
    const state = (await needle3()).createDecodeState(PLAIN, { capacityHint: 1 });
    steps(state, new Inputs(PLAIN, 1), 9);
    const slots = state.slots(0);
    expect(slots).toBeGreaterThanOrEqual(9);
    state.reset();
    expect(state.slots(0)).toBe(slots);
    state.dispose();
  });

  it('is not changed by discard where no step is open', async () => {
    const needle = await needle3();
    const inputs = new Inputs(HYBRID, 22);
    const [state, twin] = [needle.createDecodeState(HYBRID), needle.createDecodeState(HYBRID)];
    for (const each of [state, twin]) steps(each, inputs, 5);
    state.discard();
    state.discard();
    expectSameBits(concatenate(steps(state, inputs, 2)), concatenate(steps(twin, inputs, 2)), 'afterwards');
    state.dispose();
    twin.dispose();
  });

  it('is independent of other states of its instance', async () => {
    const needle = await needle3();
    const inputs = [1, 2].map((seed) => new Inputs(HYBRID, seed)) as [Inputs, Inputs];
    const alone = inputs.map((each) => {
      const state = needle.createDecodeState(HYBRID, { capacityHint: 1 });
      const trace = concatenate(steps(state, each, ...Array<number>(9).fill(1)));
      state.dispose();
      return trace;
    });
    const states = inputs.map(() => needle.createDecodeState(HYBRID, { capacityHint: 1 })) as [
      DecodeState,
      DecodeState,
    ];
    const traces: Float32Array[][] = [[], []];
    for (let i = 0; i < 9; i++) states.forEach((state, s) => traces[s].push(...steps(state, inputs[s], 1)));
    traces.forEach((trace, s) => expectSameBits(concatenate(trace), alone[s], `state ${s}`));
    for (const state of states) state.dispose();
  });
});

describe('dispose', () => {
  it('may be called again, and gives memory back once', async () => {
    const needle = await loadNeedle3();
    const things = [needle.createDecodeState(HYBRID), needle.allocate(10)];
    for (const thing of things) {
      thing.dispose();
      const { allocatedBytes } = needle.memory;
      thing.dispose();
      expect(needle.memory.allocatedBytes).toBe(allocatedBytes);
    }
    expect(needle.memory.allocatedBytes).toBe(0);
  });

  it('is what Symbol.dispose calls where the engine has it, and is all there is where it has not', async () => {
    const needle = await needle3();
    const symbol = (Symbol as { dispose?: symbol }).dispose;
    for (const { prototype } of [DecodeState, WasmFloat32Array] as unknown as {
      prototype: Record<PropertyKey, unknown>;
    }[]) {
      const symbols = Object.getOwnPropertySymbols(prototype).filter((key) => key !== Symbol.toStringTag);
      expect(symbols).toEqual(symbol === undefined ? [] : [symbol]);
    }
    const state = needle.createDecodeState(PLAIN);
    const array = needle.allocate(1);
    for (const thing of [state, array] as unknown as Record<PropertyKey, () => void>[]) thing[symbol ?? 'dispose']();
    expect(() => state.position).toThrow('disposed');
    expect(() => array.length).toThrow('disposed');
  });
});

describe('what is exported', () => {
  it('is the pinned names and no other', async () => {
    const api = (await import('needle3-wasm')) as Record<string, unknown>;
    expect(Object.keys(api).sort()).toEqual(
      ['DecodeState', 'NEEDLE3', 'Needle3', 'Needle3Error', 'WasmFloat32Array', 'decode', 'loadNeedle3'].sort(),
    );
  });

  it('has classes that only the package can make', async () => {
    const needle = await needle3();
    const state = needle.createDecodeState(PLAIN);
    const array = needle.allocate(1);
    expect(needle).toBeInstanceOf(Needle3);
    expect(state).toBeInstanceOf(DecodeState);
    expect(array).toBeInstanceOf(WasmFloat32Array);
    // An object that only looks like one of theirs has nothing behind it.
    const uses = [
      () => (Object.create(Needle3.prototype) as Needle3).memory,
      () => (Object.create(DecodeState.prototype) as DecodeState).position,
      () => (Object.create(WasmFloat32Array.prototype) as WasmFloat32Array).view,
    ];
    for (const use of uses) expect(use).toThrow(TypeError);
    state.dispose();
    array.dispose();
  });
});

describe('loading', () => {
  async function works(needle: Needle3): Promise<void> {
    const inputs = new Inputs(HYBRID, 3);
    const [state, twin] = [needle, await needle3()].map((each) => each.createDecodeState(HYBRID)) as [
      DecodeState,
      DecodeState,
    ];
    expectSameBits(concatenate(steps(state, inputs, 3)), concatenate(steps(twin, inputs, 3)), 'a loaded instance');
    state.dispose();
    twin.dispose();
  }

  function response(body: BodyInit | null, type: string | undefined, status = 200): Response {
    return new Response(body, { status, headers: type === undefined ? {} : { 'content-type': type } });
  }

  it('starts small, and again each time', async () => {
    const [a, b] = [await loadNeedle3(), await loadNeedle3({})];
    for (const needle of [a, b]) {
      expect(needle.memory.linearBytes).toBeLessThanOrEqual(16 * 2 ** 20);
      expect(needle.memory.allocatedBytes).toBe(0);
    }
    a.createDecodeState(NEEDLE3);
    expect(b.memory.allocatedBytes).toBe(0);
    await works(b);
  });

  it('may go on several times at once', async () => {
    const bytes = await wasmBytes();
    const all = await Promise.all([loadNeedle3(), loadNeedle3(), loadNeedle3({ wasm: bytes }), loadNeedle3()]);
    expect(new Set(all).size).toBe(4);
    for (const needle of all) await works(needle);
  });

  it('takes bytes, as a buffer or a view, and leaves them as they are', async () => {
    const bytes = await wasmBytes();
    const around = new Uint8Array(bytes.length + 10);
    around.set(bytes, 3);
    await works(await loadNeedle3({ wasm: bytes }));
    await works(await loadNeedle3({ wasm: bytes.buffer }));
    await works(await loadNeedle3({ wasm: around.subarray(3, 3 + bytes.length) }));
    await works(await loadNeedle3({ wasm: new DataView(around.buffer, 3, bytes.length) }));
    expect(around.subarray(3, 3 + bytes.length)).toEqual(bytes);
  });

  it('takes a compiled module, for any number of instances', async () => {
    const module = await WebAssembly.compile(await wasmBytes());
    const [a, b] = await Promise.all([loadNeedle3({ wasm: module }), loadNeedle3({ wasm: module })]);
    await works(a);
    await works(b);
  });

  it('takes a module that was posted', async () => {
    const module = await WebAssembly.compile(await wasmBytes());
    const { port1, port2 } = new MessageChannel();
    const received = new Promise<WebAssembly.Module>((resolve) => {
      port2.onmessage = ({ data }) => resolve(data as WebAssembly.Module);
    });
    port1.postMessage(module);
    await works(await loadNeedle3({ wasm: await received }));
    port1.close();
    port2.close();
  });

  for (const type of [
    'application/wasm',
    'application/wasm; charset=utf-8',
    'application/octet-stream',
    'text/plain',
    undefined,
  ]) {
    it(`takes a response of type ${type}, and a promise of one`, async () => {
      const bytes = await wasmBytes();
      await works(await loadNeedle3({ wasm: response(bytes, type) }));
      await works(await loadNeedle3({ wasm: Promise.resolve(response(bytes, type)) }));
    });
  }

  it('takes an address, as a string or a URL', async () => {
    const address = URL.createObjectURL(new Blob([await wasmBytes()], { type: 'application/wasm' }));
    await works(await loadNeedle3({ wasm: address }));
    await works(await loadNeedle3({ wasm: new URL(address) }));
    URL.revokeObjectURL(address);
    await works(await loadNeedle3({ wasm: wasmUrl }));
    await works(await loadNeedle3({ wasm: wasmUrl.href }));
  });

  it('takes what looks like a response', async () => {
    const bytes = await wasmBytes();
    const wasm = {
      ok: true,
      status: 200,
      url: '',
      headers: { get: () => 'application/wasm' },
      arrayBuffer: () => Promise.resolve(bytes.buffer),
    };
    await works(await loadNeedle3({ wasm }));
  });

  it('refuses what is none of these: type', async () => {
    for (const wasm of [null, 5, true, {}, [], 1n, () => 1]) {
      await expectRejection(loadNeedle3({ wasm: wasm as unknown as string }), 'type', 'loadNeedle3: ', 'wasm');
    }
    await expectRejection(
      loadNeedle3({ wasm: Promise.resolve(5) as unknown as string }),
      'type',
      'loadNeedle3: ',
      'wasm',
    );
    for (const options of [null, 5, 'x'])
      await expectRejection(loadNeedle3(options as never), 'type', 'loadNeedle3: ', 'options');
  });

  const failures: Record<string, readonly [make: () => unknown, ...says: string[]]> = {
    'no bytes': [() => new Uint8Array(0), '0 bytes'],
    'bytes of something else': [() => new TextEncoder().encode('hello, world'), 'hello, world'],
    'a module cut short': [async () => (await wasmBytes()).slice(0, 5000)],
    'a damaged module': [async () => (await wasmBytes()).fill(0xff, 40, 80)],
    "another program's module": [() => Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0)],
    'a compiled module of another program': [() => WebAssembly.compile(Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0))],
    'a page in its place': [
      () => response('<!doctype html><title>Not found</title>', 'text/html'),
      '<!doctype html>',
      'text/html',
    ],
    'a page that says it is wasm': [() => response('<!doctype html>', 'application/wasm')],
    'a response of status 404': [() => response('nothing', 'text/plain', 404), '404'],
    'a response that was read already': [
      async () => {
        const used = response(await wasmBytes(), 'text/plain');
        await used.arrayBuffer();
        return used;
      },
    ],
    'a promise that is rejected': [() => Promise.reject(new TypeError('offline')), 'offline'],
    'an address where nothing is': [() => new URL('./no-such-file.wasm', wasmUrl), 'no-such-file.wasm'],
    'an address of no kind that can be fetched': [() => 'nonsense:nothing'],
  };
  for (const [what, [make, ...says]] of Object.entries(failures)) {
    it(`${what}: load, and the next load works`, async () => {
      const wasm = make();
      const error = await expectRejection(
        loadNeedle3({ wasm: (what.startsWith('a promise') ? wasm : await wasm) as string }),
        'load',
        'loadNeedle3: ',
        ...says,
      );
      expect(error.message.length).toBeGreaterThan(40);
      await works(await loadNeedle3());
    });
  }

  it('keeps the cause: what the engine or the promise said', async () => {
    const cause = new TypeError('offline');
    expect((await expectRejection(loadNeedle3({ wasm: Promise.reject(cause) }), 'load')).cause).toBe(cause);
    const cut = (await wasmBytes()).slice(0, 5000);
    expect((await expectRejection(loadNeedle3({ wasm: cut }), 'load')).cause).toBeInstanceOf(WebAssembly.CompileError);
    const streamed = loadNeedle3({ wasm: response(cut, 'application/wasm') });
    expect((await expectRejection(streamed, 'load')).cause).toBeInstanceOf(WebAssembly.CompileError);
  });

  it('without WebAssembly: load', async () => {
    vi.stubGlobal('WebAssembly', undefined);
    await expectRejection(loadNeedle3(), 'load', 'loadNeedle3: ', 'WebAssembly');
  });

  it('without WebAssembly SIMD: load', async () => {
    vi.spyOn(WebAssembly, 'validate').mockReturnValue(false);
    await expectRejection(loadNeedle3(), 'load', 'loadNeedle3: ', 'SIMD');
  });

  it('where the engine has no room for the memory: load, with the cause', async () => {
    const cause = new RangeError('could not allocate memory');
    const Memory = function Memory(): never {
      throw cause;
    };
    vi.stubGlobal('WebAssembly', Object.create(WebAssembly, { Memory: { value: Memory } }));
    const error = await expectRejection(
      loadNeedle3(),
      'load',
      'loadNeedle3: ',
      'maximumMemoryBytes',
      'could not allocate memory',
    );
    expect(error.cause).toBe(cause);
  });

  it('where compiling is forbidden: load, naming what the policy needs', async () => {
    const bytes = await wasmBytes();
    const forbidden = new WebAssembly.CompileError('blocked by Content Security Policy');
    vi.spyOn(WebAssembly, 'compile').mockRejectedValue(forbidden);
    const error = await expectRejection(loadNeedle3({ wasm: bytes }), 'load', 'loadNeedle3: ', 'wasm-unsafe-eval');
    expect(error.cause).toBe(forbidden);
  });
});
