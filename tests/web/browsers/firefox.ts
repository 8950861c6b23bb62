import { launch } from 'puppeteer-core';

import { browsers } from '../../../scripts/lib/tools.mjs';
import { driven, type DrivenBrowser } from './driven.js';

/** The system's Firefox, headless, driven by Puppeteer over WebDriver BiDi. */
export async function launchFirefox(): Promise<DrivenBrowser> {
  const executablePath = browsers.firefox();
  if (!executablePath) throw new Error('Firefox is not installed');
  const browser = await launch({ browser: 'firefox', executablePath, headless: true });
  const page = await browser.newPage();
  return {
    open: async (url) => {
      await page.goto(url);
    },
    evaluate: (expression) => page.evaluate(expression),
    close: () => browser.close(),
  };
}

export const firefox = () => driven(launchFirefox);
