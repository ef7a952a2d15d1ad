// The head of a run: objective, state, progress, what it needs, and the commands.
import { html } from "../html.mjs";
import { cost, count, shortId, tokens } from "../format.mjs";
import { address } from "../router.mjs";
import { Ago, CopyButton, Elapsed } from "../ui/basics.mjs";
import { RunState, State, TaskProgress, isLive, stateLabel } from "../ui/states.mjs";
import { Session } from "../screens/runs.mjs";
import { RunActions } from "./steer.mjs";

const COUNTED_LATER = "Counted when an attempt ends";

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
  // The detail of a single failure says the same as its line.
  const isSaid = failures.length === 1 && Boolean(failures[0].why) && String(end?.detail).includes(String(failures[0].why));
  return html`<div class=${`notice tone-${tone} outcome`}>
    ${end && html`<h3>${stateLabel(state)}${end.detail && !isSaid ? `: ${end.detail}` : ""}</h3>`}
    ${run.answered === false && html`<p>The deliverable says that it does not answer the question.</p>`}
    ${run.waiting_for_provider && html`<p>Waits for <b>${run.waiting_for_provider.model}</b> since <${Ago} at=${run.waiting_for_provider.since} />; next try <${Ago} at=${run.waiting_for_provider.next_try_at} />. ${run.waiting_for_provider.error}</p>`}
    ${failures.slice(0, 4).map((/** @type {any} */ { task, why }) => html`<p class="words" key=${task.id}><a href=${address(["runs", run.run, "graph"], { task: task.id })}>${task.id}</a> failed${task.attempts.length > 1 ? ` after ${task.attempts.length} attempts` : ""}: ${String(why ?? "no reason is recorded").slice(0, 600)}</p>`)}
    ${failures.length > 4 && html`<p><a href=${address(["runs", run.run, "tasks"], { state: "failed" })}>All ${failures.length} failed tasks</a></p>`}
  </div>`;
}

/** The provider whose models are no language models. */
const BUILT_IN = "builtin:";

/** @param {import("../screens/run.mjs").TabProperties & {live: any}} properties */
export function RunHead({ run, live, at, now, refresh }) {
  const counts = run.task_counts;
  const fact = (/** @type {string} */ name, /** @type {any} */ value, title = "") => html`<div class="fact" title=${title}><span class="muted">${name}</span><span>${value}</span></div>`;
  const hasEnded = Boolean(run.end);
  const isCounted = hasEnded || tokens(run.usage) > 0;
  const models = Object.keys(run.spend?.by_model ?? {});
  const hasNoModel = models.length > 0 && models.every((name) => name.startsWith(BUILT_IN));
  const planned = hasNoModel ? "planned without a model" : "planned by a model";
  return html`<div class="run-head">
    <div class="row top wrap">
      <div class="grow head-words">
        <h1 class="words clamp" title=${run.objective ?? ""}>${run.objective ?? "The run waits for a supervisor"}</h1>
        <div class="row wrap under">${at ? html`<${State} state=${run.state} />` : html`<${RunState} run=${run} />`}<span class="mono muted" title=${run.run}>${shortId(run.run)}</span>
          <${CopyButton} text=${run.run} label="Copy id" />
          ${run.mode && html`<span class="chip" title="Who makes the plan">${run.mode === "fixed" ? "fixed plan" : run.mode === "llm" ? planned : "hybrid plan"}</span>`}
          ${Object.entries(run.labels ?? {}).map(([name, value]) => html`<a key=${name} class="chip" href=${address(["runs"], { label: `${name}=${value}` })}>${name}: ${value}</a>`)}
          <${Session} run=${run} />
          ${(run.after ?? []).map((/** @type {any} */ earlier) => html`<a key=${earlier.run} class="chip" href=${address(["runs", earlier.run])} title="The run that this one follows up on">after ${shortId(earlier.run)}</a>`)}
          ${hasEnded && run.deliverable && html`<a class="button small" href=${address(["runs", run.run, "report"])}>${run.state === "completed" ? "Read the report" : "Read what there is"}</a>`}
        </div>
      </div>
      ${at ? html`<span class="chip">commands apply to the run as it is now</span>` : html`<${RunActions} run=${live} refresh=${refresh} />`}
    </div>
    <div class="facts-row">
      <div class="fact progress-fact"><span class="muted">Tasks</span><span class="row"><${TaskProgress} counts=${counts} /><span class="nowrap">${counts.completed} of ${counts.total}</span></span></div>
      ${fact("Started", html`<${Ago} at=${run.started_at} />`)}
      ${fact("Time", html`<${Elapsed} from=${run.started_at} to=${run.end?.at} now=${at ? now : undefined} />`)}
      ${fact("Tokens", !isCounted ? "-" : tokens(run.usage) > 0 ? count(tokens(run.usage)) : "none", isCounted ? "Sent and received" : COUNTED_LATER)}
      ${fact("Cost", isCounted ? cost(run.usage) : "-", isCounted ? "\u201cNo price\u201d: the table of models has no price for one that was used" : COUNTED_LATER)}
      ${fact("Model calls", !isCounted ? "-" : hasNoModel ? "none" : count(run.usage.model_calls), !isCounted ? COUNTED_LATER : hasNoModel ? `No language model: ${models.join(", ")} quotes the documents` : "")}
      ${isLive(run.state) && run.waiting_for && !at ? fact("Waits for", run.waiting_for) : null}
    </div>
    <${Outcome} run=${run} />
  </div>`;
}
