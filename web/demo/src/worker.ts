import { loadNeedle3, Needle3Error, type Needle3 } from 'needle3-wasm';
import { askMany } from './ask.js';
import type { Failure, FromWorker, Replies, Request, RequestType, WorkerEvent } from './protocol.js';
import { deleteSession, listSessions, restoreSession, saveSession } from './saved-sessions.js';
import { Session, type SessionHooks } from './session.js';
import { sameState, type Settings } from './settings.js';

/** Milliseconds between frames at full speed. */
const FRAME_INTERVAL = 33;
/** Milliseconds of work after which messages are let in. */
const WORK_SLICE = 12;

const scope = self as unknown as {
  postMessage(message: FromWorker): void;
  onmessage: ((event: MessageEvent<Request>) => void) | null;
};

const channel = new MessageChannel();
/** A macrotask without the delay that nested timers get. */
function turn(): Promise<void> {
  return new Promise((resolve) => {
    channel.port1.onmessage = () => resolve();
    channel.port2.postMessage(null);
  });
}

function delay(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener('abort', end);
  });
}

function send(event: WorkerEvent): void {
  scope.postMessage(event);
}

let session: Session | undefined;
/** The running job, and what ends it. Jobs run one at a time; only `stop` may come between. */
let job: { controller: AbortController; done: Promise<void> } | undefined;

let lastTurn = 0;
let lastFrame = 0;

async function breatheBriefly(): Promise<void> {
  if (performance.now() - lastTurn < WORK_SLICE) return;
  await turn();
  lastTurn = performance.now();
}

function showFrame(): void {
  if (!session) return;
  lastFrame = performance.now();
  send(session.frame());
}

const hooks: SessionHooks = {
  async breathe(tokensPerSecond, signal) {
    if (Number.isFinite(tokensPerSecond)) {
      showFrame();
      await delay(1000 / tokensPerSecond, signal);
    } else {
      await breatheBriefly();
    }
  },
  changed() {
    if (performance.now() - lastFrame >= FRAME_INTERVAL) showFrame();
  },
};

function adopt(next: Session): Session {
  session?.dispose();
  session = next;
  send({ type: 'session', settings: next.settings, reservedBytes: next.reservedBytes });
  return next;
}

function sessionFor(needle3: Needle3, settings: Settings): Session {
  if (session?.isUntouched && sameState(session.settings, settings)) return session;
  session?.dispose();
  session = undefined;
  return adopt(new Session(needle3, settings, hooks));
}

function current(): Session {
  if (!session) throw new Error('Nothing has been decoded yet. Press Start first.');
  return session;
}

type Handlers = {
  [T in Exclude<RequestType, 'stop'>]: (
    request: Extract<Request, { type: T }>,
    needle3: Needle3,
    signal: AbortSignal,
  ) => Replies[T] | Promise<Replies[T]>;
};

const handlers: Handlers = {
  start: ({ settings }, needle3, signal) => sessionFor(needle3, settings).start(settings, signal),
  continue: ({ settings }, _needle3, signal) => current().run(settings, settings.maxTokens, signal),
  step: ({ settings }, needle3, signal) => {
    if (session && !session.isUntouched) return session.run(settings, 1, signal);
    return sessionFor(needle3, settings).start({ ...settings, maxTokens: 1 }, signal);
  },
  runPast: ({ settings }, _needle3, signal) => current().runPast(settings, signal),
  back: () => {
    current().back();
    return undefined;
  },
  reset: () => {
    session?.reset();
    return undefined;
  },
  check: (_request, _needle3, signal) =>
    current().check(
      async () => {
        await breatheBriefly();
        signal.throwIfAborted();
      },
      (done, total) => send({ type: 'progress', job: 'check', done, total, label: `Layer ${done} of ${total}` }),
    ),
  ask: (request, needle3, signal) =>
    askMany(needle3, request, breatheBriefly, signal, (done, total, label) =>
      send({ type: 'progress', job: 'ask', done, total, label }),
    ),
  save: ({ name }) => saveSession(current(), name),
  restore: async ({ name, text }, needle3) => {
    adopt(await restoreSession(needle3, name, text, hooks));
    return undefined;
  },
  listSaved: () => listSessions(),
  deleteSaved: async ({ name }) => {
    await deleteSession(name);
    return undefined;
  },
};

function failureOf(error: unknown): Failure {
  if (error instanceof Needle3Error) return { code: error.code, message: error.message };
  if (error instanceof DOMException && error.name === 'AbortError') return { code: 'aborted', message: 'Stopped.' };
  return { code: undefined, message: error instanceof Error ? error.message : String(error) };
}

async function perform(request: Exclude<Request, { type: 'stop' }>, needle3: Needle3): Promise<void> {
  const controller = new AbortController();
  const handle = handlers[request.type] as (
    request: Request,
    needle3: Needle3,
    signal: AbortSignal,
  ) => Replies[RequestType] | Promise<Replies[RequestType]>;
  let reply: FromWorker;
  const work = (async () => {
    try {
      reply = { type: 'reply', id: request.id, ok: true, value: await handle(request, needle3, controller.signal) };
    } catch (error) {
      reply = { type: 'reply', id: request.id, ok: false, error: failureOf(error) };
    }
    showFrame();
    scope.postMessage(reply);
  })();
  job = { controller, done: work };
  await work;
  job = undefined;
}

function serve(needle3: Needle3): void {
  let queue = Promise.resolve();
  scope.onmessage = ({ data: request }) => {
    if (request.type !== 'stop') {
      queue = queue.then(() => perform(request, needle3));
      return;
    }
    job?.controller.abort();
    void (job?.done ?? Promise.resolve()).then(() => {
      scope.postMessage({ type: 'reply', id: request.id, ok: true, value: undefined });
    });
  };
  send({ type: 'ready' });
}

loadNeedle3().then(serve, (error: unknown) => send({ type: 'failed', error: failureOf(error) }));
