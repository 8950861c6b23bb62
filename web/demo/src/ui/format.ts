const KIB = 1024;

/** Bytes in the unit that leaves one to four digits before the point. */
export function formatBytes(bytes: number): string {
  if (bytes < KIB) return `${bytes} B`;
  if (bytes < KIB * KIB) return `${trim(bytes / KIB)} KiB`;
  return `${trim(bytes / KIB / KIB)} MiB`;
}

export function formatMilliseconds(milliseconds: number): string {
  if (milliseconds >= 1000) return `${trim(milliseconds / 1000)} s`;
  if (milliseconds >= 1) return `${trim(milliseconds)} ms`;
  return `${Math.round(milliseconds * 1000)} µs`;
}

export function formatCount(count: number): string {
  return Math.round(count).toLocaleString('en');
}

/** A token as one visible character: a space and what is no printable ASCII get a stand-in. */
export function tokenGlyph(token: number | undefined): string {
  if (token === undefined) return '';
  if (token === 0x20) return '␣';
  return token > 0x20 && token < 0x7f ? String.fromCharCode(token) : '·';
}

function trim(value: number): string {
  if (Number.isInteger(value)) return value.toLocaleString('en');
  return value >= 100 ? Math.round(value).toLocaleString('en') : value.toFixed(value >= 10 ? 1 : 2);
}
