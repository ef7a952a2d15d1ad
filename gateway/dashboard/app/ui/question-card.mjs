// A question to a person, and the ways to answer it.
import { useEffect, useRef, useState } from "../../vendor/vendor.mjs";
import { html } from "../html.mjs";
import { duration, shortId, words } from "../format.mjs";
import { useKeys } from "../keys.mjs";
import { answerQuestion } from "../questions.mjs";
import { address } from "../router.mjs";
import { Ago, LongText, Refusal, Value, toast } from "./basics.mjs";
import { JsonField, SchemaField, mistakesOf } from "./schema-form.mjs";
import { State, tone } from "./states.mjs";

/** What each kind of answer is called, its key, and what it will do. @type {Record<string, {label: string, key: string, about: string, text?: string}>} */
const ANSWERS = {
  approve: { label: "Approve", key: "a", about: "It runs as it is." },
  edit: { label: "Edit and approve", key: "e", about: "It runs with your arguments; the agent is told that a person has changed them." },
  reject: { label: "Reject", key: "r", about: "It does not run. The agent reads your reason and continues.", text: "Reason" },
  respond: { label: "Respond", key: "s", about: "It does not run. The agent takes your text for the result.", text: "The result of the call" },
  answer: { label: "Answer", key: "a", about: "The agent continues with your answer." },
  decline: { label: "Decline", key: "d", about: "The agent is told that you do not answer." },
  pass: { label: "Accept the result", key: "a", about: "One vote for the result." },
  fail: { label: "Reject the result", key: "r", about: "The next attempt reads your feedback.", text: "Feedback" },
};

const SCOPES = { once: "this call only", this_call_in_run: "the same call in this run", this_tool_in_run: "every call of this tool in this run" };

/** What was answered: the word, and a state with its shape and colour. @type {Record<string, {word: string, state: string}>} */
const ANSWERED = {
  approve: { word: "approved", state: "accepted" },
  edit: { word: "approved with changes", state: "accepted" },
  reject: { word: "rejected", state: "rejected" },
  respond: { word: "responded", state: "answered" },
  answer: { word: "answered", state: "answered" },
  decline: { word: "declined", state: "withdrawn" },
  pass: { word: "accepted the result", state: "accepted" },
  fail: { word: "rejected the result", state: "rejected" },
};

/** @param {any} value */
const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** @param {any} answer */
function answerText(answer) {
  if (!answer) return "";
  const word = ANSWERED[answer.answer]?.word ?? answer.answer;
  // Changed arguments are shown beside those before.
  const more = answer.text ?? (answer.value === null || answer.value === undefined || answer.answer === "edit" ? "" : shown(answer.value));
  return more ? `${word}: ${more}` : word;
}

/** The arguments that a person has changed. @param {{before: any, after: any}} properties */
function ChangedArguments({ before, after }) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])].filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  return html`<dl class="arguments">${names.map((name) => html`<dt>${name}</dt><dd class="words">${before?.[name] !== undefined && html`<del>${shown(before[name])}</del> → `}${after?.[name] === undefined ? html`<span class="muted">removed</span>` : html`<b>${shown(after[name])}</b>`}</dd>`)}</dl>`;
}

/** What the question is about, in a heading. @param {any} question */
function heading(question) {
  if (question.kind === "approval") return html`May it call <code>${question.tool}</code>?`;
  if (question.kind === "review") return "Is this result good enough?";
  return question.kind === "plan" ? "May this plan start?" : "An agent asks";
}

/**
 * @param {{question: any, isCurrent?: boolean, showRun?: boolean, after?: () => void}} properties
 *   `isCurrent`: the keys of answers are for this question.
 */
export function QuestionCard({ question, isCurrent = false, showRun = true, after = () => {} }) {
  const [kind, setKind] = useState("");
  const card = useRef(/** @type {HTMLElement | null} */ (null));
  const isOpen = question.status === "open";
  const begin = (/** @type {string} */ next) => setKind(next === kind ? "" : next);
  const decisions = isOpen ? question.decisions : [];
  useKeys(isCurrent ? decisions.map((/** @type {string} */ name) => ({ keys: ANSWERS[name].key, about: ANSWERS[name].label, action: () => begin(name) })) : []);
  useEffect(() => {
    if (isCurrent && !kind) card.current?.focus({ preventScroll: false });
  }, [isCurrent, kind]);
  const place = [question.task && `task ${question.task}`, question.attempt && `attempt ${question.attempt}`].filter(Boolean).join(", ");
  return html`<article class=${`panel question ${isCurrent ? "current" : ""}`} ref=${card} tabIndex="-1" aria-label=${`Question ${question.id ?? question.number}: ${question.text}`} data-question=${question.id}>
    <header><h3 class="grow">${heading(question)}</h3>${question.to && html`<span class="chip">for ${question.to}</span>`}${question.round > 1 && html`<span class="chip">asked again, round ${question.round}</span>`}<span class="muted"><${Ago} at=${question.asked_at} /></span>${!isOpen && html`<${State} state=${ANSWERED[question.answer?.answer]?.state ?? question.status} label=${ANSWERED[question.answer?.answer]?.word} />`}</header>
    <div class="body stack">
      <${LongText} class="words strong" text=${question.text} />
      ${showRun && question.run && html`<p class="muted"><a href=${address(["runs", question.run], { task: question.task })}>${question.task ?? "plan"}</a> of run <a href=${address(["runs", question.run])}>${shortId(question.run)}</a>${question.attempt > 1 ? `, attempt ${question.attempt}` : ""}</p>`}
      ${!showRun && place && html`<p class="muted">${place}</p>`}
      ${question.arguments !== null && question.arguments !== undefined && kind !== "edit" && html`<${Arguments} value=${question.arguments} />`}
      ${question.result && html`<div><h3>The result</h3><${LongText} text=${question.result} /></div>`}
      ${question.criteria?.length > 0 && html`<div><h3>Criteria</h3><ul class="bullets">${question.criteria.map((/** @type {string} */ text) => html`<li class="words">${text}</li>`)}</ul></div>`}
      ${question.critic && html`<div><h3>What the critic says</h3><${LongText} text=${question.critic} /></div>`}
      ${question.expires_at && html`<p class="muted">Expires <${Ago} at=${question.expires_at} />, and then: ${words(question.on_expiry ?? "")}${question.escalate_to ? ` to ${question.escalate_to}` : ""}</p>`}
      ${!isOpen && html`<${Outcome} question=${question} />`}
      ${isOpen && !kind && question.options?.length > 0 && html`<p class="muted words">Proposed answers: ${question.options.join(", ")}</p>`}
      ${isOpen && html`<div class="row wrap">${decisions.map((/** @type {string} */ name) => html`<button type="button" key=${name} class=${`button ${["approve", "answer", "pass"].includes(name) ? "primary" : ""}`} aria-expanded=${kind === name} onClick=${() => begin(name)}>${ANSWERS[name].label}${isCurrent ? html` <kbd>${ANSWERS[name].key}</kbd>` : ""}</button>`)}</div>`}
      ${isOpen && kind && html`<${AnswerForm} key=${kind} question=${question} kind=${kind} onDone=${() => {
        setKind("");
        after();
      }} onCancel=${() => setKind("")} />`}
    </div></article>`;
}

/** @param {{value: any}} properties */
function Arguments({ value }) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return html`<${Value} value=${value} />`;
  return html`<dl class="arguments">${Object.entries(value).map(([name, one]) => html`<dt>${name}</dt><dd>${typeof one === "string" ? html`<${LongText} as="pre" class="code" text=${one} />` : html`<${Value} value=${one} />`}</dd>`)}</dl>`;
}

/** @param {{question: any}} properties */
function Outcome({ question }) {
  if (question.status === "withdrawn") return html`<p class="notice tone-quiet">Withdrawn: ${question.withdrawn}</p>`;
  if (question.status === "expired") return html`<p class="notice tone-warn">Nobody has answered in time; ${words(question.on_expiry ?? "it expired")}.</p>`;
  const { answer } = question;
  return html`<div class=${`notice tone-${tone(ANSWERED[answer?.answer]?.state ?? "answered")}`}><p class="words"><b>${question.by || "Somebody"}</b> ${answerText(answer)}</p>
    ${answer?.answer === "edit" && html`<${ChangedArguments} before=${question.arguments} after=${answer.value} />`}
    <p class="muted"><${Ago} at=${question.decided_at} />${question.time_to_decide_ms !== null && question.time_to_decide_ms !== undefined ? `, after ${duration(question.time_to_decide_ms)}` : ""}</p></div>`;
}

/** @param {{question: any, kind: string, onDone: () => void, onCancel: () => void}} properties */
function AnswerForm({ question, kind, onDone, onCancel }) {
  const about = ANSWERS[kind];
  const [text, setText] = useState("");
  const [value, setValue] = useState(kind === "edit" ? question.arguments : undefined);
  const [scope, setScope] = useState("once");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const hasValue = kind === "edit" || kind === "answer";
  const isFree = kind === "answer" && !question.schema;
  const mistakes = hasValue && question.schema ? mistakesOf(question.schema, value) : [];
  const isMissing = (about.text && !text.trim()) || (isFree && !text.trim());
  const send = async (/** @type {any} */ event) => {
    event?.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const body = { answer: kind, ...(about.text ? { text } : {}), ...(hasValue ? { value: isFree ? text : value } : {}), ...(scope === "once" ? {} : { scope }) };
      await answerQuestion(question.id, body);
      const { word } = ANSWERED[kind];
      toast(`${word[0].toUpperCase()}${word.slice(1)}`);
      onDone();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      onCancel();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !isMissing && mistakes.length === 0) send(event);
  };
  return html`<form class="answer stack" onSubmit=${send} onKeyDown=${keys} aria-label=${about.label}>
    <p class="muted">${about.about}</p>
    ${isFree && question.options.length > 0 && html`<div class="row wrap" role="group" aria-label="Proposed answers">${question.options.map((/** @type {string} */ option) => html`<button type="button" key=${option} class="button" aria-pressed=${text === option} onClick=${() => setText(option)}>${option}</button>`)}</div>`}
    ${(about.text || isFree) && html`<label class="field"><span class="name">${about.text ?? "Your answer"}</span><textarea rows="3" autofocus value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea></label>`}
    ${hasValue && question.schema && html`<${SchemaField} schema=${question.schema} value=${value} onChange=${setValue} mistakes=${value === undefined ? [] : mistakes} required first />`}
    ${kind === "edit" && !question.schema && html`<${JsonField} label=${html`<span class="name">Arguments</span>`} value=${value} onChange=${setValue} first />`}
    ${question.kind === "approval" && ["approve", "reject"].includes(kind) && html`<label class="field"><span class="name">It holds for</span><select autofocus=${kind === "approve"} value=${scope} onChange=${(/** @type {any} */ event) => setScope(event.target.value)}>${Object.entries(SCOPES).map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}</select></label>`}
    <${Refusal} error=${error} />
    <div class="row wrap"><button class="button primary" disabled=${isBusy || isMissing || (mistakes.length > 0 && value !== undefined)} autofocus=${!about.text && !hasValue && question.kind !== "approval"}>${kind === "answer" ? "Send the answer" : about.label}</button><button type="button" class="button" onClick=${onCancel}>Back</button><span class="hint">Ctrl+Enter sends, Esc goes back</span></div>
  </form>`;
}
