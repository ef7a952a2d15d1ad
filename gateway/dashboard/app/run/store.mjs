// What the page knows of one run: its state as the server folds it, and the history of its events.
//
// The state is read again after events, at intervals that grow with the time that reading takes. Between two reads the states
// of tasks follow the events, so that a large run is live too.
import { ApiError, runPath, send } from "../api.mjs";
import { connection } from "../connection.mjs";
import { Store } from "../store.mjs";
import { follow } from "../stream.mjs";
import { History } from "./history.mjs";

/** The shortest time between two reads of the state. */
const PAUSE = 250;
/** Reading takes at most this part of the time, and so does showing events. */
const SHARE = 8;

/** The state of a task after an event about it. @type {Record<string, (event: any) => string | null>} */
const STATE_AFTER = {
  task_ready: () => "ready",
  task_pending: () => "pending",
  task_rerun: () => "rerun",
  task_capability_missing: () => "errored",
  task_parameters_rejected: () => "errored",
  task_reopened: (event) => (event.ready ? "ready" : "pending"),
  task_invalidated: () => "pending",
  task_completed: () => "completed",
  task_failed: () => "failed",
  task_cancelled: () => "cancelled",
  attempt_claimed: () => "running",
  // Without a review, the task is completed in the same decision.
  attempt_finished: () => "needs_review",
  attempt_failed: (event) => (event.retry_at ? "errored" : null),
  attempt_timed_out: (event) => (event.retry_at ? "errored" : null),
  attempt_parked: () => "waiting",
};

/**
 * @typedef {object} RunView
 * @property {any} run The run as of `sequence`; `null` until it was read.
 * @property {number} sequence
 * @property {History} history The events up to now.
 * @property {any} error Why it could not be read.
 * @property {boolean} isEnded
 * @property {number} version Grows with each change.
 */

/** @extends {Store<RunView>} */
export class RunStore extends Store {
  /** @param {string} id */
  constructor(id) {
    super(/** @type {RunView} */ ({ run: null, sequence: 0, history: new History(), error: null, isEnded: false, version: 0 }));
    this.id = id;
    this.lastId = "";
    this.readAfter = 0;
    this.timer = 0;
    this.isReading = false;
    this.isStopped = false;
    this.stopStream = () => {};
    this.frame = 0;
    this.showAfter = 0;
    /** @type {Map<string, any>} */
    this.tasks = new Map();
  }

  start() {
    this.isStopped = false;
    this.read();
    this.open();
    const stop = connection.onRecovery(() => this.schedule(0));
    return () => {
      this.isStopped = true;
      stop();
      clearTimeout(this.timer);
      cancelAnimationFrame(this.frame);
      this.stopStream();
    };
  }

  /** Follows the events after the last one that was received. */
  open() {
    this.stopStream();
    this.stopStream = follow(`${runPath(this.id)}/events`, {
      after: this.lastId,
      onEvents: (events) => this.add(events),
      onEnd: () => {
        this.change({ isEnded: true });
        this.schedule(0);
      },
      onFailure: (error) => this.change({ error }),
    });
  }

  /** Reads the state now, and follows the events of a run that continues. Called after a command. */
  refresh() {
    this.schedule(0);
    if (this.value.isEnded) {
      this.change({ isEnded: false });
      this.open();
    }
  }

  /** @param {import("../stream.mjs").StreamEvent[]} events */
  add(events) {
    let isChanged = false;
    for (const { id, data } of events) {
      if (!id) continue;
      this.lastId = id;
      this.value.history.add(data);
      isChanged = true;
      if (data.sequence > this.value.sequence) this.patch(data);
    }
    if (!isChanged) return;
    this.schedule();
    this.frame ||= requestAnimationFrame(() => this.show());
  }

  /** Shows the events that were received: a burst is one change of the page, and a page that is slow to change does so less often. */
  show() {
    const started = performance.now();
    if (started < this.showAfter) {
      this.frame = requestAnimationFrame(() => this.show());
      return;
    }
    this.frame = 0;
    this.change({});
    // The page is rendered before timers run.
    setTimeout(() => {
      const now = performance.now();
      this.showAfter = now + (now - started) * SHARE;
    }, 0);
  }

  /** @param {any} event */
  patch(event) {
    const task = this.tasks.get(event.task);
    const state = STATE_AFTER[event.type]?.(event);
    const { run } = this.value;
    if (!task || !state || !run || task.state === state) return;
    run.task_counts[task.state] -= 1;
    run.task_counts[state] += 1;
    task.state = state;
  }

  /** @param {number} [delay] */
  schedule(delay = this.readAfter || PAUSE) {
    if (this.isStopped) return;
    if (this.timer && delay > 0) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), delay);
  }

  async read() {
    this.timer = 0;
    if (this.isReading || this.isStopped) {
      if (!this.isStopped) this.schedule();
      return;
    }
    this.isReading = true;
    const started = performance.now();
    try {
      const response = await send("GET", runPath(this.id));
      const run = await response.json();
      const sequence = Number((response.headers.get("ETag") ?? "0").replaceAll('"', ""));
      this.readAfter = Math.max(PAUSE, (performance.now() - started) * SHARE);
      this.tasks = new Map(run.tasks.map((/** @type {any} */ task) => [task.id, task]));
      this.change({ run, sequence, error: null });
      if (this.value.history.last > sequence) this.schedule();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (!error.isTransient || !this.value.run) this.change({ error });
      this.readAfter = 2_000;
    } finally {
      this.isReading = false;
    }
  }

  /** @param {Partial<RunView>} changes */
  change(changes) {
    this.set({ ...this.value, ...changes, version: this.value.version + 1 });
  }
}
