import { copyFile, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';

import { build as esbuild } from 'esbuild';
import { chromium, type Browser } from 'playwright';
import { build as viteBuild, createServer } from 'vite';
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest';
import webpack from 'webpack';

import { browsers, nodeBin, root } from '../../scripts/lib/tools.mjs';
import { serveFolder } from '../e2e/static-server.js';
import { chromiumArguments } from '../web/browsers/chromium.js';
import { Installed, output } from './installed.js';

/** What apps/shared/session.js comes to wherever it runs. */
const RIGHT = { attended: '3.00000', tokens: [3, 4, 5, 6, 7, 8], stopReason: 'max-new-tokens', position: 7 };

let installed: Installed;
let browser: Browser;

beforeAll(async () => {
  // The runner's own value would make bundlers build something else than what is shipped.
  vi.stubEnv('NODE_ENV', undefined);
  installed = await Installed.pack();
  browser = await chromium.launch({ executablePath: browsers.chromium(), args: chromiumArguments });
}, 120_000);

afterAll(async () => {
  await browser?.close();
  await installed?.remove();
});

/** What the sessions on the page and in its Worker gave, and what the browser complained of. */
async function open(address: string): Promise<{ page: unknown; worker: unknown; complaints: string[] }> {
  const context = await browser.newContext();
  onTestFinished(() => context.close());
  const page = await context.newPage();
  const complaints: string[] = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  await page.goto(address);
  const outcome = async (place: string): Promise<unknown> => {
    const text = await page.locator(`#${place}`).innerText({ timeout: 60_000 });
    return text.startsWith('{') ? JSON.parse(text) : text;
  };
  return { page: await outcome('page'), worker: await outcome('worker'), complaints };
}

const ALL_RIGHT = { page: RIGHT, worker: RIGHT, complaints: [] };

/** Serves a folder to the end of the test. */
async function serve(folder: string, contentSecurityPolicy?: string): Promise<string> {
  const server = await serveFolder(folder, contentSecurityPolicy);
  onTestFinished(() => server.close());
  return server.address;
}

async function buildWithVite(name: string): Promise<string> {
  const project = await installed.project(name, 'bundled');
  await viteBuild({ root: project, base: './', configFile: false, logLevel: 'warn' });
  return join(project, 'dist');
}

/** @param asModules whether it writes ES modules, which is not what it does by itself */
async function buildWithWebpack(name: string, asModules: boolean): Promise<string> {
  const context = await installed.project(name, 'bundled');
  const path = join(context, 'dist');
  const compiler = webpack({
    mode: 'production',
    context,
    entry: './main.js',
    experiments: { outputModule: asModules },
    output: { path, module: asModules, filename: 'main.js' },
  });
  const stats = await promisify(compiler.run.bind(compiler))();
  await promisify(compiler.close.bind(compiler))();
  expect(stats?.toJson({ all: false, errors: true, warnings: true })).toMatchObject({ errors: [], warnings: [] });
  await copyFile(join(context, 'index.html'), join(path, 'index.html'));
  return path;
}

describe('the tarball', () => {
  it('holds exactly the files of expected-files.txt', async () => {
    await expect(`${installed.files.join('\n')}\n`).toMatchFileSnapshot('./expected-files.txt');
  });

  it('installs without a network and brings nothing but itself', async () => {
    const names = await readdir(installed.nodeModules);
    expect(names.filter((name) => !name.startsWith('.'))).toEqual(['needle3-wasm']);
  });

  it('passes publint, suggestions included', async () => {
    const text = await output(nodeBin('publint'), ['run', '--strict', installed.tarball], root);
    expect(text).toContain('All good!');
  });

  it('passes @arethetypeswrong/cli as a package of ES modules', async () => {
    const args = ['--profile', 'esm-only', '--exclude-entrypoints', 'needle3.wasm'];
    // It ends with an error where it finds anything.
    expect(await output(nodeBin('attw'), [installed.tarball, ...args], root)).toContain('needle3-wasm/store');
  });
});

describe('in Node', () => {
  it('runs as an ES module', async () => {
    const project = await installed.project('node', 'node');
    expect(JSON.parse(await output('node', ['main.js'], project))).toEqual(RIGHT);
  });

  it('renders on a server without touching wasm, the network or a browser global', async () => {
    const project = await installed.project('server', 'server');
    const text = await output('node', ['serve.js', './render.js'], project);
    expect(JSON.parse(text)).toEqual({ html: '<p>20 layers, ready</p>', atRender: [], afterLoading: true });
  });

  it('renders on a server that is none of Node, from the browser entry, without touching any of these', async () => {
    const project = await installed.project('edge', 'server');
    await viteBuild({
      root: project,
      configFile: false,
      logLevel: 'warn',
      ssr: { target: 'webworker', noExternal: true },
      build: { ssr: 'render.js' },
    });
    const rendered = pathToFileURL(join(project, 'dist/render.js')).href;
    expect(await readFile(new URL(rendered), 'utf8')).not.toContain('node:fs');
    const text = await output('node', ['serve.js', rendered], project);
    expect(JSON.parse(text)).toEqual({ html: '<p>20 layers, ready</p>', atRender: [], afterLoading: true });
  });
});

describe('in TypeScript, strict and with declarations checked', () => {
  it.each([
    ['bundler', 'ESNext'],
    ['nodenext', 'NodeNext'],
  ])('compiles with moduleResolution %s, with the DOM and without', async (moduleResolution, module) => {
    for (const consumer of ['dom', 'no-dom']) {
      const project = await installed.project(`${moduleResolution}-${consumer}`, join('../../web/types', consumer));
      const args = ['--module', module, '--moduleResolution', moduleResolution, '--skipLibCheck', 'false'];
      await output(nodeBin('tsc'), ['-p', '.', '--noEmit', '--strict', ...args], project);
    }
  });
});

describe('in Chromium, on the page and in a Worker', () => {
  it('runs without a bundler, through an import map', async () => {
    const project = await installed.project('import-map', 'import-map');
    expect(await open(await serve(project, ''))).toEqual(ALL_RIGHT);
  });

  it('runs as built by Vite 8, without configuration', async () => {
    expect(await open(await serve(await buildWithVite('vite-build')))).toEqual(ALL_RIGHT);
  });

  it("runs from Vite 8's dev server, without configuration", async () => {
    const project = await installed.project('vite-dev', 'bundled');
    const server = await createServer({
      root: project,
      configFile: false,
      logLevel: 'warn',
      server: { host: '127.0.0.1', port: 0 },
    });
    onTestFinished(() => server.close());
    await server.listen();
    const [address] = server.resolvedUrls?.local ?? [];
    expect(await open(address)).toEqual(ALL_RIGHT);
  });

  it('runs as built by webpack 5, without configuration', async () => {
    const folder = await buildWithWebpack('webpack', false);
    const page = join(folder, 'index.html');
    await writeFile(page, (await readFile(page, 'utf8')).replace('type="module"', 'defer'));
    expect(await open(await serve(folder))).toEqual(ALL_RIGHT);
  });

  it('runs as built by webpack 5 into modules', async () => {
    expect(await open(await serve(await buildWithWebpack('webpack-modules', true)))).toEqual(ALL_RIGHT);
  });

  it('runs as built by esbuild, which does not find the .wasm, through the wasm option', async () => {
    const project = await installed.project('esbuild', 'esbuild');
    const outdir = join(project, 'dist');
    const { warnings } = await esbuild({
      absWorkingDir: project,
      entryPoints: ['main.js', 'worker.js'],
      bundle: true,
      format: 'esm',
      loader: { '.wasm': 'file' },
      outdir,
      logLevel: 'silent',
    });
    expect(warnings).toEqual([]);
    await copyFile(join(project, 'index.html'), join(outdir, 'index.html'));
    expect(await open(await serve(outdir))).toEqual(ALL_RIGHT);
  });
});

describe('under a strict Content-Security-Policy without blob:', () => {
  it("runs with script-src 'self' 'wasm-unsafe-eval'; connect-src 'self', and breaks no rule of it", async () => {
    const folder = await buildWithVite('csp');
    const address = await serve(folder, "script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'");
    expect(await open(address)).toEqual(ALL_RIGHT);
  });

  it("says what is missing where 'wasm-unsafe-eval' is", async () => {
    const folder = await buildWithVite('csp-without-wasm');
    const { page, worker } = await open(await serve(folder, "script-src 'self'; connect-src 'self'"));
    expect(page).toMatch(/^load: .*'wasm-unsafe-eval'/);
    expect(worker).toMatch(/load: .*'wasm-unsafe-eval'/);
  });
});
