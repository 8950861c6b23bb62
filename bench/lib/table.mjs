// @ts-check
// Tables for the terminal.

/**
 * The first column to the left, the others to the right.
 * @param {readonly (readonly string[])[]} rows  the first is the heading
 */
export function formatTable(rows) {
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
  const line = (/** @type {readonly string[]} */ row) =>
    row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join('  ');
  return [line(rows[0]), widths.map((width) => '─'.repeat(width)).join('  '), ...rows.slice(1).map(line)].join('\n');
}

/** Microseconds, to three figures or whole. @param {number} us */
export function formatTime(us) {
  return us >= 100 ? us.toFixed(0) : us.toPrecision(3);
}

/** @param {import('./sampler.mjs').Timing} timing */
function formatSpread({ min, median, max }) {
  return `${formatTime(min)} … ${formatTime(median)} … ${formatTime(max)}`;
}

/**
 * How many times the time of `reference` the other takes: the median of the rounds' ratios. Within a round both find the
 * machine about equally fast, even where its speed changes from round to round.
 * @param {import('./sampler.mjs').Timing} other
 * @param {import('./sampler.mjs').Timing} reference
 */
export function medianRatio(other, reference) {
  const ratios = other.samples.map((sample, round) => sample / reference.samples[round]).sort((a, b) => a - b);
  const middle = ratios.length >> 1;
  return ratios.length % 2 === 1 ? ratios[middle] : (ratios[middle - 1] + ratios[middle]) / 2;
}

/** The same as text. @type {(...timings: Parameters<typeof medianRatio>) => string} */
export function formatRatio(other, reference) {
  return `${medianRatio(other, reference).toFixed(2)}×`;
}

/**
 * A table for each group: every contestant's time, and how many times the first one's the others take.
 * @typedef {{ id: string, group: string, timings: Record<string, import('./sampler.mjs').Timing> }} Result
 * @param {readonly Result[]} results
 */
export function formatResults(results) {
  const groups = [...new Set(results.map(({ group }) => group))];
  return groups.map((group) => formatGroup(results.filter((result) => result.group === group))).join('\n\n');
}

/** @param {readonly Result[]} results */
function formatGroup(results) {
  const names = Object.keys(results[0].timings);
  const [first, ...others] = names;
  return formatTable([
    ['µs, min … median … max', ...names, ...others.map((name) => `${name} / ${first}`)],
    ...results.map(({ id, timings }) => [
      id,
      ...names.map((name) => formatSpread(timings[name])),
      ...others.map((name) => formatRatio(timings[name], timings[first])),
    ]),
  ]);
}

/**
 * One table with a row for each contestant: its time at every result's parameters, and how many times the first's.
 * @param {readonly Result[]} results
 */
export function formatRows(results) {
  const names = Object.keys(results[0].timings);
  return formatTable([
    ['µs, min … median … max', ...results.flatMap(({ id }) => [`${id} positions`, `/ ${names[0]}`])],
    ...names.map((name) => [
      name,
      ...results.flatMap(({ timings }) => [formatSpread(timings[name]), formatRatio(timings[name], timings[names[0]])]),
    ]),
  ]);
}
