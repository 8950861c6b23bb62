import { isRounding, type CheckResult } from '../check.js';
import { byId, create } from './dom.js';
import { formatCount } from './format.js';

/** What the check has found. */
export class Verdict {
  readonly #element = byId('verdict');

  constructor() {
    this.message('Decode something, then check it.');
  }

  message(text: string): void {
    this.#element.replaceChildren(create('p', 'empty', text));
  }

  progress(done: number, total: number, label: string): void {
    const bar = create('progress');
    bar.max = total;
    bar.value = done;
    bar.setAttribute('aria-label', 'Layers recomputed');
    this.#element.replaceChildren(create('div', 'working', create('p', '', label), bar));
  }

  show(result: CheckResult): void {
    const good = isRounding(result);
    const { positions, layers, difference, magnitude, method, sameBits } = result;
    const relative = difference / magnitude;
    this.#element.replaceChildren(
      create(
        'p',
        good ? 'result is-good' : 'result is-bad',
        create('strong', '', good ? 'Right, to the last rounding' : 'This differs: it is a bug'),
      ),
      create(
        'dl',
        'findings',
        create('dt', '', 'Largest difference'),
        create(
          'dd',
          '',
          `${difference.toExponential(1)}, in numbers up to ${magnitude.toFixed(1)} (${relative.toExponential(1)} of it)`,
        ),
        create('dt', '', 'Compared'),
        create(
          'dd',
          '',
          `${formatCount(positions)} positions × ${layers} layers, ${
            method === 'end-to-end' ? 'from the first layer to the last' : 'each layer on the same input'
          }`,
        ),
        create('dt', '', 'Fed again in other batches'),
        create('dd', '', sameBits ? 'the next token has the same bits' : 'the next token has other bits'),
      ),
    );
  }
}
