// The head of a run: objective, state, progress, what it needs, and the commands.
import { html } from "../html.mjs";
import { cost, count, shortId, tokens } from "../format.mjs";
import { address } from "../router.mjs";
import { Ago, CopyButton, Elapsed } from "../ui/basics.mjs";
import { State, TaskProgress, isLive, stateLabel } from "../ui/states.mjs";
import { RunActions } from "./steer.mjs";

/** @param {any} run Returns the failures that explain the state of a run, the cause first. */
function causes(run) {
  const failed = run.tasks.filter((/** @type {any} */ task) => task.state === "failed");
  return failed.map((/** @type {any} */ task) => {
    const attempt = task.attempts.findLast((/** @type {any} */ one) => one.error || one.verdict?.passed === false);
    const why = attempt?.error?.message ?? attempt?.verdict?.feedback ?? attempt?.verdict?.reasoning ?? task.reason;
    return { task, why };
  });
}

/** @param {{run: any}} properties */
function Outcome({ run }) {
  const { end, state } = run;
  const failures = causes(run);
  if (!end && !run.waiting_for_provider && failures.length === 0) return null;
  const tone = !end ? "warn" : state === "completed" ? "good" : state === "completed_partial" || state === "cancelled" ? "warn" : "bad";
  const isPlain = end && state === "completed" && failures.length === 0 && run.answered !== false;
  if (isPlain) return null;
  return html`<div class=${`notice tone-${tone} outcome`}>
    ${end && html`<h3>${stateLabel(state)}${end.detail ? `: ${end.detail}` : ""}</h3>`}
    ${run.answered === false && html`<p>The deliverable says that it does not answer the question.</p>`}
    ${run.waiting_for_provider && html`<p>Waits for <b>${run.waiting_for_provider.model}</b> since <${Ago} at=${run.waiting_for_provider.since} />; next try <${Ago} at=${run.waiting_for_provider.next_try_at} />. ${run.waiting_for_provider.error}</p>`}
    ${failures.slice(0, 4).map((/** @type {any} */ { task, why }) => html`<p class="words" key=${task.id}><a href=${address(["runs", run.run, "graph"], { task: task.id })}>${task.id}</a> failed: ${String(why ?? "no reason is recorded").slice(0, 600)}</p>`)}
    ${failures.length > 4 && html`<p><a href=${address(["runs", run.run, "tasks"], { state: "failed" })}>All ${failures.length} failed tasks</a></p>`}
  </div>`;
}

/** @param {import("../screens/run.mjs").TabProperties & {live: any}} properties */
export function RunHead({ run, live, at, now, refresh }) {
  const counts = run.task_counts;
  const fact = (/** @type {string} */ name, /** @type {any} */ value, title = "") => html`<div class="fact" title=${title}><span class="muted">${name}</span><span>${value}</span></div>`;
  const hasEnded = Boolean(run.end);
  return html`<div class="run-head">
    <div class="row top wrap">
      <div class="grow head-words">
        <h1 class="words clamp" title=${run.objective ?? ""}>${run.objective ?? "The run waits for a supervisor"}</h1>
        <div class="row wrap under"><${State} state=${run.state} /><span class="mono muted" title=${run.run}>${shortId(run.run)}</span>
          <${CopyButton} text=${run.run} label="Copy id" />
          ${run.mode && html`<span class="chip" title="Who makes the plan">${run.mode === "fixed" ? "fixed plan" : run.mode === "llm" ? "planned by a model" : "hybrid plan"}</span>`}
          ${Object.entries(run.labels ?? {}).map(([name, value]) => html`<a key=${name} class="chip" href=${address(["runs"], { label: `${name}=${value}` })}>${name}: ${value}</a>`)}
          ${(run.after ?? []).map((/** @type {any} */ earlier) => html`<a key=${earlier.run} class="chip" href=${address(["runs", earlier.run])} title="The run that this one follows up on">after ${shortId(earlier.run)}</a>`)}
          ${hasEnded && run.deliverable && html`<a class="button small" href=${address(["runs", run.run, "report"])}>Read the report</a>`}
        </div>
      </div>
      ${at ? html`<span class="chip">commands apply to the run as it is now</span>` : html`<${RunActions} run=${live} refresh=${refresh} />`}
    </div>
    <div class="facts-row">
      <div class="fact progress-fact"><span class="muted">Tasks</span><span class="row"><${TaskProgress} counts=${counts} /><span class="nowrap">${counts.completed} of ${counts.total}</span></span></div>
      ${fact("Started", html`<${Ago} at=${run.started_at} />`)}
      ${fact("Time", html`<${Elapsed} from=${run.started_at} to=${run.end?.at} now=${at ? now : undefined} />`)}
      ${fact("Tokens", tokens(run.usage) > 0 ? count(tokens(run.usage)) : "none", "Sent and received")}
      ${fact("Cost", cost(run.usage), "What is not known has no price in the settings")}
      ${fact("Model calls", count(run.usage.model_calls))}
      ${isLive(run.state) && run.waiting_for ? fact("Waits for", run.waiting_for) : null}
    </div>
    <${Outcome} run=${run} />
  </div>`;
}
