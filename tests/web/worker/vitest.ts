// What test files get as `vitest` inside a Worker: the same runner and the same matchers, without the page.
import {
  ASYMMETRIC_MATCHERS_OBJECT,
  chai,
  getState,
  GLOBAL_EXPECT,
  JestAsymmetricMatchers,
  JestChaiExpect,
  JestExtend,
  setState,
} from '@vitest/expect';
import { getCurrentTest } from '@vitest/runner';
import { fn, restoreAllMocks, spyOn } from '@vitest/spy';

export {
  afterAll,
  afterEach,
  beforeAll,
  beforeEach,
  describe,
  it,
  onTestFailed,
  onTestFinished,
  suite,
  test,
} from '@vitest/runner';

chai.use(JestExtend);
chai.use(JestChaiExpect);
chai.use(JestAsymmetricMatchers);

type Assertion = ReturnType<typeof chai.expect> & { withTest(test: unknown): Assertion };
const shared = globalThis as unknown as Record<symbol, object>;

export const expect = Object.assign(
  (value: unknown, message?: string) => {
    const assertion = chai.expect(value, message) as Assertion;
    const current = getCurrentTest();
    return current ? assertion.withTest(current) : assertion;
  },
  chai.expect,
  shared[ASYMMETRIC_MATCHERS_OBJECT],
) as unknown as Parameters<typeof getState>[0];
shared[GLOBAL_EXPECT] = expect;
setState({ ...getState(expect), assertionCalls: 0, isExpectingAssertions: false, currentTestName: '' }, expect);

const stubbed = new Map<string, PropertyDescriptor | undefined>();

/** The part of Vitest's `vi` that needs no module loader: spies, and globals put aside for a while. */
export const vi = {
  fn,
  spyOn,
  restoreAllMocks,
  stubGlobal(name: string, value: unknown): void {
    if (!stubbed.has(name)) stubbed.set(name, Object.getOwnPropertyDescriptor(globalThis, name));
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: true });
  },
  unstubAllGlobals(): void {
    for (const [name, descriptor] of stubbed) {
      if (descriptor) Object.defineProperty(globalThis, name, descriptor);
      else Reflect.deleteProperty(globalThis, name);
    }
    stubbed.clear();
  },
};
