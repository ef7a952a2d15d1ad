// A task beside the view: what it does, why it is where it is, its attempts, and the commands.
import { html } from "../html.mjs";
import { duration, sumUsage, usageText, words } from "../format.mjs";
import { address, withQuery } from "../router.mjs";
import { Ago, Elapsed, LongText, Value } from "../ui/basics.mjs";
import { State, attemptState } from "../ui/states.mjs";
import { byId, children, dependents } from "./plan.mjs";
import { TaskActions } from "./steer.mjs";

/** @param {{verdict: any, critic: string | null}} properties */
export function Verdict({ verdict, critic }) {
  return html`<div class=${`notice tone-${verdict.passed ? "good" : "bad"}`}>
    <h3>${verdict.passed ? "Accepted" : "Rejected"}${critic ? html` <span class="muted">by ${critic}</span>` : ""}</h3>
    ${verdict.criteria?.length > 0 && html`<ul class="stack tight">${verdict.criteria.map((/** @type {any} */ one) => html`<li><${State} state=${one.met ? "completed" : "failed"} label=${one.met ? "met" : "not met"} /> <span class="words">${one.criterion}</span>${one.gap && html`<div class="mistake">${one.gap}</div>`}</li>`)}</ul>`}
    ${verdict.reasoning && html`<${LongText} text=${verdict.reasoning} />`}
    ${verdict.feedback && html`<p><b>Feedback:</b> <${LongText} as="span" text=${verdict.feedback} /></p>`}
    ${(verdict.opinions ?? []).map((/** @type {any} */ opinion) => html`<p class="words"><b>${opinion.model}</b> ${opinion.passed ? "accepts" : "rejects"}: ${opinion.reasoning}</p>`)}
  </div>`;
}

/** @param {any} error */
function errorName(error) {
  const kind = String(error.kind?.kind ?? error.kind ?? "other");
  return kind === "other" ? "Error" : words(kind);
}

/** @param {{run: any, task: any, attempt: any}} properties */
function Attempt({ run, task, attempt }) {
  const journal = address(["runs", run.run, "journal"], { task: task.id, attempt: attempt.number });
  const waits = [...(attempt.waits ?? [])];
  return html`<section class="attempt stack tight" aria-label=${`Attempt ${attempt.number}`}>
    <div class="row wrap"><b>Attempt ${attempt.number}</b><${State} state=${attemptState(attempt.state)} /><span class="muted nowrap"><${Elapsed} from=${attempt.claimed_at} to=${attempt.ended_at} /></span>
      <a class="button small push" href=${journal}>Journal</a></div>
    <div class="muted cut" title=${attempt.worker ?? ""}>${attempt.worker ? html`${attempt.worker} · <${Ago} at=${attempt.claimed_at} />` : "no worker has claimed it"} · ${usageText(sumUsage([attempt.usage, attempt.review_usage]))}</div>
    ${attempt.error && html`<div class="notice tone-bad"><h3>${errorName(attempt.error)}</h3><${LongText} text=${attempt.error.message} /></div>`}
    ${attempt.summary && html`<${LongText} text=${attempt.summary} />`}
    ${attempt.verdict && html`<${Verdict} verdict=${attempt.verdict} critic=${attempt.critic} />`}
    ${waits.map((/** @type {any} */ wait) => html`<p class="words">Waited for ${wait.waits_for}: ${wait.ended_at ? duration(Date.parse(wait.ended_at) - Date.parse(wait.since)) : html`since <${Ago} at=${wait.since} />`}</p>`)}
    ${(attempt.questions ?? []).map((/** @type {any} */ question) => html`<p class="words"><${State} state=${question.status} /> <a href=${address(["runs", run.run, "questions"])}>${question.tool ? `${question.kind} of ${question.tool}` : question.kind}</a> ${question.text}${question.by ? ` (${question.by})` : ""}</p>`)}
    ${(attempt.feedback ?? []).length > 0 && html`<details><summary>Feedback it was given (${attempt.feedback.length})</summary>${attempt.feedback.map((/** @type {string} */ text) => html`<${LongText} text=${text} />`)}</details>`}
  </section>`;
}

/** @param {import("../screens/run.mjs").TabProperties & {id: string}} properties */
export function TaskDrawer({ run, id, at, refresh }) {
  const tasks = byId(run.tasks);
  const task = tasks.get(id);
  const close = withQuery({ task: "" });
  const link = (/** @type {string} */ other) => html`<a class="chip" key=${other} href=${withQuery({ task: other })}>${tasks.has(other) ? html`<${State} state=${tasks.get(other).state} label=${other} />` : other}</a> `;
  if (!task) {
    return html`<aside class="panel drawer" aria-label="Task"><header><h2 class="grow">${id}</h2><a class="button plain" aria-label="Close" href=${close}>✕</a></header><div class="body">The run has no such task${at ? " at this time" : ""}.</div></aside>`;
  }
  const needs = task.depends_on;
  const after = dependents(run.tasks).get(id) ?? [];
  const own = children(run.tasks).get(id) ?? [];
  const attempts = [...task.attempts].reverse();
  const total = task.usage_with_children ?? task.usage;
  return html`<aside class="panel drawer" aria-label=${`Task ${id}`}>
    <header><h2 class="grow cut" title=${id}>${id}</h2><${State} state=${task.state} /><a class="button plain" aria-label="Close" title="Close (Esc)" href=${close}>✕</a></header>
    <div class="body stack">
      <${LongText} text=${task.objective} />
      ${task.reason && html`<div class=${`notice tone-${task.state === "failed" ? "bad" : "warn"} words`}>${task.reason}</div>`}
      ${task.waiting_for && task.waiting_for !== task.reason && html`<p class="words">Waits for ${task.waiting_for}</p>`}
      ${!at && html`<${TaskActions} run=${run} task=${task} refresh=${refresh} />`}
      <dl class="facts"><dt>Capability</dt><dd>${task.capability}${task.final ? " · its result is the deliverable" : ""}</dd>
        <dt>Used</dt><dd>${usageText(total)}${task.usage_with_children ? ` (with the tasks that it delegated)` : ""}</dd>
        ${task.parameters && html`<dt>Parameters</dt><dd><${Value} value=${task.parameters} /></dd>`}
        ${needs.length > 0 && html`<dt>Needs</dt><dd>${needs.slice(0, 40).map(link)}${needs.length > 40 ? ` and ${needs.length - 40} more` : ""}</dd>`}
        ${after.length > 0 && html`<dt>Needed by</dt><dd>${after.slice(0, 40).map(link)}${after.length > 40 ? ` and ${after.length - 40} more` : ""}</dd>`}
        ${task.parent?.task && html`<dt>Delegated by</dt><dd>${link(task.parent.task)}</dd>`}
        ${own.length > 0 && html`<dt>Delegated</dt><dd>${own.map((child) => link(child.id))}</dd>`}
      </dl>
      <div class="row wrap"><h3 class="grow">${task.attempts.length === 0 ? "No attempt yet" : "Attempts, newest first"}</h3>
        ${task.attempts.length > 1 && html`<a class="button small" href=${address(["compare"], { left: `${run.run}/${id}/${task.attempts.at(-2).number}`, right: `${run.run}/${id}/${task.attempts.at(-1).number}` })}>Compare the last two</a>`}</div>
      ${attempts.map((attempt) => html`<${Attempt} key=${attempt.number} run=${run} task=${task} attempt=${attempt} />`)}
    </div></aside>`;
}
