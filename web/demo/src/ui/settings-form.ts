import { GEOMETRIES, geometryNamed } from '../geometries.js';
import { BOUNDS, complaintAbout, type NumericSetting, type Settings } from '../settings.js';
import { encodeText } from '../vocabulary.js';
import { byId, create, setText } from './dom.js';
import { formatCount } from './format.js';

const NUMERIC = Object.keys(BOUNDS) as NumericSetting[];
const FLAGS = ['quantizeQuery', 'mayEnd', 'compare'] as const;

/** The form of all settings. Bad input is marked where it is, and makes `isValid` false. */
export class SettingsForm {
  readonly #form = byId('settings', HTMLFormElement);
  readonly #prompt = byId('prompt', HTMLTextAreaElement);
  readonly #notes = new Map<NumericSetting, string>();
  #isValid = true;
  #settings: Settings;

  constructor(settings: Settings, onChange: () => void) {
    byId('geometry').append(
      ...GEOMETRIES.map(({ name, label }) => {
        const option = create('option', '', label);
        option.value = name;
        return option;
      }),
    );
    for (const name of NUMERIC) this.#notes.set(name, byId(`${name}-note`).textContent ?? '');
    this.#settings = settings;
    this.settings = settings;
    this.#form.addEventListener('submit', (event) => event.preventDefault());
    this.#form.addEventListener('input', (event) => {
      if ((event.target as HTMLElement).id === 'geometry') {
        const { capacityHint } = geometryNamed(this.#select().value as Settings['geometry']);
        this.#input('capacityHint').value = String(capacityHint);
      }
      this.#read();
      onChange();
    });
  }

  get isValid(): boolean {
    return this.#isValid;
  }

  /** The settings as they stand; where a field is bad, its last good value. */
  get settings(): Settings {
    return this.#settings;
  }

  set settings(settings: Settings) {
    this.#prompt.value = settings.prompt;
    this.#select().value = settings.geometry;
    for (const name of ['precision', 'pace'] as const) {
      (this.#form.elements.namedItem(name) as RadioNodeList).value = settings[name];
    }
    for (const name of NUMERIC) this.#input(name).value = String(settings[name]);
    for (const name of FLAGS) this.#input(name).checked = settings[name];
    this.#read();
  }

  #input(name: NumericSetting | (typeof FLAGS)[number]): HTMLInputElement {
    return this.#form.elements.namedItem(name) as HTMLInputElement;
  }

  #select(): HTMLSelectElement {
    return byId('geometry', HTMLSelectElement);
  }

  #read(): void {
    const data = new FormData(this.#form);
    const geometry = data.get('geometry') as Settings['geometry'];
    const { about, config } = geometryNamed(geometry);
    setText(byId('geometry-note'), about);
    const prompt = this.#prompt.value;
    const bytes = encodeText(prompt).length;
    const promptComplaint =
      bytes === 0
        ? 'Type something first: the model needs at least one token.'
        : bytes > config.maxSeqLen
          ? `${formatCount(bytes)} tokens do not fit the context of ${formatCount(config.maxSeqLen)}.`
          : undefined;
    const note = `${formatCount(bytes)} tokens, one for each byte, of a context of ${formatCount(config.maxSeqLen)}.`;
    this.#mark(this.#prompt, byId('prompt-note'), promptComplaint, note);
    let isValid = promptComplaint === undefined;

    const numbers = NUMERIC.map((name) => {
      const input = this.#input(name);
      const value = input.value.trim() === '' ? NaN : Number(input.value);
      const complaint = complaintAbout(name, value);
      this.#mark(input, byId(`${name}-note`), complaint, this.#notes.get(name)!);
      isValid &&= complaint === undefined;
      return [name, complaint ? this.#settings[name] : value] as const;
    });
    const precision = data.get('precision') as Settings['precision'];
    this.#input('quantizeQuery').disabled = precision === 'f32' && !this.#input('compare').checked;
    this.#isValid = isValid;
    this.#settings = {
      ...this.#settings,
      geometry,
      precision,
      prompt,
      pace: data.get('pace') as Settings['pace'],
      ...(Object.fromEntries(numbers) as Record<NumericSetting, number>),
      quantizeQuery: this.#input('quantizeQuery').checked,
      mayEnd: this.#input('mayEnd').checked,
      compare: this.#input('compare').checked,
    };
  }

  #mark(field: HTMLElement, note: HTMLElement, complaint: string | undefined, usual: string): void {
    field.setAttribute('aria-invalid', String(complaint !== undefined));
    note.classList.toggle('is-wrong', complaint !== undefined);
    setText(note, complaint ?? usual);
  }
}
