import { playwright } from '@vitest/browser-playwright';

import { browsers } from '../../../scripts/lib/tools.mjs';

/** Chromium refuses to run its sandbox as root. */
export const chromiumArguments = process.getuid?.() === 0 ? ['--no-sandbox'] : [];

/** The system's Chromium, headless, driven by Playwright. */
export function chromium() {
  return playwright({ launchOptions: { executablePath: browsers.chromium(), args: chromiumArguments } });
}
