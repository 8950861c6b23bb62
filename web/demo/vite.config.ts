import { fileURLToPath } from 'node:url';
import { defineConfig, type Plugin } from 'vite';

const path = (relative: string) => fileURLToPath(new URL(relative, import.meta.url));

/**
 * Lists every file of the build in the service worker, so that the page works offline after its first load, and puts
 * a hash of them into its cache's name, so that a new build replaces the old one whole.
 */
function precache(): Plugin {
  return {
    name: 'needle3-demo-precache',
    apply: 'build',
    generateBundle: {
      order: 'post',
      async handler(_options, bundle) {
        const files = Object.keys(bundle).filter((file) => file !== 'sw.js' && !file.endsWith('.map'));
        const { createHash } = await import('node:crypto');
        const hash = createHash('sha256');
        for (const file of files.sort()) {
          const output = bundle[file];
          hash.update(file).update(output.type === 'chunk' ? output.code : output.source);
        }
        const worker = bundle['sw.js'];
        if (worker?.type !== 'chunk') throw new Error('the build made no sw.js');
        worker.code = worker.code
          .replace('__PRECACHE_FILES__', JSON.stringify(['./', './icon.svg', ...files.map((file) => `./${file}`)]))
          .replace('__PRECACHE_VERSION__', JSON.stringify(hash.digest('hex').slice(0, 16)));
      },
    },
  };
}

// Cross-origin isolation gives finer clocks; the page works without it.
const headers = {
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Embedder-Policy': 'require-corp',
};

export default defineConfig({
  root: path('./'),
  // Relative addresses, so that the built page works under any path of any host.
  base: './',
  resolve: {
    alias: [
      { find: 'needle3-wasm/store', replacement: path('../../dist/store/index.js') },
      { find: 'needle3-wasm', replacement: path('../../dist/index.js') },
    ],
  },
  plugins: [precache()],
  worker: { format: 'es' },
  server: { headers, fs: { allow: [path('../../')] } },
  preview: { headers },
  build: {
    outDir: path('../../build/demo'),
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rolldownOptions: {
      input: { index: path('./index.html'), sw: path('./src/service-worker.ts') },
      output: { entryFileNames: (chunk) => (chunk.name === 'sw' ? 'sw.js' : 'assets/[name]-[hash].js') },
    },
  },
});
