// What a run has used: against its budget, over time, and by role, capability, model and task.
import { useMemo } from "../../vendor/vendor.mjs";
import { html } from "../html.mjs";
import { cost, count, money, tokens, words } from "../format.mjs";
import { withQuery } from "../router.mjs";
import { LineChart, SpendTable } from "../ui/chart.mjs";

/** @param {string} key @param {any} name @param {any} usage @param {string} [href] */
export const spendRow = (key, name, usage, href) => ({ key, name, href, tokens: tokens(usage), cost: usage.cost_micros ?? 0, calls: usage.model_calls ?? 0 });
/** @param {{tokens: number, cost: number}} a @param {{tokens: number, cost: number}} b */
export const bySpend = (a, b) => b.cost - a.cost || b.tokens - a.tokens;

const AMOUNTS = /** @type {Record<string, (value: number) => string>} */ ({ cost_micros: money, tokens: count, input_tokens: count, output_tokens: count, cached_tokens: count, model_calls: count, wall_time: (value) => `${Math.round(value)} s`, steps: count });

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function Spend({ run, history, version, at, until }) {
  const { spend, budget } = run;
  const limits = Object.entries(budget?.limits ?? {}).filter(([name, value]) => name in AMOUNTS && typeof value === "number");
  const hasCost = run.usage.cost_micros > 0;
  const line = useMemo(() => (hasCost ? history.cost : history.tokens).until(until), [history, version, at, hasCost]);
  const format = { count, money };
  const roles = [spendRow("planner", "planner", spend.planner), spendRow("workers", "workers", spend.workers), spendRow("critics", "critics", spend.critics)].filter((row) => row.calls > 0 || row.tokens > 0);
  const capabilities = Object.entries(spend.by_capability ?? {}).map(([name, usage]) => spendRow(name, name, usage)).filter((row) => row.tokens > 0 || row.calls > 0).sort(bySpend);
  const models = Object.entries(spend.by_model ?? {}).map(([name, usage]) => spendRow(name, name, usage)).sort(bySpend);
  const tasks = run.tasks.map((/** @type {any} */ task) => spendRow(task.id, task.id, task.usage, withQuery({ task: task.id }))).filter((/** @type {any} */ row) => row.tokens > 0 || row.calls > 0).sort(bySpend);
  return html`<div class="stack">
    <div class="grid">
      <section class="panel"><header><h2 class="grow">Used</h2></header><div class="body"><dl class="facts big">
        <dt>Cost</dt><dd>${cost(run.usage)}${cost(run.usage) === "no price" ? html` <span class="hint">the table of models has no price for them; the setting <code>prices</code> adds one</span>` : ""}</dd><dt>Tokens sent</dt><dd>${count(run.usage.input_tokens)}${run.usage.cached_tokens > 0 ? html` <span class="muted">${count(run.usage.cached_tokens)} from the provider's cache</span>` : ""}</dd><dt>Tokens received</dt><dd>${count(run.usage.output_tokens)}${run.usage.reasoning_tokens > 0 ? html` <span class="muted">${count(run.usage.reasoning_tokens)} for reasoning</span>` : ""}</dd><dt>Model calls</dt><dd>${count(run.usage.model_calls)}</dd><dt>Tool calls</dt><dd>${count(run.usage.tool_calls)}</dd></dl></div></section>
      <section class="panel"><header><h2 class="grow">Budget</h2></header><div class="body stack">${limits.length === 0 ? html`<p class="muted">The run has no limits.${run.end ? "" : html` <span class="hint">"Raise the budget" sets them.</span>`}</p>` : limits.map(([name, limit]) => {
        const left = budget.left[name];
        const used = left === undefined || left === null ? null : /** @type {number} */ (limit) - left;
        return html`<div key=${name}><div class="row"><span class="grow">${words(name.replace("_micros", ""))}</span><span class="muted">${used === null ? "use not known" : html`${AMOUNTS[name](used)} used or reserved, ${AMOUNTS[name](left)} left`} of ${AMOUNTS[name](/** @type {number} */ (limit))}</span></div>
          <div class=${`progress ${used !== null && used > /** @type {number} */ (limit) * 0.9 ? "tone-bad" : "tone-active"}`}><span style=${{ flexBasis: `${used === null ? 0 : Math.min(100, (used / /** @type {number} */ (limit)) * 100)}%` }}></span></div></div>`;
      })}</div></section>
    </div>
    <section class="panel"><header><h2>${hasCost ? "Cost" : "Tokens"} over time</h2></header><div class="body"><${LineChart} label=${hasCost ? "Cost" : "Tokens"} times=${line.times} values=${line.values} limit=${hasCost ? budget?.limits?.cost_micros : budget?.limits?.tokens} format=${hasCost ? money : count} /></div></section>
    <div class="grid wide"><${SpendTable} title="By role" rows=${roles} format=${format} /><${SpendTable} title="By capability" rows=${capabilities} format=${format} /><${SpendTable} title="By model" rows=${models} format=${format} /><${SpendTable} title="By task" rows=${tasks.slice(0, 100)} format=${format} /></div>
    ${tasks.length > 100 && html`<p class="muted">The 100 tasks that used most of ${tasks.length}.</p>`}
  </div>`;
}
