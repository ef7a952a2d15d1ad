// The client of the HTTP API.

import { answerBody } from './answers.js'
import { Run } from './run.js'
import { Transport, readResponse } from './transport.js'

/** @typedef {import('../types/api.js').Operations} Operations */
/** @typedef {import('../types/api.js').RunLine} RunLine */
/** @typedef {import('../types/api.js').RunState} RunState */
/** @typedef {import('../types/api.js').RunWaitKind} RunWaitKind */
/** @typedef {import('../types/api.js').SubmissionBody} SubmissionBody */
/** @typedef {import('./answers.js').Answer} Answer */
/** @typedef {import('./transport.js').ClientOptions} ClientOptions */

/**
 * A submission: an objective, and what belongs to it.
 *
 * @typedef {Omit<SubmissionBody, 'documents'> & {
 *   documents?: Record<string, string | Blob | Uint8Array>,
 *   references?: SubmissionBody['documents'],
 *   idempotencyKey?: string,
 * }} Submission `documents` are contents by their paths; `references` are blobs of the store with their paths
 */

/**
 * The arguments of an operation.
 *
 * @template {keyof Operations} N
 * @typedef {{[K in keyof Operations[N]['arguments']]: Operations[N]['arguments'][K] | undefined}} Arguments
 */

/** A client of Millrace's HTTP API. */
export class Client {
  /** @param {ClientOptions | string} [options] the options, or the URL of a gateway */
  constructor(options = {}) {
    /** The connection. */
    this.transport = new Transport(typeof options === 'string' ? { url: options } : options)
  }

  /**
   * Calls any operation of the API by its name, such as `client.call('readStatus')`. The methods of this class and of `Run` are
   * shorter forms of some.
   *
   * @template {keyof Operations} N
   * @param {N} name
   * @param {Arguments<N>} [values] the parameters by their names, and the `body`
   * @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<Operations[N]['response']>}
   */
  async call(name, values, options) {
    const response = await this.transport.send(name, /** @type {Record<string, unknown>} */ (values ?? {}), options)
    return /** @type {Promise<Operations[N]['response']>} */ (readResponse(name, response))
  }

  /**
   * Submits a run. The request is repeated after a failure and starts one run, since it has an idempotency key: a random one, or
   * `idempotencyKey`, by which a later call returns the same run.
   *
   * @param {Submission} submission
   * @returns {Promise<Run>}
   */
  async submit({ documents, references, idempotencyKey, ...fields }) {
    const run = references === undefined ? fields : { ...fields, documents: references }
    const body = documents === undefined ? run : formOf(run, documents)
    const reply = await this.call('submitRun', { body, idempotencyKey })
    return new Run(this, reply.run, reply.sequence)
  }

  /**
   * Returns a run by its id, without a request. A unique prefix and `latest` are ids too.
   *
   * @param {string} id
   */
  run(id) {
    return new Run(this, id)
  }

  /**
   * Lists runs, newest first, part by part as the iteration goes on.
   *
   * @param {{state?: RunState[], waiting?: RunWaitKind[], label?: string[], since?: string, until?: string, limit?: number}} [options]
   * @returns {AsyncGenerator<RunLine, void, void>}
   */
  async *runs({ state, waiting, label, since, until, limit = Infinity } = {}) {
    /** @type {string | undefined} */
    let cursor
    for (let left = limit; left > 0; ) {
      const size = Math.min(left, 1_000)
      const values = { state: state?.join(','), waiting: waiting?.join(','), label: label?.join(','), since, until, limit: limit === Infinity ? undefined : size, cursor }
      const part = await this.call('listRuns', /** @type {Arguments<'listRuns'>} */ (values))
      yield* part.runs.slice(0, left)
      left -= part.runs.length
      cursor = part.next
      if (!cursor) return
    }
  }

  /**
   * Lists the questions of all runs: the open ones, with `history` the closed ones too.
   *
   * @param {{history?: boolean}} [options]
   */
  async questions({ history } = {}) {
    return (await this.call('listAllQuestions', { history })).questions
  }

  /**
   * Answers a question. The first answer counts. The request is not repeated: after `GatewayUnreachable` read the question again.
   *
   * @param {{id: string} | string} question
   * @param {Answer} answer
   */
  answer(question, answer) {
    const id = typeof question === 'string' ? question : question.id
    return this.call('sendAnswer', { question: id, body: answerBody(answer) })
  }
}

/**
 * @param {object} run
 * @param {Record<string, string | Blob | Uint8Array>} documents
 */
function formOf(run, documents) {
  const form = new FormData()
  form.append('run', new Blob([JSON.stringify(run)], { type: 'application/json' }))
  for (const [path, content] of Object.entries(documents)) {
    const blob = content instanceof Blob ? content : new Blob([/** @type {BlobPart} */ (content)])
    form.append('documents', blob, path)
  }
  return form
}
