// @ts-check
// What the scripts share: finding programs, running them, and talking to the person who watches.
import { spawn } from 'node:child_process';
import { accessSync, constants, existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The repository's root directory, without a trailing slash. */
export const root = fileURLToPath(new URL('../..', import.meta.url)).replace(/\/$/, '');

/** Debian's emcc finds its JavaScript dependencies through NODE_PATH; an emsdk brings its own and does not mind. */
export const emscriptenEnvironment = { NODE_PATH: '/usr/share/nodejs' };

/**
 * The path of the first of `names` that is on PATH, or undefined.
 * @param {...string} names
 */
export function findProgram(...names) {
  for (const name of names) {
    for (const directory of (process.env.PATH ?? '').split(delimiter)) {
      const path = join(directory, name);
      try {
        accessSync(path, constants.X_OK);
        return path;
      } catch {
        // Not in this directory.
      }
    }
  }
  return undefined;
}

/** Where each browser is, or undefined: what the tests and the benchmarks drive. */
export const browsers = {
  chromium: () => findProgram('chromium', 'chromium-browser', 'google-chrome'),
  firefox: () => findProgram('firefox-esr', 'firefox'),
  /** WebKitGTK's test browser; it needs WebKitWebDriver and an X server besides. */
  webkit: () => {
    if (!findProgram('WebKitWebDriver') || !findProgram('xvfb-run')) return undefined;
    const directories = ['/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib', '/usr/libexec'];
    return directories.map((directory) => `${directory}/webkit2gtk-4.1/MiniBrowser`).find((path) => existsSync(path));
  },
};

/**
 * Runs a program with its output on the terminal.
 * @param {string} command
 * @param {readonly string[]} args
 * @param {{ env?: Record<string, string>, cwd?: string }} [options]
 * @returns {Promise<number>} its exit code; 1 where a signal ended it or it could not be started
 */
export function run(command, args, { env = {}, cwd = root } = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { cwd, stdio: 'inherit', env: { ...process.env, ...env } });
    child.on('error', (error) => {
      console.error(`${command}: ${error.message}`);
      resolve(1);
    });
    child.on('close', (code) => resolve(code ?? 1));
  });
}

/**
 * Runs a program and collects what it prints, both streams in one.
 * @param {string} command
 * @param {readonly string[]} args
 * @param {{ env?: Record<string, string>, cwd?: string }} [options]
 * @returns {Promise<{ code: number, output: string }>}
 */
export function capture(command, args, { env = {}, cwd = root } = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
    let output = '';
    child.stdout.on('data', (chunk) => (output += chunk));
    child.stderr.on('data', (chunk) => (output += chunk));
    child.on('error', (error) => resolve({ code: 1, output: `${command}: ${error.message}\n` }));
    child.on('close', (code) => resolve({ code: code ?? 1, output }));
  });
}

/**
 * As `run`, but a failure ends the script.
 * @param {string} command
 * @param {readonly string[]} args
 * @param {{ env?: Record<string, string>, cwd?: string }} [options]
 */
export async function must(command, args, options) {
  const code = await run(command, args, options);
  if (code !== 0) fail(`${[command, ...args].join(' ')} failed with exit code ${code}`);
}

/**
 * The path of a program that an npm dependency brings.
 * @param {string} name
 */
export function nodeBin(name) {
  return join(root, 'node_modules', '.bin', name);
}

/** @param {string} message */
export function heading(message) {
  console.log(`\n━━ ${message}`);
}

/**
 * Ends the script with an error for a person.
 * @param {string} message
 * @returns {never}
 */
export function fail(message) {
  console.error(`\nerror: ${message}`);
  process.exit(1);
}
