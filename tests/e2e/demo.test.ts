import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import type { AxeResults } from 'axe-core';
import { chromium, type Browser, type BrowserContextOptions, type Page } from 'playwright';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';

import { browsers } from '../../scripts/lib/tools.mjs';
import { DEFAULT_SETTINGS, formatSettings, type Settings } from '../../web/demo/src/settings.js';
import { chromiumArguments } from '../web/browsers/chromium.js';
import { buildDemo } from './build-demo.js';
import { serveFolder, type StaticServer } from './static-server.js';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

const PHONE = { width: 375, height: 812 };
const DESKTOP = { width: 1440, height: 900 };

let server: StaticServer;
let browser: Browser;
/** What the pages of the running test complained of. */
let complaints: string[] = [];
let closing: (() => Promise<void>)[] = [];

beforeAll(async () => {
  server = await serveFolder(await buildDemo('demo-e2e'));
  browser = await chromium.launch({ executablePath: browsers.chromium(), args: chromiumArguments });
}, 120_000);

afterEach(async () => {
  for (const close of closing) await close();
  closing = [];
  const heard = complaints;
  complaints = [];
  expect(heard).toEqual([]);
});

afterAll(async () => {
  await browser.close();
  await server.close();
});

/** A page in a profile of its own, with the settings in its link, once it is ready. */
async function open(settings: Partial<Settings> = {}, options: BrowserContextOptions = {}): Promise<Page> {
  const context = await browser.newContext({ viewport: DESKTOP, ...options });
  closing.push(() => context.close());
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  await page.goto(linkTo(settings));
  await ready(page);
  return page;
}

function linkTo(settings: Partial<Settings>): string {
  return `${server.address}#${formatSettings({ ...DEFAULT_SETTINGS, pace: 'full', ...settings })}`;
}

async function ready(page: Page): Promise<void> {
  await page.waitForSelector('#start:enabled');
}

async function statusSays(page: Page, text: string): Promise<void> {
  await page.locator('#status', { hasText: text }).waitFor();
}

async function position(page: Page): Promise<number> {
  return Number((await page.locator('#position').innerText()).replaceAll(',', ''));
}

async function checkIsGood(page: Page): Promise<void> {
  await page.getByRole('button', { name: 'Check against' }).click();
  await page.locator('#verdict .result').waitFor();
  expect(await page.locator('#verdict').innerText()).toContain('Right, to the last rounding');
}

describe('the demo page under a strict Content-Security-Policy', () => {
  it('decodes to the end of the context, says why it stopped, and agrees with the recomputation', async () => {
    const page = await open();
    await page.getByRole('button', { name: 'Start' }).click();
    await statusSays(page, 'max-seq-len');
    expect(await position(page)).toBe(160);
    expect(await page.locator('#explain').innerText()).toContain('The context is full');
    expect(await page.locator('#tape').innerText()).toContain(DEFAULT_SETTINGS.prompt.slice(-6));
    await checkIsGood(page);
  });

  it('runs past the end, explains saturation there, and is still right', async () => {
    const page = await open({ precision: 'int8', maxTokens: 150 });
    await page.getByRole('button', { name: 'Start' }).click();
    await statusSays(page, 'max-seq-len');
    await page.getByRole('button', { name: 'Run past the end' }).click();
    await statusSays(page, 'max-new-tokens');
    expect(await position(page)).toBe(310);
    expect(await page.locator('#explain').innerText()).toContain('Saturated');
    await checkIsGood(page);
  });

  it('stops when told to, goes on, takes tokens back, and resets', async () => {
    const page = await open({ pace: 'steady' });
    await page.getByRole('button', { name: 'Start' }).click();
    await page.locator('#tape .made').first().waitFor();
    await page.locator('#stop').click();
    await statusSays(page, 'aborted');
    const stopped = await position(page);
    expect(stopped).toBeLessThan(160);

    await page.getByRole('button', { name: 'One token' }).click();
    await statusSays(page, 'One token made');
    await page.getByRole('button', { name: 'Back one' }).click();
    await statusSays(page, 'taken back');
    await checkIsGood(page);

    await page.locator('input[value=full]').check();
    await page.getByRole('button', { name: 'Continue' }).click();
    await statusSays(page, 'max-seq-len');
    await page.getByRole('button', { name: 'Reset' }).click();
    await statusSays(page, 'Reset');
    expect(await position(page)).toBe(0);
    expect(await page.locator('#tape').innerText()).toContain('will appear here');
  });

  it('runs at every geometry and precision with the same outcome as the recomputation', async () => {
    for (const geometry of ['small', 'plain', 'shipped'] as const) {
      for (const precision of ['f32', 'int8'] as const) {
        const page = await open({ geometry, precision, maxTokens: 24 });
        await page.getByRole('button', { name: 'Start' }).click();
        await statusSays(page, 'max-new-tokens');
        await checkIsGood(page);
      }
    }
  });

  it('answers three questions from one prefill with the tokens that each gets from nothing', async () => {
    const page = await open({ precision: 'int8' });
    await page.locator('#shared').fill('Tools: set_alarm(time), get_weather(city).');
    await page.getByRole('button', { name: 'Ask all three' }).click();
    await page.locator('.answer-list li').nth(2).waitFor();
    const text = await page.locator('#answers').innerText();
    expect(text).toContain('the tokens are the same');
    expect(text).toContain('saved');
  });

  it('restores a saved state after a reload and goes on from it', async () => {
    const page = await open({ maxTokens: 20, temperature: 0 });
    await page.getByRole('button', { name: 'Start' }).click();
    await statusSays(page, 'max-new-tokens');
    const saved = await page.locator('#tape').innerText();
    await page.getByLabel('Name').fill('Evening');
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByRole('button', { name: 'Restore Evening' }).waitFor();
    await page.getByRole('button', { name: 'Continue' }).click();
    await statusSays(page, 'max-new-tokens');
    const continued = await page.locator('#tape').innerText();

    await page.goto(server.address);
    await page.reload();
    await ready(page);
    await page.getByRole('button', { name: 'Restore Evening' }).click();
    await statusSays(page, 'Restored');
    expect(await page.locator('#tape').innerText()).toBe(saved);
    await page.getByRole('button', { name: 'Continue' }).click();
    await statusSays(page, 'max-new-tokens');
    expect(await page.locator('#tape').innerText()).toBe(continued);
    await checkIsGood(page);

    await page.getByRole('button', { name: 'Delete Evening' }).click();
    await page.getByText('Nothing is saved in this browser yet.').waitFor();
  });

  it('has its settings in its link, and takes them from there', async () => {
    const page = await open({ seed: 11, prompt: 'Blåbær?' });
    await page.getByLabel('Geometry').selectOption('small');
    await page.locator('input[value=int8]').check();
    const again = await page.context().newPage();
    await again.goto(page.url());
    await ready(again);
    expect(await again.getByLabel('Your text').inputValue()).toBe('Blåbær?');
    expect(await again.getByLabel('Geometry').inputValue()).toBe('small');
    expect(await again.locator('input[name=precision]:checked').inputValue()).toBe('int8');
    expect(await again.locator('#seed').inputValue()).toBe('11');
  });

  it('marks bad input where it is and does not start with it', async () => {
    const page = await open();
    await page.getByLabel('Your text').fill('');
    expect(await page.locator('#prompt-note').innerText()).toContain('Type something first');
    expect(await page.locator('#start').isDisabled()).toBe(true);
    await page.getByLabel('Your text').fill('x'.repeat(161));
    expect(await page.locator('#prompt-note').innerText()).toContain('161 tokens do not fit');
    await page.getByLabel('Your text').fill('x');
    await page.getByText('More settings').click();
    await page.locator('#seed').fill('1.5');
    expect(await page.locator('#seed').getAttribute('aria-invalid')).toBe('true');
    expect(await page.locator('#start').isDisabled()).toBe(true);
  });

  it('says so when the module cannot be loaded', async () => {
    const context = await browser.newContext({ viewport: PHONE, serviceWorkers: 'block' });
    closing.push(() => context.close());
    const page = await context.newPage();
    await context.route('**/*.wasm', (route) => route.fulfill({ status: 404, body: 'gone' }));
    await page.goto(server.address);
    await page.locator('#error', { hasText: 'load' }).waitFor();
    await statusSays(page, 'could not be loaded');
    expect(await page.locator('#start').isDisabled()).toBe(true);
  });

  it('works offline after its first load', async () => {
    const page = await open();
    await page.getByText('This page now works offline.').waitFor();
    await page.context().setOffline(true);
    await page.reload();
    await ready(page);
    await page.getByRole('button', { name: 'Start' }).click();
    await statusSays(page, 'max-seq-len');
  });

  it('can be driven by the keyboard alone', async () => {
    const page = await open();
    await page.getByLabel('Your text').focus();
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await statusSays(page, 'max-seq-len');
    await page.locator('#start').focus();
    await page.keyboard.press('Tab');
    expect(await page.evaluate('document.activeElement.id')).toBe('back');
    await page.keyboard.press('Space');
    await statusSays(page, 'taken back');
  });
});

describe('the demo page, looked at', () => {
  const views = ([PHONE, DESKTOP] as const).flatMap((viewport) =>
    (['light', 'dark'] as const).map((colorScheme) => ({ viewport, colorScheme, width: viewport.width })),
  );

  it.each(views)(
    'breaks no accessibility rule at $width pixels in the $colorScheme',
    async ({ viewport, colorScheme }) => {
      const page = await open({}, { viewport, colorScheme });
      const rules = async () => {
        const results = await page.evaluate<AxeResults>(`${axe}; axe.run(document)`);
        return results.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`);
      };
      expect(await rules()).toEqual([]);
      await page.getByText('More settings').click();
      await page.getByRole('button', { name: 'Start' }).click();
      await statusSays(page, 'max-seq-len');
      await page.getByRole('button', { name: 'Run past the end' }).click();
      await statusSays(page, 'max-new-tokens');
      await checkIsGood(page);
      await page.getByRole('button', { name: 'Save' }).click();
      await page.getByRole('button', { name: /^Restore/ }).waitFor();
      expect(await rules()).toEqual([]);
    },
  );

  it.each([PHONE, DESKTOP])('fits $width pixels without scrolling sideways, and does not shift', async (viewport) => {
    const context = await browser.newContext({ viewport, serviceWorkers: 'block' });
    closing.push(() => context.close());
    const page = await context.newPage();
    await page.addInitScript(`
      globalThis.shifted = [];
      new PerformanceObserver((list) => {
        for (const { value, sources } of list.getEntries()) {
          shifted.push(value.toFixed(4) + ' ' + sources.map(({ node }) => node?.id || node?.className || node?.nodeName));
        }
      }).observe({ type: 'layout-shift', buffered: true });
    `);
    // The page is painted before its script comes, as over a slow line.
    await context.route('**/assets/index-*.js', async (route) => {
      await new Promise((resolve) => setTimeout(resolve, 500));
      await route.continue();
    });
    await page.goto(linkTo({ maxTokens: 150 }));
    await ready(page);
    await page.getByRole('button', { name: 'Start' }).click();
    await statusSays(page, 'max-seq-len');
    await page.getByRole('button', { name: 'Run past the end' }).click();
    await statusSays(page, 'max-new-tokens');
    expect(await page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth')).toBe(0);
    expect(await page.evaluate('globalThis.shifted')).toEqual([]);
  });

  it('moves nothing where the visitor asked for less motion', async () => {
    const page = await open({}, { reducedMotion: 'reduce' });
    const moving = await page.evaluate(
      `[...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).transitionDuration !== '0s').length`,
    );
    expect(moving).toBe(0);
  });
});
