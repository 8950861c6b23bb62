import type { SnapshotInfo } from 'needle3-wasm/store';
import type { SessionText } from '../saved-sessions.js';
import { byId, create } from './dom.js';
import { formatBytes, formatCount } from './format.js';

const PREFIX = 'needle3-demo/';
const dates = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeStyle: 'short' });

/** The texts of saved sessions are kept here; their states are in the snapshot store. */
export function keepText(name: string, text: SessionText): void {
  localStorage.setItem(PREFIX + name, JSON.stringify(text));
}

/** The text saved with a session, or undefined where there is none. */
export function keptText(name: string): SessionText | undefined {
  const stored = localStorage.getItem(PREFIX + name);
  return stored === null ? undefined : (JSON.parse(stored) as SessionText);
}

export function forgetText(name: string): void {
  localStorage.removeItem(PREFIX + name);
}

/** The list of what is saved in this browser. */
export class KeepPanel {
  readonly #list = byId('saved');
  readonly #onRestore: (name: string) => void;
  readonly #onDelete: (name: string) => void;

  constructor(handlers: {
    onSave: (name: string) => void;
    onRestore: (name: string) => void;
    onDelete: (name: string) => void;
  }) {
    this.#onRestore = handlers.onRestore;
    this.#onDelete = handlers.onDelete;
    byId('keep').addEventListener('submit', (event) => {
      event.preventDefault();
      const name = byId('save-name', HTMLInputElement).value.trim();
      handlers.onSave(name === '' ? 'My session' : name);
    });
    this.message('Looking for saved sessions…');
  }

  message(text: string): void {
    this.#list.replaceChildren(create('li', 'empty', text));
  }

  show(saved: readonly SnapshotInfo[]): void {
    if (saved.length === 0) {
      this.message('Nothing is saved in this browser yet.');
      return;
    }
    this.#list.replaceChildren(
      ...saved.map(({ name, size, date, position }) => {
        const button = (label: string, act: (name: string) => void) => {
          const element = create('button', '', label);
          element.type = 'button';
          element.setAttribute('aria-label', `${label} ${name}`);
          element.addEventListener('click', () => act(name));
          return element;
        };
        const about = `${formatCount(position)} positions, ${formatBytes(size)}, ${dates.format(date)}`;
        return create(
          'li',
          '',
          create('div', '', create('strong', '', name), create('small', '', about)),
          button('Restore', this.#onRestore),
          button('Delete', this.#onDelete),
        );
      }),
    );
  }
}
