import { spawn } from 'node:child_process';
import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { browsers } from '../../../scripts/lib/tools.mjs';
import { driven, type DrivenBrowser } from './driven.js';

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (address === null || typeof address === 'string') throw new Error('no port to listen on');
  return address.port;
}

/** A WebDriver session with the system's WebKitGTK, under an X server of its own. */
export class WebKitSession implements DrivenBrowser {
  private constructor(
    private readonly session: string,
    private readonly stop: () => void,
  ) {}

  static async start(): Promise<WebKitSession> {
    const binary = browsers.webkit();
    if (!binary) throw new Error('WebKitGTK with its WebDriver and Xvfb is not installed');
    const port = await freePort();
    // A process group of its own: xvfb-run's children end with it.
    const driver = spawn('xvfb-run', ['-a', 'WebKitWebDriver', `--port=${port}`], { stdio: 'ignore', detached: true });
    const stop = () => {
      process.removeListener('exit', stop);
      try {
        if (driver.pid !== undefined) process.kill(-driver.pid, 'SIGTERM');
      } catch {
        // It has ended by itself.
      }
    };
    process.once('exit', stop);
    try {
      const server = `http://127.0.0.1:${port}`;
      await WebKitSession.untilReady(server);
      const value = (await WebKitSession.request('POST', `${server}/session`, {
        capabilities: { alwaysMatch: { 'webkitgtk:browserOptions': { binary, args: ['--automation'] } } },
      })) as { sessionId: string };
      return new WebKitSession(`${server}/session/${value.sessionId}`, stop);
    } catch (error) {
      stop();
      throw error;
    }
  }

  private static async untilReady(server: string): Promise<void> {
    for (let attempt = 0; ; ++attempt) {
      try {
        await WebKitSession.request('GET', `${server}/status`);
        return;
      } catch (error) {
        if (attempt === 150) throw new Error('WebKitWebDriver does not answer', { cause: error });
        await sleep(100);
      }
    }
  }

  private static async request(method: string, url: string, body?: unknown): Promise<unknown> {
    const response = await fetch(url, { method, body: body === undefined ? undefined : JSON.stringify(body) });
    const { value } = (await response.json()) as { value: unknown };
    if (!response.ok) throw new Error(`WebDriver ${method} ${url}: ${JSON.stringify(value)}`);
    return value;
  }

  async open(url: string): Promise<void> {
    await WebKitSession.request('POST', `${this.session}/url`, { url });
  }

  evaluate(expression: string): Promise<unknown> {
    const body = { script: `return ${expression};`, args: [] };
    return WebKitSession.request('POST', `${this.session}/execute/sync`, body);
  }

  async close(): Promise<void> {
    try {
      await WebKitSession.request('DELETE', this.session);
    } finally {
      this.stop();
    }
  }
}

export const webkit = () => driven(() => WebKitSession.start());
