// Runs one test file inside this module Worker, with Vitest's own runner.
import { startTests, type Suite, type Task, type VitestRunner } from '@vitest/runner';

import type { Outcome } from './report.js';
import { timeouts } from './timeouts.js';

const scope = globalThis as unknown as {
  onmessage: (event: MessageEvent<string>) => void;
  postMessage(message: unknown): void;
  addEventListener(type: 'unhandledrejection', listener: (event: PromiseRejectionEvent) => void): void;
};

const unhandled: unknown[] = [];
scope.addEventListener('unhandledrejection', (event) => {
  event.preventDefault();
  unhandled.push(event.reason);
});

function describeError(error: unknown, prefix = ''): Outcome['errors'][number] {
  const { name = 'Error', message = String(error), stack = '' } = (error ?? {}) as Partial<Error>;
  return { name, message: prefix + message, stack };
}

function outcomeOf(task: Task | Suite): Outcome {
  const errors: Outcome['errors'][number][] = (task.result?.errors ?? []).map((error) => describeError(error));
  const skipped = task.mode === 'skip' || task.mode === 'todo' || task.result?.state === 'skip';
  const state = skipped ? 'skipped' : task.result?.state === 'pass' ? 'passed' : 'failed';
  if (task.type === 'suite') return { name: task.name, state, errors, children: task.tasks.map(outcomeOf) };
  if (state === 'failed' && errors.length === 0) errors.push(describeError(new Error('it never finished')));
  return { name: task.name, state, errors };
}

async function runFile(url: string): Promise<Outcome> {
  const runner: VitestRunner = {
    importFile: (path) => import(/* @vite-ignore */ path),
    config: {
      root: '/',
      name: 'worker',
      setupFiles: [],
      passWithNoTests: false,
      testNamePattern: undefined,
      allowOnly: true,
      sequence: { seed: 0, hooks: 'stack', setupFiles: 'list' },
      chaiConfig: undefined,
      maxConcurrency: 5,
      ...timeouts,
      retry: 0,
      includeTaskLocation: false,
      tags: [],
      tagsFilter: undefined,
      strictTags: false,
    },
  };
  const [file] = await startTests([url], runner);
  const outcome = outcomeOf(file);
  const rejections = unhandled.map((reason) => describeError(reason, 'unhandled rejection: '));
  return { ...outcome, errors: [...outcome.errors, ...rejections] };
}

scope.onmessage = ({ data: url }) => {
  void runFile(url).then((outcome) => scope.postMessage(outcome));
};
