// @ts-check
// The files of bench/results: what was measured, where and with what.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { root } from '../../scripts/lib/tools.mjs';
import { describeMachine } from './machine.mjs';

/**
 * @param {string} name  of the file
 * @param {Record<string, unknown>} content
 * @param {Record<string, string>} [versions]  of what else took part
 */
export async function writeResults(name, content, versions) {
  const path = join(root, 'bench', 'results', `${name}.json`);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${formatJson({ machine: await describeMachine(versions), ...content })}\n`);
  console.log(`\nWritten: bench/results/${name}.json`);
}

/** Five figures of each number, and one line for an array of numbers: readable in a diff. @param {unknown} value */
function formatJson(value) {
  const round = (/** @type {string} */ _, /** @type {unknown} */ x) =>
    typeof x === 'number' && !Number.isInteger(x) ? Number(x.toPrecision(5)) : x;
  return JSON.stringify(value, round, 1).replace(/\[[\d\s.,e+-]*\]/g, (array) => array.replace(/\s+/g, ' '));
}
