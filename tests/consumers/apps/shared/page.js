/** Puts what a session gave, or how it failed, on the page, where the test reads it. */
export async function show(place, outcome) {
  const element = document.createElement('output');
  element.id = place;
  try {
    element.value = JSON.stringify(await outcome);
  } catch (error) {
    element.value = `${error.code ?? error.name}: ${error.message}`;
  }
  document.body.append(element);
}

/** What a Worker that runs the session posts. */
export function outcomeOf(worker) {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve(data));
    worker.onerror = (event) => reject(new Error(event.message ?? 'the Worker did not start'));
  });
}

/** For a Worker: posts what a session gave. */
export function post(outcome) {
  outcome.then(
    (value) => self.postMessage(value),
    (error) => self.postMessage({ error: `${error.code ?? error.name}: ${error.message}` }),
  );
}
