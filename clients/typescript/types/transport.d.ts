/**
 * Reads the result of an operation.
 *
 * @param {OperationName} name
 * @param {Response} response
 * @returns {Promise<unknown>}
 */
export function readResponse(name: OperationName, response: Response): Promise<unknown>;
/** @param {Response} response */
export function readError(response: Response): Promise<import("./errors.js").MillraceError>;
/** @param {unknown} cause */
export function describe(cause: unknown): string;
/** The connection to a gateway. */
export class Transport {
    /** @param {ClientOptions} options */
    constructor(options: ClientOptions);
    /** The URL of the gateway, without the path of the API. */
    url: string;
    /** @type {RetryPolicy} */
    retry: RetryPolicy;
    streamTimeout: number;
    /**
     * Calls an operation, and returns the response if it is a success.
     *
     * @param {OperationName} name
     * @param {Record<string, unknown>} values
     * @param {CallOptions} [options]
     * @returns {Promise<Response>}
     */
    send(name: OperationName, values: Record<string, unknown>, options?: CallOptions): Promise<Response>;
    /**
     * Opens a stream of events. The response may be an error.
     *
     * @param {OperationName} name
     * @param {Record<string, unknown>} values
     * @param {string | undefined} lastId
     * @param {AbortSignal} signal
     * @returns {Promise<Response>}
     */
    openStream(name: OperationName, values: Record<string, unknown>, lastId: string | undefined, signal: AbortSignal): Promise<Response>;
    /**
     * Returns the headers of a request.
     *
     * @param {Operation} operation
     * @param {Record<string, unknown>} values
     * @param {string | undefined} accept
     * @returns {Record<string, string>}
     */
    headers(operation: Operation, values: Record<string, unknown>, accept: string | undefined): Record<string, string>;
    /**
     * Returns the URL of a request.
     *
     * @param {Operation} operation
     * @param {Record<string, unknown>} values
     * @returns {string}
     */
    address(operation: Operation, values: Record<string, unknown>): string;
    #private;
}
export type Operations = import("../types/api.js").Operations;
export type OperationName = keyof Operations;
export type Operation = import("./operations.js").Operation;
export type RetryPolicy = import("./retry.js").RetryPolicy;
export type ClientOptions = {
    /**
     * the URL of a gateway; `http://127.0.0.1:7070` by default
     */
    url?: string | undefined;
    /**
     * a token of the API
     */
    token?: string | undefined;
    /**
     * more headers of all requests
     */
    headers?: Record<string, string> | undefined;
    /**
     * another `fetch`, for instance with a proxy
     */
    fetch?: typeof fetch | undefined;
    /**
     * the longest wait for a response in milliseconds; 30,000 by default
     */
    timeout?: number | undefined;
    /**
     * the longest silence of a stream, in which the gateway writes at least every 15 seconds
     */
    streamTimeout?: number | undefined;
    /**
     * the delays between attempts, and the time after which the client gives up
     */
    retry?: Partial<import("./retry.js").RetryPolicy> | undefined;
};
export type CallOptions = {
    /**
     * ends the request
     */
    signal?: AbortSignal | undefined;
    /**
     * the media type, of operations that have several
     */
    accept?: string | undefined;
    /**
     * the time in milliseconds that the gateway may take by itself, because the request waits
     */
    serverTime?: number | undefined;
    /**
     * the time for which the request is repeated
     */
    limit?: number | undefined;
};
