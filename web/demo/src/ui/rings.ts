import type { ModelConfig } from 'needle3-wasm';
import { isGlobalLayer, layerCap } from '../geometries.js';
import { create, onThemeChange, setText, themeColor } from './dom.js';
import { formatCount } from './format.js';

const SIZE = 104;
const CENTRE = SIZE / 2;
const RADIUS = 41;
const THICKNESS = 13;
/** Finer segments could not be told apart. */
const MAX_SEGMENTS = 64;
/** A segment's gap, as part of its length, where each stands for one slot. */
const GAP = 0.18;

interface Ring {
  readonly cap: number;
  readonly isGlobal: boolean;
  readonly canvas: HTMLCanvasElement;
  readonly count: HTMLElement;
}

/**
 * One ring a layer. The rim is the layer's cap, from the top clockwise: slot 0, slot 1, … What is allocated is lighter,
 * what is held is coloured, the older the paler, and the needle points at the slot that the next position goes to.
 */
export class Rings {
  readonly #container: HTMLElement;
  #config: ModelConfig | undefined;
  #rings: readonly Ring[] = [];
  #position = 0;
  #slots: readonly number[] = [];

  constructor(container: HTMLElement) {
    this.#container = container;
    onThemeChange(() => this.#draw());
  }

  /** Draws empty rings for a geometry. */
  show(config: ModelConfig): void {
    this.#config = config;
    this.#rings = Array.from({ length: config.numLayers }, (_, layer) => {
      const canvas = create('canvas');
      const scale = Math.max(1, window.devicePixelRatio);
      canvas.width = SIZE * scale;
      canvas.height = SIZE * scale;
      canvas.setAttribute('role', 'img');
      const isGlobal = isGlobalLayer(config, layer);
      const count = create('span', 'ring-count');
      const label = create('span', 'ring-label', `Layer ${layer}`);
      const figure = create(
        'figure',
        isGlobal ? 'ring is-global' : 'ring',
        canvas,
        create('figcaption', '', label, count),
      );
      return { cap: layerCap(config, layer), isGlobal, canvas, count, figure };
    });
    this.#container.replaceChildren(...this.#rings.map(({ canvas }) => canvas.parentElement!));
    this.#container.classList.toggle('is-many', config.numLayers > 12);
    this.update(0, []);
  }

  /** `position` positions are committed; `slots` of each layer, or none before a state exists. */
  update(position: number, slots: readonly number[]): void {
    this.#position = position;
    this.#slots = slots;
    this.#draw();
  }

  #draw(): void {
    if (!this.#config) return;
    const colors = {
      local: themeColor('local'),
      global: themeColor('global'),
      cap: themeColor('ring-cap'),
      free: themeColor('ring-free'),
      needle: themeColor('ink'),
      warning: themeColor('warning'),
    };
    const saturated = this.#position > this.#config.maxSeqLen;
    this.#rings.forEach((ring, layer) => {
      const slots = this.#slots[layer] ?? 0;
      const held = Math.min(this.#position, Math.max(0, ring.cap - 1));
      drawRing(ring, slots, this.#position, held, colors, saturated && ring.isGlobal);
      const laps = Math.floor(this.#position / ring.cap);
      setText(
        ring.count,
        slots === 0 ? `cap ${formatCount(ring.cap)}` : `${formatCount(slots)} of ${formatCount(ring.cap)}`,
      );
      const kind = ring.isGlobal ? 'global' : 'local';
      const wrapped = laps > 0 ? `, wrapped ${laps} times, next write at slot ${this.#position % ring.cap}` : '';
      ring.canvas.setAttribute(
        'aria-label',
        `Layer ${layer}, ${kind}: ${slots} slots allocated of ${ring.cap}, ${held} positions held${wrapped}`,
      );
    });
  }
}

function drawRing(
  { cap, isGlobal, canvas }: Ring,
  slots: number,
  position: number,
  held: number,
  colors: Record<'local' | 'global' | 'cap' | 'free' | 'needle' | 'warning', string>,
  saturated: boolean,
): void {
  const context = canvas.getContext('2d')!;
  const scale = canvas.width / SIZE;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, SIZE, SIZE);
  context.lineCap = 'butt';
  const segments = Math.min(cap, MAX_SEGMENTS);
  const gap = segments <= MAX_SEGMENTS / 2 ? GAP : 0.1;
  const angleAt = (turn: number) => turn * 2 * Math.PI - Math.PI / 2;
  const arc = (from: number, to: number, color: string, alpha: number, width: number) => {
    context.beginPath();
    context.arc(CENTRE, CENTRE, RADIUS, angleAt(from), angleAt(to));
    context.lineWidth = width;
    context.strokeStyle = color;
    context.globalAlpha = alpha;
    context.stroke();
    context.globalAlpha = 1;
  };

  for (let segment = 0; segment < segments; segment++) {
    const from = segment / segments;
    const to = (segment + 1 - gap) / segments;
    const firstSlot = (segment * cap) / segments;
    arc(from, to, firstSlot < slots ? colors.free : colors.cap, 1, firstSlot < slots ? THICKNESS : 3);
    if (held === 0) continue;
    // The newest position in the segment: its age decides the shade.
    const slot = Math.min(cap, Math.ceil(((segment + 1) * cap) / segments)) - 1;
    const newest = position - 1;
    const behind = (((newest - slot) % cap) + cap) % cap;
    const age = Math.min(behind, (((newest - Math.floor(firstSlot)) % cap) + cap) % cap);
    if (age >= held) continue;
    arc(from, to, isGlobal ? colors.global : colors.local, 0.3 + 0.7 * (1 - age / Math.max(held, 1)), THICKNESS);
  }

  if (saturated) {
    context.beginPath();
    context.arc(CENTRE, CENTRE, RADIUS + THICKNESS / 2 + 2.5, 0, 2 * Math.PI);
    context.lineWidth = 2;
    context.strokeStyle = colors.warning;
    context.stroke();
  }
  if (slots === 0) return;
  const angle = angleAt(((position % cap) + 0.5) / cap);
  const x = Math.cos(angle);
  const y = Math.sin(angle);
  context.beginPath();
  context.moveTo(CENTRE + x * 4, CENTRE + y * 4);
  context.lineTo(CENTRE + x * (RADIUS + THICKNESS / 2), CENTRE + y * (RADIUS + THICKNESS / 2));
  context.lineWidth = 2;
  context.lineCap = 'round';
  context.strokeStyle = colors.needle;
  context.stroke();
  context.beginPath();
  context.arc(CENTRE, CENTRE, 4, 0, 2 * Math.PI);
  context.fillStyle = colors.needle;
  context.fill();
}
