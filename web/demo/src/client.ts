import type { Failure, FromWorker, Replies, Requests, RequestType, WorkerEvent } from './protocol.js';

/** What a request that failed rejects with. */
export class RequestFailure extends Error {
  constructor(readonly failure: Failure) {
    super(failure.message);
    this.name = 'RequestFailure';
  }
}

/** The page's end of the Worker: requests that wait for their reply, and events. */
export class Client {
  readonly #worker: Worker;
  readonly #waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  #nextId = 1;

  constructor(onEvent: (event: WorkerEvent) => void) {
    this.#worker = new Worker(new URL('./worker.ts', import.meta.url), { type: 'module' });
    this.#worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
      if (data.type !== 'reply') {
        onEvent(data);
        return;
      }
      const waiting = this.#waiting.get(data.id);
      this.#waiting.delete(data.id);
      if (data.ok) waiting?.resolve(data.value as never);
      else waiting?.reject(new RequestFailure(data.error));
    };
    this.#worker.onerror = (event) => {
      const message = event.message || 'The Worker could not be started.';
      onEvent({ type: 'failed', error: { code: undefined, message } });
    };
  }

  request<T extends RequestType>(type: T, body: Requests[T]): Promise<Replies[T]> {
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage({ type, id, ...body });
    });
  }
}
