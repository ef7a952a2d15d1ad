// A client of Millrace's HTTP API, for browsers, Node, Deno and Bun.

export { answerBody } from './answers.js'
export { Client } from './client.js'
export {
  GatewayUnreachable,
  MillraceError,
  ProblemError,
  StreamError,
  UnexpectedResponse,
  WaitTimeout,
  isProblem,
} from './errors.js'
export { operations } from './operations.js'
export { DEFAULT_RETRY } from './retry.js'
export { Run } from './run.js'
export { EventStream } from './stream.js'

/** @typedef {import('./answers.js').Answer} Answer */
/** @typedef {import('../types/api.js').Operations} Operations */
/** @typedef {import('../types/api.js').ProblemKind} ProblemKind */
/** @typedef {import('./client.js').Submission} Submission */
/** @typedef {import('./retry.js').RetryPolicy} RetryPolicy */
/** @typedef {import('./run.js').CommandOptions} CommandOptions */
/** @typedef {import('./run.js').EventOptions} EventOptions */
/** @typedef {import('./stream.js').RunEvent} RunEvent */
/** @typedef {import('./transport.js').ClientOptions} ClientOptions */
