import type { ModelConfig } from 'needle3-wasm';
import { isGlobalLayer, layerCap } from '../geometries.js';
import { continuesCharacter, decodeText } from '../vocabulary.js';
import { create } from './dom.js';

/** What the next token will see. Both are positions; what is before the first is lost. */
export interface Visibility {
  /** First position that some layer sees. */
  readonly kept: number;
  /** First position that every layer sees. */
  readonly seen: number;
}

export function visibilityAt(config: ModelConfig, position: number): Visibility {
  const layers = Array.from({ length: config.numLayers }, (_, layer) => layer);
  const firstOf = (layer: number) => Math.max(0, position + 1 - layerCap(config, layer));
  const locals = layers.filter((layer) => !isGlobalLayer(config, layer));
  return {
    kept: Math.min(...layers.map(firstOf)),
    seen: Math.max(0, ...(locals.length > 0 ? locals : layers).map(firstOf)),
  };
}

/** The text, shaded by what the layers still see of it. */
export class Tape {
  constructor(readonly element: HTMLElement) {
    this.clear();
  }

  clear(): void {
    this.element.replaceChildren(create('span', 'empty', 'Your text and what the model adds to it will appear here.'));
  }

  show(config: ModelConfig, tokens: readonly number[], promptLength: number, position: number): void {
    if (tokens.length === 0) {
      this.clear();
      return;
    }
    const { kept, seen } = visibilityAt(config, position);
    const wholeCharacter = (index: number) => {
      let at = Math.min(index, tokens.length);
      while (continuesCharacter(tokens[at])) at--;
      return at;
    };
    const cuts = [0, kept, seen, promptLength, position, tokens.length].map(wholeCharacter).sort((a, b) => a - b);
    const spans: HTMLElement[] = [];
    for (let part = 0; part + 1 < cuts.length; part++) {
      const from = cuts[part];
      const to = cuts[part + 1];
      if (from === to) continue;
      const shade =
        from < wholeCharacter(kept)
          ? 'lost'
          : from < wholeCharacter(seen)
            ? 'far'
            : from < wholeCharacter(position)
              ? 'seen'
              : 'waiting';
      const source = from < promptLength ? 'given' : 'made';
      spans.push(create('span', `${shade} ${source}`, decodeText(tokens.slice(from, to))));
    }
    const { element } = this;
    const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 32;
    element.replaceChildren(...spans);
    if (atEnd) element.scrollTop = element.scrollHeight;
  }
}
