// The journals of a run: choose a task or a turn of the planner, and read each step as it was recorded; live while it is written.
import { useEffect, useMemo, useRef, useState } from "../../vendor/vendor.mjs";
import { ApiError, get, runPath } from "../api.mjs";
import { connection } from "../connection.mjs";
import { html } from "../html.mjs";
import { plural, words } from "../format.mjs";
import { address, withQuery } from "../router.mjs";
import { follow } from "../stream.mjs";
import { Elapsed, Empty, Failure, Guard, Loading, VirtualList } from "../ui/basics.mjs";
import { State, attemptState } from "../ui/states.mjs";
import { Entry } from "./entries.mjs";

const SHOWN = ["all", "model", "tools", "reviews"];

/**
 * The entries of a journal, followed while the run is live.
 * @param {string} run @param {string} task Empty for the planner. @param {number} number The attempt or turn. @param {boolean} isLive
 */
function useJournal(run, task, number, isLive) {
  const [state, setState] = useState(/** @type {{entries: any[] | null, error: any, live: Record<string, any>}} */ ({ entries: null, error: null, live: {} }));
  useEffect(() => {
    const abort = new AbortController();
    let stop = () => {};
    /** @type {Map<number, any>} */
    const entries = new Map();
    /** @type {Record<string, any>} */
    let live = {};
    let frame = 0;
    const show = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        setState({ entries: [...entries.values()].sort((a, b) => a.sequence - b.sequence), error: null, live });
      });
    };
    const isOwn = (/** @type {any} */ entry) => (task ? entry.task === task && entry.attempt === number : entry.planner_turn === number);
    const read = async () => {
      const path = task ? runPath(run, "tasks", task, "transcript") : runPath(run, "planner", "transcript");
      try {
        const data = await get(path, { attempt: number }, abort.signal);
        const found = (data.task?.attempts ?? data.turns ?? []).find((/** @type {any} */ one) => (one.number ?? one.turn) === number);
        for (const entry of found?.entries ?? []) entries.set(entry.sequence, entry);
        show();
        if (isLive) listen();
      } catch (error) {
        if (!abort.signal.aborted && error instanceof ApiError) setState({ entries: null, error, live: {} });
      }
    };
    const listen = () => {
      stop();
      const last = Math.max(0, ...entries.keys());
      stop = follow(`${runPath(run)}/events`, {
        query: { level: "live", ...(task ? { task } : {}) }, after: `${last}.0`,
        onEvents: (events) => {
          for (const { name, data } of events) {
            if (name === "step" && isOwn(data)) {
              entries.set(data.sequence, data);
              if (data.type === "model_call") live = {};
            } else if (name === "delta" && (task ? data.task === task && data.attempt === number : !data.task)) {
              const key = data.review ? "review" : "attempt";
              const before = data.restarted ? undefined : live[key];
              live = { ...live, [key]: { text: (before?.text ?? "") + data.text, calls: [...(before?.calls ?? []), ...data.calls] } };
            }
          }
          show();
        },
      });
    };
    read();
    const stopRecovery = connection.onRecovery(read);
    return () => {
      abort.abort();
      cancelAnimationFrame(frame);
      stop();
      stopRecovery();
    };
  }, [run, task, number, isLive]);
  return state;
}

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function Journal({ run, query, at }) {
  const isPlanner = query.task === undefined || query.task === "@planner";
  const fallback = run.turns.length > 0 ? "@planner" : run.tasks[0]?.id;
  const task = query.task ?? fallback;
  const chosen = run.tasks.find((/** @type {any} */ one) => one.id === task);
  const numbers = task === "@planner" ? run.turns.map((/** @type {any} */ turn) => turn.turn) : (chosen?.attempts ?? []).map((/** @type {any} */ attempt) => attempt.number);
  const number = Number(query.attempt ?? numbers.at(-1) ?? 1);
  const rows = useMemo(() => [...(run.turns.length > 0 ? [{ id: "@planner" }] : []), ...run.tasks], [run]);
  const line = (/** @type {any} */ one) => html`<a class="list-line journal-line" href=${withQuery({ task: one.id, attempt: "", entry: "" })} aria-current=${one.id === task ? "true" : undefined}>
    ${one.id === "@planner" ? html`<b>planner</b><span class="muted">${plural(run.turns.length, "turn")}</span>` : html`<${State} state=${one.state} label="" /><b class="cut">${one.id}</b><span class="muted nowrap">${one.attempts.length > 1 ? `×${one.attempts.length}` : ""}</span>`}</a>`;
  if (rows.length === 0) return html`<div class="panel"><${Empty} title="No journals yet">They begin as soon as a worker has claimed something.<//></div>`;
  const isLive = !run.end && !at;
  return html`<div class="split">
    <nav class="panel file-list" aria-label="Journals"><header><h2>Journals</h2></header><${VirtualList} label="Journals" height=${30} max=${600} items=${rows} render=${line} show=${rows.findIndex((one) => one.id === task)} /></nav>
    <div class="grow panel journal"><header class="wrap"><h2 class="grow cut">${task === "@planner" ? "Planner" : task}</h2>
        ${numbers.length > 1 && html`<div class="row wrap" role="group" aria-label=${isPlanner ? "Turns" : "Attempts"}>${numbers.map((/** @type {number} */ one) => html`<a key=${one} class=${`chip ${one === number ? "on" : ""}`} href=${withQuery({ attempt: one, entry: "" })}>${task === "@planner" ? "turn" : "attempt"} ${one}</a>`)}</div>`}
        <div class="row segmented" role="group" aria-label="Entries">${SHOWN.map((name) => html`<a key=${name} class="button small" href=${withQuery({ entries: name === "all" ? "" : name })} aria-current=${(query.entries ?? "all") === name ? "true" : undefined}>${name}</a>`)}</div>
        ${chosen?.attempts.length > 1 && html`<a class="button small" href=${address(["compare"], { left: `${run.run}/${task}/${numbers.at(-2)}`, right: `${run.run}/${task}/${numbers.at(-1)}` })}>Compare attempts</a>`}
        ${chosen && html`<a class="button small" href=${address(["runs", run.run, "graph"], { task })}>Task</a>`}</header>
      ${numbers.length === 0 ? html`<${Empty} title="Nothing is in this journal yet">${chosen?.waiting_for ? `The task waits for ${chosen.waiting_for}.` : "No worker has claimed it."}<//>` : html`<${Entries} key=${`${task} ${number}`} run=${run.run} task=${task === "@planner" ? "" : task} number=${number} isLive=${isLive} query=${query} at=${at} attempt=${chosen?.attempts.find((/** @type {any} */ one) => one.number === number)} />`}</div></div>`;
}

/** @param {{run: string, task: string, number: number, isLive: boolean, query: Record<string, string>, at?: string, attempt: any}} properties */
function Entries({ run, task, number, isLive, query, at, attempt }) {
  const { entries, error, live } = useJournal(run, task, number, isLive);
  const body = useRef(/** @type {HTMLDivElement | null} */ (null));
  useEffect(() => {
    if (query.entry && entries) body.current?.querySelector(`[data-sequence="${CSS.escape(query.entry)}"]`)?.scrollIntoView({ block: "center" });
  }, [query.entry, entries === null]);
  if (error) return html`<div class="body"><${Failure} error=${error} title="The journal could not be read" /></div>`;
  if (entries === null) return html`<${Loading} />`;
  const filter = query.entries ?? "all";
  const shown = entries.filter((entry) => (!at || entry.sequence <= Number(at)) && (filter === "all" || (filter === "model" && entry.type === "model_call") || (filter === "tools" && entry.type === "tool_result") || (filter === "reviews" && (entry.journal === "review" || entry.type === "verdict"))));
  return html`<div class="body stack entries" ref=${body}>
    ${attempt && html`<div class="row wrap"><${State} state=${attemptState(attempt.state)} /><span class="muted">${attempt.worker ?? "not claimed"} · <${Elapsed} from=${attempt.claimed_at} to=${attempt.ended_at} /></span></div>`}
    ${shown.length === 0 && html`<p class="muted">No entry ${filter === "all" ? "yet" : "of this kind"}.</p>`}
    ${shown.map((entry) => html`<div key=${entry.sequence} class=${`${entry.journal === "review" ? "of-review" : ""} ${String(entry.sequence) === query.entry ? "chosen" : ""}`}>${entry.journal === "review" && html`<span class="visually-hidden">review: </span>`}<${Guard}><${Entry} entry=${entry} /><//></div>`)}
    ${!at && Object.entries(live).map(([kind, { text, calls }]) => html`<article class="entry tone-active live-text" key=${kind} aria-label="Model output as it is written"><header class="row"><b class="entry-title">${kind === "review" ? "The critic writes" : "The model writes"}</b><span class="muted">${words("not in the log yet")}</span></header><div class="words reply">${text}<span class="caret" aria-hidden="true"></span></div>${calls.length > 0 && html`<p class="muted">calls ${calls.join(", ")}</p>`}</article>`)}
  </div>`;
}
