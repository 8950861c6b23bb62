// @ts-check
// What `npm run bench` and `npm run bench:browser` take.
import { parseArgs } from 'node:util';

import { fail } from '../../scripts/lib/tools.mjs';
import { comparisons } from '../comparisons.mjs';

const options = `
  --only GROUP  comparisons whose id starts so, for instance attend or attend/int8/global; writes no file
  --quick       fewer and shorter samples; writes no file
  --help        this text
`;

/** @param {string} usage  its first paragraphs */
export function readOptions(usage) {
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      quick: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    console.log(usage + options);
    process.exit(0);
  }
  const prefixes = (values.only ?? '').split(',');
  const chosen = comparisons().filter(({ id }) => prefixes.some((prefix) => id.startsWith(prefix)));
  if (chosen.length === 0) fail(`--only ${values.only}: nothing of that name\n\n${usage}${options}`);
  return {
    chosen,
    timing: values.quick ? { rounds: 7, sampleMs: 4 } : { rounds: 15, sampleMs: 15 },
    complete: values.only === undefined && !values.quick,
  };
}
