import { fileURLToPath } from 'node:url';

import type { Plugin } from 'vite';

const here = (file: string) => fileURLToPath(new URL(file, import.meta.url));

/** Marks the request for a test file itself, as against the page's stand-in for it. */
const bodyQuery = 'worker-body';

/**
 * Runs every test file in a module Worker: what the page loads in a test file's place starts a Worker, which loads the
 * file and runs it; the page then reports each test's outcome under the test's own name. Whatever the Worker loads
 * gets `vitest` from ./vitest.ts, which works without a page.
 */
export function inModuleWorker(): Plugin {
  return {
    name: 'needle3:in-module-worker',
    enforce: 'pre',
    resolveId(source, importer) {
      if (source === 'vitest' && importer?.includes('/tests/web/') && !importer.endsWith('/worker/page.ts')) {
        return here('./vitest.ts');
      }
      return null;
    },
    load(id) {
      const [path, query = ''] = id.split('?');
      if (!path.endsWith('.test.ts') || new URLSearchParams(query).has(bodyQuery)) return null;
      return `
        import { runInWorker } from ${JSON.stringify(here('./page.ts'))};
        await runInWorker(${JSON.stringify(`/@fs${path}?${bodyQuery}`)});
      `;
    },
  };
}
