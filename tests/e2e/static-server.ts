import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname, join, normalize } from 'node:path';

const TYPES: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
  '.wasm': 'application/wasm',
  '.woff2': 'font/woff2',
};

export interface StaticServer {
  /** Address of the folder, with a slash at its end: below a path, as on many hosts. */
  readonly address: string;
  close(): Promise<void>;
}

/**
 * Serves `folder` under /site/ as a plain host would.
 * @param contentSecurityPolicy of every answer; an empty one forbids nothing
 */
export async function serveFolder(
  folder: string,
  contentSecurityPolicy = "script-src 'self' 'wasm-unsafe-eval'",
): Promise<StaticServer> {
  const prefix = '/site/';
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url ?? '/', 'http://localhost');
    const relative = normalize(decodeURIComponent(pathname.slice(prefix.length)) || 'index.html');
    const file = join(folder, relative);
    if (!pathname.startsWith(prefix) || !file.startsWith(folder)) {
      response.writeHead(404).end();
      return;
    }
    readFile(file).then(
      (body) => {
        response.writeHead(200, {
          'Content-Type': TYPES[extname(file)] ?? 'application/octet-stream',
          'Content-Security-Policy': contentSecurityPolicy,
          'Cache-Control': 'no-store',
        });
        response.end(body);
      },
      () => response.writeHead(404).end(),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return {
    address: `http://127.0.0.1:${port}${prefix}`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
