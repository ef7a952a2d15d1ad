// A run: its head, its tabs, the slider of the time, and a drawer for the task that is chosen. Everything is in the address.
import { useEffect, useMemo } from "../../vendor/vendor.mjs";
import { useResource, runPath } from "../api.mjs";
import { html } from "../html.mjs";
import { useKeys } from "../keys.mjs";
import { address, go, setQuery } from "../router.mjs";
import { useStore } from "../store.mjs";
import { useTitle } from "../title.mjs";
import { Failure, Guard, Loading, Tabs } from "../ui/basics.mjs";
import { RunStore } from "../run/store.mjs";
import { RunHead } from "../run/head.mjs";
import { TimeSlider } from "../run/slider.mjs";
import { Graph } from "../run/graph.mjs";
import { TaskTable } from "../run/tasks.mjs";
import { Timeline } from "../run/timeline.mjs";
import { Journal } from "../run/journal.mjs";
import { Report } from "../run/report.mjs";
import { Spend } from "../run/spend.mjs";
import { Log } from "../run/log.mjs";
import { Files } from "../run/files.mjs";
import { RunQuestions } from "../run/questions.mjs";
import { TaskDrawer } from "../run/drawer.mjs";

/**
 * @typedef {object} TabProperties
 * @property {any} run The run as of the time that the reader chose.
 * @property {import("../run/history.mjs").History} history Its events, also those after then.
 * @property {number} version Grows with each change of the history.
 * @property {Record<string, string>} query
 * @property {number} now The time until which what is in progress counts.
 * @property {string} [at] The sequence that the reader chose.
 * @property {number} until The time of the decision that the reader chose, in milliseconds; without one, no limit.
 * @property {() => void} refresh Reads the run again, after a command.
 */

/** @type {[string, string, (properties: TabProperties) => any][]} */
const TABS = [
  ["graph", "Graph", Graph],
  ["tasks", "Tasks", TaskTable],
  ["timeline", "Timeline", Timeline],
  ["journal", "Journal", Journal],
  ["report", "Report", Report],
  ["spend", "Spend", Spend],
  ["log", "Log", Log],
  ["files", "Files", Files],
  ["questions", "Questions", RunQuestions],
];

/** @param {{route: import("../router.mjs").Route}} properties */
export function RunScreen({ route }) {
  const id = route.path[1];
  const tab = TABS.find(([name]) => name === (route.path[2] ?? "graph")) ?? TABS[0];
  const { query } = route;
  const store = useMemo(() => new RunStore(id), [id]);
  useEffect(() => store.start(), [store]);
  const view = useStore(store);
  const past = useResource(query.at ? runPath(id) : null, { at: query.at });
  useTitle(view.run?.objective ? String(view.run.objective).slice(0, 60) : `Run ${id}`);
  const to = (/** @type {string} */ name, changes = {}) => address(["runs", id, name], { at: query.at, task: query.task, ...changes });
  const step = (/** @type {number} */ by) => go(to(TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length][0]));
  useKeys([
    { keys: "]", about: "Next tab", action: () => step(1) },
    { keys: "[", about: "Previous tab", action: () => step(-1) },
    ...TABS.map(([name, label], index) => ({ keys: String(index + 1), about: label, action: () => go(to(name)) })),
    { keys: "Escape", about: "Close the task", action: () => setQuery({ task: "" }) },
  ]);
  const { history } = view;
  const open = useMemo(() => (view.run?.tasks ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ task) => sum + openQuestionsOf(task), 0), [view.run]);
  if (!view.run) {
    if (!view.error) return html`<${Loading} height=${420} />`;
    return html`<div class="stack"><${Failure} error=${view.error} title=${view.error.kind === "run-not-found" ? "There is no such run" : "The run could not be read"} retry=${() => store.refresh()} />
      <div><a class="button" href="/runs">Show all runs</a></div></div>`;
  }
  // While an earlier state is being read, the one before it stays.
  const run = query.at ? (past.data ?? view.run) : view.run;
  const until = query.at ? (history.timeAt(history.countUntil(Number(query.at)) - 1) ?? Infinity) : Infinity;
  const end = run.end?.at ? Date.parse(run.end.at) : until;
  const label = (/** @type {string} */ name, /** @type {string} */ text) => (name === "questions" && open > 0 ? html`${text} <span class="count">${open}</span>` : text);
  const View = tab[2];
  const properties = { run, history, version: view.version, query, at: query.at, until, now: Number.isFinite(end) ? end : Date.now(), refresh: () => store.refresh() };
  return html`<div class="run">
    <${RunHead} ...${properties} live=${view.run} />
    <${TimeSlider} history=${history} at=${query.at} />
    ${past.error && html`<${Failure} error=${past.error} title="The earlier state could not be read" retry=${past.reload} />`}
    <${Tabs} label="Views of the run" current=${tab[0]} tabs=${TABS.map(([name, text]) => ({ id: name, name: label(name, text), href: to(name) }))} />
    <div class=${`run-body ${query.task && tab[0] !== "journal" ? "with-drawer" : ""}`}>
      <div class="grow"><${Guard} key=${tab[0]}><${View} ...${properties} /><//></div>
      ${query.task && tab[0] !== "journal" && html`<${TaskDrawer} ...${properties} id=${query.task} key=${query.task} />`}
    </div>
  </div>`;
}

/** @param {any} task */
function openQuestionsOf(task) {
  return task.attempts.flatMap((/** @type {any} */ attempt) => attempt.questions ?? []).filter((/** @type {any} */ question) => question.status === "open").length;
}
