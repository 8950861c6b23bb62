import { describe, expect, it } from 'vitest';

import golden from '../golden.json';
import { goldenHash } from './support/golden.js';
import { needle3 } from './support/instance.js';

// The native build computes the same hashes from the same numbers, and compares with the same file.
describe('a long decode at the shipped geometry has the hash that every build and engine gives', () => {
  const cases = {
    f32: { precision: 'f32' },
    int8: { precision: 'int8', quantizeQuery: false },
    int8QuantizedQuery: { precision: 'int8', quantizeQuery: true },
  } as const;
  for (const [name, options] of Object.entries(cases)) {
    it(name, async () => {
      expect(goldenHash(await needle3(), options)).toBe(golden[name as keyof typeof cases]);
    });
  }
});
