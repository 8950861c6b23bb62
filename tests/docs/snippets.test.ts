/** Every example of README.md, CONTRIBUTING.md and docs/ compiles, runs, and prints what it says. fences.ts has the rules. */
import { execFile } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';

import { chromium, type Browser, type ConsoleMessage } from 'playwright';
import { createServer, type ViteDevServer } from 'vite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { browsers } from '../../scripts/lib/tools.mjs';
import { chromiumArguments } from '../web/browsers/chromium.js';
import { compile, toJavaScript } from './compile.js';
import { matches, pages, readPage, snippetsOf, type Snippet } from './fences.js';

const root = fileURLToPath(new URL('../..', import.meta.url)).replace(/\/$/, '');
// Below the root, so that `needle3-wasm` is the package itself.
const workspace = join(root, 'build', 'docs-snippets');
const declarations = [fileURLToPath(new URL('webgpu.d.ts', import.meta.url))];
/** WebGPU on the processor, for machines without a GPU. */
const webGpuArguments = ['--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader'];

function folderOf(page: string): string {
  return join(workspace, page.replace(/\.md$/, '').replaceAll('/', '-'));
}

function pathOf(snippet: Snippet): string {
  return join(folderOf(snippet.page), snippet.fileName);
}

function write(folder: string, snippet: Snippet): void {
  const path = join(folder, snippet.fileName);
  writeFileSync(path, snippet.code);
  if (snippet.language === 'ts') writeFileSync(path.replace(/\.ts$/, '.js'), toJavaScript(snippet.code));
}

const byPage = new Map(pages(root).map((page) => [page, snippetsOf(page, readPage(root, page))]));
const all = [...byPage.values()].flat();
const modules = all.filter(({ language }) => language !== 'html');
const shared = (byPage.get('docs/guides/quick-start.md') ?? []).filter(({ isFile }) => isFile);

rmSync(workspace, { recursive: true, force: true });
for (const [page, snippets] of byPage) {
  if (snippets.length === 0) continue;
  const folder = folderOf(page);
  mkdirSync(folder, { recursive: true });
  for (const snippet of [...shared, ...snippets]) write(folder, snippet);
}
const complaints = compile(modules.map(pathOf), declarations);

/** Where the promised lines do not come in their order, the first that is missing. */
function firstMissing(promised: readonly string[], printed: readonly string[]): string | undefined {
  let next = 0;
  for (const line of printed) if (next < promised.length && matches(line, promised[next])) next++;
  return promised[next];
}

function name({ page, line, fileName, isFile }: Snippet): string {
  return `${page}:${line}${isFile ? ` (${fileName})` : ''}`;
}

describe('examples', () => {
  it('are found in the pages', () => {
    expect(modules.length).toBeGreaterThan(20);
  });

  it.each(modules.map((snippet) => [name(snippet), snippet] as const))('%s compiles, strict', (_, snippet) => {
    const heard = complaints.get(pathOf(snippet))!;
    expect(heard.map(({ line, message }) => `${snippet.page}:${snippet.lines[line]}: ${message}`)).toEqual([]);
  });

  it('that are files of a larger example are used by it', () => {
    for (const snippet of all.filter(({ runsIn }) => runsIn === 'importer')) {
      const imported = `./${snippet.fileName.replace(/\.ts$/, '.js')}`;
      const users = snippet.page === 'docs/guides/quick-start.md' ? all : byPage.get(snippet.page)!;
      const isUsed = users.some((user) => user.runsIn !== 'nothing' && user.code.includes(imported));
      expect(isUsed, `${name(snippet)} is imported or opened`).toBe(true);
    }
  });
});

describe('examples for Node', () => {
  const own = all.filter(({ runsIn }) => runsIn === 'node');
  it.each(own.map((snippet) => [name(snippet), snippet] as const))('%s runs', async (_, snippet) => {
    const file = pathOf(snippet).replace(/\.ts$/, '.js');
    const { code, output } = await new Promise<{ code: unknown; output: string }>((resolve) => {
      execFile(process.execPath, [file], { cwd: folderOf(snippet.page) }, (error, stdout, stderr) => {
        resolve({ code: error === null ? 0 : error.code, output: stdout + stderr });
      });
    });
    expect(code, output).toBe(0);
    expect(firstMissing(snippet.expected, output.split('\n')), `first line missing in:\n${output}`).toBeUndefined();
  });
});

describe('examples for browsers', () => {
  const own = all.filter(({ runsIn }) => runsIn === 'browser');
  let server: ViteDevServer;
  let browser: Browser;
  let address: string;

  beforeAll(async () => {
    server = await createServer({
      root: workspace,
      configFile: false,
      logLevel: 'error',
      cacheDir: join(root, 'build', 'vite', 'docs-snippets'),
      appType: 'mpa',
      server: { port: 0, host: '127.0.0.1', hmr: false, watch: null, fs: { allow: [root] } },
      // What Vite cannot see before a page asks for it would make it reload the page in the middle.
      optimizeDeps: { noDiscovery: true },
    });
    await server.listen();
    address = server.resolvedUrls!.local[0];
    browser = await chromium.launch({
      executablePath: browsers.chromium(),
      args: [...chromiumArguments, ...webGpuArguments],
    });
  }, 120_000);

  afterAll(async () => {
    await browser.close();
    await server.close();
  });

  it.each(own.map((snippet) => [name(snippet), snippet] as const))('%s runs in Chromium', async (_, snippet) => {
    // Nothing else tells that a page is done.
    const modulesOfPage = byPage.get(snippet.page)!.filter(({ isFile }) => isFile);
    const promised = snippet.language === 'html' ? modulesOfPage.flatMap(({ expected }) => expected) : snippet.expected;
    expect(promised.length, 'lines that it says it prints').toBeGreaterThan(0);
    const folder = folderOf(snippet.page);
    let file = snippet.fileName;
    if (snippet.language !== 'html') {
      const script = file.replace(/\.ts$/, '.js');
      file = `${script}.html`;
      writeFileSync(
        join(folder, file),
        `<!doctype html><meta charset="utf-8"><script type="module" src="./${script}"></script>`,
      );
    }
    const page = await browser.newPage();
    try {
      const printed: string[] = [];
      const failure = new Promise<never>((_resolve, reject) => page.on('pageerror', reject));
      const done = new Promise<void>((resolve) => {
        const onConsole = async (message: ConsoleMessage): Promise<void> => {
          const values = await Promise.all(message.args().map((argument) => argument.jsonValue() as Promise<unknown>));
          printed.push(values.map((value) => (typeof value === 'string' ? value : inspect(value))).join(' '));
          if (firstMissing(promised, printed) === undefined) resolve();
        };
        page.on('console', (message) => void onConsole(message));
      });
      const late = new Promise<never>((_resolve, reject) => {
        setTimeout(
          () => reject(new Error(`no “${firstMissing(promised, printed)}” in:\n${printed.join('\n')}`)),
          60_000,
        );
      });
      await page.goto(`${address}${folder.slice(workspace.length + 1)}/${file}`);
      await Promise.race([done, failure, late]);
    } finally {
      await page.close();
    }
  });
});
