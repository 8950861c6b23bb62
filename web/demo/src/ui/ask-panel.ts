import type { AskResult } from '../protocol.js';
import { byId, create } from './dom.js';
import { formatBytes, formatCount, formatMilliseconds } from './format.js';

const SHARED = `You call tools. Answer with one JSON call.
[{"name":"set_alarm","parameters":{"time":"string","label":"string"}},
 {"name":"get_weather","parameters":{"city":"string","day":"string"}},
 {"name":"send_message","parameters":{"to":"string","text":"string"}},
 {"name":"play_music","parameters":{"artist":"string","shuffle":"boolean"}},
 {"name":"find_trains","parameters":{"from":"string","to":"string","time":"string"}}]
`;
const QUESTIONS = ['Wake me at seven.', 'Will it rain in Oslo tomorrow?', 'Trains to Bergen after nine?'];
const MAX_TOKENS = 24;

export interface AskInput {
  readonly shared: string;
  readonly questions: readonly string[];
  readonly maxTokens: number;
}

/** The questions, and what answering them from forks has saved. */
export class AskPanel {
  readonly #answers = byId('answers');
  readonly #shared = byId('shared', HTMLTextAreaElement);
  readonly #questions = [...document.querySelectorAll<HTMLInputElement>('.questions input')];

  constructor(onAsk: (input: AskInput) => void) {
    this.#shared.value = SHARED;
    this.#questions.forEach((input, index) => (input.value = QUESTIONS[index] ?? ''));
    byId('ask').addEventListener('submit', (event) => {
      event.preventDefault();
      const missing = [this.#shared, ...this.#questions].find(({ value }) => value === '');
      if (missing) {
        this.message('Fill in the shared text and all three questions first.');
        missing.focus();
        return;
      }
      onAsk({
        shared: this.#shared.value,
        questions: this.#questions.map(({ value }) => value),
        maxTokens: MAX_TOKENS,
      });
    });
    this.message('Nothing asked yet. The answers, and the time that forking saved, will appear here.');
  }

  message(text: string): void {
    this.#answers.replaceChildren(create('p', 'empty', text));
  }

  progress(done: number, total: number, label: string): void {
    const bar = create('progress');
    bar.max = total;
    bar.value = done;
    bar.setAttribute('aria-label', label);
    this.#answers.replaceChildren(create('div', 'working', create('p', '', `${label}…`), bar));
  }

  show({ sharedTokens, prefillMs, forkMs, forkBytes, answers }: AskResult): void {
    const withForks = prefillMs + answers.reduce((sum, { forkedMs }) => sum + forkedMs, 0);
    const fromNothing = answers.reduce((sum, { scratchMs }) => sum + scratchMs, 0);
    const longest = Math.max(...answers.map(({ scratchMs, forkedMs }) => Math.max(scratchMs, forkedMs)));
    const bar = (kind: string, label: string, milliseconds: number) => {
      const fill = create('i', kind);
      fill.style.width = `${(100 * milliseconds) / longest}%`;
      return create(
        'div',
        'race',
        create('span', '', label),
        create('div', 'race-bar', fill),
        create('b', '', formatMilliseconds(milliseconds)),
      );
    };
    const same = answers.every(({ sameTokens }) => sameTokens);
    this.#answers.replaceChildren(
      create(
        'p',
        'saving',
        create('strong', '', `${formatMilliseconds(fromNothing - withForks)} saved`),
        ` of ${formatMilliseconds(fromNothing)} to the first tokens. Prefilling ${formatCount(sharedTokens)} shared tokens took ` +
          `${formatMilliseconds(prefillMs)}, once; a fork (${formatBytes(forkBytes)}) takes ${formatMilliseconds(forkMs)}. `,
        same ? 'Forked or from nothing, the tokens are the same.' : 'The tokens differ: this is a bug.',
      ),
      create(
        'ul',
        'answer-list',
        ...answers.map(({ question, answer, forkedMs, scratchMs }) =>
          create(
            'li',
            '',
            create('h3', '', question),
            create('p', 'noise', answer),
            bar('is-fork', 'Fork', forkedMs),
            bar('is-scratch', 'From nothing', scratchMs),
          ),
        ),
      ),
    );
  }
}
