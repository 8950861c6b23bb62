/** What the demo must do in every browser, through the little that each of their drivers can do. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { DEFAULT_SETTINGS, formatSettings } from '../../web/demo/src/settings.js';
import type { DrivenBrowser } from '../web/browsers/driven.js';
import { buildDemo } from './build-demo.js';
import { serveFolder, type StaticServer } from './static-server.js';

// Drivers differ in what they tell of a page's console: this tells the same in all of them, and from the first line on.
const LISTENER = `
  globalThis.complaints = [];
  for (const level of ['error', 'warn']) {
    const original = console[level];
    console[level] = (...values) => {
      complaints.push(values.join(' '));
      original.apply(console, values);
    };
  }
  addEventListener('error', ({ message }) => complaints.push('error: ' + message), true);
  addEventListener('unhandledrejection', ({ reason }) => complaints.push('unhandled rejection: ' + reason));
  addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI }) => {
    complaints.push(violatedDirective + ' forbids ' + blockedURI);
  });
`;

async function buildWithListener(name: string): Promise<string> {
  const folder = await buildDemo(name);
  await writeFile(join(folder, 'listener.js'), LISTENER);
  const index = join(folder, 'index.html');
  const page = await readFile(index, 'utf8');
  expect(page).toContain('<head>');
  await writeFile(index, page.replace('<head>', '<head><script src="./listener.js"></script>'));
  return folder;
}

export function describeCoreFlow(name: string, launch: () => Promise<DrivenBrowser>): void {
  let server: StaticServer;
  let browser: DrivenBrowser;

  const text = (selector: string) =>
    browser.evaluate(`document.querySelector(${JSON.stringify(selector)})?.textContent ?? ''`);
  const position = async () => Number(String(await text('#position')).replaceAll(',', ''));
  const shows = (selector: string, expected: string) =>
    expect.poll(() => text(selector), { timeout: 60_000 }).toContain(expected);
  /** Clicks what a person could click: once it is enabled. */
  const click = async (selector: string) => {
    const element = `document.querySelector(${JSON.stringify(selector)})`;
    await expect.poll(() => browser.evaluate(`${element}?.disabled`), { timeout: 60_000 }).toBe(false);
    await browser.evaluate(`${element}.click()`);
  };
  const checkIsGood = async () => {
    await click('#check');
    await shows('#verdict .result', 'Right, to the last rounding');
  };

  beforeAll(async () => {
    server = await serveFolder(await buildWithListener(`demo-e2e-${name}`));
    browser = await launch();
  });

  afterAll(async () => {
    await browser?.close();
    await server?.close();
  });

  describe(`the demo page under a strict Content-Security-Policy in ${name}`, () => {
    it.each(['f32', 'int8'] as const)(
      'decodes, stops, goes on to the end, is right, and resets, in %s, with a silent console',
      async (precision) => {
        // Settings are in the fragment, whose change alone would load nothing.
        await browser.open('about:blank');
        await browser.open(`${server.address}#${formatSettings({ ...DEFAULT_SETTINGS, pace: 'steady', precision })}`);
        await click('#start');
        await expect.poll(() => browser.evaluate(`document.querySelectorAll('#tape .made').length`)).toBeGreaterThan(0);
        await click('#stop');
        await shows('#status', 'aborted');
        expect(await position()).toBeGreaterThan(0);
        expect(await position()).toBeLessThan(160);
        await checkIsGood();

        await click('input[name=pace][value=full]');
        await click('#start');
        await shows('#status', 'max-seq-len');
        await expect.poll(position).toBe(160);
        await checkIsGood();

        await click('#reset');
        await shows('#status', 'Reset');
        // It is drawn with the next frame.
        await expect.poll(position).toBe(0);
        await shows('#tape', 'will appear here');

        expect(await browser.evaluate('complaints')).toEqual([]);
        await browser.evaluate(`console.error('is', 'heard')`);
        expect(await browser.evaluate('complaints')).toEqual(['is heard']);
      },
    );
  });
}
