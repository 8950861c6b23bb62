/**
 * A record is what a store keeps under one name where it keeps files: a head of its own, then the snapshot unchanged.
 * All numbers are little endian.
 *
 *     offset  bytes  field
 *          0      8  magic "N3STORE\n"
 *          8      4  u32 record version, 1
 *         12      4  u32 n, UTF-16 code units of the name
 *         16      8  f64 date of the put, milliseconds since 1970 UTC
 *         24     2n  name, u16 per code unit (so that a lone surrogate keeps its identity)
 *     24 + 2n        the snapshot, to the end of the file
 *
 * The name stands in the file because the file's own name is a hash: any characters and any length stay apart on every
 * file system, case-insensitive ones included.
 */
import { Needle3Error } from '../core/errors.js';
import type { SnapshotInfo } from './snapshot-store.js';

const RECORD_MAGIC = [0x4e, 0x33, 0x53, 0x54, 0x4f, 0x52, 0x45, 0x0a]; // "N3STORE\n"
const RECORD_VERSION = 1;
const RECORD_FIXED_BYTES = 24;
const SNAPSHOT_MAGIC = [0x4e, 0x33, 0x53, 0x54, 0x41, 0x54, 0x45, 0x0a]; // "N3STATE\n"
const SNAPSHOT_HEADER_BYTES = 24;

/** Longest name of a snapshot or store, in UTF-16 code units (what `length` of a string counts). */
export const MAX_NAME_LENGTH = 200;

/** So many bytes from the start of a file tell all that a list shows of it, whatever the length of its name. */
export const RECORD_HEAD_BYTES = RECORD_FIXED_BYTES + 2 * MAX_NAME_LENGTH + SNAPSHOT_HEADER_BYTES;

/** What the head of a record says. `offset` is where the snapshot begins in the file. */
export interface RecordHead {
  readonly info: SnapshotInfo;
  readonly offset: number;
}

function startsWith(bytes: Uint8Array, magic: readonly number[]): boolean {
  return magic.every((byte, i) => bytes[i] === byte);
}

function dataView(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/**
 * The position that a snapshot's header declares. `head` holds its first bytes, `byteLength` is how long it is in all;
 * `what` opens the message. Only magic and length are looked at: the checksum is for the restore, which reads every
 * byte anyway.
 * @throws Needle3Error `snapshot` where they do not hold
 */
export function snapshotPosition(what: string, head: Uint8Array, byteLength: number): number {
  if (!startsWith(head, SNAPSHOT_MAGIC)) {
    throw new Needle3Error('snapshot', `${what} must be a Needle 3 snapshot; the first bytes are not "N3STATE\\n"`);
  }
  if (head.byteLength < SNAPSHOT_HEADER_BYTES) {
    throw new Needle3Error(
      'snapshot',
      `${what} must be a whole snapshot; got ${byteLength} bytes, less than its header`,
    );
  }
  const view = dataView(head);
  const declared = view.getUint32(20, true) * 2 ** 32 + view.getUint32(16, true);
  if (declared !== byteLength) {
    throw new Needle3Error(
      'snapshot',
      `${what} must have the ${declared} bytes its header declares; got ${byteLength}`,
    );
  }
  return view.getUint32(12, true);
}

/** The name's UTF-16 code units, little endian. */
function encodeName(name: string): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(2 * name.length);
  const view = dataView(bytes);
  for (let i = 0; i < name.length; i++) view.setUint16(2 * i, name.charCodeAt(i), true);
  return bytes;
}

/** The bytes that go in front of the snapshot. */
export function encodeRecordHead(name: string, date: Date): Uint8Array<ArrayBuffer> {
  const encodedName = encodeName(name);
  const head = new Uint8Array(RECORD_FIXED_BYTES + encodedName.byteLength);
  const view = dataView(head);
  head.set(RECORD_MAGIC);
  view.setUint32(8, RECORD_VERSION, true);
  view.setUint32(12, name.length, true);
  view.setFloat64(16, date.getTime(), true);
  head.set(encodedName, RECORD_FIXED_BYTES);
  return head;
}

/**
 * Reads the first RECORD_HEAD_BYTES (or all, if fewer) of a file of `fileSize` bytes.
 * @throws Needle3Error `snapshot` where the file is no whole record: the disk damaged it, or it is of a later version
 */
export function decodeRecordHead(bytes: Uint8Array, fileSize: number): RecordHead {
  const view = dataView(bytes);
  if (bytes.byteLength < RECORD_FIXED_BYTES || !startsWith(bytes, RECORD_MAGIC)) {
    throw new Needle3Error('snapshot', 'the stored record is damaged: its head is not there');
  }
  const version = view.getUint32(8, true);
  if (version !== RECORD_VERSION) {
    throw new Needle3Error('snapshot', `the stored record must be of version ${RECORD_VERSION}; it is of ${version}`);
  }
  const nameLength = view.getUint32(12, true);
  const offset = RECORD_FIXED_BYTES + 2 * nameLength;
  if (nameLength > MAX_NAME_LENGTH || offset > bytes.byteLength) {
    throw new Needle3Error('snapshot', `the stored record is damaged: a name of ${nameLength} code units does not fit`);
  }
  let name = '';
  for (let i = 0; i < nameLength; i++) name += String.fromCharCode(view.getUint16(RECORD_FIXED_BYTES + 2 * i, true));
  const date = new Date(view.getFloat64(16, true));
  const size = fileSize - offset;
  const position = snapshotPosition('the stored record', bytes.subarray(offset), size);
  return { info: { name, size, date, position }, offset };
}

/** The head, or undefined where the record is damaged. */
export async function unlessDamaged(head: Promise<RecordHead>): Promise<RecordHead | undefined> {
  try {
    return await head;
  } catch (error) {
    if (error instanceof Needle3Error) return undefined;
    throw error;
  }
}

/** 64 hexadecimal digits: SHA-256 over the name's UTF-16 code units. */
export async function hashName(name: string): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', encodeName(name)));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

const RECORD_SUFFIX = '.n3store';

/** The file that holds the record of `name`. */
export async function recordFileName(name: string): Promise<string> {
  return (await hashName(name)) + RECORD_SUFFIX;
}

/** Whether a file's name is one that recordFileName gives. */
export function isRecordFileName(fileName: string): boolean {
  return fileName.endsWith(RECORD_SUFFIX);
}
