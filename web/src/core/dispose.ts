declare global {
  interface SymbolConstructor {
    /** Declared here too, so that the package's types compile under a `lib` older than `ESNext.Disposable`. */
    readonly dispose: unique symbol;
  }
}

/** Lets `using` end an object's life, where the engine knows `Symbol.dispose` when the package is imported. */
export function makeDisposable(prototype: { readonly dispose: () => void }): void {
  const symbol: symbol | undefined = Symbol.dispose;
  if (symbol === undefined) return;
  Object.defineProperty(prototype, symbol, { value: prototype.dispose, configurable: true, writable: true });
}
