#!/usr/bin/env node
// @ts-check
// Draws the charts of docs/performance.md from bench/results/node.json.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { fail, root } from '../scripts/lib/tools.mjs';
import { installBenchDependencies } from './lib/build.mjs';

const usage = `usage: npm run bench:report

Draws docs/images/step-time.svg, state-bytes.svg and row-time.svg from bench/results/node.json, and fills in the tables
of docs/performance.md.
`;

const { values } = parseArgs({ options: { help: { type: 'boolean', default: false } } });
if (values.help) {
  console.log(usage);
  process.exit(0);
}

await installBenchDependencies();
const Plot = await import('@observablehq/plot');
const { parseHTML } = await import('linkedom');

/**
 * @typedef {{ id: string, group: string, parameters: Record<string, string | number>,
 *             timings: Record<string, import('./lib/sampler.mjs').Timing> }} Result
 * @typedef {{ precision: string, positions: number, bytes: number }} Bytes
 */

/** @returns {{ results: Result[], bytes: Bytes[] }} */
function readResults() {
  try {
    return JSON.parse(readFileSync(join(root, 'bench/results/node.json'), 'utf8'));
  } catch (error) {
    return fail(`bench/results/node.json: ${error instanceof Error ? error.message : error}. Run npm run bench first`);
  }
}

const ink = '#1f2933';
const paper = '#ffffff';
/** Told apart by people who see few colours, too: Okabe and Ito's blue, vermilion and green. */
const colors = { f32: '#0072b2', int8: '#d55e00', 'int8, f32 query': '#009e73' };

/** @param {string} format */
const label = (format) => format.replace('int8-f32-query', 'int8, f32 query');
/** @param {number} n */
const grouped = (n) => n.toLocaleString('en');

/**
 * @param {string} name
 * @param {string} title  what a screen reader says of it
 * @param {import('@observablehq/plot').PlotOptions} options
 */
function write(name, title, options) {
  const { document } = parseHTML('<!doctype html><html><body></body></html>');
  const svg = Plot.plot({
    width: 720,
    height: 420,
    marginTop: 52,
    marginLeft: 56,
    marginRight: 28,
    marginBottom: 48,
    style: { fontFamily: 'system-ui, sans-serif', fontSize: '13px', color: ink, background: paper },
    color: { domain: Object.keys(colors), range: Object.values(colors) },
    ...options,
    // Plot's types ask for a browser's document; it uses the few methods that linkedom has.
    document: /** @type {Document} */ (/** @type {unknown} */ (document)),
  });
  svg.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  svg.setAttribute('role', 'img');
  const caption = document.createElementNS('http://www.w3.org/2000/svg', 'title');
  caption.textContent = title;
  svg.insertBefore(/** @type {any} */ (caption), svg.firstChild);
  const background = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  for (const [key, value] of Object.entries({ width: '100%', height: '100%', fill: paper })) {
    background.setAttribute(key, value);
  }
  svg.insertBefore(/** @type {any} */ (background), svg.firstChild?.nextSibling ?? null);
  const path = join(root, 'docs', 'images', `${name}.svg`);
  mkdirSync(join(root, 'docs', 'images'), { recursive: true });
  writeFileSync(path, `${svg.outerHTML}\n`);
  console.log(`Written: docs/images/${name}.svg`);
}

/** The formats' names in their colours, as a row above the chart. @param {readonly string[]} formats @param {number} dy */
function legend(formats, dy = -30) {
  return formats.map((format, i) =>
    Plot.text([format], {
      text: (name) => `● ${name}`,
      frameAnchor: 'top-left',
      dx: 70 * i,
      dy,
      fill: colors[/** @type {keyof typeof colors} */ (format)],
      fontWeight: 'bold',
      facet: 'super',
    }),
  );
}

/**
 * A line for each format.
 * @param {Record<string, unknown>[]} data
 * @param {{ x: string, y: string, fx?: string, dashed?: boolean }} options
 */
function lines(data, { dashed = false, ...channels }) {
  const common = { ...channels, z: 'format', stroke: 'format' };
  return [
    Plot.lineY(data, { ...common, strokeWidth: 2, ...(dashed && { strokeDasharray: '3 4', strokeOpacity: 0.7 }) }),
    ...(dashed ? [] : [Plot.dot(data, { ...common, fill: 'format', r: 3 })]),
  ];
}

/**
 * A logarithmic axis with ticks at 1, 2 and 5 times the powers of ten around the data.
 * @param {string} text
 * @param {readonly number[]} data
 */
function logarithmic(text, data) {
  const [least, most] = [Math.min(...data), Math.max(...data)];
  const steps = [-2, -1, 0, 1, 2, 3, 4].flatMap((power) => [1, 2, 5].map((n) => Number(`${n}e${power}`)));
  const ticks = steps.filter((tick, i) => (steps[i + 1] ?? tick) > least && (steps[i - 1] ?? tick) < most);
  return {
    y: { type: /** @type {const} */ ('log'), domain: [ticks[0], ticks[ticks.length - 1]], label: text },
    // Not the scale's own ticks: of those it labels only some.
    marks: [Plot.gridY(ticks), Plot.axisY(ticks, { text: grouped })],
  };
}

/**
 * @param {string} text
 * @param {readonly number[]} ticks
 * @returns {import('@observablehq/plot').ScaleOptions}
 */
function binary(text, ticks) {
  return { type: 'log', base: 2, ticks, tickFormat: grouped, label: text, labelAnchor: 'center' };
}

const { results, bytes } = readResults();
const contexts = [...new Set(bytes.map(({ positions }) => positions))];

const steps = results
  .filter(({ group }) => group === 'step')
  .map(({ parameters: { format, positions }, timings }) => ({
    format,
    positions,
    ms: timings['inside wasm'].median / 1000,
  }));
const stepAxis = logarithmic(
  'ms a step',
  steps.map(({ ms }) => ms),
);
write('step-time', 'Time of a decode step of 20 layers against positions held, f32 and int8', {
  x: binary('positions held', contexts),
  y: stepAxis.y,
  marks: [...stepAxis.marks, ...lines(steps, { x: 'positions', y: 'ms' }), ...legend(['f32', 'int8'])],
});

const sizes = bytes.map(({ precision, positions, bytes: length }) => ({
  format: precision,
  positions,
  mebibytes: length / 2 ** 20,
}));
const sizeAxis = logarithmic(
  'MiB',
  sizes.map(({ mebibytes }) => mebibytes),
);
write('state-bytes', 'Bytes of a decode state against positions held, f32 and int8', {
  x: binary('positions held', contexts),
  y: sizeAxis.y,
  marks: [...sizeAxis.marks, ...lines(sizes, { x: 'positions', y: 'mebibytes' }), ...legend(['f32', 'int8'])],
});

const reaches = { global: 'a prompt from position 0', local: 'a full ring of 1,024 positions' };
const rows = results
  .filter(({ group }) => group === 'rows')
  .map(({ parameters, timings }) => ({
    format: label(String(parameters.format)),
    reach: reaches[/** @type {keyof typeof reaches} */ (parameters.reach)],
    rows: parameters.rows,
    batch: timings.batch.median,
    single: timings.single.median,
  }));
const batchSizes = [...new Set(rows.map((row) => Number(row.rows)))];
const rowAxis = logarithmic(
  'µs a row, one layer',
  rows.flatMap(({ batch, single }) => [batch, single]),
);
write('row-time', 'Time per row of attention against batch size: in one call, and one row at a time', {
  width: 960,
  marginTop: 72,
  fx: { label: null, domain: Object.values(reaches) },
  x: binary(
    'rows in a call (dashed: the same rows, one a call)',
    batchSizes.filter((n) => n !== 3),
  ),
  y: rowAxis.y,
  marks: [
    ...rowAxis.marks,
    ...lines(rows, { x: 'rows', y: 'single', fx: 'reach', dashed: true }),
    ...lines(rows, { x: 'rows', y: 'batch', fx: 'reach' }),
    ...legend(Object.keys(colors), -50),
  ],
});
