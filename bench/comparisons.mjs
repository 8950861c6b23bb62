// @ts-check
// What is compared with what: the plan that bench/run.mjs and bench/browser.mjs go through.

/**
 * One line-up. `contestants` maps a name to the spec that bench/works/work.h describes; the first is the one that the
 * others are set in relation to. A `step` goes through the package, from JavaScript (bench/lib/step.mjs). Those of `natively` run in the native builds too, as `NAME gcc` and `NAME clang`.
 * @typedef {object} Comparison
 * @property {string} id  unique: group and parameters, separated by slashes
 * @property {string} group
 * @property {Record<string, string | number>} parameters
 * @property {Record<string, { spec: string, units?: number } | { step: 'wasm' | 'typed' }>} contestants
 * @property {readonly string[]} natively
 * @property {number} [tolerance]  largest difference of outputs, of the largest magnitude in them; 0 unless given
 */

export const formats = ['f32', 'int8', 'int8-f32-query'];
export const contexts = [64, 128, 256, 512, 1024, 2048, 4096, 8192];
export const batchSizes = [1, 2, 3, 4, 8, 16, 32, 64, 128, 512, 2048];
const window = 1024;

/** Attention sums in another order than the scalar loops do; see docs/numerics.md. */
const attendTolerance = 1e-5;

/** An int8 cache is compared with f32: what it costs in accuracy is part of the tolerance. */
const formatTolerance = 0.03;

/** @returns {Comparison[]} */
export function comparisons() {
  /** @type {Comparison[]} */
  const list = [];
  for (const format of formats) {
    for (const [reach, positions] of [
      ...contexts.map((n) => /** @type {const} */ (['global', n])),
      ['local', window],
    ]) {
      list.push({
        id: `attend/${format}/${reach}/${positions}`,
        group: 'attend',
        parameters: { format, reach, positions },
        contestants: {
          core: { spec: `attend core ${format} ${reach} ${positions}` },
          scalar: { spec: `attend scalar ${format} ${reach} ${positions}` },
        },
        natively: ['core', 'scalar'],
        tolerance: attendTolerance,
      });
    }
  }
  // The formats in turn with each other, since between two line-ups the machine's speed may have changed.
  for (const positions of [128, window, 8192]) {
    list.push({
      id: `formats/${positions}`,
      group: 'formats',
      parameters: { positions },
      contestants: Object.fromEntries(
        formats.map((format) => [format, { spec: `attend core ${format} global ${positions}` }]),
      ),
      natively: [],
      tolerance: formatTolerance,
    });
  }
  for (const format of formats) {
    for (const reach of ['global', 'local']) {
      for (const rows of batchSizes) {
        list.push({
          id: `rows/${format}/${reach}/${rows}`,
          group: 'rows',
          parameters: { format, reach, rows },
          contestants: {
            batch: { spec: `rows batch ${format} ${reach} ${rows}`, units: rows },
            single: { spec: `rows single ${format} ${reach} ${rows}`, units: rows },
          },
          natively: ['batch'],
        });
      }
    }
  }
  const small = [
    ...['q', 'k', 'v'].map((projection) => ['conv', projection]),
    ['engramConv'],
    ['writeKv', 'f32'],
    ['writeKv', 'int8'],
  ];
  for (const [group, ...words] of small) {
    // Sites or layers in one iteration: a table has the time of one.
    const units = group === 'engramConv' ? 5 : 20;
    list.push({
      id: [group, ...words].join('/'),
      group,
      parameters: group === 'conv' ? { projection: words[0] } : group === 'writeKv' ? { format: words[0] } : {},
      contestants: {
        core: { spec: [group, 'core', ...words].join(' '), units },
        scalar: { spec: [group, 'scalar', ...words].join(' '), units },
      },
      natively: ['core'],
    });
  }
  for (const format of ['f32', 'int8']) {
    for (const positions of contexts) {
      list.push({
        id: `step/${format}/${positions}`,
        group: 'step',
        parameters: { format, positions },
        contestants: {
          'inside wasm': { spec: `step ${format} ${positions}` },
          'from JavaScript': { step: 'wasm' },
          'from JavaScript, copying': { step: 'typed' },
        },
        natively: ['inside wasm'],
      });
    }
  }
  return list;
}
