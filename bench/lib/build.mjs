// @ts-check
// Builds the benchmark programs, in build directories of their own.
import { existsSync } from 'node:fs';
import { join } from 'node:path';

import { capture, emscriptenEnvironment, fail, findProgram, root } from '../../scripts/lib/tools.mjs';

/**
 * @param {string} name  the build directory's, under build/
 * @param {string} target
 * @param {readonly string[]} options
 * @returns {Promise<string>} the build directory
 */
async function cmakeBuild(name, target, options) {
  const directory = join(root, 'build', name);
  const settings = ['-DCMAKE_BUILD_TYPE=Release', '-DNEEDLE3_BENCH=ON', '-DNEEDLE3_TESTS=OFF'];
  for (const args of [
    ['-S', root, '-B', directory, '-G', 'Ninja', ...settings, ...options],
    ['--build', directory, '--target', target],
  ]) {
    const { code, output } = await capture('cmake', args, { env: emscriptenEnvironment });
    if (code !== 0) fail(`cmake ${args.join(' ')} failed:\n${output}`);
  }
  return directory;
}

/** @returns {Promise<string>} the path of the WebAssembly module of all works */
export async function buildWasmWorks() {
  const toolchain = `-DCMAKE_TOOLCHAIN_FILE=${join(root, 'cmake', 'emscripten.cmake')}`;
  return join(await cmakeBuild('bench-wasm', 'bench_wasm', [toolchain]), 'bench', 'bench_wasm.wasm');
}

/**
 * The native compilers that are here: their paths by the names that results carry.
 * @returns {[name: string, compiler: string][]}
 */
export function nativeCompilers() {
  return Object.entries({ gcc: 'g++', clang: 'clang++' }).flatMap(([name, program]) => {
    const compiler = findProgram(program);
    return compiler === undefined ? [] : [[name, compiler]];
  });
}

/**
 * @param {string} name  as nativeCompilers gives it
 * @param {string} compiler
 * @returns {Promise<string>} the path of the program of all works
 */
export async function buildNativeWorks(name, compiler) {
  const directory = await cmakeBuild(`bench-${name}`, 'bench_native', [`-DCMAKE_CXX_COMPILER=${compiler}`]);
  return join(directory, 'bench', 'bench_native');
}

/** Builds dist/, as `npm run build` does. */
export async function buildPackage() {
  const { code, output } = await capture('node', [join(root, 'scripts', 'build.mjs')]);
  if (code !== 0) fail(`the package's build failed:\n${output}`);
}

/** Installs what bench/package.json asks for, where it is not there yet. */
export async function installBenchDependencies() {
  const cwd = join(root, 'bench');
  if (existsSync(join(cwd, 'node_modules', '.package-lock.json'))) return;
  const { code, output } = await capture('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd });
  if (code !== 0) fail(`npm ci in bench/ failed:\n${output}`);
}
