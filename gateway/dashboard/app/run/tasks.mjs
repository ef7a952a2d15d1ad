// The tasks as a table: the same data as the graph, for reading and for screen readers.
import { useMemo } from "../../vendor/vendor.mjs";
import { html } from "../html.mjs";
import { count, duration, money, tokens } from "../format.mjs";
import { moveFocus, useKeys } from "../keys.mjs";
import { setQuery, withQuery } from "../router.mjs";
import { Empty, VirtualList } from "../ui/basics.mjs";
import { State, TASK_STATES, stateLabel } from "../ui/states.mjs";
import { endOf, startOf } from "./plan.mjs";

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function TaskTable({ run, query, now }) {
  const { state = "", text = "" } = query;
  const shown = useMemo(() => run.tasks.filter((/** @type {any} */ task) => (!state || task.state === state)
    && (!text || `${task.id} ${task.objective} ${task.capability}`.toLowerCase().includes(text.toLowerCase()))), [run.tasks, state, text]);
  useKeys([
    { keys: "j", about: "Next task", action: () => moveFocus("a.task-line", 1) },
    { keys: "k", about: "Previous task", action: () => moveFocus("a.task-line", -1) },
  ]);
  const line = (/** @type {any} */ task) => {
    const [from, to] = [startOf(task), endOf(task)];
    const failing = task.attempts.findLast((/** @type {any} */ one) => one.error)?.error.message;
    const usage = task.usage_with_children ?? task.usage;
    return html`<a class="task-line" href=${withQuery({ task: query.task === task.id ? "" : task.id })} aria-current=${query.task === task.id ? "true" : undefined}>
      <${State} state=${task.state} /><span class="cut"><b>${task.parent ? "↳ " : ""}${task.id}</b> <span class="muted">${task.objective}</span></span>
      <span class="cut muted">${["failed", "errored", "cancelled", "rerun"].includes(task.state) ? (failing ?? task.reason ?? "") : (task.waiting_for ?? task.attempts.at(-1)?.summary ?? "")}</span>
      <span class="cut muted">${task.capability}</span><span class="right">${task.attempts.length || "-"}</span>
      <span class="right">${from === null ? "-" : duration((to ?? now) - from)}</span><span class="right">${tokens(usage) > 0 ? count(tokens(usage)) : "-"}</span><span class="right">${usage.cost_micros > 0 ? money(usage.cost_micros) : "-"}</span></a>`;
  };
  return html`<div class="panel tasks">
    <header><input type="search" class="grow" placeholder="Search in tasks" aria-label="Search in tasks" value=${text} onInput=${(/** @type {any} */ event) => setQuery({ text: event.target.value }, { replace: true })} />
      <label class="row"><span class="muted">State</span><select value=${state} onChange=${(/** @type {any} */ event) => setQuery({ state: event.target.value })}><option value="">all</option>${TASK_STATES.map((name) => html`<option key=${name} value=${name}>${stateLabel(name)} (${run.task_counts[name]})</option>`)}</select></label>
      <span class="muted nowrap">${shown.length} of ${run.tasks.length}</span></header>
    <div class="task-line task-head muted" aria-hidden="true"><span>State</span><span>Task</span><span>What it says</span><span>Capability</span><span class="right">Attempts</span><span class="right">Time</span><span class="right">Tokens</span><span class="right">Cost</span></div>
    ${shown.length === 0 ? html`<${Empty} title="No task fits" ><a class="button" href=${withQuery({ state: "", text: "" })}>Show all tasks</a><//>` : html`<${VirtualList} label="Tasks" height=${32} max=${680} items=${shown} render=${line} show=${shown.findIndex((/** @type {any} */ task) => task.id === query.task)} />`}
  </div>`;
}
