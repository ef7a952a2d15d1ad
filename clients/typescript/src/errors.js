// The errors of the client.

/** @typedef {import('../types/api.js').ProblemKind} ProblemKind */
/** @typedef {import('../types/api.js').Problem} Problem */

const PREFIX = 'urn:millrace:problem:'

/** An error of this client or of the API. */
export class MillraceError extends Error {
  /**
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(message, options) {
    super(message, options)
    this.name = new.target.name
  }
}

/** The API refused a request or could not serve it: a problem by RFC 9457. */
export class ProblemError extends MillraceError {
  /** @param {Problem} problem */
  constructor(problem) {
    super(problem.detail || problem.title)
    /** The whole problem, with the places of mistakes in `errors`. */
    this.problem = problem
    /** The kind of the problem, such as `run-not-found`. A newer gateway may have others. */
    this.kind = /** @type {ProblemKind} */ (problem.type.replace(PREFIX, ''))
    /** The HTTP status. */
    this.status = problem.status
  }

  /** `true` if the state of the run does not allow the request; the message is the reason. */
  get isRefusal() {
    return this.status === 409
  }
}

/** The gateway can't be reached, or did not answer in time. */
export class GatewayUnreachable extends MillraceError {}

/** The response is not one of the API, for instance that of a proxy. */
export class UnexpectedResponse extends MillraceError {}

/** The gateway can't continue a stream of events. */
export class StreamError extends MillraceError {}

/** A wait has taken longer than its timeout. */
export class WaitTimeout extends MillraceError {}

/**
 * Returns `true` if an error is a problem of this kind, such as `isProblem(error, 'run-not-found')`.
 *
 * @param {unknown} error
 * @param {ProblemKind} [kind] any kind by default
 * @returns {error is ProblemError}
 */
export function isProblem(error, kind) {
  return error instanceof ProblemError && (kind === undefined || error.kind === kind)
}

/**
 * Returns the error that a response is.
 *
 * @param {number} status
 * @param {string} contentType
 * @param {string} text
 * @returns {MillraceError}
 */
export function errorOfResponse(status, contentType, text) {
  if (contentType.startsWith('application/problem+json')) {
    try {
      const problem = JSON.parse(text)
      if (typeof problem?.type === 'string') return new ProblemError({ ...problem, status: problem.status ?? status })
    } catch {
      // A proxy may have cut it.
    }
  }
  const shown = JSON.stringify(text.slice(0, 200))
  return new UnexpectedResponse(`unexpected response with status ${status}: ${shown}; is the URL that of a gateway?`)
}
