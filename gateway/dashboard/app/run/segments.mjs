// What each attempt did, from when to when, by the events of the log. Pure.

/**
 * @typedef {object} Segment
 * @property {string} kind
 * @property {number} start
 * @property {number | null} end `null` if it has not ended.
 * @property {number} attempt
 * @property {string} [name]
 * @property {string} [worker]
 * @property {boolean} [failed]
 * @property {boolean} [review]
 */

/** The kinds of segments: what they are called. @type {Record<string, string>} */
export const KINDS = {
  queued: "waits for a worker", running: "works", model: "model", tool: "tool", step: "step", review: "in review", parked: "waits for people, tasks or times", backoff: "waits to retry",
};

/** The kind of segment that begins with an event; `null` if the segment only ends. @type {Record<string, (event: any) => string | null | undefined>} */
const BEGINS = {
  task_ready: () => "queued",
  task_rerun: () => "queued",
  task_reopened: (event) => (event.ready ? "queued" : null),
  task_invalidated: () => null,
  task_pending: () => null,
  attempt_claimed: () => "running",
  attempt_woken: () => "queued",
  attempt_parked: () => "parked",
  // Without a review, the task is completed in the same decision.
  attempt_finished: () => "review",
  attempt_failed: (event) => (event.retry_at ? "backoff" : null),
  attempt_timed_out: (event) => (event.retry_at ? "backoff" : null),
  task_capability_missing: () => "backoff",
  task_parameters_rejected: () => "backoff",
  task_completed: () => null,
  task_failed: () => null,
  task_cancelled: () => null,
};

/** The segments of each task, and those of the planner under an empty id. They grow with the events. */
export class Segments {
  constructor() {
    /** @type {Map<string, Segment[]>} */
    this.rows = new Map();
    /** @type {Map<string, number>} */
    this.attempts = new Map();
  }

  /** @param {any} event */
  add(event) {
    const { type, task } = event;
    if (event.attempt && task) this.attempts.set(task, event.attempt);
    if (type === "task_added" && event.ready) this.begin(task, event, "queued");
    else if (type === "planner_requested") this.begin("", event, "queued");
    else if (type === "planner_claimed") this.begin("", event, "running");
    else if (type === "planner_finished" || type === "planner_failed") this.begin("", event, null);
    else if (task && type in BEGINS) this.begin(task, event, BEGINS[type](event) ?? null);
    else if (type === "run_ended" || type === "run_interrupted") for (const id of this.rows.keys()) this.begin(id, event, null);
  }

  /** The segments up to a time. @param {number} time @returns {Map<string, Segment[]>} */
  until(time) {
    const clip = (/** @type {Segment} */ segment) => (segment.end === null || segment.end <= time ? segment : { ...segment, end: null, failed: false });
    return new Map([...this.rows].map(([id, row]) => [id, row.filter((segment) => segment.start <= time).map(clip)]));
  }

  /** Ends the segment of a task, and begins the next one if there is one. @param {string} id @param {any} event @param {string | null} kind */
  begin(id, event, kind) {
    const row = this.rows.get(id) ?? [];
    this.rows.set(id, row);
    const at = Date.parse(event.at);
    const open = row.at(-1);
    if (open && open.end === null) {
      open.end = at;
      if (["attempt_failed", "attempt_timed_out", "planner_failed"].includes(event.type) && open.kind === "running") open.failed = true;
      if (open.end === open.start) row.pop();
    }
    if (kind) row.push({ kind, start: at, end: null, attempt: event.attempt ?? this.attempts.get(id) ?? 1, worker: event.worker });
  }
}

/**
 * Returns the time by kind, in milliseconds. Model and tool calls are within the time of work.
 * @param {Iterable<Segment[]>} rows @param {number} now
 */
export function timeByKind(rows, now) {
  /** @type {Record<string, number>} */
  const sums = {};
  for (const row of rows) for (const { kind, start, end } of row) sums[kind] = (sums[kind] ?? 0) + Math.max(0, (end ?? now) - start);
  return sums;
}

/**
 * Returns a function from times to positions between 0 and 1. Long times in which nothing happened are made short.
 * @param {Iterable<Segment[]>} rows @param {number} from @param {number} to @param {boolean} isCollapsed
 */
export function scaleOf(rows, from, to, isCollapsed) {
  const whole = Math.max(1, to - from);
  if (!isCollapsed) return { position: (/** @type {number} */ time) => (time - from) / whole, gaps: /** @type {{at: number, length: number}[]} */ ([]) };
  const busy = [...rows].flat().filter((segment) => !["queued", "parked", "backoff"].includes(segment.kind)).map(({ start, end }) => [start, end ?? to]).sort((a, b) => a[0] - b[0]);
  /** @type {[number, number][]} */
  const gaps = [];
  let reached = from;
  for (const [start, end] of [...busy, [to, to]]) {
    if (start - reached > whole * 0.08) gaps.push([reached, start]);
    reached = Math.max(reached, end);
  }
  const short = whole * 0.03;
  const total = whole - gaps.reduce((sum, [start, end]) => sum + (end - start - short), 0);
  const position = (/** @type {number} */ time) => {
    let shift = 0;
    for (const [start, end] of gaps) {
      if (time >= end) shift += end - start - short;
      else if (time > start) shift += (time - start) * (1 - short / (end - start));
    }
    return (time - from - shift) / total;
  };
  return { position, gaps: gaps.map(([start, end]) => ({ at: position((start + end) / 2), length: end - start })) };
}
