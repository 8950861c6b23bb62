// @ts-check
// Takes samples of contestants in turn. A library would be preferred, but those there are (tinybench, mitata) time one
// task to its end before the next: on a machine whose speed drifts, the drift then shows as a difference between the
// contestants. Nor can they ask another process, or a browser, for its own clock's reading.

/**
 * What is timed: `run(n)` does the work n times and gives the milliseconds that took.
 * @typedef {object} Contestant
 * @property {string} name
 * @property {(iterations: number) => number | Promise<number>} run
 * @property {number} [units]  units of work in one iteration, for instance rows; 1 unless given
 *
 * Microseconds per unit of work; `samples` in the order they were taken.
 * @typedef {{ min: number, median: number, max: number, iterations: number, samples: number[] }} Timing
 */

const FEWEST_ROUNDS = 5;
/** Times the length that is aimed at. */
const LONG_SAMPLE = 3;

/**
 * @param {readonly Contestant[]} contestants
 * @param {{ rounds: number, sampleMs: number, onRound?: (round: number, rounds: number) => void }} options
 * @returns {Promise<Record<string, Timing>>} by the contestants' names
 */
export async function sampleInTurn(contestants, { rounds, sampleMs, onRound }) {
  /** @type {{ contestant: Contestant, iterations: number }[]} */
  const runners = [];
  for (const contestant of contestants) runners.push({ contestant, iterations: await calibrate(contestant, sampleMs) });

  /** @type {number[][]} */
  const samples = contestants.map(() => []);
  const start = performance.now();
  for (let round = 0; round < rounds; ++round) {
    // Where one iteration takes long, a few samples are enough.
    if (round >= FEWEST_ROUNDS && performance.now() - start > LONG_SAMPLE * rounds * sampleMs * contestants.length)
      break;
    onRound?.(round, rounds);
    const order = contestants.map((_, i) => (i + round) % contestants.length);
    if (round % 2 === 1) order.reverse();
    for (const i of order) {
      const { contestant, iterations } = runners[i];
      // Its data is back in the caches, from which the contestant before it may have driven it.
      if (iterations > 1) await contestant.run(1);
      const ms = await contestant.run(iterations);
      samples[i].push((ms * 1000) / iterations / (contestant.units ?? 1));
    }
  }
  return Object.fromEntries(
    contestants.map(({ name }, i) => [name, { ...summary(samples[i]), iterations: runners[i].iterations }]),
  );
}

/**
 * Iterations that take about `sampleMs`. The runs that find them out also warm the contestant up: engines compile hot
 * WebAssembly a second time.
 * @param {Contestant} contestant
 * @param {number} sampleMs
 */
async function calibrate(contestant, sampleMs) {
  let iterations = 1;
  for (;;) {
    const ms = await contestant.run(iterations);
    if (ms >= LONG_SAMPLE * sampleMs) return iterations;
    if (ms >= sampleMs / 2) {
      // Once more: the first time may have been slower code.
      const again = await contestant.run(iterations);
      return Math.max(1, Math.round((iterations * sampleMs) / Math.max(again, sampleMs / 16)));
    }
    iterations = Math.ceil(iterations * Math.min(8, Math.max(2, sampleMs / Math.max(ms, sampleMs / 8))));
  }
}

/** @param {number[]} samples */
function summary(samples) {
  const sorted = [...samples].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return { min: sorted[0], median, max: sorted[sorted.length - 1], samples };
}
