// Sends requests, and repeats those that have no further effect.

import { GatewayUnreachable, UnexpectedResponse, errorOfResponse } from './errors.js'
import { operations } from './operations.js'
import { Attempts, DEFAULT_RETRY, isTransient, retryAfter, sleep } from './retry.js'

/** @typedef {import('../types/api.js').Operations} Operations */
/** @typedef {keyof Operations} OperationName */
/** @typedef {import('./operations.js').Operation} Operation */
/** @typedef {import('./retry.js').RetryPolicy} RetryPolicy */

/**
 * @typedef {object} ClientOptions
 * @property {string} [url] the URL of a gateway; `http://127.0.0.1:7070` by default
 * @property {string} [token] a token of the API
 * @property {Record<string, string>} [headers] more headers of all requests
 * @property {typeof globalThis.fetch} [fetch] another `fetch`, for instance with a proxy
 * @property {number} [timeout] the longest wait for a response in milliseconds; 30,000 by default
 * @property {number} [streamTimeout] the longest silence of a stream, in which the gateway writes at least every 15 seconds
 * @property {Partial<RetryPolicy>} [retry] the delays between attempts, and the time after which the client gives up
 */

/**
 * @typedef {object} CallOptions
 * @property {AbortSignal} [signal] ends the request
 * @property {string} [accept] the media type, of operations that have several
 * @property {number} [serverTime] the time in milliseconds that the gateway may take by itself, because the request waits
 * @property {number} [limit] the time for which the request is repeated
 */

// Parameters whose slashes are part of the path of the request.
const PATHS = new Set(['question', 'path'])
const API = '/api/v1'

/** The connection to a gateway. */
export class Transport {
  #headers
  #fetch
  #timeout

  /** @param {ClientOptions} options */
  constructor(options) {
    const url = (options.url ?? 'http://127.0.0.1:7070').replace(/\/+$/, '')
    /** The URL of the gateway, without the path of the API. */
    this.url = url.endsWith(API) ? url.slice(0, -API.length) : url
    /** @type {RetryPolicy} */
    this.retry = { ...DEFAULT_RETRY, ...options.retry }
    this.streamTimeout = options.streamTimeout ?? 45_000
    this.#timeout = options.timeout ?? 30_000
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis)
    this.#headers = { ...options.headers }
    if (options.token !== undefined) this.#headers.Authorization = `Bearer ${options.token}`
  }

  /**
   * Calls an operation, and returns the response if it is a success.
   *
   * @param {OperationName} name
   * @param {Record<string, unknown>} values
   * @param {CallOptions} [options]
   * @returns {Promise<Response>}
   */
  async send(name, values, options = {}) {
    const operation = operations[name]
    const headers = this.headers(operation, values, options.accept)
    const canBeRepeated = operation.method === 'GET' || operation.hasKey
    const attempts = new Attempts(this.retry, options.limit ?? this.retry.requestTime)
    const url = this.address(operation, values)
    for (;;) {
      const outcome = await this.#attempt(url, operation, headers, values.body, options)
      if (outcome.response?.ok) return outcome.response
      const { response } = outcome
      const error = response ? await readError(response) : outcome.error
      const isFinal = response !== undefined && !isTransient(response)
      const delay = canBeRepeated && !isFinal ? attempts.fail(response ? retryAfter(response) : 0) : undefined
      if (delay === undefined) throw error
      await sleep(delay, options.signal)
    }
  }

  /**
   * @param {string} url
   * @param {Operation} operation
   * @param {Record<string, string>} headers
   * @param {unknown} body
   * @param {CallOptions} options
   * @returns {Promise<{response?: Response, error?: Error}>}
   */
  async #attempt(url, operation, headers, body, options) {
    const timeout = AbortSignal.timeout(this.#timeout + (options.serverTime ?? 0))
    const signal = options.signal ? AbortSignal.any([timeout, options.signal]) : timeout
    try {
      const content = body === undefined || body instanceof FormData ? body : JSON.stringify(body)
      const response = await this.#fetch(url, { method: operation.method, headers, body: content, signal, redirect: 'error' })
      if (!response.ok || operation.response === 'stream') return { response }
      // The body belongs to the attempt: a connection that is cut within it is tried again.
      const { status, headers: own } = response
      const bytes = await response.arrayBuffer()
      return { response: new Response(bytes.byteLength > 0 ? bytes : null, { status, headers: own }) }
    } catch (cause) {
      if (options.signal?.aborted) throw options.signal.reason
      return { error: new GatewayUnreachable(`${operation.method} ${url}: ${describe(cause)}`, { cause }) }
    }
  }

  /**
   * Opens a stream of events. The response may be an error.
   *
   * @param {OperationName} name
   * @param {Record<string, unknown>} values
   * @param {string | undefined} lastId
   * @param {AbortSignal} signal
   * @returns {Promise<Response>}
   */
  openStream(name, values, lastId, signal) {
    const operation = operations[name]
    const headers = this.headers(operation, values, 'text/event-stream, application/problem+json')
    if (lastId !== undefined) headers['Last-Event-ID'] = lastId
    return this.#fetch(this.address(operation, values), { headers, signal, redirect: 'error', cache: 'no-store' })
  }

  /**
   * Returns the headers of a request.
   *
   * @param {Operation} operation
   * @param {Record<string, unknown>} values
   * @param {string | undefined} accept
   * @returns {Record<string, string>}
   */
  headers(operation, values, accept) {
    /** @type {Record<string, string>} */
    const headers = { ...this.#headers, Accept: accept ?? (operation.accept.join(', ') || '*/*') }
    // The boundary of a form is in a header that `fetch` sets.
    if (values.body !== undefined && !(values.body instanceof FormData)) headers['Content-Type'] = 'application/json'
    if (operation.hasKey) headers['Idempotency-Key'] = String(values.idempotencyKey ?? crypto.randomUUID())
    return headers
  }

  /**
   * Returns the URL of a request.
   *
   * @param {Operation} operation
   * @param {Record<string, unknown>} values
   * @returns {string}
   */
  address(operation, values) {
    const path = operation.path.replace(/\{(\w+)\}/g, (_, /** @type {string} */ name) => {
      const value = values[camelCase(name)]
      if (value === undefined || value === '') throw new TypeError(`the argument ${camelCase(name)} is missing`)
      return PATHS.has(name) ? quotePath(String(value)) : encodeURIComponent(String(value))
    })
    const query = new URLSearchParams()
    for (const name of operation.query) {
      const value = values[camelCase(name)]
      if (value !== undefined && value !== null) query.set(name, Array.isArray(value) ? value.join(',') : String(value))
    }
    const ending = query.size > 0 ? `?${query}` : ''
    return this.url + (operation.isAbsolute ? '' : API) + path + ending
  }
}

/**
 * Reads the result of an operation.
 *
 * @param {OperationName} name
 * @param {Response} response
 * @returns {Promise<unknown>}
 */
export async function readResponse(name, response) {
  switch (operations[name].response) {
    case 'json':
      return response.json().catch((cause) => {
        throw new UnexpectedResponse(`the response is no JSON: ${describe(cause)}`, { cause })
      })
    case 'text':
      return response.text()
    case 'bytes':
      return new Uint8Array(await response.arrayBuffer())
    case 'none':
      return undefined
    default:
      return response
  }
}

/** @param {Response} response */
export async function readError(response) {
  const text = await response.text().catch(() => '')
  return errorOfResponse(response.status, response.headers.get('content-type') ?? '', text)
}

/** @param {unknown} cause */
export function describe(cause) {
  if (!(cause instanceof Error)) return String(cause)
  const inner = cause.cause instanceof Error ? cause.cause.message : ''
  return inner ? `${cause.message} (${inner})` : cause.message
}

/** @param {string} path */
function quotePath(path) {
  return path.replace(/^\/+/, '').split('/').map(encodeURIComponent).join('/')
}

/** @param {string} name */
function camelCase(name) {
  return name.replace(/[_-]+(.)/g, (_, /** @type {string} */ letter) => letter.toUpperCase())
}
