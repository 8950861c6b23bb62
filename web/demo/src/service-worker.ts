/**
 * Keeps the built page for use offline. Files carry their hash in their names, so what the cache has is never stale;
 * only the page itself is asked for again, and taken from the cache where there is no network.
 */

/** Both filled in by the build. */
declare const __PRECACHE_FILES__: readonly string[];
declare const __PRECACHE_VERSION__: string;

interface ExtendableEventLike extends Event {
  waitUntil(work: Promise<unknown>): void;
}
interface FetchEventLike extends ExtendableEventLike {
  readonly request: Request;
  respondWith(response: Promise<Response>): void;
}
interface ServiceWorkerScope {
  readonly clients: { claim(): Promise<void> };
  skipWaiting(): Promise<void>;
  addEventListener(type: 'install' | 'activate', listener: (event: ExtendableEventLike) => void): void;
  addEventListener(type: 'fetch', listener: (event: FetchEventLike) => void): void;
}

const scope = self as unknown as ServiceWorkerScope;
const PREFIX = 'needle3-demo-';
const CACHE = PREFIX + __PRECACHE_VERSION__;

scope.addEventListener('install', (event) => {
  const install = async () => {
    const cache = await caches.open(CACHE);
    await cache.addAll([...__PRECACHE_FILES__]);
    await scope.skipWaiting();
  };
  event.waitUntil(install());
});

scope.addEventListener('activate', (event) => {
  const activate = async () => {
    const stale = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
    await Promise.all(stale.map((name) => caches.delete(name)));
    await scope.clients.claim();
  };
  event.waitUntil(activate());
});

scope.addEventListener('fetch', (event) => {
  const { request } = event;
  if (request.method !== 'GET' || new URL(request.url).origin !== location.origin) return;
  const answer = async () => {
    const cache = await caches.open(CACHE);
    if (request.mode === 'navigate') {
      try {
        return await fetch(request);
      } catch (error) {
        const page = await cache.match('./');
        if (!page) throw error;
        return page;
      }
    }
    return (await cache.match(request)) ?? fetch(request);
  };
  event.respondWith(answer());
});
