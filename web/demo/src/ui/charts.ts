// Before uPlot, which reads the browser's language as it is imported.
import { numbers } from './numbers.js';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { Precision, Sample } from '../protocol.js';
import { byId, onThemeChange, setText, themeColor } from './dom.js';
import { formatBytes, formatMilliseconds } from './format.js';

/** Samples that one point of the time chart averages: browsers' clocks tick too coarsely for one. */
const SMOOTHED = 32;
/** Of these, the slowest part is left out: it tells of the machine's other work. */
const LEFT_OUT = 1 / 8;
const HEIGHT = 220;

interface Series {
  readonly positions: number[];
  readonly f32: (number | null)[];
  readonly int8: (number | null)[];
}

function noSeries(): Series {
  return { positions: [], f32: [], int8: [] };
}

/** Puts a value at a position; positions that are later were taken back and go. */
function put(series: Series, position: number, precision: Precision, value: number): void {
  const { positions } = series;
  while (positions.length > 0 && positions.at(-1)! > position) {
    positions.pop();
    series.f32.pop();
    series.int8.pop();
  }
  if (positions.at(-1) !== position) {
    positions.push(position);
    series.f32.push(null);
    series.int8.push(null);
  }
  series[precision][positions.length - 1] = value;
}

/** How one chart shows its values. */
interface Unit {
  readonly format: (value: number) => string;
  /** Distances that ticks may have. */
  readonly ticks: readonly number[];
  /** Top of the scale while there is nothing. */
  readonly emptyTop: number;
  /** Part of the values that the scale must have room for. */
  readonly shown: number;
}

const BYTES: Unit = {
  format: formatBytes,
  ticks: Array.from({ length: 30 }, (_, power) => 2 ** power),
  emptyTop: 64 * 1024,
  shown: 1,
};

const MILLISECONDS: Unit = {
  format: formatMilliseconds,
  ticks: Array.from({ length: 8 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** (power - 4))).flat(),
  emptyTop: 1,
  shown: 0.9,
};

class Chart {
  #series = noSeries();
  #plot: uPlot | undefined;
  #context = 1;

  constructor(
    readonly container: HTMLElement,
    readonly readout: HTMLElement,
    readonly unit: Unit,
  ) {
    new ResizeObserver(() => this.#plot?.setSize({ width: container.clientWidth, height: HEIGHT })).observe(container);
    onThemeChange(() => this.#build());
    this.#build();
  }

  clear(context: number): void {
    this.#context = context;
    this.#series = noSeries();
    this.draw();
  }

  put(position: number, precision: Precision, value: number): void {
    put(this.#series, position, precision, value);
  }

  draw(): void {
    const { positions, f32, int8 } = this.#series;
    this.#plot?.setData([positions, f32, int8]);
    const last = (values: readonly (number | null)[]) => values.at(-1) ?? values.at(-2);
    const parts = [
      ['f32', last(f32)],
      ['int8', last(int8)],
    ].flatMap(([name, value]) => (typeof value === 'number' ? [`${name} ${this.unit.format(value)}`] : []));
    setText(this.readout, parts.length > 0 ? parts.join(' · ') : 'Nothing measured yet');
  }

  /** Of the vertical scale: room above nearly all values. The few beyond are a program that is still being compiled. */
  #top(): number {
    const { f32, int8 } = this.#series;
    const values = [...f32, ...int8].filter((value) => value !== null).sort((a, b) => a - b);
    const typical = values[Math.floor(values.length * this.unit.shown)] ?? values.at(-1);
    return typical ? typical * 1.2 : this.unit.emptyTop;
  }

  #build(): void {
    this.#plot?.destroy();
    const grid = { stroke: themeColor('line'), width: 1 };
    const axis = {
      stroke: themeColor('muted'),
      grid,
      ticks: grid,
      font: `12px ${getComputedStyle(document.body).fontFamily}`,
    };
    const line = (label: string, color: string) => ({
      label,
      stroke: color,
      width: 2,
      spanGaps: true,
      points: { show: false },
    });
    this.#plot = new uPlot(
      {
        width: Math.max(this.container.clientWidth, 1),
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: {
          x: {
            time: false,
            // Room for what is to come, but none beyond the context, until that is passed.
            range: (_plot, _min, max) => [0, Math.max(16, max, Math.min(this.#context, max * 1.15))],
          },
          y: { range: () => [0, this.#top()] },
        },
        axes: [
          { ...axis, size: 32, values: (_plot, ticks) => ticks.map((tick) => numbers.format(tick)) },
          {
            ...axis,
            size: 72,
            incrs: [...this.unit.ticks],
            values: (_plot, ticks) => ticks.map((tick) => (tick === 0 ? '0' : this.unit.format(tick))),
          },
        ],
        series: [{}, line('f32', themeColor('f32')), line('int8', themeColor('int8'))],
      },
      [[], [], []],
      this.container,
    );
    this.draw();
  }
}

function trimmedMean(values: readonly number[]): number {
  const kept = [...values].sort((a, b) => a - b).slice(0, Math.ceil(values.length * (1 - LEFT_OUT)));
  return kept.reduce((sum, value) => sum + value, 0) / kept.length;
}

/** Memory and time against position, for both precisions. */
export class Charts {
  readonly #memory = new Chart(byId('memory-chart'), byId('memory-readout'), BYTES);
  readonly #time = new Chart(byId('time-chart'), byId('time-readout'), MILLISECONDS);
  #recent: Record<Precision, number[]> = { f32: [], int8: [] };

  /** Empties the charts for a geometry of `context` positions. */
  clear(context: number): void {
    this.#recent = { f32: [], int8: [] };
    this.#memory.clear(context);
    this.#time.clear(context);
  }

  add(samples: readonly Sample[]): void {
    for (const { precision, position, byteLength, rows, stateMs } of samples) {
      this.#memory.put(position, precision, byteLength);
      if (rows !== 1) continue;
      const recent = this.#recent[precision];
      recent.push(stateMs);
      if (recent.length > SMOOTHED) recent.shift();
      this.#time.put(position, precision, trimmedMean(recent));
    }
    if (samples.length === 0) return;
    this.#memory.draw();
    this.#time.draw();
  }
}
