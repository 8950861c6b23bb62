import { defineConfig, type TestProjectInlineConfiguration } from 'vitest/config';
import type { BrowserProviderOption } from 'vitest/node';

import { chromium } from './tests/web/browsers/chromium.js';
import { firefox } from './tests/web/browsers/firefox.js';
import { webkit } from './tests/web/browsers/webkit.js';
import { inModuleWorker } from './tests/web/worker/plugin.js';
import { timeouts } from './tests/web/worker/timeouts.js';

// The same files everywhere: Node, and each browser on the page and in a module Worker. `needle3-wasm` is the package
// by its own name, so that its `exports` pick what is tested: dist/, as it ships.
const include = ['tests/web/**/*.test.ts'];
const onlyInNode = '**/*-node.test.ts';
const onlyInBrowsers = '**/*-browser.test.ts';

function browserProject(
  name: string,
  provider: BrowserProviderOption,
  headless: boolean,
  where: 'page' | 'worker',
): TestProjectInlineConfiguration {
  return {
    // One cache of pre-bundled dependencies per project: two servers must not rewrite each other's.
    cacheDir: `build/vite/${name}-${where}`,
    plugins: where === 'worker' ? [inModuleWorker()] : [],
    optimizeDeps: { include: ['fast-check'] },
    test: {
      ...timeouts,
      name: `${name}-${where}-server`,
      include,
      exclude: [onlyInNode],
      browser: {
        enabled: true,
        provider,
        headless,
        screenshotFailures: false,
        ui: false,
        instances: [{ browser: name as 'chromium', name: `${name}-${where}` }],
      },
    },
  };
}

function nodeProject(name: string, files: readonly string[]): TestProjectInlineConfiguration {
  return {
    cacheDir: `build/vite/${name}`,
    test: {
      ...timeouts,
      name,
      include: [...files],
      exclude: [onlyInBrowsers],
      environment: 'node',
      // Node loads the package itself, not a transformed copy of it.
      server: { deps: { external: [/\/dist\//] } },
    },
  };
}

export default defineConfig({
  test: {
    projects: [
      nodeProject('node', include),
      nodeProject('demo', ['tests/demo/**/*.test.ts']),
      nodeProject('e2e-chromium', ['tests/e2e/demo.test.ts']),
      nodeProject('e2e-firefox', ['tests/e2e/firefox.test.ts']),
      nodeProject('e2e-webkit', ['tests/e2e/webkit.test.ts']),
      nodeProject('docs', ['tests/docs/**/*.test.ts']),
      nodeProject('consumers', ['tests/consumers/*.test.ts']),
      browserProject('chromium', chromium(), true, 'page'),
      browserProject('chromium', chromium(), true, 'worker'),
      browserProject('firefox', firefox(), false, 'page'),
      browserProject('firefox', firefox(), false, 'worker'),
      browserProject('webkit', webkit(), false, 'page'),
      browserProject('webkit', webkit(), false, 'worker'),
    ],
  },
});
