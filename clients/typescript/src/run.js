// A run: its events, its results, and the commands that steer it.

import { WaitTimeout } from './errors.js'
import { EventStream } from './stream.js'
import { sleep } from './retry.js'

/** @typedef {import('./client.js').Client} Client */
/** @typedef {import('../types/api.js').RunData} RunData */
/** @typedef {import('../types/api.js').TaskSpec} TaskSpec */
/** @typedef {import('./answers.js').Answer} Answer */
/** @typedef {import('./transport.js').OperationName} OperationName */

/**
 * @typedef {object} EventOptions
 * @property {'decisions' | 'steps' | 'live'} [level] `steps` has the entries of the journals too, `live` also model output
 * @property {string[]} [types] only events with these names
 * @property {string} [task] only events of this task
 * @property {string} [after] only events after the one with this id
 * @property {AbortSignal} [signal] ends the stream
 */

/**
 * @typedef {object} CommandOptions
 * @property {'decided' | 'accepted'} [wait] when the command returns: when a supervisor has decided (default), or when the log has it
 * @property {number} [timeout] the longest wait for the decision in seconds
 * @property {string} [idempotencyKey] a key by which a repetition is recognised; random by default
 */

const POLL = 30
const REPORT_TYPES = { markdown: 'text/markdown', html: 'text/html' }

/** A run. Creating one sends no request. */
export class Run {
  #client

  /**
   * @param {Client} client
   * @param {string} id
   * @param {number} [sequence]
   */
  constructor(client, id, sequence) {
    this.#client = client
    /** The id of the run. */
    this.id = id
    /** The sequence of the log at which its submission is visible; undefined unless this client submitted it. */
    this.sequence = sequence
  }

  /**
   * Follows the events of the run until it ends. The stream connects again by itself, and continues after the last event.
   *
   * @param {EventOptions} [options]
   * @returns {EventStream}
   */
  events(options = {}) {
    const { after, signal, ...values } = options
    return new EventStream(this.#client.transport, 'streamEvents', { run: this.id, ...values }, after, signal)
  }

  /**
   * Reads the run, now or as of a sequence of the log.
   *
   * @param {number} [at]
   */
  get(at) {
    return this.#client.call('readRun', { run: this.id, at })
  }

  /**
   * Waits for the end of the run, for as long as it takes or for `timeout` seconds.
   *
   * @param {{timeout?: number, signal?: AbortSignal}} [options]
   * @returns {Promise<RunData>}
   */
  async wait({ timeout = Infinity, signal } = {}) {
    const started = Date.now()
    const left = () => Math.max(0, timeout - (Date.now() - started) / 1_000)
    for (;;) {
      const seconds = Math.ceil(Math.min(POLL, left()))
      const polled = Date.now()
      const limit = Math.min(left() * 1_000, this.#client.transport.retry.streamTime)
      const options = { signal, serverTime: seconds * 1_000, limit }
      const response = await this.#client.transport.send('waitForRun', { run: this.id, timeout: seconds }, options)
      const state = /** @type {RunData} */ (await response.json())
      if (response.status === 200) return state
      if (left() === 0) throw new WaitTimeout(`run ${this.id} has not ended after ${timeout} s; its state is ${state.state}`)
      // A gateway that stops answers at once; another one will take its place.
      if (Date.now() - polled < seconds * 500) await sleep(Math.min(1_000, left() * 1_000), signal)
    }
  }

  /** Reads the deliverable with its sources. */
  result() {
    return this.#client.call('readResult', { run: this.id })
  }

  /**
   * Reads the report.
   *
   * @param {'markdown' | 'html'} [format]
   * @returns {Promise<string>}
   */
  async report(format = 'markdown') {
    const options = { accept: REPORT_TYPES[format] }
    return (await this.#client.transport.send('readReport', { run: this.id }, options)).text()
  }

  /**
   * Lists the files of the run, or those in a folder.
   *
   * @param {string} [folder]
   */
  async files(folder) {
    return (await this.#client.call('listFiles', { run: this.id, folder })).files
  }

  /**
   * Reads a file, in its newest version or in another one.
   *
   * @param {string} path
   * @param {number} [version]
   * @returns {Promise<Uint8Array>}
   */
  async file(path, version) {
    const response = await this.#client.transport.send('readFile', { run: this.id, path, version }, { accept: '*/*' })
    return new Uint8Array(await response.arrayBuffer())
  }

  /**
   * Lists the questions of the run: the open ones, with `history` the closed ones too.
   *
   * @param {{history?: boolean}} [options]
   */
  async questions({ history } = {}) {
    return (await this.#client.call('listRunQuestions', { run: this.id, history })).questions
  }

  /**
   * Answers a question. The first answer counts.
   *
   * @param {{id: string} | string} question
   * @param {Answer} answer
   */
  answer(question, answer) {
    return this.#client.answer(question, answer)
  }

  /**
   * Pauses the run: running tasks finish, and no new ones start.
   *
   * @param {CommandOptions} [options]
   */
  pause(options) {
    return this.#client.call('pauseRun', { run: this.id, ...options })
  }

  /**
   * Interrupts the run: work in flight is returned, and nothing runs until it is resumed.
   *
   * @param {CommandOptions} [options]
   */
  interrupt(options) {
    return this.#client.call('interruptRun', { run: this.id, ...options })
  }

  /**
   * Resumes the run, with new total limits if there is a budget.
   *
   * @param {CommandOptions & import('../types/api.js').ResumeBody} [options]
   */
  resume({ budget, ...options } = {}) {
    return this.#client.call('resumeRun', { run: this.id, body: budget ? { budget } : {}, ...options })
  }

  /**
   * Cancels the run.
   *
   * @param {string} [reason]
   * @param {CommandOptions} [options]
   */
  cancel(reason, options) {
    return this.#client.call('cancelRun', { run: this.id, body: reason === undefined ? {} : { reason }, ...options })
  }

  /**
   * Sends a message to the planner.
   *
   * @param {string} text
   * @param {CommandOptions} [options]
   */
  message(text, options) {
    return this.#client.call('sendMessage', { run: this.id, body: { text }, ...options })
  }

  /**
   * Signals an event, which ends the waits for it.
   *
   * @param {string} name
   * @param {unknown} [data]
   * @param {CommandOptions} [options]
   */
  signal(name, data, options) {
    const body = data === undefined ? { name } : { name, data }
    return this.#client.call('signalEvent', { run: this.id, body, ...options })
  }

  /**
   * Adds tasks, written as in a plan: all of them or none.
   *
   * @param {import('../types/api.js').AddBody['tasks']} tasks
   * @param {CommandOptions} [options]
   */
  add(tasks, options) {
    return this.#client.call('addTasks', { run: this.id, body: { tasks }, ...options })
  }

  /**
   * Changes a task that no worker has claimed yet.
   *
   * @param {string} task
   * @param {import('../types/api.js').EditBody} changes
   * @param {CommandOptions} [options]
   */
  edit(task, changes, options) {
    return this.#client.call('editTask', { run: this.id, task, body: changes, ...options })
  }

  /**
   * Cancels a task and its dependents.
   *
   * @param {string} task
   * @param {string} [reason]
   * @param {CommandOptions} [options]
   */
  cancelTask(task, reason, options) {
    return this.#client.call('cancelTask', { run: this.id, task, body: reason === undefined ? {} : { reason }, ...options })
  }

  /**
   * Retries a task and everything that depends on it. `changes` are changes of the task, as of `edit`: the attempt begins
   * with them.
   *
   * @param {string} task
   * @param {string} [feedback]
   * @param {CommandOptions & { changes?: import('../types/api.js').EditBody }} [options]
   */
  retry(task, feedback, { changes, ...options } = {}) {
    const body = { ...changes, ...(feedback !== undefined && { feedback }) }
    return this.#client.call('retryTask', { run: this.id, task, body, ...options })
  }
}
