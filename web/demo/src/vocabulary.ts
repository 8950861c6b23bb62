/** The demo's vocabulary: the 256 bytes of UTF-8 text, then the special ids. */

/** The model may end its text with this token, where the settings let it. */
export const END_OF_TEXT = 256;

/** Embedding rows that logits are made for: the bytes and `END_OF_TEXT`. */
export const OUTPUT_IDS = 257;

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export function encodeText(text: string): Uint32Array {
  return Uint32Array.from(encoder.encode(text));
}

export function decodeText(tokens: readonly number[]): string {
  return decoder.decode(Uint8Array.from(tokens.filter((token) => token < END_OF_TEXT)));
}

/** True for a byte that goes on inside a UTF-8 character, where text must not be cut. */
export function continuesCharacter(token: number | undefined): boolean {
  return token !== undefined && token < END_OF_TEXT && (token & 0xc0) === 0x80;
}

/**
 * Leaves the model letters, spaces and a little punctuation, so that noise is at least legible: the use that
 * `decode()`'s `logits` hook is for.
 */
export function keepLegible(logits: Float32Array, mayEnd: boolean): void {
  for (let id = 0; id < logits.length; id++) {
    const legible = (id >= 0x61 && id <= 0x7a) || id === 0x20 || id === 0x2c || id === 0x2e;
    if (!legible && !(mayEnd && id === END_OF_TEXT)) logits[id] = -Infinity;
  }
}
