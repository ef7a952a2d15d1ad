// The questions of a run, open and closed.
import { useEffect } from "../../vendor/vendor.mjs";
import { runPath, useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { Empty, Failure, Loading } from "../ui/basics.mjs";
import { QuestionCard } from "../ui/question-card.mjs";

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function RunQuestions({ run, at, refresh }) {
  const { data, error, loading, reload } = useResource(runPath(run.run, "questions"), { history: true });
  const own = JSON.stringify(run.tasks.flatMap((/** @type {any} */ task) => task.attempts.flatMap((/** @type {any} */ attempt) => attempt.questions ?? [])));
  useEffect(reload, [own, run.state, run.waiting_for]);
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (loading && !data) return html`<${Loading} />`;
  const all = [...(data?.questions ?? [])].sort((a, b) => Number(b.status === "open") - Number(a.status === "open") || b.asked_at.localeCompare(a.asked_at));
  const first = all.findIndex((question) => question.status === "open");
  if (all.length === 0) return html`<div class="panel"><${Empty} title="This run has asked nobody">Approvals, questions of agents, reviews by people and the approval of the plan appear here.<//></div>`;
  return html`<div class="stack">${at && html`<p class="notice tone-warn">Questions are shown as they are now, not as of the chosen time.</p>`}${all.map((question, index) => html`<${QuestionCard} key=${question.id} question=${question} showRun=${false} isCurrent=${index === first} after=${refresh} />`)}</div>`;
}
