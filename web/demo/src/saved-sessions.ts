import type { Needle3 } from 'needle3-wasm';
import { openSnapshotStore, type SnapshotInfo, type SnapshotStore } from 'needle3-wasm/store';
import { geometryNamed } from './geometries.js';
import { mix32 } from './random.js';
import { Session, type SessionHooks } from './session.js';
import type { Settings } from './settings.js';

/**
 * What a session is beside its decode state, which a snapshot leaves to the application. The page keeps it; the
 * snapshot's fingerprint ties the two together.
 */
export interface SessionText {
  readonly settings: Settings;
  readonly tokens: readonly number[];
  readonly promptLength: number;
}

let opened: Promise<SnapshotStore> | undefined;

function store(): Promise<SnapshotStore> {
  opened ??= openSnapshotStore('needle3-demo').catch((error: unknown) => {
    opened = undefined;
    throw error;
  });
  return opened;
}

/** 16 bytes that other weights or another text do not share. */
function fingerprintOf({ settings, tokens }: SessionText): Uint8Array {
  const words = Uint32Array.of(1, 2, 3, 4);
  const content = `${settings.geometry} ${settings.seed} ${tokens.join(' ')}`;
  for (let index = 0; index < content.length; index++) {
    for (let word = 0; word < words.length; word++) words[word] = mix32(words[word] + content.charCodeAt(index));
  }
  return new Uint8Array(words.buffer);
}

export async function saveSession(session: Session, name: string): Promise<SessionText> {
  const { settings, tokens, promptLength } = session;
  const text = { settings, tokens: [...tokens], promptLength };
  const bytes = session.state.save({ fingerprint: fingerprintOf(text) });
  await (await store()).put(name, bytes);
  return text;
}

/** A session that goes on where the saved one was. Throws where the snapshot is gone, damaged or of another text. */
export async function restoreSession(
  needle3: Needle3,
  name: string,
  text: SessionText,
  hooks: SessionHooks,
): Promise<Session> {
  const bytes = await (await store()).get(name);
  if (!bytes) throw new Error(`There is no saved session called “${name}” any more.`);
  const { config } = geometryNamed(text.settings.geometry);
  const state = needle3.restoreDecodeState(bytes, { fingerprint: fingerprintOf(text), config });
  return new Session(needle3, text.settings, hooks, { state, ...text });
}

export async function listSessions(): Promise<readonly SnapshotInfo[]> {
  return (await store()).list();
}

export async function deleteSession(name: string): Promise<void> {
  await (await store()).delete(name);
}
