import { describe, it } from 'vitest';

import type { Outcome } from './report.js';

function fail(errors: Outcome['errors']): never {
  const error = new Error(errors.map(({ message }) => message).join('\n'));
  error.name = errors[0].name;
  error.stack = errors.map(({ name, message, stack }) => `${name}: ${message}\n${stack}`).join('\n');
  throw error;
}

function register(outcome: Outcome): void {
  if (outcome.children) {
    const { children } = outcome;
    describe(outcome.name, () => {
      children.forEach(register);
      // A group fails by itself where one of its hooks does.
      if (outcome.errors.length > 0) it('hooks', () => fail(outcome.errors));
    });
  } else if (outcome.state === 'skipped') {
    it.skip(outcome.name, () => undefined);
  } else {
    it(outcome.name, () => {
      if (outcome.state === 'failed') fail(outcome.errors);
    });
  }
}

/** Runs the test file at `url` in a module Worker and registers a test here for each of its own. */
export async function runInWorker(url: string): Promise<void> {
  const worker = new Worker(new URL('./worker.ts', import.meta.url), { type: 'module' });
  try {
    const outcome = await new Promise<Outcome>((resolve, reject) => {
      worker.onmessage = ({ data }: MessageEvent<Outcome>) => resolve(data);
      worker.onerror = (event) => reject(new Error(`the Worker failed: ${event.message || 'it could not be loaded'}`));
      worker.postMessage(url);
    });
    outcome.children?.forEach(register);
    if (outcome.errors.length > 0) it('the file runs', () => fail(outcome.errors));
  } finally {
    worker.terminate();
  }
}
