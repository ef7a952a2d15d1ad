// The cluster: what is wrong and what to do, processes, queues, lanes, limits.
import { useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { age, bytes, count, plural, words } from "../format.mjs";
import { useTitle } from "../title.mjs";
import { Ago, Failure, Loading } from "../ui/basics.mjs";
import { State } from "../ui/states.mjs";

/** The time between two reads. */
const EVERY = 3_000;
/** A heartbeat that is older than this is late. */
const LATE = 20_000;
/** The version of a program without its build. @param {any} process */
const version = (process) => process.version;

/**
 * What is wrong, in words, with what to do.
 * @param {any} status
 * @returns {{tone: string, text: string, advice: string}[]}
 */
export function findings(status) {
  const list = [];
  const roles = (/** @type {string} */ role) => status.processes.filter((/** @type {any} */ one) => one.role === role);
  if (roles("supervisor").length === 0) list.push({ tone: "bad", text: "No supervisor is running: nothing is decided.", advice: "Start one with `millrace supervisor --nats URL`." });
  if (roles("worker").length === 0) list.push({ tone: "bad", text: "No worker is running: tasks wait.", advice: "Start one with `millrace worker --nats URL`." });
  if (roles("critic").length === 0) list.push({ tone: "warn", text: "No critic is running: reviews wait.", advice: "Start one with `millrace critic --nats URL`." });
  for (const lane of status.lanes) {
    if (!lane.owner) list.push({ tone: "bad", text: `Lane ${lane.lane} has no owner: its runs stand still.`, advice: "A supervisor takes it over after the lease of the last owner; if not, start another supervisor." });
    else if (lane.lag_messages > 1_000) list.push({ tone: "warn", text: `Lane ${lane.lane} is ${count(lane.lag_messages)} messages behind.`, advice: "Its supervisor is overloaded or its disk is slow; start another supervisor." });
  }
  for (const one of status.capabilities) {
    if (one.workers === 0 && one.queue?.pending > 0) list.push({ tone: "bad", text: `${plural(one.queue.pending, "task")} wait for the capability ${one.name}, which no process provides.`, advice: `Start a worker with a capability file for ${one.name}.` });
    else if (one.queue?.oldest_order_age_ms > 300_000) list.push({ tone: "warn", text: `The oldest order of ${one.name} waits since ${age(one.queue.oldest_order_age_ms)}.`, advice: "All slots are busy; start more workers or raise --slots." });
  }
  for (const process of status.processes) {
    if (process.heartbeat_age_ms > LATE) list.push({ tone: "warn", text: `${process.id} on ${process.host} has been silent for ${age(process.heartbeat_age_ms)}.`, advice: "It may be stopped, overloaded or cut off; its work is given to others when its lease ends." });
  }
  const versions = [...new Set(status.processes.map(version))];
  if (versions.length > 1) list.push({ tone: "warn", text: `The processes have different versions: ${versions.join(", ")}.`, advice: "Finish the upgrade: supervisors last." });
  const { used_bytes: used, limit_bytes: limit } = status.storage;
  if (limit && used > limit * 0.85) list.push({ tone: used > limit * 0.95 ? "bad" : "warn", text: `The store is ${Math.round((used / limit) * 100)}% full.`, advice: "Remove old runs or raise the limit of the account; a full store stops all runs." });
  return list;
}

export function ClusterScreen() {
  const { data: status, error, loading, reload } = useResource("/status", {}, { every: EVERY });
  const { data: limits } = useResource("/limits", {}, { every: EVERY });
  useTitle("Cluster");
  if (error && !status) return html`<${Failure} error=${error} retry=${reload} title="The cluster does not respond" />`;
  if (loading && !status) return html`<${Loading} height=${400} />`;
  const wrong = findings(status);
  const advice = (/** @type {string} */ text) => text.split("`").map((part, index) => (index % 2 === 1 ? html`<code>${part}</code>` : part));
  return html`<div class="stack cluster"><h1 class="visually-hidden">Cluster</h1>
    ${wrong.length === 0 ? html`<p class="notice tone-good"><${State} state="completed" label="All is well" /> Every lane has an owner, every queue is served, and all processes respond.</p>`
      : wrong.map((one) => html`<div class=${`notice tone-${one.tone}`} key=${one.text}><b>${one.text}</b> ${advice(one.advice)}</div>`)}
    <section class="panel"><header><h2 class="grow">Queues</h2><span class="muted">${plural(status.capabilities.length, "capability", "capabilities")}</span></header><div class="scroll"><table><thead><tr><th>Capability</th><th class="number">Waiting</th><th class="number">Oldest</th><th class="number">In progress</th><th class="number">Slots</th><th class="number">Processes</th></tr></thead>
      <tbody>${status.capabilities.map((/** @type {any} */ one) => html`<tr key=${one.name}><td><b>${one.name}</b><div class="muted words">${one.description ?? html`<span class="mistake">no process has announced it</span>`}</div></td>
        <td class="number">${one.queue ? count(one.queue.pending) : "-"}</td><td class="number">${one.queue?.oldest_order_age_ms ? age(one.queue.oldest_order_age_ms) : "-"}</td><td class="number">${one.queue ? count(one.queue.in_progress) : "-"}${one.queue?.redelivered > 0 ? html` <span class="chip" title="Delivered more than once">${one.queue.redelivered} again</span>` : ""}</td><td class="number">${one.slots.busy} of ${one.slots.total}</td><td class="number">${one.workers}</td></tr>`)}</tbody></table></div></section>
    <section class="panel"><header><h2 class="grow">Processes</h2><span class="muted">${plural(status.processes.length, "process", "processes")}</span></header><div class="scroll"><table><thead><tr><th>Process</th><th>Role</th><th>Host</th><th class="number">Slots</th><th>Does</th><th>Version</th><th class="number">Started</th><th class="number">Heartbeat</th></tr></thead>
      <tbody>${status.processes.map((/** @type {any} */ one) => html`<tr key=${one.id}><td class="mono">${one.id}${one.last_problem ? html`<div class="mistake" title=${one.last_problem.at}>${one.last_problem.level}: ${one.last_problem.message} (<${Ago} at=${one.last_problem.at} />)</div>` : ""}</td><td>${words(one.role)}</td><td>${one.host}:${one.pid}</td>
        <td class="number">${one.slots.total > 0 ? `${one.slots.busy} of ${one.slots.total}` : "-"}</td><td class="muted words">${one.lanes?.length > 0 ? `lanes ${one.lanes.join(", ")}` : one.capabilities.map((/** @type {any} */ part) => part.name).join(", ")}</td><td>${version(one)}</td><td class="number"><${Ago} at=${one.started_at} /></td><td class="number">${one.heartbeat_age_ms > LATE ? html`<span class="mistake">${age(one.heartbeat_age_ms)} ago</span>` : `${age(one.heartbeat_age_ms)} ago`}</td></tr>`)}</tbody></table></div></section>
    <div class="grid">
      <section class="panel"><header><h2 class="grow">Lanes of the log</h2></header><table><thead><tr><th>Lane</th><th>Owner</th><th class="number">Live runs</th><th class="number">Behind</th><th class="number">Messages</th></tr></thead><tbody>${status.lanes.map((/** @type {any} */ lane) => html`<tr key=${lane.lane}><td>${lane.lane}</td><td class="mono words">${lane.owner ?? html`<span class="mistake">nobody</span>`}</td><td class="number">${lane.live_runs ?? "-"}</td><td class="number">${lane.lag_messages === null || lane.lag_messages === undefined ? html`<span class="muted">not known</span>` : count(lane.lag_messages)}</td><td class="number">${count(lane.messages)}</td></tr>`)}</tbody></table></section>
      <section class="panel"><header><h2 class="grow">Rate limits of models</h2></header>${(limits?.limits ?? []).length === 0 ? html`<p class="body muted">No limits are set. <code>millrace limits set</code> sets them.</p>` : html`<table><thead><tr><th>Model</th><th class="number">Requests/min</th><th class="number">Tokens/min</th><th>Paused until</th></tr></thead><tbody>${limits.limits.map((/** @type {any} */ limit) => html`<tr key=${limit.name}><td class="words">${limit.name}</td><td class="number">${count(limit.requests.used)} of ${limit.requests.limit === null ? "any" : count(limit.requests.limit)}</td><td class="number">${count(limit.tokens.used)} of ${limit.tokens.limit === null ? "any" : count(limit.tokens.limit)}</td><td>${limit.paused_until ? html`<${Ago} at=${limit.paused_until} />` : "-"}</td></tr>`)}</tbody></table>`}</section>
      <section class="panel"><header><h2 class="grow">Runs and storage</h2></header><div class="body"><dl class="facts">${Object.entries(status.runs).map(([state, number]) => html`<dt>${words(state)}</dt><dd>${count(/** @type {number} */ (number))}</dd>`)}<dt>Stored</dt><dd>${bytes(status.storage.used_bytes)}${status.storage.limit_bytes ? ` of ${bytes(status.storage.limit_bytes)}` : ", no limit"}</dd><dt>Replicas</dt><dd>${status.cluster.replicas}</dd><dt>Leases</dt><dd>lanes ${status.cluster.lane_lease_ms / 1000} s, work ${status.cluster.work_lease_ms / 1000} s</dd></dl></div></section>
    </div></div>`;
}
