/**
 * Returns `true` if an error is a problem of this kind, such as `isProblem(error, 'run-not-found')`.
 *
 * @param {unknown} error
 * @param {ProblemKind} [kind] any kind by default
 * @returns {error is ProblemError}
 */
export function isProblem(error: unknown, kind?: ProblemKind): error is ProblemError;
/**
 * Returns the error that a response is.
 *
 * @param {number} status
 * @param {string} contentType
 * @param {string} text
 * @returns {MillraceError}
 */
export function errorOfResponse(status: number, contentType: string, text: string): MillraceError;
/** An error of this client or of the API. */
export class MillraceError extends Error {
    /**
     * @param {string} message
     * @param {ErrorOptions} [options]
     */
    constructor(message: string, options?: ErrorOptions);
}
/** The API refused a request or could not serve it: a problem by RFC 9457. */
export class ProblemError extends MillraceError {
    /** @param {Problem} problem */
    constructor(problem: Problem);
    /** The whole problem, with the places of mistakes in `errors`. */
    problem: import("../types/api.js").Problem;
    /** The kind of the problem, such as `run-not-found`. A newer gateway may have others. */
    kind: import("../types/api.js").ProblemKind;
    /** The HTTP status. */
    status: number;
    /** `true` if the state of the run does not allow the request; the message is the reason. */
    get isRefusal(): boolean;
}
/** The gateway can't be reached, or did not answer in time. */
export class GatewayUnreachable extends MillraceError {
}
/** The response is not one of the API, for instance that of a proxy. */
export class UnexpectedResponse extends MillraceError {
}
/** The gateway can't continue a stream of events. */
export class StreamError extends MillraceError {
}
/** A wait has taken longer than its timeout. */
export class WaitTimeout extends MillraceError {
}
export type ProblemKind = import("../types/api.js").ProblemKind;
export type Problem = import("../types/api.js").Problem;
