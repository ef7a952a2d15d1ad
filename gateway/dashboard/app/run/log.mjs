// The log: each decision of the supervisor with its events, and the facts that caused it.
import { useMemo } from "../../vendor/vendor.mjs";
import { runPath, useHasResource, useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { absoluteTime, timeOfDay, usageText, words } from "../format.mjs";
import { setQuery, withQuery } from "../router.mjs";
import { Empty, Failure, Loading, Value, VirtualList } from "../ui/basics.mjs";

/** The number of characters of an event that are shown in a line. */
const LINE = 400;
/** The number of decisions of a part that is read from the gateway. */
const PART = 200;

/** What is shown of an event in a line. @param {any} event */
export function eventText(event) {
  const { type, task, attempt } = event;
  const parts = [];
  if (task) parts.push(task);
  if (attempt && type.startsWith("attempt")) parts.push(`attempt ${attempt}`);
  if (event.work) parts.push(`${event.work.kind} ${event.work.task ?? `turn ${event.work.turn}`}`);
  if (event.turn) parts.push(`turn ${event.turn}`);
  const text = event.description ?? event.detail ?? event.reason ?? event.summary ?? event.trigger ?? event.text ?? event.problem ?? event.feedback ?? event.error?.message ?? (typeof event.error === "string" ? event.error : undefined)
    ?? event.spec?.objective ?? event.objective ?? event.reasoning ?? event.question?.text ?? (event.verdict ? (event.verdict.passed ? "accepted" : `rejected: ${event.verdict.feedback ?? event.verdict.reasoning}`) : undefined)
    ?? event.amounts ?? undefined;
  if (typeof text === "string") parts.push(text);
  else if (text) parts.push(Object.entries(text).filter(([, value]) => value !== null).map(([name, value]) => `${words(name)} ${value}`).join(", "));
  if (event.worker ?? event.critic) parts.push(`by ${event.worker ?? event.critic}`);
  if (event.by) parts.push(`by ${event.by}`);
  if (event.usage?.model_calls) parts.push(usageText(event.usage));
  return parts.map((part) => (part.length > LINE ? `${part.slice(0, LINE)}…` : part)).join(" · ");
}

/** @param {string} type */
const toneOf = (type) => (/failed|timed_out|rejected|refused|damaged|missing|too_small|given_up/.test(type) ? "bad" : /completed|finished|accepted|recovered/.test(type) ? "good" : /claimed|ready|started|resumed|woken/.test(type) ? "active" : /parked|question|asked|review/.test(type) ? "wait" : /user|message|signalled|budget_low|cancelled|paused|interrupted/.test(type) ? "warn" : "quiet");

/** The events of a part of the log. @param {any} part @returns {any[]} */
const eventsOf = (part) => (part?.decisions ?? []).flatMap((/** @type {any} */ { decision }) => decision.events.map((/** @type {any} */ event) => ({ ...event, sequence: decision.sequence, at: decision.at })));

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function Log({ run, history, version, query, at }) {
  const { text = "", about = "" } = query;
  const hasMessages = useHasResource("/runs/{run}/log");
  // A part that ends with a decision, counted from 1, or the newest events.
  const chosenEnd = query.until ? Number(query.until) : at ? Number(at) : Infinity;
  const end = history.countUntil(chosenEnd);
  const start = Math.max(0, end - PART);
  const after = start > 0 ? history.sequenceAt(start - 1) : 0;
  const isPart = hasMessages && end > 0 && chosenEnd < history.last && !history.hasAllAfter(after);
  const part = useResource(isPart ? runPath(run.run, "log") : null, { after, at: history.sequenceAt(end - 1), limit: PART });
  const partEvents = useMemo(() => eventsOf(part.data), [part.data]);
  const events = useMemo(() => (isPart ? partEvents : history.events.filter((event) => event.sequence <= chosenEnd)), [isPart, partEvents, history, version, chosenEnd]);
  const shown = useMemo(() => events.filter((event) => (!about || event.task === about) && (!text || `${words(event.type)} ${eventText(event)}`.toLowerCase().includes(text.toLowerCase()))), [events, text, about]);
  const { data } = useResource(query.decision && hasMessages ? runPath(run.run, "log") : null, { after: Number(query.decision) - 1, limit: 1 });
  const decision = (data?.decisions ?? []).find((/** @type {any} */ one) => String(one.decision.sequence) === query.decision);
  const inPage = query.decision ? events.filter((event) => String(event.sequence) === query.decision) : [];
  const chosen = inPage.length > 0 || !decision ? inPage : eventsOf(data);
  const first = isPart ? start : history.countUntil((events[0]?.sequence ?? 1) - 1);
  const line = (/** @type {any} */ event, /** @type {number} */ index) => {
    const isFirst = index === 0 || shown[index - 1].sequence !== event.sequence;
    return html`<a class="log-line" href=${withQuery({ decision: String(event.sequence) === query.decision ? "" : event.sequence })} aria-current=${String(event.sequence) === query.decision ? "true" : undefined}>
      <span class="mono muted right">${isFirst ? event.sequence : ""}</span><time class="mono muted" datetime=${event.at} title=${absoluteTime(event.at)}>${isFirst ? timeOfDay(event.at) : ""}</time>
      <span class=${`state tone-${toneOf(event.type)} cut`}>${words(event.type)}</span><span class="cut">${eventText(event)}</span></a>`;
  };
  return html`<div class="panel log">
    <header><input type="search" class="grow" placeholder="Search in the log" aria-label="Search in the log" value=${text} onInput=${(/** @type {any} */ event) => setQuery({ text: event.target.value }, { replace: true })} />
      <label class="row"><span class="muted">Task</span><select value=${about} onChange=${(/** @type {any} */ event) => setQuery({ about: event.target.value })}><option value="">all</option>${run.tasks.slice(0, 500).map((/** @type {any} */ task) => html`<option key=${task.id} value=${task.id}>${task.id}</option>`)}</select></label>
      <span class="muted nowrap" data-events=${shown.length}>${shown.length} of ${history.count} events</span></header>
    ${(first > 0 || isPart) && html`<div class="row body tight"><span class="muted grow">Decisions ${first + 1} to ${isPart ? end : history.countUntil(chosenEnd)} of ${history.decisions}. The search is in these only.</span>
      ${first > 0 && html`<a class="button small" href=${withQuery({ until: history.sequenceAt(first - 1), decision: "" })}>Earlier</a>`}
      ${query.until && html`<a class="button small" href=${withQuery({ until: history.sequenceAt(Math.min(history.decisions, end + PART) - 1), decision: "" })}>Later</a><a class="button small" href=${withQuery({ until: "", decision: "" })}>Newest</a>`}</div>`}
    ${part.error && html`<${Failure} error=${part.error} title="The earlier events could not be read" retry=${part.reload} />`}
    ${part.loading ? html`<${Loading} height=${640} />` : shown.length === 0 ? html`<${Empty} title=${history.count === 0 ? "No supervisor has decided anything yet" : "No event fits"} />` : html`<${VirtualList} label="Events of the log" height=${27} max=${query.decision ? 380 : 640} items=${shown} render=${line} follow=${!at} key=${query.until ?? ""} />`}
    ${chosen.length > 0 && html`<section class="body stack decision" aria-label="Decision"><header class="row"><h3 class="grow">Decision ${query.decision}, ${absoluteTime(chosen[0].at)}</h3><a class="button small" href=${withQuery({ at: query.decision, decision: "" })}>Show the run as of here</a><a class="button small" href=${withQuery({ decision: "" })}>Close</a></header>
      ${(decision?.messages ?? []).length > 0 && html`<div><h3>Caused by</h3><ul>${decision.messages.map((/** @type {any} */ fact) => html`<li class="words" key=${fact.sequence}><span class="mono muted">${fact.sequence}</span> ${words(fact.kind)}${fact.task ? ` of ${fact.task}` : ""}: ${fact.description}${fact.by ? html` <span class="muted">by ${fact.by}</span>` : ""}</li>`)}</ul></div>`}
      ${chosen.map((event) => html`<details open=${chosen.length < 4}><summary><b>${words(event.type)}</b> <span class="muted">${eventText(event).slice(0, 160)}</span></summary><${Value} value=${event} /></details>`)}</section>`}
  </div>`;
}
