// @ts-check
// The package as it ships, from dist/.

/** @returns {Promise<typeof import('../../web/src/node.js')>} */
export function loadPackage() {
  const entry = new URL('../../dist/node.js', import.meta.url).href;
  return import(entry);
}
