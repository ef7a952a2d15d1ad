// The list of runs. Its filters are in the address.
import { useEffect, useState } from "../../vendor/vendor.mjs";
import { ApiError, get } from "../api.mjs";
import { connection } from "../connection.mjs";
import { count, money, plural, shortId, tokens } from "../format.mjs";
import { html } from "../html.mjs";
import { moveFocus, useKeys } from "../keys.mjs";
import { address, setQuery, withQuery } from "../router.mjs";
import { clock, useStore } from "../store.mjs";
import { useTitle } from "../title.mjs";
import { Ago, Elapsed, Empty, Failure, Loading } from "../ui/basics.mjs";
import { RUN_FILTERS, RunState, TaskProgress, WAITS, isLive } from "../ui/states.mjs";
import { onRunChange } from "../live-runs.mjs";

const PAGE = 50;
const FILTERS = ["all", "live", "completed", "failed", "cancelled"];
/** The filter for all waits. */
const ANY = "any";
/** @type {Record<string, string>} */
const PERIODS = { "": "any time", "1h": "the last hour", "24h": "the last day", "7d": "the last week" };

/**
 * The runs that a filter selects: the pages that were asked for, kept up to date.
 * @param {Record<string, string>} query
 */
function useRuns(query) {
  const key = JSON.stringify(query);
  const [state, setState] = useState(/** @type {any} */ ({ key: "", runs: [], next: "", error: null, isRead: false }));
  const [pages, setPages] = useState(1);
  const [turn, setTurn] = useState(0);
  useEffect(() => setPages(1), [key]);
  useEffect(() => {
    const abort = new AbortController();
    let isBusy = false;
    let isStale = false;
    const read = async () => {
      isStale = isBusy;
      if (isBusy) return;
      isBusy = true;
      try {
        const part = await get("/runs", { ...query, limit: Math.min(PAGE * pages, 1000) }, abort.signal);
        setState({ key, runs: part.runs, next: part.next, error: null, isRead: true });
      } catch (error) {
        if (abort.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        setState((/** @type {any} */ before) => ({ ...before, key, error, isRead: true, runs: before.key === key ? before.runs : [] }));
      } finally {
        isBusy = false;
        if (isStale && !abort.signal.aborted) setTimeout(read, 300);
      }
    };
    read();
    const stops = [onRunChange(read), connection.onRecovery(read)];
    return () => {
      abort.abort();
      for (const stop of stops) stop();
    };
  }, [key, pages, turn]);
  const isOwn = state.key === key;
  return {
    runs: isOwn ? state.runs : [], error: isOwn ? state.error : null, isRead: isOwn && state.isRead,
    more: isOwn && state.next ? () => setPages(pages + 1) : null, reload: () => setTurn(turn + 1),
  };
}

/** @param {{labels: Record<string, string> | undefined, selected: string}} properties */
export function Labels({ labels, selected }) {
  return html`${Object.entries(labels ?? {}).map(([name, value]) => {
    const label = `${name}=${value}`;
    return html`<a key=${name} class=${`chip ${selected === label ? "on" : ""}`} title=${`Only runs with the label ${label}`}
      href=${address(["runs"], { label })} onClick=${(/** @type {Event} */ event) => event.stopPropagation()}>${name}: ${value}</a>`;
  })}`;
}

/** @param {{run: any, selected?: string}} properties */
export function Session({ run, selected = "" }) {
  if (!run.session) return null;
  const place = run.session_position ? ` #${run.session_position}` : "";
  return html`<a class=${`chip ${selected === run.session ? "on" : ""}`} href=${address(["runs"], { session: run.session })} title="The runs of its session, which start one after the other">session ${run.session}${place}</a>`;
}

/** @param {{run: any, label: string, session: string}} properties */
function RunRow({ run, label, session }) {
  const href = address(["runs", run.run]);
  const { task_counts: counts } = run;
  const open = (/** @type {any} */ event) => event.target.closest("a, button") || event.currentTarget.querySelector("a")?.click();
  return html`<tr class="link-row" onClick=${open}>
    <td class="state-cell"><${RunState} run=${run} /></td>
    <td class="main-cell">
      <a class="objective" href=${href} title=${run.objective ?? ""}>${run.objective || "The run waits for a supervisor"}</a>
      <div class="row wrap under"><span class="mono muted">${shortId(run.run)}</span>
        <${Labels} labels=${run.labels} selected=${label} />
        <${Session} run=${run} selected=${session} />
        ${run.open_questions > 0 && html`<a class="chip asks" href=${address(["inbox"], { run: run.run })}>${plural(run.open_questions, "open question")}</a>`}
        ${run.waiting_for && run.open_questions === 0 && html`<span class="muted cut" title=${run.waiting_for}>${run.waiting_for}</span>`}
        ${run.waiting_for_provider && html`<span class="chip" title=${run.waiting_for_provider.error}>waits for ${run.waiting_for_provider.model}</span>`}
        ${run.log_damage && html`<span class="mistake">${run.log_damage}</span>`}
      </div></td>
    <td class="progress-cell"><div class="row"><${TaskProgress} counts=${counts} /><span class="number nowrap muted">${counts.completed}/${counts.total}</span></div></td>
    <td class="number">${tokens(run.usage) > 0 ? count(tokens(run.usage)) : html`<span class="muted">-</span>`}</td>
    <td class="number">${run.usage.cost_micros > 0 ? money(run.usage.cost_micros) : html`<span class="muted" title=${tokens(run.usage) > 0 ? "The table of models has no price for them" : "No model was used"}>${tokens(run.usage) > 0 ? "no price" : "-"}</span>`}</td>
    <td class="number"><${Elapsed} from=${run.started_at} to=${isLive(run.state) ? null : run.updated_at} /></td>
    <td class="number"><${Ago} at=${run.started_at} /></td>
  </tr>`;
}

/** @param {{route: import("../router.mjs").Route}} properties */
export function RunsScreen({ route }) {
  const { state = "all", waiting = "", label = "", session = "", since = "", text = "" } = route.query;
  const [typed, setTyped] = useState(text);
  useTitle("Runs");
  useStore(clock);
  useEffect(() => setTyped(text), [text]);
  useEffect(() => {
    const timer = setTimeout(() => typed !== text && setQuery({ text: typed }, { replace: true }), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  const states = /** @type {Record<string, string[]>} */ (RUN_FILTERS)[state] ?? (state === "all" ? [] : [state]);
  const { runs, error, isRead, more, reload } = useRuns({ state: states.join(","), waiting: waiting === ANY ? Object.keys(WAITS).join(",") : waiting, label, session, since, text });
  useKeys([
    { keys: "j", about: "Next run", action: () => moveFocus("a.objective", 1) },
    { keys: "k", about: "Previous run", action: () => moveFocus("a.objective", -1) },
  ]);
  const isFiltered = state !== "all" || waiting || label || session || since || text;
  return html`<div class="stack">
    <h1 class="visually-hidden">Runs</h1>
    <div class="row wrap filters">
      <div class="row segmented" role="group" aria-label="States">${FILTERS.map((name) => html`<a key=${name} class="button" href=${withQuery({ state: name === "all" ? "" : name })} aria-current=${state === name ? "true" : undefined}>${name}</a>`)}</div>
      <input type="search" class="grow" placeholder="Search in objectives" aria-label="Search in objectives" value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} />
      <label class="row nowrap"><span class="muted">Waits for</span>
        <select class="waits" value=${waiting} onChange=${(/** @type {any} */ event) => setQuery({ waiting: event.target.value })}>
          <option value="">all runs</option><option value=${ANY}>anything</option>${Object.entries(WAITS).map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}</select></label>
      <label class="row nowrap"><span class="muted">Started in</span>
        <select value=${since} onChange=${(/** @type {any} */ event) => setQuery({ since: event.target.value })}>${Object.entries(PERIODS).map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}</select></label>
      ${label && html`<a class="chip on" href=${withQuery({ label: "" })} title="Remove this filter">${label} ✕</a>`}
      ${session && html`<a class="chip on" href=${withQuery({ session: "" })} title="Remove this filter">session ${session} ✕</a> <a class="button" href=${address(["new"], { session })}>New run in it</a>`}
    </div>
    ${error && html`<${Failure} error=${error} retry=${reload} title="The runs could not be read" />`}
    ${!isRead && html`<${Loading} height=${320} />`}
    ${isRead && !error && runs.length === 0 && (isFiltered
      ? html`<div class="panel"><${Empty} title="No run fits these filters"><a class="button" href="/runs">Show all runs</a><//></div>`
      : html`<div class="panel"><${Empty} title="No runs yet">Give it an objective and documents, and follow what its agents do.<br /><a class="button primary" href="/new">Start a run</a><br /><code>millrace submit "What do these licences require?" --docs licences/</code><//></div>`)}
    ${runs.length > 0 && html`<div class="panel scroll"><table class="runs">
      <thead><tr><th>State</th><th>Objective</th><th>Tasks</th><th class="number">Tokens</th><th class="number">Cost</th><th class="number">Time</th><th class="number">Started</th></tr></thead>
      <tbody>${runs.map((/** @type {any} */ run) => html`<${RunRow} key=${run.run} run=${run} label=${label} session=${session} />`)}</tbody></table></div>
      ${more && html`<div><button type="button" class="button" onClick=${more}>Show more</button></div>`}`}
  </div>`;
}
