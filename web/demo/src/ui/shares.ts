import { noTimes, TIME_SHARES, type StepTimes, type TimeShare } from '../model.js';
import { create, setText } from './dom.js';
import { formatMilliseconds } from './format.js';

const LABELS: Record<TimeShare, string> = {
  attention: 'Attention',
  convolution: 'Convolution',
  engram: 'Engram',
  projections: 'Projections, logits',
  norms: 'Norms, RoPE',
  other: 'Everything else',
};

/** A step's time as one bar, divided. */
export class Shares {
  readonly #rows: { readonly share: TimeShare; readonly bar: HTMLElement; readonly value: HTMLElement }[];

  constructor(container: HTMLElement) {
    this.#rows = TIME_SHARES.map((share) => ({
      share,
      bar: create('i', `share share-${share}`),
      value: create('b'),
    }));
    const bar = create('div', 'share-bar', ...this.#rows.map((row) => row.bar));
    bar.setAttribute('aria-hidden', 'true');
    const list = create(
      'ul',
      'share-list',
      ...this.#rows.map(({ share, value }) =>
        create('li', '', create('i', `key share-${share}`), create('span', '', LABELS[share]), value),
      ),
    );
    container.append(bar, list);
    this.update(null);
  }

  update(times: StepTimes | null): void {
    const shown = times ?? noTimes();
    const total = TIME_SHARES.reduce((sum, share) => sum + shown[share], 0);
    for (const { share, bar, value } of this.#rows) {
      bar.style.flexGrow = String(total > 0 ? shown[share] / total : 0);
      setText(value, times ? formatMilliseconds(shown[share]) : '–');
    }
  }
}
