/**
 * Returns `true` if a response says that a repetition may succeed. 502 and 504 count if a proxy sent them: a gateway that is
 * reached describes its errors as problems.
 *
 * @param {Response} response
 */
export function isTransient(response: Response): boolean;
/**
 * Returns the time of a header `Retry-After`; 0 without one, or if it is a date.
 *
 * @param {Response} response
 */
export function retryAfter(response: Response): number;
/**
 * Waits for a time, or until the signal is aborted.
 *
 * @param {number} milliseconds
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void>;
/**
 * @typedef {object} RetryPolicy
 * @property {number} firstDelay the delay before the first repetition; it doubles with each one
 * @property {number} maxDelay the longest delay
 * @property {number} requestTime the time for which a request is repeated
 * @property {number} streamTime the time for which a stream that fails, or a wait, is continued; `Infinity` is forever
 */
/** @type {RetryPolicy} */
export const DEFAULT_RETRY: RetryPolicy;
/** The failures of one operation since its last progress. */
export class Attempts {
    /**
     * @param {RetryPolicy} policy
     * @param {number} limit the time from the first failure, after which the operation is given up
     */
    constructor(policy: RetryPolicy, limit: number);
    policy: RetryPolicy;
    limit: number;
    failures: number;
    /** @type {number | undefined} */
    failedSince: number | undefined;
    /** Notes that the operation has made progress. */
    progress(): void;
    /**
     * Notes a failure, and returns the delay before the next attempt; `undefined` if the operation is given up.
     *
     * @param {number} [atLeast]
     * @returns {number | undefined}
     */
    fail(atLeast?: number): number | undefined;
}
export type RetryPolicy = {
    /**
     * the delay before the first repetition; it doubles with each one
     */
    firstDelay: number;
    /**
     * the longest delay
     */
    maxDelay: number;
    /**
     * the time for which a request is repeated
     */
    requestTime: number;
    /**
     * the time for which a stream that fails, or a wait, is continued; `Infinity` is forever
     */
    streamTime: number;
};
