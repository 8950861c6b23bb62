import type { ModelConfig } from 'needle3-wasm';
import { isGlobalLayer, layerCap } from '../geometries.js';
import { formatCount } from './format.js';

export interface Explanation {
  readonly title: string;
  readonly text: string;
  readonly tone: 'quiet' | 'plain' | 'warning';
}

/** What the next token will see, by kind of layer: the inclusive range that its query reads. */
export function sightAt(config: ModelConfig, position: number): { readonly layers: string; readonly range: string }[] {
  const all = Array.from({ length: config.numLayers }, (_, layer) => layer);
  const isGlobal = (layer: number) => isGlobalLayer(config, layer);
  return [
    { kind: 'Local', layer: all.find((layer) => !isGlobal(layer)) },
    { kind: 'Global', layer: all.find(isGlobal) },
  ].flatMap(({ kind, layer }) => {
    if (layer === undefined) return [];
    const first = Math.max(0, position + 1 - layerCap(config, layer));
    return [{ layers: `${kind} layers will see`, range: `${formatCount(first)} to ${formatCount(position)}` }];
  });
}

/** What the rings show at this moment, in words. */
export function explain(
  config: ModelConfig,
  position: number,
  slots: readonly number[],
  isSaturated: boolean,
): Explanation {
  const layers = Array.from({ length: config.numLayers }, (_, layer) => layer);
  const local = layers.find((layer) => !isGlobalLayer(config, layer));
  const context = formatCount(config.maxSeqLen);
  if (isSaturated) {
    const forgotten = position - config.maxSeqLen;
    return {
      tone: 'warning',
      title: 'Saturated: even the global layers forget now',
      text:
        `The context is ${context} positions and ${formatCount(position)} were written, so global layers keep the latest ${context}. ` +
        `${formatCount(forgotten)} ${forgotten === 1 ? 'position is' : 'positions are'} gone from every layer. decode() stops before this; isSaturated tells you when your own loop has not.`,
    };
  }
  if (position >= config.maxSeqLen) {
    return {
      tone: 'warning',
      title: 'The context is full',
      text: `All ${context} positions are written and every global ring is full. One more token and position 0 is forgotten for good.`,
    };
  }
  if (local !== undefined && position >= layerCap(config, local)) {
    const cap = layerCap(config, local);
    return {
      tone: 'plain',
      title: 'The local rings have wrapped',
      text: `A local layer sees ${formatCount(cap)} positions. Position ${formatCount(position)} goes to slot ${formatCount(position % cap)}, where position ${formatCount(position - cap)} was. Global layers still have it.`,
    };
  }
  if (position > 0) {
    const most = Math.max(...slots);
    return {
      tone: 'plain',
      title: 'The rings are growing',
      text: `${formatCount(position)} positions are held in ${formatCount(most)} slots. When they are used up, a ring doubles, up to its cap: a short session never pays for the whole context.`,
    };
  }
  return {
    tone: 'quiet',
    title: 'Nothing is remembered yet',
    text: 'Each circle is the ring of one layer. The rim is as long as that layer may ever need; the thick part will be allocated, the coloured part held.',
  };
}
