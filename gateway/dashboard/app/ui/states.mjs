// The states of runs, tasks, attempts and questions, and verdicts on statements: a word, a colour and a shape for each.
import { html } from "../html.mjs";
import { words } from "../format.mjs";

/** @type {Record<string, {tone: string, shape: string, label?: string}>} */
const STATES = {
  submitted: { tone: "quiet", shape: "dotted" },
  queued: { tone: "wait", shape: "dotted" },
  running: { tone: "active", shape: "run" },
  paused: { tone: "warn", shape: "pause" },
  interrupted: { tone: "warn", shape: "pause" },
  winding_down: { tone: "warn", shape: "run" },
  log_damaged: { tone: "bad", shape: "alert" },
  completed: { tone: "good", shape: "check" },
  completed_partial: { tone: "warn", shape: "alert", label: "completed in part" },
  failed: { tone: "bad", shape: "cross" },
  cancelled: { tone: "quiet", shape: "slash" },
  no_progress: { tone: "bad", shape: "cross", label: "failed: no progress" },
  planner_unavailable: { tone: "bad", shape: "cross", label: "failed: no planner" },
  budget_exhausted: { tone: "bad", shape: "cross" },
  max_steps: { tone: "bad", shape: "cross", label: "out of planner turns" },
  pending: { tone: "quiet", shape: "dotted" },
  ready: { tone: "quiet", shape: "ring" },
  needs_review: { tone: "wait", shape: "eye", label: "in review" },
  rerun: { tone: "warn", shape: "again" },
  errored: { tone: "warn", shape: "alert", label: "waits to retry" },
  waiting: { tone: "wait", shape: "pause" },
  under_review: { tone: "wait", shape: "eye" },
  accepted: { tone: "good", shape: "check" },
  rejected: { tone: "bad", shape: "again" },
  timed_out: { tone: "bad", shape: "alert" },
  given_up: { tone: "quiet", shape: "slash" },
  open: { tone: "wait", shape: "ask" },
  answered: { tone: "good", shape: "check" },
  expired: { tone: "warn", shape: "alert" },
  withdrawn: { tone: "quiet", shape: "slash" },
  supported: { tone: "good", shape: "check" },
  partly: { tone: "warn", shape: "wave", label: "supported in part" },
  contradicted: { tone: "bad", shape: "cross" },
  unsupported: { tone: "wait", shape: "minus", label: "not supported" },
  unverified: { tone: "quiet", shape: "ask", label: "not verified" },
};

/** The states of tasks, in the order in which they are shown. */
export const TASK_STATES = ["running", "needs_review", "waiting", "ready", "pending", "errored", "rerun", "failed", "cancelled", "completed"];

/** The states of runs by what a list is filtered for. */
export const RUN_FILTERS = {
  live: ["submitted", "queued", "running", "paused", "interrupted", "winding_down"],
  completed: ["completed", "completed_partial"],
  failed: ["failed", "no_progress", "planner_unavailable", "budget_exhausted", "max_steps", "log_damaged"],
  cancelled: ["cancelled"],
};

/** What live runs wait for, in the order of the API. @type {Record<string, string>} */
export const WAITS = {
  question: "a person", parameters: "other parameters", provider: "a provider", worker: "a worker",
  event: "an event", time: "a time", sub_agent: "a sub-agent",
};

/** @param {string} state */
export const isLive = (state) => RUN_FILTERS.live.includes(state);

/** @type {Record<string, string>} */
const SHAPES = {
  check: "M3 7.4 6 10.2 11.2 3.8",
  cross: "M3.6 3.6l6.8 6.8M10.4 3.6l-6.8 6.8",
  slash: "M3.6 10.4l6.8-6.8",
  pause: "M5 3.5v7M9 3.5v7",
  alert: "M7 3.2v4.6M7 10.4v.1",
  again: "M10.6 6.2A3.8 3.8 0 1 0 10.4 8.8M10.8 3.2v3H7.9",
  eye: "M1.8 7S3.8 3.7 7 3.7 12.2 7 12.2 7 10.2 10.3 7 10.3 1.8 7 1.8 7ZM7 6v2",
  wave: "M2.4 8c1.5-2.6 3-2.6 4.6-1s3.1 1.6 4.6-1",
  minus: "M3.2 7h7.6",
  ask: "M5 5.2a2 2 0 1 1 2.8 1.8c-.6.3-.8.6-.8 1.3M7 10.6v.1",
};

/** @param {string} state */
export const tone = (state) => STATES[state]?.tone ?? "quiet";
/** The state of an attempt: one that has failed waits for nothing, only its task may. @param {string} state */
export const attemptState = (state) => (state === "errored" ? "failed" : state);
/** @param {string} state */
export const stateLabel = (state) => STATES[state]?.label ?? words(state);

/**
 * The shape of a state.
 * @param {{state: string, size?: number}} properties
 */
export function Glyph({ state, size = 14 }) {
  const shape = STATES[state]?.shape ?? "ring";
  const outline = shape === "dotted" || shape === "ring" || shape === "run";
  return html`<svg width=${size} height=${size} viewBox="0 0 14 14" fill="none" stroke="currentColor" stroke-width="1.8"
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">
    ${outline && html`<circle cx="7" cy="7" r="4.6" stroke-width=${shape === "run" ? 1.6 : 1.5}
      stroke-dasharray=${shape === "dotted" ? "1.6 2.3" : shape === "run" ? "19 10" : undefined} class=${shape === "run" ? "spin" : undefined} />`}
    ${shape === "run" && html`<circle cx="7" cy="7" r="1.7" fill="currentColor" stroke="none" />`}
    ${!outline && html`<path d=${SHAPES[shape]} />`}
  </svg>`;
}

/**
 * A state as a word with its shape and colour.
 * @param {{state: string, label?: string}} properties
 */
export function State({ state, label }) {
  return html`<span class=${`state tone-${tone(state)}`}><${Glyph} state=${state} />${label ?? stateLabel(state)}</span>`;
}

/**
 * The state of a run: while nothing of its own plan is in progress, what it waits for.
 * @param {{run: {state: string, waiting?: string}}} properties
 */
export function RunState({ run: { state, waiting } }) {
  if (state !== "running" || !waiting) return html`<${State} state=${state} />`;
  return html`<${State} state="waiting" label=${`waiting (${waiting.replace("_", "-")})`} />`;
}

/**
 * The progress of tasks as a bar with a part for each state.
 * @param {{counts: Record<string, number>}} properties
 */
export function TaskProgress({ counts }) {
  const total = counts.total || 1;
  const parts = ["completed", "failed", "cancelled", "needs_review", "running", "waiting", "errored", "rerun"].filter((state) => counts[state] > 0);
  const text = parts.map((state) => `${counts[state]} ${stateLabel(state)}`).join(", ");
  return html`<div class="progress" role="img" aria-label=${`${counts.total} tasks${text ? `: ${text}` : ""}`} title=${text || "no task has started"}>
    ${parts.map((state) => html`<span key=${state} class=${`tone-${tone(state)}`} style=${{ flexBasis: `${(counts[state] / total) * 100}%` }}></span>`)}
  </div>`;
}
