#!/usr/bin/env node
// @ts-check
// Measures what int8, with and without quantised query, does to attention outputs against f32, and writes the table and
// the chart of docs/accuracy.md.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { fail, root } from '../scripts/lib/tools.mjs';
import { buildPackage, installBenchDependencies } from './lib/build.mjs';
import { loadPackage } from './lib/package.mjs';
import { progress } from './lib/progress.mjs';
import { writeResults } from './lib/results.mjs';

const usage = `usage: npm run accuracy

Builds the package, attends over made-up keys and values in f32 and in int8, and writes bench/results/accuracy.json,
docs/images/accuracy.svg and the table in docs/accuracy.md.
`;

const CONTEXTS = [64, 256, 1024, 4096, 8192];
const QUERIES = 24; // rows of 12 heads each
const HEADS = { numHeads: 12, numKvHeads: 2, qkHeadDim: 48, vHeadDim: 64 };
const Q_DIM = HEADS.numHeads * HEADS.qkHeadDim;
const K_DIM = HEADS.numKvHeads * HEADS.qkHeadDim;
const BATCH = 64;

/** Random numbers of one seed: 32-bit xorshift, Box and Muller for the normal distribution. */
class Random {
  /** @param {number} seed */
  constructor(seed) {
    this.state = seed | 1;
    for (let i = 0; i < 16; i++) this.uniform();
  }

  uniform() {
    let x = this.state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    this.state = x;
    return ((x >>> 0) + 0.5) / 2 ** 32;
  }

  normal() {
    return Math.sqrt(-2 * Math.log(this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
  }

  /** Student's t with three degrees of freedom: rare, large values. */
  heavyTailed() {
    const chiSquared = this.normal() ** 2 + this.normal() ** 2 + this.normal() ** 2;
    return this.normal() / Math.sqrt(chiSquared / 3);
  }
}

// Channels of each key and value head that are far larger than the others, as trained models have them.
const OUTLIERS = [3, 17, 40];
const OUTLIER_FACTOR = 20;

/**
 * How an element of a query, key or value is drawn, given its channel in the head.
 * @typedef {(random: Random, channel: number) => number} Draw
 * @type {readonly { id: string, label: string, title: string, color: string, q: Draw, k: Draw, v: Draw, follow: number }[]}
 *
 * `follow`: how much of a held key a query is made of. With 0, attention is spread over all positions; with more, it is
 * drawn to a few.
 */
const DISTRIBUTIONS = [
  {
    id: 'normal',
    label: 'normal',
    title: 'normal',
    color: '#0072b2',
    q: (random) => random.normal(),
    k: (random) => random.normal(),
    v: (random) => random.normal(),
    follow: 0,
  },
  {
    id: 'peaked',
    label: 'normal, peaked',
    title: 'normal, peaked attention',
    color: '#56b4e9',
    q: (random) => random.normal(),
    k: (random) => random.normal(),
    v: (random) => random.normal(),
    follow: 2,
  },
  {
    id: 'heavy',
    label: 'heavy tails',
    title: 'heavy tails (Student t, 3 d.o.f.)',
    color: '#009e73',
    q: (random) => random.heavyTailed(),
    k: (random) => random.heavyTailed(),
    v: (random) => random.heavyTailed(),
    follow: 0,
  },
  {
    id: 'outliers',
    label: 'outlier channels',
    title: `outlier channels (${OUTLIERS.length} of each head, ×${OUTLIER_FACTOR})`,
    color: '#d55e00',
    q: (random, channel) => random.normal() / (OUTLIERS.includes(channel) ? OUTLIER_FACTOR : 1),
    k: (random, channel) => random.normal() * (OUTLIERS.includes(channel) ? OUTLIER_FACTOR : 1),
    v: (random, channel) => random.normal() * (OUTLIERS.includes(channel) ? OUTLIER_FACTOR : 1),
    follow: 0,
  },
  {
    id: 'heavy-outliers',
    label: 'heavy, outliers, peaked',
    title: 'heavy tails, outlier channels, peaked attention',
    color: '#1f2933',
    q: (random, channel) => random.heavyTailed() / (OUTLIERS.includes(channel) ? OUTLIER_FACTOR : 1),
    k: (random, channel) => random.heavyTailed() * (OUTLIERS.includes(channel) ? OUTLIER_FACTOR : 1),
    v: (random, channel) => random.heavyTailed() * (OUTLIERS.includes(channel) ? OUTLIER_FACTOR : 1),
    follow: 1,
  },
];

/** @type {readonly { id: string, title: string, options: { precision: 'f32' | 'int8', quantizeQuery?: boolean } }[]} */
const VARIANTS = [
  { id: 'int8-q', title: 'int8, quantised query', options: { precision: 'int8' } },
  { id: 'int8', title: 'int8, f32 query', options: { precision: 'int8', quantizeQuery: false } },
];

/**
 * Rows of `heads` heads of `width` channels.
 * @param {Random} random
 * @param {number} rows
 * @param {number} heads
 * @param {number} width
 * @param {Draw} draw
 */
function rowsOf(random, rows, heads, width, draw) {
  return Float32Array.from({ length: rows * heads * width }, (_, i) => draw(random, i % width));
}

/**
 * Error of one output head against f32: the length of the difference, relative to the length of the head, and its largest
 * element, relative to the largest of the head.
 * @param {Float32Array} exact
 * @param {Float32Array} out
 */
function headErrors(exact, out) {
  let squares = 0;
  let reference = 0;
  let worst = 0;
  let largest = 0;
  for (let i = 0; i < exact.length; i++) {
    const difference = Math.abs(out[i] - exact[i]);
    squares += difference ** 2;
    reference += exact[i] ** 2;
    worst = Math.max(worst, difference);
    largest = Math.max(largest, Math.abs(exact[i]));
  }
  return { relative: Math.sqrt(squares / reference), worst: worst / largest };
}

/**
 * @param {Awaited<ReturnType<Awaited<ReturnType<typeof loadPackage>>['loadNeedle3']>>} needle3
 * @param {Awaited<ReturnType<typeof loadPackage>>} api
 * @param {(typeof DISTRIBUTIONS)[number]} distribution
 * @param {(text: string) => void} show
 */
function measure(needle3, { NEEDLE3 }, distribution, show) {
  const config = {
    ...NEEDLE3,
    ...HEADS,
    numLayers: 1,
    globalLayers: [0],
    qkvConvTaps: 0,
    engram: { ...NEEDLE3.engram, orders: [], sites: [] },
  };
  const exact = needle3.createDecodeState(config);
  const states = VARIANTS.map(({ options }) => needle3.createDecodeState(config, options));
  const random = new Random(2026);
  /** @type {Float32Array[]} */
  const heldKeys = [];
  const results = [];
  for (const context of CONTEXTS) {
    show(`${distribution.title}, ${context} positions`);
    // All but the position that the queries are at, which each writes for itself.
    while (exact.position < context - 1) {
      const rows = Math.min(BATCH, context - 1 - exact.position);
      const keys = rowsOf(random, rows, HEADS.numKvHeads, HEADS.qkHeadDim, distribution.k);
      const values = rowsOf(random, rows, HEADS.numKvHeads, HEADS.vHeadDim, distribution.v);
      for (let row = 0; row < rows; row++) heldKeys.push(keys.slice(row * K_DIM, (row + 1) * K_DIM));
      for (const state of [exact, ...states]) {
        state.writeKv(0, keys, values);
        state.advance(rows);
      }
    }
    const errors = VARIANTS.map(() => ({ relative: 0, worst: 0 }));
    for (let i = 0; i < QUERIES; i++) {
      const query = rowsOf(random, 1, HEADS.numHeads, HEADS.qkHeadDim, distribution.q);
      // Towards a held key, channel by channel at the scale that the query has there.
      const key = heldKeys[Math.floor(random.uniform() * heldKeys.length)];
      for (let c = 0; c < Q_DIM; c++) {
        const head = Math.floor(c / HEADS.qkHeadDim);
        const channel = c % HEADS.qkHeadDim;
        const kvHead = Math.floor((head * HEADS.numKvHeads) / HEADS.numHeads);
        const size = OUTLIERS.includes(channel) && distribution.id.includes('outliers') ? OUTLIER_FACTOR ** 2 : 1;
        query[c] += (distribution.follow * key[kvHead * HEADS.qkHeadDim + channel]) / size;
      }
      const keys = rowsOf(random, 1, HEADS.numKvHeads, HEADS.qkHeadDim, distribution.k);
      const values = rowsOf(random, 1, HEADS.numKvHeads, HEADS.vHeadDim, distribution.v);
      const [reference, ...outs] = [exact, ...states].map((state) => {
        const out = new Float32Array(HEADS.numHeads * HEADS.vHeadDim);
        state.appendAndAttend(0, query, keys, values, out);
        state.discard();
        return out;
      });
      outs.forEach((out, variant) => {
        for (let at = 0; at < out.length; at += HEADS.vHeadDim) {
          const end = at + HEADS.vHeadDim;
          const { relative, worst } = headErrors(reference.subarray(at, end), out.subarray(at, end));
          errors[variant].relative += relative / (QUERIES * HEADS.numHeads);
          errors[variant].worst = Math.max(errors[variant].worst, worst);
        }
      });
    }
    results.push(
      ...errors.map(({ relative, worst }, variant) => ({
        distribution: distribution.id,
        variant: VARIANTS[variant].id,
        context,
        mean: relative,
        worst,
      })),
    );
  }
  for (const state of [exact, ...states]) state.dispose();
  return results;
}

/** @typedef {ReturnType<typeof measure>[number]} Result */

/** @param {number} error */
function percent(error) {
  const value = 100 * error;
  return `${value >= 10 ? Math.round(value) : value.toPrecision(2)} %`;
}

/** @param {readonly Result[]} results @param {string} distribution @param {string} variant @param {number} context */
function find(results, distribution, variant, context) {
  const result = results.find((r) => r.distribution === distribution && r.variant === variant && r.context === context);
  return result ?? fail(`nothing was measured for ${distribution}, ${variant}, ${context}`);
}

/** @param {readonly Result[]} results */
function table(results) {
  const head = ['distribution', 'variant', ...CONTEXTS.map(String)];
  const rows = DISTRIBUTIONS.flatMap(({ id, title }) =>
    VARIANTS.map((variant) => [
      title,
      variant.title,
      ...CONTEXTS.map((context) => {
        const { mean, worst } = find(results, id, variant.id, context);
        return `${percent(mean)} / ${percent(worst)}`;
      }),
    ]),
  );
  const widths = head.map((cell, i) => Math.max(cell.length, ...rows.map((row) => row[i].length)));
  /** @param {readonly string[]} cells */
  const line = (cells) =>
    `| ${cells.map((cell, i) => (i < 2 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join(' | ')} |`;
  const rule = widths.map((width, i) => (i < 2 ? '-'.repeat(width) : `${'-'.repeat(width - 1)}:`));
  return [line(head), line(rule), ...rows.map(line)].join('\n');
}

/** Replaces what stands between the markers of docs/accuracy.md. @param {string} text */
function fillIn(text) {
  const path = join(root, 'docs', 'accuracy.md');
  const page = readFileSync(path, 'utf8');
  const filled = page.replace(/(<!-- table:begin -->\n)[^]*(\n<!-- table:end -->)/, `$1\n${text}\n$2`);
  if (!filled.includes(text)) fail('docs/accuracy.md has no markers for its table');
  writeFileSync(path, filled);
  console.log('Written: docs/accuracy.md');
}

/** @param {readonly Result[]} results */
async function draw(results) {
  const Plot = await import('@observablehq/plot');
  const { parseHTML } = await import('linkedom');
  const { document } = parseHTML('<!doctype html><html><body></body></html>');
  const paper = '#ffffff';
  const ticks = [0.5, 1, 2, 5, 10, 20];
  const marks = results.map(({ distribution, variant, context, mean }) => ({
    distribution,
    context,
    dashed: variant !== VARIANTS[0].id,
    series: distribution + variant,
    percent: 100 * mean,
  }));
  const ends = marks.filter(({ context, dashed }) => context === CONTEXTS[CONTEXTS.length - 1] && !dashed);
  const solid = marks.filter(({ dashed }) => !dashed);
  const dashed = marks.filter((mark) => mark.dashed);
  const channels = { x: 'context', y: 'percent', z: 'series', stroke: 'distribution', strokeWidth: 2 };
  const svg = Plot.plot({
    width: 720,
    height: 420,
    marginTop: 52,
    marginLeft: 56,
    marginRight: 210,
    marginBottom: 48,
    style: { fontFamily: 'system-ui, sans-serif', fontSize: '13px', color: '#1f2933', background: paper },
    x: { type: 'log', base: 2, ticks: CONTEXTS, tickFormat: 'd', label: 'positions', labelAnchor: 'center' },
    y: { type: 'log', domain: [ticks[0], ticks[ticks.length - 1]], label: 'mean error, % of the output' },
    color: { domain: DISTRIBUTIONS.map(({ id }) => id), range: DISTRIBUTIONS.map(({ color }) => color) },
    marks: [
      Plot.gridY(ticks),
      Plot.axisY(ticks, { text: String }),
      Plot.line(dashed, { ...channels, strokeDasharray: '3 4' }),
      Plot.line(solid, channels),
      Plot.dot(solid, { x: 'context', y: 'percent', fill: 'distribution', r: 3 }),
      Plot.text(ends, {
        x: 'context',
        y: 'percent',
        text: ({ distribution }) => DISTRIBUTIONS.find(({ id }) => id === distribution)?.label ?? '',
        fill: 'distribution',
        textAnchor: 'start',
        fontWeight: 'bold',
        dx: 10,
      }),
      Plot.text(['solid: quantised query; dotted: f32 query'], { frameAnchor: 'top-left', dy: -30 }),
    ],
    // Plot's types ask for a browser's document; it uses the few methods that linkedom has.
    document: /** @type {Document} */ (/** @type {unknown} */ (document)),
  });
  svg.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  svg.setAttribute('role', 'img');
  const title = document.createElementNS('http://www.w3.org/2000/svg', 'title');
  title.textContent = 'Mean error of int8 attention against f32, by number of positions, for five distributions';
  const background = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  for (const [key, value] of Object.entries({ width: '100%', height: '100%', fill: paper })) {
    background.setAttribute(key, value);
  }
  svg.prepend(/** @type {any} */ (title), /** @type {any} */ (background));
  const folder = join(root, 'docs', 'images');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'accuracy.svg'), `${svg.outerHTML}\n`);
  console.log('Written: docs/images/accuracy.svg');
}

const { values } = parseArgs({ options: { help: { type: 'boolean', default: false } } });
if (values.help) {
  console.log(usage);
} else {
  const status = progress();
  status.show('building');
  await installBenchDependencies();
  await buildPackage();
  const api = await loadPackage();
  const needle3 = await api.loadNeedle3();
  const results = DISTRIBUTIONS.flatMap((distribution) => measure(needle3, api, distribution, status.show));
  status.clear();
  console.log(table(results));
  fillIn(table(results));
  await draw(results);
  await writeResults('accuracy', { queries: QUERIES * HEADS.numHeads, results });
}
