import type { ModelConfig } from 'needle3-wasm';
import { widthsOf } from '../weights.js';
import { create, setText } from './dom.js';
import { formatBytes, formatCount, tokenGlyph } from './format.js';

interface Cell {
  /** How many tokens back from the next one. */
  readonly behind: number;
  readonly glyph: HTMLElement;
  readonly position: HTMLElement;
}

/** The convolution tail, the Engram tail and the token history, each cell labelled with the token it comes from. */
export class Tails {
  readonly #container: HTMLElement;
  #cells: readonly Cell[] = [];
  #historyLength = 0;
  #history: HTMLElement[] = [];

  constructor(container: HTMLElement) {
    this.#container = container;
  }

  show(config: ModelConfig): void {
    const { engram } = config;
    const widths = widthsOf(config);
    const cells: Cell[] = [];
    const strip = (length: number, isRead: (behind: number) => boolean) =>
      create(
        'ol',
        'strip',
        ...Array.from({ length }, (_, index) => {
          const behind = length - index;
          const glyph = create('b');
          const position = create('small');
          cells.push({ behind, glyph, position });
          return create('li', isRead(behind) ? 'cell is-read' : 'cell', glyph, position);
        }),
      );
    const panel = (title: string, body: HTMLElement, text: string) =>
      create('article', 'tail', create('h3', '', title), body, create('p', 'note', text));
    const none = (text: string) => create('p', 'empty', text);

    const convRows = Math.max(0, config.qkvConvTaps - 1);
    const convBytes = convRows * (widths.q + widths.k + widths.v) * 4 * config.numLayers;
    const engramRows = Math.max(0, engram.convTaps - 1) * engram.convDilation;
    const sites = engram.sites.length;
    const engramBytes = sites * engramRows * config.dModel * 4;
    this.#historyLength = Math.max(1, ...engram.orders);
    this.#history = Array.from({ length: this.#historyLength }, () => create('li', 'cell is-read'));

    this.#container.replaceChildren(
      panel(
        'Convolution tails',
        convRows > 0 ? strip(convRows, () => true) : none('This geometry has no convolution.'),
        convRows > 0
          ? `Raw Q, K and V of the last ${convRows} tokens, in each of ${config.numLayers} layers: ${formatBytes(convBytes)}.`
          : 'With no taps there is no tail to keep.',
      ),
      panel(
        'Engram tails',
        sites > 0 && engramRows > 0
          ? strip(engramRows, (behind) => behind % engram.convDilation === 0)
          : none('This geometry has no Engram.'),
        sites > 0
          ? `The last ${engramRows} value rows at ${sites} sites: ${formatBytes(engramBytes)}. The next token reads the framed ones.`
          : 'With no sites there is no value stream.',
      ),
      panel(
        'Token history',
        create('ol', 'strip', ...this.#history),
        sites > 0
          ? `The last ${this.#historyLength} ids. Their n-grams are hashed to rows of ${widths.tables} tables of ${formatCount(engram.slots)}.`
          : 'The last token id.',
      ),
    );
    this.#cells = cells;
    this.update([], 0, []);
  }

  /** The first `position` of `tokens` are in the state; `history` is what it retains, oldest first. */
  update(tokens: readonly number[], position: number, history: readonly number[]): void {
    for (const { behind, glyph, position: label } of this.#cells) {
      const at = position - behind;
      setText(glyph, at < 0 ? '0' : tokenGlyph(tokens[at]));
      setText(label, at < 0 ? '–' : String(at));
      glyph.parentElement!.classList.toggle('is-blank', at < 0);
    }
    this.#history.forEach((cell, index) => {
      const token = history[history.length - this.#historyLength + index];
      cell.classList.toggle('is-blank', token === undefined);
      cell.replaceChildren(
        create('b', '', token === undefined ? '0' : tokenGlyph(token)),
        create('small', '', token === undefined ? '–' : String(token)),
      );
    });
  }
}
