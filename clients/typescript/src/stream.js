// One stream of events over any number of connections.

import { GatewayUnreachable, StreamError, UnexpectedResponse } from './errors.js'
import { Attempts, isTransient, retryAfter, sleep } from './retry.js'
import { StreamParser } from './sse.js'
import { describe, readError } from './transport.js'

/** @typedef {import('./transport.js').Transport} Transport */
/** @typedef {import('./transport.js').OperationName} OperationName */
/** @typedef {import('../types/api.js').EventLine} EventLine */
/** @typedef {import('../types/api.js').EntryLine} EntryLine */
/** @typedef {import('../types/api.js').StreamNotice} StreamNotice */

/**
 * An event of a run.
 *
 * @typedef {object} RunEvent
 * @property {string | undefined} id its position, such as `17.0`; undefined for `delta` and `lagged`, which are not in the log
 * @property {string} type its name, such as `task_completed`; `step` for an entry of a journal
 * @property {any} data its fields: an `EventLine`, of a `step` an `EntryLine`, of a notice a `StreamNotice`
 */

// The time after which a connection counts as progress, even if no event has arrived.
const STEADY_TIME = 10_000

/**
 * The events of a run: an async iterator that connects again by itself, and ends after the end of the run. No event is missing
 * or there twice, whatever was cut in between.
 *
 * @implements {AsyncIterable<RunEvent>}
 */
export class EventStream {
  #transport
  #name
  #values
  #signal

  /**
   * @param {Transport} transport
   * @param {OperationName} name
   * @param {Record<string, unknown>} values
   * @param {string | undefined} after
   * @param {AbortSignal | undefined} signal
   */
  constructor(transport, name, values, after, signal) {
    this.#transport = transport
    this.#name = name
    this.#values = values
    this.#signal = signal
    /** The id of the last event that was received; `events({after})` continues after it. */
    this.lastId = after
    /** The notice of the end: the last position, and whether the run can be resumed; undefined until then. */
    this.end = /** @type {Record<string, unknown> | undefined} */ (undefined)
  }

  async *[Symbol.asyncIterator]() {
    const { retry, streamTimeout } = this.#transport
    const attempts = new Attempts(retry, retry.streamTime)
    while (this.end === undefined) {
      const connection = new Connection(streamTimeout, this.#signal)
      let interruption = new Interruption('the connection has ended')
      try {
        const open = (/** @type {AbortSignal} */ signal) => this.#transport.openStream(this.#name, this.#values, this.lastId, signal)
        for await (const message of connection.messages(open)) {
          const event = this.#accept(message)
          if (event?.id !== undefined || connection.isSteady) attempts.progress()
          if (event !== undefined) yield event
          if (this.end !== undefined) return
        }
      } catch (error) {
        if (!(error instanceof Interruption)) throw error
        interruption = error
      } finally {
        connection.close()
      }
      const delay = attempts.fail(interruption.delay)
      if (delay === undefined) {
        const text = `the event stream has failed for ${retry.streamTime / 1_000} s: ${describe(interruption)}`
        throw new GatewayUnreachable(`${text}; continue it after ${this.lastId}`, { cause: interruption })
      }
      await sleep(delay, this.#signal)
    }
  }

  /**
   * Returns the event of a message; undefined if it is not for the user.
   *
   * @param {import('./sse.js').Message} message
   * @returns {RunEvent | undefined}
   */
  #accept(message) {
    const data = JSON.parse(message.data)
    if (message.id !== undefined) {
      // A proxy may repeat the last event.
      if (message.id === this.lastId || isBefore(message.id, this.lastId)) return undefined
      this.lastId = message.id
      return { id: message.id, type: message.name, data }
    }
    switch (message.name) {
      case 'end':
        this.end = data
        return undefined
      case 'error':
        throw new StreamError(`run ${data.run}: ${data.message}`)
      case 'delta':
        return { id: undefined, type: message.name, data }
      case 'lagged':
        // Without model output, a slow reader misses nothing.
        return this.#values.level === 'live' ? { id: undefined, type: message.name, data } : undefined
      default:
        // `gateway_stopping`: the connection ends, and the next gateway continues.
        return undefined
    }
  }
}

/** A failure of a connection that may pass. */
class Interruption extends Error {
  /**
   * @param {string} message
   * @param {ErrorOptions & {delay?: number}} [options]
   */
  constructor(message, options) {
    super(message, options)
    /** The least delay before the next connection. */
    this.delay = options?.delay ?? 0
  }
}

/** One connection of a stream, which is cut if the server is silent for too long. */
class Connection {
  #aborter = new AbortController()
  #openedAt = Date.now()
  #timeout
  #outer
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer
  #abort = () => this.#aborter.abort(this.#outer?.reason)

  /**
   * @param {number} timeout
   * @param {AbortSignal | undefined} outer
   */
  constructor(timeout, outer) {
    this.#timeout = timeout
    this.#outer = outer
    outer?.throwIfAborted()
    outer?.addEventListener('abort', this.#abort, { once: true })
  }

  /** `true` if the connection has lasted for so long that it counts as progress. */
  get isSteady() {
    return Date.now() - this.#openedAt > STEADY_TIME
  }

  /**
   * Opens the connection, and returns its messages as they arrive.
   *
   * @param {(signal: AbortSignal) => Promise<Response>} open
   */
  async *messages(open) {
    const response = await this.#guard(open(this.#aborter.signal))
    const type = response.headers.get('content-type') ?? ''
    if (!response.ok) {
      const error = await readError(response)
      if (!isTransient(response)) throw error
      throw new Interruption(error.message, { cause: error, delay: retryAfter(response) })
    }
    if (!type.startsWith('text/event-stream')) {
      throw new UnexpectedResponse(`the media type is '${type}', not text/event-stream`)
    }
    const parser = new StreamParser()
    const reader = response.body?.getReader()
    while (reader !== undefined) {
      const part = await this.#guard(reader.read())
      if (part.done) return
      yield* parser.feed(part.value)
    }
  }

  /**
   * Awaits a part of the response, for as long as the server may be silent.
   *
   * @template T
   * @param {Promise<T>} part
   * @returns {Promise<T>}
   */
  async #guard(part) {
    this.#timer = setTimeout(() => this.#aborter.abort(new Error('the stream is silent')), this.#timeout)
    try {
      return await part
    } catch (cause) {
      this.#outer?.throwIfAborted()
      throw new Interruption(describe(cause), { cause })
    } finally {
      clearTimeout(this.#timer)
    }
  }

  close() {
    this.#outer?.removeEventListener('abort', this.#abort)
    this.#aborter.abort()
  }
}

/**
 * `true` if an event of a run was before another one. Ids of other streams have another form, and no order.
 *
 * @param {string} id
 * @param {string | undefined} last
 */
function isBefore(id, last) {
  const [one, other] = [parsePosition(id), parsePosition(last)]
  if (one === undefined || other === undefined) return false
  return one[0] < other[0] || (one[0] === other[0] && one[1] <= other[1])
}

/**
 * @param {string | undefined} id
 * @returns {[number, number] | undefined}
 */
function parsePosition(id) {
  // A sequence alone names the last event of its message.
  const match = /^(\d+)(?:\.(\d+))?$/.exec(id ?? '')
  return match ? [Number(match[1]), match[2] === undefined ? Infinity : Number(match[2])] : undefined
}
