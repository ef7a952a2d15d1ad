// Values that change, and hooks that render again when they do.
import { useEffect, useReducer } from "../vendor/vendor.mjs";

/**
 * A value with subscribers.
 * @template T
 */
export class Store {
  /** @param {T} value */
  constructor(value) {
    this.value = value;
    /** @type {Set<() => void>} */
    this.subscribers = new Set();
  }

  /** Sets the value and notifies the subscribers, unless it is the same. @param {T} value */
  set(value) {
    if (Object.is(this.value, value)) return;
    this.value = value;
    this.notify();
  }

  notify() {
    for (const subscriber of [...this.subscribers]) subscriber();
  }

  /** @param {() => void} subscriber @returns {() => void} */
  subscribe(subscriber) {
    this.subscribers.add(subscriber);
    return () => this.subscribers.delete(subscriber);
  }
}

/**
 * Returns the value of a store, and renders again when it changes.
 * @template T
 * @param {Store<T>} store
 * @returns {T}
 */
export function useStore(store) {
  const [, refresh] = useReducer((/** @type {number} */ count) => count + 1, 0);
  useEffect(() => {
    const seen = store.value;
    const stop = store.subscribe(() => refresh(0));
    // The value may have changed between the render and this effect.
    if (!Object.is(seen, store.value)) refresh(0);
    return stop;
  }, [store]);
  return store.value;
}

/** The time, each second; it stands still while the page is hidden. */
export const clock = new Store(Date.now());
setInterval(() => {
  if (!document.hidden) clock.set(Date.now());
}, 1000);
