import { readFileSync } from 'node:fs';

export { fromVector as configOf, type VectorConfig as ConfigVector } from '../web/support/geometry.js';

/** The cases of a file of tests/vectors, which says in its `about` what they hold. */
export function vectors(name: string): unknown {
  const text = readFileSync(new URL(`../vectors/${name}.json`, import.meta.url), 'utf8');
  return (JSON.parse(text) as { readonly cases: unknown }).cases;
}
