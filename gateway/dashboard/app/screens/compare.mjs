// Two attempts, or two runs, side by side. The address has both: LEFT and RIGHT are RUN or RUN/TASK/ATTEMPT.
import { useMemo } from "../../vendor/vendor.mjs";
import { runPath, useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { cost, count, duration, shortId, sumUsage, tokens } from "../format.mjs";
import { address, setQuery, withQuery } from "../router.mjs";
import { useTitle } from "../title.mjs";
import { Elapsed, Empty, Failure, Loading } from "../ui/basics.mjs";
import { Diff } from "../ui/diff.mjs";
import { RunState, State, attemptState, stateLabel } from "../ui/states.mjs";
import { conversationOf, promptOf } from "../run/entries.mjs";
import { Verdict } from "../run/drawer.mjs";
import { byId, endOf, startOf } from "../run/plan.mjs";

/** @param {string | undefined} name */
function parseSide(name) {
  const [run = "", task = "", attempt = ""] = (name ?? "").split("/");
  return { run, task, attempt: Number(attempt) || 0 };
}

/** @param {{run: string, task: string, attempt: number}} side */
function useSide(side) {
  const run = useResource(side.run ? runPath(side.run) : null);
  const transcript = useResource(side.run && side.task ? runPath(side.run, "tasks", side.task, "transcript") : null, side.attempt ? { attempt: side.attempt } : {});
  const result = useResource(side.run && !side.task && run.data?.deliverable ? runPath(side.run, "result") : null);
  const attempts = transcript.data?.task.attempts ?? [];
  return { ...side, data: run.data, isRead: !side.task || Boolean(transcript.data), error: run.error ?? transcript.error, attempt: attempts.find((/** @type {any} */ one) => one.number === side.attempt) ?? attempts.at(-1), result: result.data };
}

/** Chooses a run, and a task and an attempt of it. @param {{name: "left" | "right", side: any, runs: any[]}} properties */
function Chooser({ name, side, runs }) {
  const task = side.data?.tasks.find((/** @type {any} */ one) => one.id === side.task);
  const choose = (/** @type {string[]} */ ...parts) => setQuery({ [name]: parts.filter(Boolean).join("/") });
  const known = runs.some((run) => run.run === side.run) || !side.run ? runs : [{ run: side.run, objective: side.data?.objective }, ...runs];
  return html`<fieldset class="stack tight"><legend>${name === "left" ? "Left" : "Right"}</legend>
    <select aria-label=${`${name} run`} value=${side.run} onChange=${(/** @type {any} */ event) => choose(event.target.value)}><option value="">Choose a run</option>${known.map((run) => html`<option key=${run.run} value=${run.run}>${shortId(run.run)} · ${(run.objective ?? "").slice(0, 70)}</option>`)}</select>
    ${side.data && html`<div class="row"><select aria-label=${`${name} task`} value=${side.task} onChange=${(/** @type {any} */ event) => choose(side.run, event.target.value)}><option value="">the whole run</option>${side.data.tasks.map((/** @type {any} */ one) => html`<option key=${one.id} value=${one.id}>${one.id}</option>`)}</select>
      ${task && html`<select aria-label=${`${name} attempt`} value=${side.attempt?.number ?? ""} onChange=${(/** @type {any} */ event) => choose(side.run, side.task, event.target.value)}>${task.attempts.map((/** @type {any} */ one) => html`<option key=${one.number} value=${one.number}>attempt ${one.number}, ${stateLabel(attemptState(one.state))}</option>`)}</select>`}</div>`}</fieldset>`;
}

/** @param {{left: any, right: any}} properties */
function Attempts({ left, right }) {
  const [a, b] = [left.attempt, right.attempt];
  if (!a || !b) return html`<${Empty} title="Nothing to compare">A task has no such attempt yet; choose another one above.<//>`;
  const result = (/** @type {any} */ one) => {
    const entry = one.entries.findLast((/** @type {any} */ step) => step.type === "result");
    return entry?.result?.output || entry?.summary || one.error?.message || "";
  };
  const used = (/** @type {any} */ one) => sumUsage([one.usage, one.review_usage]);
  const row = (/** @type {string} */ name, /** @type {(one: any) => any} */ value) => html`<tr><th>${name}</th><td>${value(a)}</td><td>${value(b)}</td></tr>`;
  const place = (/** @type {any} */ side, /** @type {any} */ one) => html`<a href=${address(["runs", side.run], { task: side.task })} title="The task in its run">${side.task}</a>, attempt ${one.number}`;
  return html`<div class="panel scroll"><table class="compare"><thead><tr><th></th><th>${place(left, a)}</th><th>${place(right, b)}</th></tr></thead><tbody>
      ${row("State", (one) => html`<${State} state=${attemptState(one.state)} />`)}${row("Worker", (one) => one.worker ?? "-")}${row("Time", (one) => html`<${Elapsed} from=${one.claimed_at} to=${one.ended_at} />`)}
      ${row("Tokens", (one) => count(tokens(used(one))))}${row("Cost", (one) => cost(used(one)))}${row("Model calls", (one) => count(one.usage.model_calls))}${row("Tool calls", (one) => count(one.usage.tool_calls))}
      ${row("Error", (one) => (one.error ? html`<span class="mistake">${one.error.message}</span>` : "-"))}${row("Verdict", (one) => (one.verdict ? html`<${Verdict} verdict=${one.verdict} critic=${one.critic} />` : "-"))}
      ${row("Feedback it was given", (one) => ((one.feedback ?? []).length > 0 ? one.feedback.map((/** @type {string} */ text) => html`<p class="words">${text}</p>`) : "-"))}
    </tbody></table></div>
    <section class="stack"><h2>Result</h2><${Diff} label="Result" left=${result(a)} right=${result(b)} /></section>
    <section class="stack"><h2>Prompt as sent</h2><${Diff} label="Prompt" left=${promptOf(a.entries)} right=${promptOf(b.entries)} /></section>
    <section class="stack"><h2>Replies and tools</h2><${Diff} label="Conversation" left=${conversationOf(a.entries)} right=${conversationOf(b.entries)} /></section>`;
}

/** @param {{left: any, right: any}} properties */
function Runs({ left, right }) {
  const [a, b] = [left.data, right.data];
  const rows = useMemo(() => {
    const [x, y] = [byId(a.tasks), byId(b.tasks)];
    return [...new Set([...x.keys(), ...y.keys()])].map((id) => ({ id, left: x.get(id), right: y.get(id) }));
  }, [a, b]);
  const row = (/** @type {string} */ name, /** @type {(run: any) => any} */ value) => html`<tr><th>${name}</th><td>${value(a)}</td><td>${value(b)}</td></tr>`;
  const cell = (/** @type {any} */ task) => {
    if (!task) return html`<span class="muted">not in this plan</span>`;
    const [from, to] = [startOf(task), endOf(task)];
    return html`<div class="row wrap"><${State} state=${task.state} /><span class="muted">${from !== null && to !== null ? `${duration(to - from)} · ` : ""}${tokens(task.usage) > 0 ? `${count(tokens(task.usage))} tokens · ` : ""}${task.attempts.length} attempts</span></div>`;
  };
  return html`<div class="panel scroll"><table class="compare"><thead><tr><th></th><th><a href=${address(["runs", left.run])}>${shortId(left.run)}</a></th><th><a href=${address(["runs", right.run])}>${shortId(right.run)}</a></th></tr></thead><tbody>
      ${row("Objective", (run) => html`<span class="words">${run.objective}</span>`)}${row("State", (run) => html`<${RunState} run=${run} />`)}${row("Time", (run) => html`<${Elapsed} from=${run.started_at} to=${run.end?.at} />`)}${row("Tokens", (run) => count(tokens(run.usage)))}${row("Cost", (run) => cost(run.usage))}${row("Tasks", (run) => `${run.task_counts.completed} of ${run.task_counts.total}`)}
      ${rows.slice(0, 400).map(({ id, left: x, right: y }) => html`<tr key=${id}><th>${x && y ? html`<a href=${withQuery({ left: `${left.run}/${id}`, right: `${right.run}/${id}` })} title="Compare their last attempts">${id}</a>` : id}</th><td>${cell(x)}</td><td>${cell(y)}</td></tr>`)}
    </tbody></table></div>
    <section class="stack"><h2>Report</h2>${left.result && right.result ? html`<${Diff} label="Report" left=${left.result.output || left.result.summary} right=${right.result.output || right.result.summary} />` : html`<p class="muted">A side has no report.</p>`}</section>`;
}

/** @param {{route: import("../router.mjs").Route}} properties */
export function CompareScreen({ route }) {
  const left = useSide(parseSide(route.query.left));
  const right = useSide(parseSide(route.query.right));
  const { data } = useResource("/runs", { limit: 100 });
  useTitle("Compare");
  const error = left.error ?? right.error;
  const isChosen = left.run && right.run;
  const isRead = left.data && right.data && left.isRead && right.isRead;
  return html`<div class="stack"><h1>Compare</h1>
    <div class="grid"><${Chooser} name="left" side=${left} runs=${data?.runs ?? []} /><${Chooser} name="right" side=${right} runs=${data?.runs ?? []} /></div>
    ${error && html`<${Failure} error=${error} />`}
    ${!isChosen && html`<div class="panel"><${Empty} title="Choose two runs, or two attempts">The address of this page then has both, so that it can be sent to somebody.<//></div>`}
    ${isChosen && !error && !isRead && html`<${Loading} />`}
    ${isChosen && isRead && (left.task && right.task ? html`<${Attempts} left=${left} right=${right} />` : html`<${Runs} left=${left} right=${right} />`)}
  </div>`;
}
