import { describe, expect, it } from 'vitest';

import { GEOMETRIES } from '../../web/demo/src/geometries.js';
import { DEFAULT_SETTINGS, formatSettings, parseSettings, sameState } from '../../web/demo/src/settings.js';

describe('a link', () => {
  it('brings back every setting that it was made from', () => {
    for (const { name } of GEOMETRIES) {
      const settings = {
        geometry: name,
        precision: 'int8',
        quantizeQuery: false,
        capacityHint: 0,
        prompt: 'Blåbær & #søm?\n« 100 % »',
        maxTokens: 17,
        seed: 4294967295,
        temperature: 0.35,
        mayEnd: true,
        pace: 'full',
        compare: false,
      } as const;
      expect(parseSettings(`#${formatSettings(settings)}`)).toEqual(settings);
    }
  });

  it('without settings gives the defaults', () => {
    expect(parseSettings('')).toEqual(DEFAULT_SETTINGS);
  });

  it('with nonsense in it gives the defaults for what makes no sense', () => {
    const hash =
      '#geometry=huge&precision=f64&seed=-1&maxTokens=1.5&capacityHint=&temperature=NaN&pace=toString&compare=1';
    expect(parseSettings(hash)).toEqual(DEFAULT_SETTINGS);
  });

  it('that names a geometry alone gets the capacity hint of that geometry', () => {
    for (const { name, capacityHint } of GEOMETRIES) {
      expect(parseSettings(`#geometry=${name}`)).toMatchObject({ geometry: name, capacityHint });
    }
  });
});

describe('settings', () => {
  it('ask for the same state where they differ only in how it is driven', () => {
    const driven = {
      ...DEFAULT_SETTINGS,
      prompt: 'other',
      maxTokens: 1,
      temperature: 0,
      pace: 'full',
      mayEnd: true,
    } as const;
    expect(sameState(DEFAULT_SETTINGS, driven)).toBe(true);
    expect(sameState(DEFAULT_SETTINGS, { ...DEFAULT_SETTINGS, precision: 'int8' })).toBe(false);
    expect(sameState(DEFAULT_SETTINGS, { ...DEFAULT_SETTINGS, seed: 4 })).toBe(false);
  });
});
