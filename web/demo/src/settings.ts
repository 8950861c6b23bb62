import { GEOMETRIES, geometryNamed, type GeometryName } from './geometries.js';

export const PACES = { slow: 6, steady: 20, full: Infinity } as const;
export type Pace = keyof typeof PACES;

/** Everything that decides a run. The same settings give the same tokens, bytes and rings. */
export interface Settings {
  readonly geometry: GeometryName;
  readonly precision: 'f32' | 'int8';
  /** Used where precision is int8. */
  readonly quantizeQuery: boolean;
  readonly capacityHint: number;
  readonly prompt: string;
  /** Tokens made by one press of Start or Continue. */
  readonly maxTokens: number;
  /** Of the weights and of the sampling. */
  readonly seed: number;
  readonly temperature: number;
  readonly mayEnd: boolean;
  readonly pace: Pace;
  /** Feed a second state of the other precision the same tokens, for the charts. */
  readonly compare: boolean;
}

export const DEFAULT_SETTINGS: Settings = {
  geometry: 'pocket',
  precision: 'f32',
  quantizeQuery: true,
  capacityHint: geometryNamed('pocket').capacityHint,
  prompt: 'Wake me at seven and check the trains to Bergen.',
  maxTokens: 256,
  seed: 3,
  temperature: 0.7,
  mayEnd: false,
  pace: 'steady',
  compare: true,
};

/** Bounds of the numeric settings, inclusive. */
export const BOUNDS = {
  capacityHint: { min: 0, max: 8192, integer: true },
  maxTokens: { min: 1, max: 8192, integer: true },
  seed: { min: 0, max: 4294967295, integer: true },
  temperature: { min: 0, max: 4, integer: false },
} as const;
export type NumericSetting = keyof typeof BOUNDS;

/** The message for a bad value of a numeric setting, or undefined where it is good. */
export function complaintAbout(name: NumericSetting, value: number): string | undefined {
  const { min, max, integer } = BOUNDS[name];
  if (integer && !Number.isInteger(value)) return `A whole number from ${min} to ${max}.`;
  if (!(value >= min && value <= max)) return `A number from ${min} to ${max}.`;
  return undefined;
}

/** The settings as the part of a link after `#`. */
export function formatSettings(settings: Settings): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) parameters.set(name, String(value));
  return parameters.toString();
}

/** Settings from a link; whatever is missing or makes no sense there is as in `DEFAULT_SETTINGS`. */
export function parseSettings(hash: string): Settings {
  const parameters = new URLSearchParams(hash.replace(/^#/, ''));
  const oneOf = <T extends string>(name: string, choices: readonly T[], fallback: T) =>
    choices.find((choice) => choice === parameters.get(name)) ?? fallback;
  const flag = (name: 'quantizeQuery' | 'mayEnd' | 'compare') =>
    oneOf(name, ['true', 'false'], DEFAULT_SETTINGS[name] ? 'true' : 'false') === 'true';
  const number = (name: NumericSetting, fallback: number) => {
    const text = parameters.get(name);
    const value = Number(text);
    return text === null || text === '' || complaintAbout(name, value) ? fallback : value;
  };
  const geometry = oneOf(
    'geometry',
    GEOMETRIES.map(({ name }) => name),
    DEFAULT_SETTINGS.geometry,
  );
  return {
    geometry,
    precision: oneOf('precision', ['f32', 'int8'], DEFAULT_SETTINGS.precision),
    quantizeQuery: flag('quantizeQuery'),
    capacityHint: number('capacityHint', geometryNamed(geometry).capacityHint),
    prompt: parameters.get('prompt') ?? DEFAULT_SETTINGS.prompt,
    maxTokens: number('maxTokens', DEFAULT_SETTINGS.maxTokens),
    seed: number('seed', DEFAULT_SETTINGS.seed),
    temperature: number('temperature', DEFAULT_SETTINGS.temperature),
    mayEnd: flag('mayEnd'),
    pace: oneOf('pace', Object.keys(PACES) as Pace[], DEFAULT_SETTINGS.pace),
    compare: flag('compare'),
  };
}

/** True where `b` asks for the same decode state and weights as `a`: what differs is only how it is driven. */
export function sameState(a: Settings, b: Settings): boolean {
  return (
    a.geometry === b.geometry &&
    a.precision === b.precision &&
    (a.precision === 'f32' || a.quantizeQuery === b.quantizeQuery) &&
    a.capacityHint === b.capacityHint &&
    a.seed === b.seed &&
    a.compare === b.compare
  );
}
