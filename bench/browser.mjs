#!/usr/bin/env node
// @ts-check
// The comparisons of bench/run.mjs in headless browsers, in a module Worker.
import { createReadStream, existsSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';

import { chromium } from 'playwright';
import puppeteer from 'puppeteer-core';

import { browsers, fail, heading, root } from '../scripts/lib/tools.mjs';
import { buildPackage, buildWasmWorks } from './lib/build.mjs';
import { needsPackage } from './lib/measure.mjs';
import { readOptions } from './lib/options.mjs';
import { progress } from './lib/progress.mjs';
import { writeResults } from './lib/results.mjs';
import { formatResults } from './lib/table.mjs';

const { chosen, timing, complete } = readOptions(`usage: npm run bench:browser -- [--only GROUP[,GROUP…]] [--quick]

The comparisons of \`npm run bench\` without the native builds, in Chromium and in Firefox where they are installed. Tables
go to the terminal, all samples to bench/results/chromium.json and firefox.json.
`);

/**
 * Each opens a page and gives the browser's version and what closes it.
 * @type {Record<string, (path: string, url: string) => Promise<{ version: string, close: () => Promise<void> }>>}
 */
const launchers = {
  chromium: async (executablePath, url) => {
    const browser = await chromium.launch({ executablePath });
    await (await browser.newPage()).goto(url);
    return { version: browser.version(), close: () => browser.close() };
  },
  firefox: async (executablePath, url) => {
    const browser = await puppeteer.launch({ browser: 'firefox', executablePath });
    await (await browser.newPage()).goto(url);
    return { version: await browser.version(), close: () => browser.close() };
  },
};

const contentTypes = {
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.mjs': 'text/javascript',
  '.wasm': 'application/wasm',
};

/**
 * Serves the page and resolves with what it reports.
 * @param {{ works: string, onProgress: (text: string) => void }} options
 */
async function serve({ works, onProgress }) {
  const { promise: results, resolve, reject } = promiseWithResolvers();
  const plan = JSON.stringify({ chosen, timing, withPackage: chosen.some(needsPackage) });
  const server = createServer((request, response) => {
    const path = normalize(new URL(request.url ?? '/', 'http://localhost').pathname);
    // Isolation gives the page a clock of microseconds.
    response.setHeader('Cross-Origin-Opener-Policy', 'same-origin');
    response.setHeader('Cross-Origin-Embedder-Policy', 'require-corp');
    if (request.method === 'POST') {
      let body = '';
      request.setEncoding('utf8').on('data', (chunk) => (body += chunk));
      request.on('end', () => {
        response.end();
        if (path === '/report/progress') onProgress(body);
        else if (path === '/report/results') resolve(JSON.parse(body));
        else reject(new Error(body));
      });
      return;
    }
    if (path === '/plan') {
      response.setHeader('Content-Type', 'application/json').end(plan);
      return;
    }
    const file = path === '/works.wasm' ? works : join(root, path);
    const type = contentTypes[/** @type {keyof typeof contentTypes} */ (extname(file))];
    if (type === undefined || !existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404).end();
      return;
    }
    response.setHeader('Content-Type', type);
    createReadStream(file).pipe(response);
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', () => listening(undefined)));
  const address = /** @type {import('node:net').AddressInfo} */ (server.address());
  return {
    url: `http://127.0.0.1:${address.port}/bench/browser/index.html`,
    results,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** Promise.withResolvers, which Node 20 lacks. */
function promiseWithResolvers() {
  /** @type {(value: import('./lib/table.mjs').Result[]) => void} */
  let resolve = () => undefined;
  /** @type {(error: Error) => void} */
  let reject = () => undefined;
  /** @type {Promise<import('./lib/table.mjs').Result[]>} */
  const promise = new Promise((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  return { promise, resolve, reject };
}

const status = progress();
status.show('building for WebAssembly');
const works = await buildWasmWorks();
if (chosen.some(needsPackage)) {
  status.show('building the package');
  await buildPackage();
}
let measured = 0;
for (const [name, launch] of Object.entries(launchers)) {
  const path = browsers[/** @type {keyof typeof browsers} */ (name)]();
  if (path === undefined) {
    console.log(`\n${name} is not installed: NOT MEASURED`);
    continue;
  }
  const { url, results, close } = await serve({ works, onProgress: (text) => status.show(`${name} ${text}`) });
  const browser = await launch(path, url);
  const measurements = await results.catch((/** @type {Error} */ error) => fail(`${name}: ${error.message}`));
  await browser.close();
  close();
  status.clear();
  heading(`${name} ${browser.version}`);
  console.log(formatResults(measurements));
  if (complete) await writeResults(name, { timing, results: measurements }, { [name]: browser.version });
  ++measured;
}
if (measured === 0) fail('no browser to measure in');
