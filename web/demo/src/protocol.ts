import type { CheckResult } from './check.js';
import type { SnapshotInfo } from 'needle3-wasm/store';
import type { StepTimes } from './model.js';
import type { SessionText } from './saved-sessions.js';
import type { Settings } from './settings.js';

/** Messages between the page and the Worker that owns the decode state. Every request gets one reply with its id. */

export type Precision = 'f32' | 'int8';

export type RunEnd = 'stop-token' | 'max-new-tokens' | 'max-seq-len' | 'aborted';

export interface Requests {
  /** Creates the state anew, unless it is untouched since `reset`, and decodes. */
  start: { settings: Settings };
  /** Decodes on from where the state is. */
  continue: { settings: Settings };
  /** One token. */
  step: { settings: Settings };
  /** Takes the newest generated token back. */
  back: object;
  /** Drives the model on where `decode()` has stopped because the context is full. */
  runPast: { settings: Settings };
  /** Ends the running job, if any, at its next token. */
  stop: object;
  reset: object;
  check: object;
  ask: { settings: Settings; shared: string; questions: readonly string[]; maxTokens: number };
  save: { name: string };
  restore: { name: string; text: SessionText };
  listSaved: object;
  deleteSaved: { name: string };
}

export interface Replies {
  start: RunEnd;
  continue: RunEnd;
  step: RunEnd;
  back: undefined;
  runPast: RunEnd;
  stop: undefined;
  reset: undefined;
  check: CheckResult;
  ask: AskResult;
  save: SessionText;
  restore: undefined;
  listSaved: readonly SnapshotInfo[];
  deleteSaved: undefined;
}

export type RequestType = keyof Requests;
export type Request = { [T in RequestType]: { readonly type: T; readonly id: number } & Requests[T] }[RequestType];

/** The state was created, restored or reset. */
export interface SessionEvent {
  readonly type: 'session';
  readonly settings: Settings;
  /** What reserving every window and the whole context would cost, in bytes, for each precision. */
  readonly reservedBytes: Record<Precision, number>;
}

/** One forward call, seen by one state. */
export interface Sample {
  readonly precision: Precision;
  /** After the call. */
  readonly position: number;
  readonly byteLength: number;
  /** Rows of the call: 1 in decoding. */
  readonly rows: number;
  /** Milliseconds a row that the decode state took. */
  readonly stateMs: number;
}

/** How things stand; at most one per animation frame or so. */
export interface FrameEvent {
  readonly type: 'frame';
  /** Tokens from index `tokensFrom` on are these now; those before are as they were. */
  readonly tokensFrom: number;
  readonly tokens: readonly number[];
  readonly promptLength: number;
  readonly position: number;
  readonly slots: readonly number[];
  readonly history: readonly number[];
  readonly byteLength: number;
  readonly markBytes: number;
  readonly isSaturated: boolean;
  readonly linearBytes: number;
  readonly allocatedBytes: number;
  /** Mean milliseconds a row over the latest forward calls; null before the first. */
  readonly times: StepTimes | null;
  readonly samples: readonly Sample[];
  /** Tokens that `back` can take. */
  readonly canGoBack: boolean;
}

export interface ProgressEvent {
  readonly type: 'progress';
  readonly job: 'check' | 'ask';
  readonly done: number;
  readonly total: number;
  readonly label: string;
}

export interface AskAnswer {
  readonly question: string;
  readonly answer: string;
  /** Milliseconds to the first token: with a fork of the prefilled state, and from nothing. */
  readonly forkedMs: number;
  readonly scratchMs: number;
  /** The answer made from nothing has the same tokens. */
  readonly sameTokens: boolean;
}

export interface AskResult {
  readonly sharedTokens: number;
  readonly prefillMs: number;
  readonly forkMs: number;
  readonly forkBytes: number;
  readonly answers: readonly AskAnswer[];
}

/** Sent once, when the module is loaded or could not be. */
export type ReadyEvent = { readonly type: 'ready' } | { readonly type: 'failed'; readonly error: Failure };

export interface Failure {
  /** A Needle3Error's code, or undefined for any other error. */
  readonly code: string | undefined;
  readonly message: string;
}

export type Reply = { readonly type: 'reply'; readonly id: number } & (
  { readonly ok: true; readonly value: Replies[RequestType] } | { readonly ok: false; readonly error: Failure }
);

export type WorkerEvent = SessionEvent | FrameEvent | ProgressEvent | ReadyEvent;
export type FromWorker = WorkerEvent | Reply;
