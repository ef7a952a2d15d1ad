/**
 * @typedef {object} Operation
 * @property {string} method
 * @property {string} path the path below /api/v1
 * @property {string[]} query the names of the parameters of the query
 * @property {boolean} hasKey `true` if a repetition is recognised by an idempotency key
 * @property {'json' | 'text' | 'bytes' | 'stream' | 'any' | 'none'} response how a response is read
 * @property {string[]} accept the media types of responses
 * @property {boolean} [isAbsolute] `true` if the path is not below /api/v1
 */
/** @type {Record<keyof import('../types/api.js').Operations, Operation>} */
export const operations: Record<keyof import("../types/api.js").Operations, Operation>;
export type Operation = {
    method: string;
    /**
     * the path below /api/v1
     */
    path: string;
    /**
     * the names of the parameters of the query
     */
    query: string[];
    /**
     * `true` if a repetition is recognised by an idempotency key
     */
    hasKey: boolean;
    /**
     * how a response is read
     */
    response: "json" | "text" | "bytes" | "stream" | "any" | "none";
    /**
     * the media types of responses
     */
    accept: string[];
    /**
     * `true` if the path is not below /api/v1
     */
    isAbsolute?: boolean | undefined;
};
