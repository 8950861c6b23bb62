// @ts-check
// Where and with what something was measured.
import { cpus, totalmem, type } from 'node:os';

import { capture, emscriptenEnvironment } from '../../scripts/lib/tools.mjs';

/** @param {string} program */
async function versionOf(program) {
  const { code, output } = await capture(program, ['--version'], { env: emscriptenEnvironment });
  return code === 0 ? /\d+\.\d+\.\d+/.exec(output)?.[0] : undefined;
}

/** @param {Record<string, string>} versions  of what else took part */
export async function describeMachine(versions = {}) {
  const commit = await capture('git', ['rev-parse', 'HEAD']);
  const changes = await capture('git', ['status', '--porcelain']);
  return {
    date: new Date().toISOString(),
    commit: commit.code === 0 ? commit.output.trim() : undefined,
    // Figures of sources that no commit holds are to be told apart.
    uncommittedChanges: changes.output.trim() !== '',
    cpu: cpus()[0].model.trim(),
    cores: cpus().length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    system: `${type()} ${process.arch}`,
    versions: {
      node: process.versions.node,
      v8: process.versions.v8,
      emscripten: await versionOf('emcc'),
      gcc: await versionOf('g++'),
      clang: await versionOf('clang++'),
      ...versions,
    },
  };
}
