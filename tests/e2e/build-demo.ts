import { join } from 'node:path';

import { build } from 'vite';
import { vi } from 'vitest';

import { root } from '../../scripts/lib/tools.mjs';

/** Builds the demo as it ships into build/`name`, and gives that folder's path. */
export async function buildDemo(name: string): Promise<string> {
  const outDir = join(root, 'build', name);
  // The runner's own value would make it another build than the one that is shipped.
  vi.stubEnv('NODE_ENV', 'production');
  await build({
    configFile: join(root, 'web/demo/vite.config.ts'),
    logLevel: 'warn',
    build: { outDir, emptyOutDir: true },
  });
  vi.unstubAllEnvs();
  return outDir;
}
