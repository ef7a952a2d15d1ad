// The inbox: the open questions of all runs, and what was answered.
import { useEffect, useState } from "../../vendor/vendor.mjs";
import { useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { plural } from "../format.mjs";
import { useKeys } from "../keys.mjs";
import { openQuestions, readQuestions } from "../questions.mjs";
import { setQuery, withQuery } from "../router.mjs";
import { useStore } from "../store.mjs";
import { useTitle } from "../title.mjs";
import { Empty, Failure, Loading } from "../ui/basics.mjs";
import { QuestionCard } from "../ui/question-card.mjs";

const KINDS = ["approval", "input", "review", "plan"];

/**
 * The questions that are shown: open ones stay in place when they are closed elsewhere, until the reader leaves them.
 * @param {any[] | null} open @param {any[]} all
 */
function useStayingQuestions(open, all) {
  const [seen, setSeen] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    if (!open) return;
    setSeen((/** @type {any[]} */ before) => {
      const known = new Set(before.map((question) => question.id));
      const now = new Map(open.map((question) => [question.id, question]));
      const closed = new Map(all.map((question) => [question.id, question]));
      return [...before.map((question) => now.get(question.id) ?? closed.get(question.id) ?? question), ...open.filter((question) => !known.has(question.id))];
    });
  }, [open, all]);
  return seen;
}

/** @param {{route: import("../router.mjs").Route}} properties */
export function InboxScreen({ route }) {
  const { kind = "", run = "", to = "", question: chosen = "" } = route.query;
  const isHistory = route.query.show === "history";
  const open = useStore(openQuestions);
  // One may be closed and another one opened between two reads.
  const openIds = (open ?? []).map((question) => question.id).join();
  const history = useResource("/questions", { history: true, turn: undefined }, { every: 0 });
  useEffect(() => history.reload(), [openIds, isHistory]);
  useTitle("Inbox");
  const closed = (history.data?.questions ?? []).filter((/** @type {any} */ question) => question.status !== "open");
  const staying = useStayingQuestions(open, closed);
  const all = isHistory ? [...closed].sort((a, b) => (b.decided_at ?? b.asked_at).localeCompare(a.decided_at ?? a.asked_at)) : staying;
  const shown = all.filter((question) => (!kind || question.kind === kind) && (!run || question.run === run) && (!to || question.to === to));
  const people = [...new Set(all.map((question) => question.to).filter(Boolean))];
  const selected = shown.findIndex((question) => question.id === chosen);
  const at = Math.max(0, selected >= 0 ? selected : shown.findIndex((question) => question.status === "open"));
  const select = (/** @type {number} */ index) => {
    const next = shown[Math.max(0, Math.min(shown.length - 1, index))];
    if (!next) return;
    setQuery({ question: next.id }, { replace: true });
    document.querySelector(`[data-question="${CSS.escape(next.id)}"]`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys([
    { keys: "j", about: "Next question", action: () => select(at + 1) },
    { keys: "k", about: "Previous question", action: () => select(at - 1) },
  ]);
  const times = closed.map((/** @type {any} */ question) => question.time_to_decide_ms).filter((/** @type {any} */ time) => typeof time === "number").sort((/** @type {number} */ a, /** @type {number} */ b) => a - b);
  const openCount = open?.length ?? 0;
  return html`<div class="stack inbox">
    <div class="row wrap filters"><h1 class="visually-hidden">Inbox</h1>
      <div class="row segmented" role="group" aria-label="Questions"><a class="button" href=${withQuery({ show: "", question: "" })} aria-current=${isHistory ? undefined : "true"}>Open (${open ? openCount : "…"})</a><a class="button" href=${withQuery({ show: "history", question: "" })} aria-current=${isHistory ? "true" : undefined}>History</a></div>
      <div class="row segmented" role="group" aria-label="Kinds">${["", ...KINDS].map((name) => html`<a key=${name} class="button" href=${withQuery({ kind: name })} aria-current=${kind === name ? "true" : undefined}>${name || "all kinds"}</a>`)}</div>
      ${people.length > 0 && html`<label class="row"><span class="muted">For</span><select value=${to} onChange=${(/** @type {any} */ event) => setQuery({ to: event.target.value })}><option value="">anyone</option>${people.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`}
      ${run && html`<a class="chip on" href=${withQuery({ run: "" })}>run ${run} ✕</a>`}
      ${times.length > 0 && isHistory && html`<span class="muted">${plural(closed.length, "closed question")}</span>`}
    </div>
    ${open === null && html`<${Loading} />`}
    ${history.error && isHistory && html`<${Failure} error=${history.error} retry=${history.reload} />`}
    ${open !== null && shown.length === 0 && html`<div class="panel"><${Empty} title=${isHistory ? "Nothing has been answered yet" : "No open questions"}>${isHistory ? "Answers appear here, with their authors and times." : "Questions of agents, approvals of calls, reviews and plans appear here by themselves."}<br />${(kind || run || to) && html`<a class="button" href="/inbox">Show all</a>`}<//></div>`}
    ${shown.map((question, index) => html`<${QuestionCard} key=${question.id} question=${question} isCurrent=${!isHistory && index === at} after=${() => {
      setQuery({ question: "" }, { replace: true });
      readQuestions();
    }} />`)}
  </div>`;
}
