#!/usr/bin/env node
// @ts-check
// Fills in the tables of docs/performance.md and README.md from bench/results, so that figures are always measured ones.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { format, resolveConfig } from 'prettier';

import { fail, root } from '../scripts/lib/tools.mjs';
import { formatRatio, formatTime, medianRatio } from './lib/table.mjs';

const usage = `usage: node bench/tables.mjs

Replaces what stands between <!-- bench:NAME --> and <!-- /bench --> in docs/performance.md and README.md by figures
from bench/results: node.json, and chromium.json, firefox.json and peers.json where they are.
`;

const { values } = parseArgs({ options: { help: { type: 'boolean', default: false } } });
if (values.help) {
  console.log(usage);
  process.exit(0);
}

/**
 * @typedef {import('./lib/sampler.mjs').Timing} Timing
 * @typedef {{ id: string, group: string, parameters: Record<string, string | number>,
 *             timings: Record<string, Timing> }} Result
 * @typedef {{ date: string, commit?: string, uncommittedChanges: boolean, cpu: string, cores: number,
 *             memoryGiB: number, system: string, versions: Record<string, string> }} Machine
 * @typedef {{ machine: Machine, timing: { rounds: number, sampleMs: number }, results: Result[] }} Report
 */

/** @param {string} name @returns {Report | undefined} */
function read(name) {
  const path = join(root, 'bench', 'results', `${name}.json`);
  return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : undefined;
}

const node = read('node') ?? fail('bench/results/node.json is missing: run npm run bench first');
const peers = read('peers');
const browsers = Object.entries({ Chromium: read('chromium'), Firefox: read('firefox') });

/** The first column to the left, the others to the right. @param {readonly (readonly string[])[]} rows */
function markdown([heading, ...rows]) {
  const line = (/** @type {readonly string[]} */ cells) => `| ${cells.join(' | ')} |`;
  const rule = heading.map((_, i) => (i === 0 ? '---' : '---:'));
  return [heading, rule, ...rows].map(line).join('\n');
}

/** @param {Report} report @param {string} id */
function timingsOf(report, id) {
  return report.results.find((result) => result.id === id)?.timings ?? fail(`no ${id} in the results`);
}

/** @param {number} n */
const grouped = (n) => n.toLocaleString('en');
/** Median, and the spread of the samples around it. @param {Timing} timing */
const spread = ({ min, median, max }) => `${formatTime(median)} (${formatTime(min)}–${formatTime(max)})`;
/** @param {string} group @param {string} parameter */
const valuesOf = (group, parameter) => [
  ...new Set(node.results.filter((result) => result.group === group).map(({ parameters }) => parameters[parameter])),
];

const formats = /** @type {const} */ ({ f32: 'f32', int8: 'int8', 'int8-f32-query': 'int8, f32 query' });

function attend() {
  const native = Object.keys(timingsOf(node, 'attend/f32/global/64')).filter((name) => /^core /.test(name));
  return markdown([
    [
      'positions',
      'format',
      'µs, median (min–max)',
      'scalar loops',
      ...native.map((name) => name.replace('core', 'native,')),
    ],
    ...[
      ...valuesOf('attend', 'positions').map((positions) => ({
        path: `global/${positions}`,
        name: grouped(Number(positions)),
      })),
      { path: 'local/1024', name: '1,024, wrapped ring' },
    ].flatMap(({ path, name }) =>
      Object.entries(formats).map(([format, label]) => {
        const t = timingsOf(node, `attend/${format}/${path}`);
        return [
          name,
          label,
          spread(t.core),
          formatRatio(t.scalar, t.core),
          ...native.map((other) => formatRatio(t[other], t.core)),
        ];
      }),
    ),
  ]);
}

/** int8 against f32, timed in turn. */
function formatRatios() {
  const [, ...others] = Object.entries(formats);
  return markdown([
    ['positions', 'f32, µs', ...others.map(([, label]) => label)],
    ...valuesOf('formats', 'positions').map((positions) => {
      const t = timingsOf(node, `formats/${positions}`);
      return [
        grouped(Number(positions)),
        spread(t.f32),
        ...others.map(([format]) => `${formatTime(t[format].median)} (${formatRatio(t[format], t.f32)})`),
      ];
    }),
  ]);
}

function rows() {
  const reaches = { global: 'prompt from position 0', local: 'full ring of 1,024' };
  return markdown([
    [
      'rows',
      ...Object.values(reaches).flatMap((reach) => Object.values(formats).map((format) => `${reach}, ${format}`)),
    ],
    ...valuesOf('rows', 'rows').map((n) => [
      grouped(Number(n)),
      ...Object.keys(reaches).flatMap((reach) =>
        Object.keys(formats).map((format) => {
          const { batch, single } = timingsOf(node, `rows/${format}/${reach}/${n}`);
          return `${formatTime(batch.median)} (${formatRatio(single, batch)})`;
        }),
      ),
    ]),
  ]);
}

function small() {
  const names = {
    'conv/q': 'conv, Q (576 wide)',
    'conv/k': 'conv, K (96)',
    'conv/v': 'conv, V (128)',
    engramConv: 'engramConv (768)',
    'writeKv/f32': 'writeKv, f32',
    'writeKv/int8': 'writeKv, int8',
  };
  return markdown([
    ['one row and its commit', 'µs, median (min–max)', 'scalar loops', 'native, gcc', 'native, clang'],
    ...Object.entries(names).map(([id, name]) => {
      const t = timingsOf(node, id);
      return [
        name,
        spread(t.core),
        formatRatio(t.scalar, t.core),
        ...['core gcc', 'core clang'].map((other) => (t[other] ? formatRatio(t[other], t.core) : '')),
      ];
    }),
  ]);
}

function step() {
  return markdown([
    ['positions held', 'precision', 'ms inside wasm', 'from JavaScript', 'from JavaScript, copying'],
    ...valuesOf('step', 'positions').flatMap((positions) =>
      ['f32', 'int8'].map((format) => {
        const t = timingsOf(node, `step/${format}/${positions}`);
        const inside = t['inside wasm'];
        const overhead = (/** @type {Timing} */ other) => `${((medianRatio(other, inside) - 1) * 100).toFixed(1)} %`;
        return [
          grouped(Number(positions)),
          format,
          (inside.median / 1000).toPrecision(3),
          overhead(t['from JavaScript']),
          overhead(t['from JavaScript, copying']),
        ];
      }),
    ),
  ]);
}

/** @param {Report} report */
function peerTable(report) {
  const names = Object.keys(report.results[0].timings);
  return markdown([
    [
      'one decode step of attention, µs',
      ...report.results.map(({ parameters }) => `${grouped(Number(parameters.positions))} positions`),
    ],
    ...names.map((name) => [name, ...report.results.map(({ timings }) => spread(timings[name]))]),
  ]);
}

function browserTable() {
  const measured = [['Node', node], ...browsers].flatMap(([name, report]) =>
    report === undefined ? [] : [{ name: String(name), report: /** @type {Report} */ (report) }],
  );
  return markdown([
    ['attend, µs', ...measured.map(({ name }) => name)],
    ...[128, 1024, 8192].flatMap((positions) =>
      Object.entries(formats).map(([format, label]) => [
        `${grouped(positions)} positions, ${label}`,
        ...measured.map(({ report }) => {
          const { core, scalar } = timingsOf(report, `attend/${format}/global/${positions}`);
          return `${formatTime(core.median)} (${formatRatio(scalar, core)})`;
        }),
      ]),
    ),
  ]);
}

/** @param {Report} report */
function machine({ machine: m, timing }) {
  const { versions } = m;
  const commit =
    m.commit === undefined ? '' : `, commit ${m.commit.slice(0, 12)}${m.uncommittedChanges ? ' with changes' : ''}`;
  return [
    `Measured on ${m.date.slice(0, 10)}${commit}: ${m.cpu}, ${m.cores} cores, ${m.memoryGiB} GiB, ${m.system}.`,
    `Node ${versions.node} (V8 ${versions.v8}), Emscripten ${versions.emscripten}, g++ ${versions.gcc ?? 'not there'}, clang ${versions.clang ?? 'not there'}.`,
    `${timing.rounds} samples of about ${timing.sampleMs} ms each.`,
  ].join('\n');
}

/** README's: what a reader wants to know first, in medians. */
function summary() {
  const positions = [128, 1024, 8192];
  const ours = Object.entries(formats).map(([format, label]) => [
    `attend, ${label}`,
    ...positions.map((n) => {
      const { core, scalar } = timingsOf(node, `attend/${format}/global/${n}`);
      return `${formatTime(core.median)} (${formatRatio(scalar, core)})`;
    }),
  ]);
  return markdown([['µs for one layer, one query', ...positions.map((n) => `${grouped(n)} positions`)], ...ours]);
}

const none = 'Not measured yet.';
/** @type {Record<string, Record<string, string>>} */
const pages = {
  'docs/performance.md': {
    machine: machine(node),
    attend: attend(),
    formats: formatRatios(),
    rows: rows(),
    small: small(),
    step: step(),
    browsers: browserTable(),
    peers: peers === undefined ? none : peerTable(peers),
  },
  'README.md': { summary: summary() },
};

for (const [page, sections] of Object.entries(pages)) {
  const path = join(root, page);
  let text = readFileSync(path, 'utf8');
  for (const [name, content] of Object.entries(sections)) {
    const section = new RegExp(`(<!-- bench:${name} -->\n)[^]*?(<!-- /bench -->)`);
    if (!section.test(text)) fail(`${page} has no <!-- bench:${name} --> … <!-- /bench -->`);
    text = text.replace(section, (_, begin, end) => `${begin}\n${content}\n\n${end}`);
  }
  // As `npm run format` leaves it.
  writeFileSync(path, await format(text, { ...(await resolveConfig(path)), filepath: path }));
  console.log(`Written: ${page}`);
}
