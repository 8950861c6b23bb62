import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

import { defineBrowserProvider } from '@vitest/browser';
import type { BrowserProvider, BrowserProviderOption, TestProject } from 'vitest/node';

/** A running browser. */
export interface DrivenBrowser {
  open(url: string): Promise<void>;
  /** The value, as JSON carries it, of a JavaScript expression on the page. */
  evaluate(expression: string): Promise<unknown>;
  close(): Promise<void>;
}

// Vitest's browser client wants the locators and the user-event module of the provider it believes in.
const previewDist = dirname(createRequire(import.meta.url).resolve('@vitest/browser-preview'));

class DrivenProvider implements BrowserProvider {
  // Vitest supports custom providers for what its own can do; "preview" is the one that only opens a page.
  readonly name = 'preview';
  readonly supportsParallelism = false;
  readonly distRoot = previewDist;
  readonly initScripts = [join(previewDist, 'locators.js')];
  private readonly browsers = new Map<string, Promise<DrivenBrowser>>();

  constructor(
    readonly project: TestProject,
    private readonly launch: () => Promise<DrivenBrowser>,
  ) {}

  getCommandsContext(): Record<string, unknown> {
    return {};
  }

  async openPage(sessionId: string, url: string): Promise<void> {
    let browser = this.browsers.get(sessionId);
    if (!browser) {
      browser = this.launch();
      this.browsers.set(sessionId, browser);
    }
    await (await browser).open(url);
  }

  async close(): Promise<void> {
    const browsers = [...this.browsers.values()];
    this.browsers.clear();
    await Promise.allSettled(browsers.map(async (browser) => (await browser).close()));
  }
}

/** A Vitest provider out of anything that can open a URL in a browser. */
export function driven(launch: () => Promise<DrivenBrowser>): BrowserProviderOption {
  return defineBrowserProvider({
    name: 'preview',
    providerFactory: (project) => new DrivenProvider(project, launch),
  });
}
