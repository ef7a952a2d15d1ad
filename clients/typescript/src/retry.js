// The delays between attempts, and the time after which the client gives up. Times are in milliseconds.

/**
 * @typedef {object} RetryPolicy
 * @property {number} firstDelay the delay before the first repetition; it doubles with each one
 * @property {number} maxDelay the longest delay
 * @property {number} requestTime the time for which a request is repeated
 * @property {number} streamTime the time for which a stream that fails, or a wait, is continued; `Infinity` is forever
 */

/** @type {RetryPolicy} */
export const DEFAULT_RETRY = { firstDelay: 100, maxDelay: 5_000, requestTime: 60_000, streamTime: 300_000 }

const MAX_RETRY_AFTER = 30_000

/** The failures of one operation since its last progress. */
export class Attempts {
  /**
   * @param {RetryPolicy} policy
   * @param {number} limit the time from the first failure, after which the operation is given up
   */
  constructor(policy, limit) {
    this.policy = policy
    this.limit = limit
    this.failures = 0
    /** @type {number | undefined} */
    this.failedSince = undefined
  }

  /** Notes that the operation has made progress. */
  progress() {
    this.failures = 0
    this.failedSince = undefined
  }

  /**
   * Notes a failure, and returns the delay before the next attempt; `undefined` if the operation is given up.
   *
   * @param {number} [atLeast]
   * @returns {number | undefined}
   */
  fail(atLeast = 0) {
    const now = Date.now()
    this.failures += 1
    this.failedSince ??= now
    const longest = Math.min(this.policy.maxDelay, this.policy.firstDelay * 2 ** Math.min(this.failures - 1, 30))
    // With jitter, so that clients do not return all at once.
    const delay = Math.max(atLeast, longest * (0.5 + Math.random() / 2))
    return now + delay - this.failedSince > this.limit ? undefined : delay
  }
}

/**
 * Returns `true` if a response says that a repetition may succeed. 502 and 504 count if a proxy sent them: a gateway that is
 * reached describes its errors as problems.
 *
 * @param {Response} response
 */
export function isTransient(response) {
  const isProblem = response.headers.get('content-type')?.startsWith('application/problem+json') ?? false
  return response.status === 503 || ((response.status === 502 || response.status === 504) && !isProblem)
}

/**
 * Returns the time of a header `Retry-After`; 0 without one, or if it is a date.
 *
 * @param {Response} response
 */
export function retryAfter(response) {
  const seconds = Number(response.headers.get('retry-after') ?? '')
  return seconds > 0 ? Math.min(seconds * 1_000, MAX_RETRY_AFTER) : 0
}

/**
 * Waits for a time, or until the signal is aborted.
 *
 * @param {number} milliseconds
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted()
    const abort = () => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', abort)
      resolve()
    }, milliseconds)
    signal?.addEventListener('abort', abort, { once: true })
  })
}
