// The timeline: a row for each task, with the time that it waited, worked and was reviewed.
import { useMemo } from "../../vendor/vendor.mjs";
import { runPath, useHasResource, useResource } from "../api.mjs";
import { duration, timeOfDay } from "../format.mjs";
import { html } from "../html.mjs";
import { withQuery } from "../router.mjs";
import { clock, useStore } from "../store.mjs";
import { Empty, VirtualList } from "../ui/basics.mjs";
import { Glyph, tone } from "../ui/states.mjs";
import { KINDS, scaleOf, timeByKind } from "./segments.mjs";

/** The time between two reads of the steps of a live run. */
const EVERY = 3_000;
const STEPS = ["model", "tool", "step"];

/**
 * The model and tool calls, by task.
 * @param {any} data
 */
function stepsOf(data) {
  /** @type {Map<string, import("./segments.mjs").Segment[]>} */
  const rows = new Map();
  const add = (/** @type {string} */ id, /** @type {any} */ { attempt, segments }) => {
    const steps = segments.filter((/** @type {any} */ segment) => STEPS.includes(segment.kind))
      .map((/** @type {any} */ segment) => ({ ...segment, attempt, start: Date.parse(segment.start), end: segment.end ? Date.parse(segment.end) : null }));
    rows.set(id, [...(rows.get(id) ?? []), ...steps]);
  };
  for (const attempt of data?.attempts ?? []) add(attempt.task, attempt);
  for (const turn of data?.turns ?? []) add("", turn);
  return rows;
}

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function Timeline({ run, history, version, query, at, now: end, until }) {
  const isLive = !run.end && !at;
  const tick = useStore(clock);
  const now = isLive ? Math.max(tick, Date.now()) : end;
  const hasSteps = useHasResource("/runs/{run}/timeline");
  const rows = useMemo(() => (at ? history.segments.until(until) : history.segments.rows), [history, at, until]);
  const { data } = useResource(hasSteps ? runPath(run.run, "timeline") : null, at ? { at } : {}, { every: isLive ? EVERY : 0 });
  const steps = useMemo(() => stepsOf(data), [data]);
  const isCollapsed = query.idle !== "shown";
  const from = history.timeAt(0) ?? now;
  const { position, gaps } = useMemo(() => scaleOf(rows.values(), from, Math.max(now, from + 1), isCollapsed), [rows, isCollapsed, isLive ? Math.floor(now / 1000) : version + now]);
  const states = new Map(run.tasks.map((/** @type {any} */ task) => [task.id, task]));
  const ordered = useMemo(() => [...rows.entries()].filter(([, segments]) => segments.length > 0).sort((a, b) => a[1][0].start - b[1][0].start || (a[0] < b[0] ? -1 : 1)), [rows, version]);
  const kinds = useMemo(() => ({ ...timeByKind(rows.values(), now), ...timeByKind(steps.values(), now) }), [rows, steps, isLive ? 0 : version, Math.floor(now / 1000)]);
  if (ordered.length === 0) return html`<div class="panel"><${Empty} title="Nothing has started yet">Tasks appear here as soon as they wait for a worker.<//></div>`;
  const whole = (kinds.queued ?? 0) + (kinds.running ?? 0) + (kinds.review ?? 0) + (kinds.parked ?? 0) + (kinds.backoff ?? 0);
  const bar = (/** @type {any} */ segment, /** @type {number} */ index, thin = false) => {
    const [left, right] = [position(segment.start), position(segment.end ?? now)];
    const text = `${KINDS[segment.kind] ?? segment.kind}${segment.name ? ` ${segment.name}` : ""}: ${duration((segment.end ?? now) - segment.start)}, ${timeOfDay(segment.start)}${segment.worker ? `, ${segment.worker}` : ""}${segment.failed ? ", failed" : ""} (attempt ${segment.attempt})`;
    return html`<i key=${`${thin} ${index}`} class=${`segment kind-${segment.kind} ${thin ? "thin" : ""} ${segment.failed ? "failed" : ""}`} title=${text} style=${{ left: `${left * 100}%`, width: `max(${thin ? 1 : 2}px, ${(right - left) * 100}%)` }}></i>`;
  };
  const line = (/** @type {[string, any[]]} */ [id, segments]) => {
    const task = states.get(id);
    const attempts = Math.max(...segments.map((segment) => segment.attempt));
    const takeovers = new Set(segments.filter((segment) => segment.kind === "running").map((segment) => `${segment.attempt} ${segment.worker}`)).size - new Set(segments.filter((segment) => segment.kind === "running").map((segment) => segment.attempt)).size;
    const sums = timeByKind([segments], now);
    const label = Object.entries(sums).map(([kind, time]) => `${KINDS[kind]} ${duration(time)}`).join(", ");
    return html`<a class="time-line" href=${id ? withQuery({ task: query.task === id ? "" : id }) : withQuery({})} aria-current=${id && query.task === id ? "true" : undefined}>
      <span class=${`row time-name tone-${tone(task?.state ?? "")}`}>${task && html`<${Glyph} state=${task.state} />`}<span class="cut">${id || "planner"}</span>${attempts > 1 && id && html`<span class="badge" title=${`${attempts} attempts`}>×${attempts}</span>`}${takeovers > 0 && html`<span class="badge" title="Another worker has taken an attempt over">taken over</span>`}<span class="visually-hidden">${label}</span></span>
      <span class="time-track">${segments.map((segment, index) => bar(segment, index))}${(steps.get(id) ?? []).map((segment, index) => bar(segment, index, true))}</span></a>`;
  };
  return html`<div class="panel timeline">
    <header class="wrap"><div class="row wrap legend">${Object.keys(KINDS).filter((kind) => kinds[kind] > 0).map((kind) => html`<span class="row chip" key=${kind}><i class=${`swatch kind-${kind}`}></i>${KINDS[kind]} ${whole > 0 ? `${Math.round((kinds[kind] / whole) * 100)}%` : ""} · ${duration(kinds[kind])}</span>`)}</div>
      <a class="button small push" href=${withQuery({ idle: isCollapsed ? "shown" : "" })} aria-current=${isCollapsed ? "true" : undefined} title="Make times short in which nothing was worked on">Shorten idle times</a></header>
    <div class="time-line time-head muted" aria-hidden="true"><span>${duration(now - from)} in all</span><span class="time-track">${gaps.map((gap) => html`<i class="gap" style=${{ left: `${gap.at * 100}%` }}>${duration(gap.length)} idle</i>`)}</span></div>
    <${VirtualList} label="Timeline of the tasks" height=${28} max=${640} items=${ordered} render=${line} />
    ${hasSteps && !data && html`<p class="hint time-hint">Model and tool calls appear when their journals have been read.</p>`}
  </div>`;
}
