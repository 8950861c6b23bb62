import { Client, RequestFailure } from './client.js';
import { geometryNamed } from './geometries.js';
import { stateTime, TIME_SHARES } from './model.js';
import type { FrameEvent, RunEnd, SessionEvent, WorkerEvent } from './protocol.js';
import { formatSettings, parseSettings, sameState, type Settings } from './settings.js';
import { AskPanel } from './ui/ask-panel.js';
import { Charts } from './ui/charts.js';
import { byId, create, setText } from './ui/dom.js';
import { formatBytes, formatCount } from './ui/format.js';
import { forgetText, KeepPanel, keepText, keptText } from './ui/keep-panel.js';
import { explain, sightAt } from './ui/explain.js';
import { Rings } from './ui/rings.js';
import { SettingsForm } from './ui/settings-form.js';
import { Shares } from './ui/shares.js';
import { Tails } from './ui/tails.js';
import { Tape } from './ui/tape.js';
import { Verdict } from './ui/verdict.js';

type Job = 'loading' | 'run' | 'check' | 'ask' | 'other';

const buttons = {
  start: byId('start', HTMLButtonElement),
  stop: byId('stop', HTMLButtonElement),
  step: byId('step', HTMLButtonElement),
  back: byId('back', HTMLButtonElement),
  reset: byId('reset', HTMLButtonElement),
  check: byId('check', HTMLButtonElement),
  checkStop: byId('check-stop', HTMLButtonElement),
  ask: byId('ask-start', HTMLButtonElement),
  askStop: byId('ask-stop', HTMLButtonElement),
  save: byId('save', HTMLButtonElement),
};

const ENDS: Record<RunEnd, string> = {
  'stop-token': 'The model ended its text (stop-token).',
  'max-new-tokens': 'All the tokens asked for are made (max-new-tokens).',
  'max-seq-len': 'The context is full (max-seq-len). Run past the end to see what a saturated state forgets.',
  aborted: 'Stopped by you (aborted).',
};

const form = new SettingsForm(parseSettings(location.hash), settingsChanged);
const rings = new Rings(byId('rings'));
const tails = new Tails(byId('tails'));
const tape = new Tape(byId('tape'));
const charts = new Charts();
const shares = new Shares(byId('shares'));
const verdict = new Verdict();
const client = new Client(receive);
const askPanel = new AskPanel((input) => {
  askPanel.progress(0, 7, 'Making the weights');
  void perform('ask', () => client.request('ask', { settings: form.settings, ...input }), askPanel).then(
    (result) => result && askPanel.show(result),
  );
});
const keepPanel = new KeepPanel({
  onSave: (name) => void save(name),
  onRestore: (name) => void restore(name),
  onDelete: (name) => void remove(name),
});

/** What the page knows of the Worker. */
let job: Job | undefined = 'loading';
let session: SessionEvent | undefined;
let frame: FrameEvent | undefined;
let tokens: number[] = [];
let lastEnd: RunEnd | undefined;
let drawing = 0;

function receive(event: WorkerEvent): void {
  switch (event.type) {
    case 'ready':
      job = undefined;
      setText(byId('status'), 'Ready.');
      updateButtons();
      void listSaved();
      break;
    case 'failed':
      setText(byId('status'), 'The WebAssembly module could not be loaded, so there is nothing to run.');
      showError(event.error.code ?? 'error', event.error.message);
      keepPanel.message('Not available without the WebAssembly module.');
      break;
    case 'session':
      session = event;
      frame = undefined;
      tokens = [];
      showGeometry(event.settings);
      break;
    case 'frame':
      frame = event;
      tokens.length = event.tokensFrom;
      tokens.push(...event.tokens);
      charts.add(event.samples);
      if (drawing === 0) drawing = requestAnimationFrame(draw);
      break;
    case 'progress':
      (event.job === 'check' ? verdict : askPanel).progress(event.done, event.total, event.label);
      break;
  }
}

function showGeometry(settings: Settings): void {
  const { config } = geometryNamed(settings.geometry);
  rings.show(config);
  tails.show(config);
  charts.clear(config.maxSeqLen);
  shares.update(null);
  tape.clear();
  setText(byId('position'), '0');
  setText(byId('context'), `of ${formatCount(config.maxSeqLen)}`);
  setText(byId('bytes'), '0 B');
  setText(byId('reserved'), '\u00a0');
  setText(byId('speed'), '–');
  byId('position-meter').style.width = '0';
  byId('bytes-meter').style.width = '0';
  showExplanation(config, 0, [], false);
}

function showExplanation(...[config, position, slots, isSaturated]: Parameters<typeof explain>): void {
  const { title, text, tone } = explain(config, position, slots, isSaturated);
  setText(byId('explain-title'), title);
  setText(byId('explain-text'), text);
  byId('explain').dataset.tone = tone;
  byId('sight').replaceChildren(
    ...sightAt(config, position).map(({ layers, range }) =>
      create('div', '', create('dt', '', `${layers} `), create('dd', '', range)),
    ),
  );
}

function draw(): void {
  drawing = 0;
  if (!session || !frame) return;
  const { config } = geometryNamed(session.settings.geometry);
  const { position, slots, byteLength, times } = frame;
  rings.update(position, slots);
  tails.update(tokens, position, frame.history);
  tape.show(config, tokens, frame.promptLength, position);
  shares.update(times);
  showExplanation(config, position, slots, frame.isSaturated);

  const reserved = session.reservedBytes[session.settings.precision];
  setText(byId('position'), formatCount(position));
  setText(byId('bytes'), formatBytes(byteLength));
  setText(byId('reserved'), `${formatBytes(reserved)} if reserved`);
  byId('position-meter').style.width = `${Math.min(100, (100 * position) / config.maxSeqLen)}%`;
  byId('bytes-meter').style.width = `${Math.min(100, (100 * byteLength) / reserved)}%`;
  const stepMs = times ? TIME_SHARES.reduce((sum, share) => sum + times[share], 0) : 0;
  setText(byId('speed'), stepMs > 0 ? formatCount(1000 / stepMs) : '–');
  setText(byId('linear'), formatBytes(frame.linearBytes));
  setText(byId('allocated'), `${formatBytes(frame.allocatedBytes)} in use`);
  setText(byId('marks'), formatBytes(frame.markBytes));
  byId('speed').title = times ? `${stateTime(times).toFixed(3)} ms of each token in the state` : '';
  updateButtons();
}

/** What the primary button does now. */
function primaryAction(): 'start' | 'continue' | 'runPast' {
  if (!session || !frame || frame.position === 0 || !sameState(session.settings, form.settings)) return 'start';
  if (lastEnd === 'stop-token') return 'start';
  const { config } = geometryNamed(session.settings.geometry);
  return frame.position >= config.maxSeqLen ? 'runPast' : 'continue';
}

function updateButtons(): void {
  const idle = job === undefined;
  const labels = { start: 'Start', continue: 'Continue', runPast: 'Run past the end' };
  const action = primaryAction();
  const holdsText = frame !== undefined && frame.position > 0;
  setText(buttons.start, labels[action]);
  buttons.start.disabled = !idle || !form.isValid;
  buttons.stop.disabled = job !== 'run';
  buttons.step.disabled = !idle || !form.isValid || action === 'runPast';
  buttons.back.disabled = !idle || !frame?.canGoBack;
  buttons.reset.disabled = !idle || !holdsText;
  buttons.check.disabled = !idle || !holdsText;
  buttons.checkStop.disabled = job !== 'check';
  buttons.ask.disabled = !idle;
  buttons.askStop.disabled = job !== 'ask';
  buttons.save.disabled = !idle || !holdsText;
  // Start and Stop take turns: whoever uses the keyboard stays where they are.
  const { activeElement } = document;
  if (activeElement === buttons.start && !buttons.stop.disabled) buttons.stop.focus();
  if (activeElement === buttons.stop && !buttons.start.disabled) buttons.start.focus();
}

function showError(code: string, message: string): void {
  setText(byId('error-title'), code);
  setText(byId('error-text'), message);
  byId('error').hidden = false;
}

/** Runs a request as the page's only job; undefined where it failed or was stopped, which is then shown. */
async function perform<T>(
  kind: Job,
  request: () => Promise<T>,
  panel?: { message(text: string): void },
): Promise<T | undefined> {
  job = kind;
  byId('error').hidden = true;
  updateButtons();
  try {
    return await request();
  } catch (error) {
    const { code, message } =
      error instanceof RequestFailure ? error.failure : { code: undefined, message: String(error) };
    if (code !== 'aborted') showError(code ?? 'error', message);
    panel?.message(code === 'aborted' ? 'Stopped.' : 'That did not work.');
    return undefined;
  } finally {
    job = undefined;
    updateButtons();
  }
}

async function run(type: 'start' | 'continue' | 'runPast' | 'step'): Promise<void> {
  if (primaryAction() === 'start') verdict.message('Check it once it has run.');
  setText(byId('status'), type === 'step' ? 'One token…' : 'Decoding…');
  const end = await perform('run', () => client.request(type, { settings: form.settings }));
  lastEnd = end;
  // After an error there may be no session in the Worker: only a new start is sure to work.
  if (end === undefined) frame = undefined;
  setText(
    byId('status'),
    end === undefined
      ? 'It stopped with an error.'
      : type === 'step' && end === 'max-new-tokens'
        ? 'One token made.'
        : ENDS[end],
  );
  updateButtons();
}

function settingsChanged(): void {
  history.replaceState(null, '', `#${formatSettings(form.settings)}`);
  if (!session && form.isValid) showGeometry(form.settings);
  updateButtons();
}

async function listSaved(): Promise<void> {
  try {
    keepPanel.show(await client.request('listSaved', {}));
  } catch (error) {
    keepPanel.message(`This browser keeps nothing here: ${(error as Error).message}`);
  }
}

async function save(name: string): Promise<void> {
  const text = await perform('other', () => client.request('save', { name }));
  if (text) {
    keepText(name, text);
    setText(byId('status'), `Saved as “${name}”. Reload the page and restore it.`);
  }
  await listSaved();
}

async function restore(name: string): Promise<void> {
  const text = keptText(name);
  if (!text) {
    showError('error', `The text of “${name}” is not in this browser any more, so its state cannot be shown.`);
    return;
  }
  const done = await perform('other', async () => {
    await client.request('restore', { name, text });
    return true;
  });
  if (!done) return;
  lastEnd = undefined;
  form.settings = text.settings;
  settingsChanged();
  setText(byId('status'), `Restored “${name}”. Continue goes on where it was.`);
  byId('run').scrollIntoView({ block: 'start' });
  byId('start').focus({ preventScroll: true });
}

async function remove(name: string): Promise<void> {
  await perform('other', () => client.request('deleteSaved', { name }));
  forgetText(name);
  await listSaved();
}

buttons.start.addEventListener('click', () => void run(primaryAction()));
buttons.step.addEventListener('click', () => void run('step'));
for (const button of [buttons.stop, buttons.checkStop, buttons.askStop]) {
  button.addEventListener('click', () => void client.request('stop', {}));
}
buttons.back.addEventListener('click', () => {
  lastEnd = undefined;
  void perform('other', () => client.request('back', {})).then(() =>
    setText(byId('status'), 'One token taken back: the state is, bit for bit, as it was before it.'),
  );
});
buttons.reset.addEventListener('click', () => {
  lastEnd = undefined;
  void perform('other', () => client.request('reset', {})).then(() => {
    setText(byId('status'), 'Reset: nothing is remembered, and the rings keep the room they have grown to.');
    verdict.message('Decode something, then check it.');
    if (session) charts.clear(geometryNamed(session.settings.geometry).config.maxSeqLen);
  });
});
buttons.check.addEventListener('click', () => {
  verdict.progress(0, 1, 'Feeding the text again…');
  void perform('check', () => client.request('check', {}), verdict).then((result) => result && verdict.show(result));
});
byId('error-close').addEventListener('click', () => (byId('error').hidden = true));
byId('copy-link').addEventListener('click', () => {
  settingsChanged();
  const copied = navigator.clipboard?.writeText(location.href) ?? Promise.reject(new Error('no clipboard'));
  copied.then(
    () => setText(byId('status'), 'The link is copied. It opens this page with these settings.'),
    () => setText(byId('status'), 'The link is in the address bar: copy it from there.'),
  );
});
window.addEventListener('hashchange', () => {
  form.settings = parseSettings(location.hash);
  settingsChanged();
});

showGeometry(form.settings);
updateButtons();
byId('page').classList.add('is-drawn');

if (import.meta.env.PROD && 'serviceWorker' in navigator) {
  void navigator.serviceWorker
    .register('./sw.js')
    .then(() => navigator.serviceWorker.ready)
    .then(
      () => setText(byId('offline'), 'This page now works offline.'),
      () => setText(byId('offline'), 'This page needs the network each time: the browser keeps no copy.'),
    );
}
