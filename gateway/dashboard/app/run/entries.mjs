// The entries of a journal: what an agent was sent, what it replied, which tools it called, and what came of it.
import { useState } from "../../vendor/vendor.mjs";
import { html } from "../html.mjs";
import { absoluteTime, count, duration, timeOfDay, tokens, usageText, words } from "../format.mjs";
import { withQuery } from "../router.mjs";
import { CopyButton, LongText, Value } from "../ui/basics.mjs";
import { Verdict } from "./drawer.mjs";

/** @param {{entry: any, title: any, tone?: string, facts?: any, children?: any}} properties */
function Card({ entry, title, tone = "quiet", facts, children }) {
  return html`<article class=${`entry tone-${tone}`} data-sequence=${entry.sequence}><header class="row wrap"><b class="entry-title">${title}</b><span class="muted">${facts}</span>
    <a class="mono muted push nowrap" href=${withQuery({ entry: entry.sequence })} title=${`${absoluteTime(entry.at)}, entry ${entry.sequence} of the lane`}>${timeOfDay(entry.at)}</a></header>${children && html`<div class="stack tight">${children}</div>`}</article>`;
}

/** A text that is folded if it is long. @param {{title: any, text: string, isOpen?: boolean, note?: any}} properties */
export function Fold({ title, text, isOpen, note }) {
  const isShort = text.length < 400 && text.split("\n").length < 6;
  const [isShown, setShown] = useState(isOpen ?? isShort);
  return html`<details class="fold" open=${isShown} onToggle=${(/** @type {any} */ event) => setShown(event.currentTarget.open)}><summary><b>${title}</b> <span class="muted">${note} ${count(text.length)} characters</span>${!isShown && html` <span class="muted cut fold-start">${text.slice(0, 140)}</span>`}</summary>
    ${isShown && html`<div class="row top"><${LongText} as="pre" class="grow code" text=${text} /><${CopyButton} text=${text} /></div>`}</details>`;
}

const ROLES = /** @type {Record<string, string>} */ ({ system: "System prompt", user: "User", tool: "Tool result" });

/** @param {{entry: any}} properties */
function ModelCall({ entry }) {
  const { usage } = entry;
  const facts = [entry.judge !== undefined && entry.judge !== null && `judge ${entry.judge + 1}`, entry.model ?? "model not recorded", duration(entry.duration_ms), tokens(usage) > 0 ? `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out` : null, usage.cached_tokens > 0 && `${count(usage.cached_tokens)} cached`,
    usage.cost_micros > 0 && usageText(usage).split(" · ")[1], entry.finish && entry.finish !== "stop" && words(String(entry.finish)), entry.compacted && "conversation shortened before"].filter(Boolean).join(" · ");
  return html`<${Card} entry=${entry} tone=${entry.outcome === "reply" ? "active" : "bad"} title=${`Model call ${entry.turn + 1}`} facts=${facts}>
    ${(entry.messages ?? []).map((/** @type {any} */ message) => html`<${Fold} title=${ROLES[message.role] ?? message.role} text=${message.text} isOpen=${message.role === "system" ? false : undefined} note=${message.failed ? "refused," : ""} />`)}
    ${(entry.tools ?? []).length > 0 && html`<p class="muted">May call: ${entry.tools.join(", ")}</p>`}
    ${entry.outcome !== "reply" && html`<p class="mistake">${entry.outcome === "overflow" ? "The conversation is too long for the model." : "The working time ran out."}</p>`}
    ${entry.text && html`<div class="reply"><${LongText} text=${entry.text} /></div>`}
    ${(entry.calls ?? []).map((/** @type {any} */ call) => html`<div class="call"><div><b>calls ${call.tool}</b></div><${Value} value=${call.arguments} /></div>`)}
  <//>`;
}

/** @param {any} result */
function ResultBody(result) {
  if (!result) return html`<p class="mistake">The result can't be read any more.</p>`;
  return html`<${Fold} title="Result" text=${result.output || result.summary} isOpen />${result.data !== null && result.data !== undefined && html`<${Value} value=${result.data} />`}
    ${result.notes && html`<${Fold} title="Notes for later attempts" text=${result.notes} />`}
    ${(result.sources ?? []).length > 0 && html`<p class="muted">Sources: ${result.sources.map((/** @type {any} */ source) => `[${source.id}] ${source.location}`).join(", ")}</p>`}`;
}

/** @param {any} edit */
function editText(edit) {
  const [[kind, value]] = Object.entries(edit);
  if (kind === "add") return `add ${value.map((/** @type {any} */ task) => task.id).join(", ")}`;
  if (typeof value === "object" && value) return `${words(kind)} ${value.task ?? value.id ?? ""}${value.reason ? `: ${value.reason}` : value.feedback ? `: ${value.feedback}` : ""}`;
  return words(kind);
}

/** @param {{entry: any}} properties */
export function Entry({ entry }) {
  switch (entry.type) {
    case "claimed": return html`<${Card} entry=${entry} title=${entry.claim > 1 ? "Taken over" : "Claimed"} tone=${entry.claim > 1 ? "warn" : "quiet"} facts=${`by ${entry.worker}${entry.claim > 1 ? `, claim ${entry.claim}: it continues from this journal` : ""}${entry.build ? ` · ${entry.build.program}` : ""}`} />`;
    case "released": return html`<${Card} entry=${entry} title="Released" tone="warn" facts=${`by ${entry.worker}: ${entry.reason}`} />`;
    case "parked": return html`<${Card} entry=${entry} title="Parked" tone="wait" facts=${`waits for ${(entry.waits ?? []).join("; ")}`} />`;
    case "delegated": return html`<${Card} entry=${entry} title="Delegated" tone="wait" facts=${[["started", entry.started], ["cancelled", entry.cancelled], ["instructed", entry.instructed]].filter(([, ids]) => ids?.length > 0).map(([name, ids]) => `${name} ${ids.join(", ")}`).join("; ")} />`;
    case "note": return html`<${Card} entry=${entry} title="Note"><${LongText} text=${entry.text} /><//>`;
    case "model_call": return html`<${ModelCall} entry=${entry} />`;
    case "tool_result": return html`<${Card} entry=${entry} tone=${entry.failed ? "bad" : "good"} title=${`${entry.tool}${entry.failed ? " failed" : ""}`} facts=${`${duration(entry.duration_ms)}${entry.usage?.model_calls ? ` · ${usageText(entry.usage)}` : ""}`}><${Fold} title="Result" text=${entry.text} /><//>`;
    case "calls_begun": return html`<${Card} entry=${entry} title="Calls begin that must not run twice" facts=${(entry.calls ?? []).join(", ")} />`;
    case "judge_failed": return html`<${Card} entry=${entry} tone="bad" title=${`Judge ${entry.judge + 1} failed`}><${LongText} text=${entry.error} /><//>`;
    case "step": return html`<${Card} entry=${entry} title=${words(entry.name)}><${Fold} title="Value" text=${JSON.stringify(entry.value, null, 2)} isOpen=${JSON.stringify(entry.value).length < 400} /><//>`;
    case "stored_step": return html`<${Card} entry=${entry} title=${words(entry.name ?? "large step")} facts=${`${count(entry.bytes)} bytes`} />`;
    case "result": return html`<${Card} entry=${entry} tone="good" title="Finished" facts=${usageText(entry.usage)}><p class="words strong">${entry.summary}</p>${ResultBody(entry.result)}<//>`;
    case "verdict": return html`<${Card} entry=${entry} tone=${entry.verdict.passed ? "good" : "bad"} title=${`Review ${entry.review}`} facts=${usageText(entry.verdict.usage)}><${Verdict} verdict=${entry.verdict} critic=${entry.critic} /><//>`;
    case "proposal": return html`<${Card} entry=${entry} tone="good" title="Plan proposed" facts=${usageText(entry.usage)}><${LongText} text=${entry.proposal.reasoning} />
      ${entry.proposal.fallback && html`<p class="mistake">A plain plan was made without the model: ${entry.proposal.fallback}</p>`}
      <ul class="bullets">${(entry.proposal.tasks ?? []).map((/** @type {any} */ task) => html`<li class="words"><b>${task.id}</b> (${task.capability}${task.depends_on?.length ? `, after ${task.depends_on.join(", ")}` : ""}): ${task.objective}</li>`)}${(entry.proposal.edits ?? []).map((/** @type {any} */ edit) => html`<li class="words">${editText(edit)}</li>`)}</ul><//>`;
    case "error": return html`<${Card} entry=${entry} tone="bad" title="Failed" facts=${`${words(String(entry.error.kind?.kind ?? entry.error.kind ?? ""))} · ${entry.worker}`}><${LongText} class="words mistake" text=${entry.error.message} />${entry.error.produced && html`<${Fold} title="Unfinished answer" text=${entry.error.produced} />`}<//>`;
    case "unreadable": return html`<${Card} entry=${entry} tone="bad" title="This entry can't be read"><${LongText} text=${entry.error} /><//>`;
    default: return html`<${Card} entry=${entry} title=${words(entry.type ?? "entry")}><${Value} value=${entry} /><//>`;
  }
}

/**
 * The prompt of an attempt: all messages that its agent was sent, as text.
 * @param {any[]} entries @param {boolean} [isReview]
 */
export function promptOf(entries, isReview = false) {
  const calls = entries.filter((entry) => entry.type === "model_call" && (entry.journal === "review") === isReview);
  return calls.slice(0, 1).flatMap((entry) => (entry.messages ?? []).map((/** @type {any} */ message) => `── ${message.role} ──\n${message.text}`)).join("\n\n");
}

/** The conversation after the prompt, as text. @param {any[]} entries */
export function conversationOf(entries) {
  return entries.filter((entry) => entry.journal !== "review").flatMap((entry) => {
    if (entry.type === "model_call") return [`── reply ${entry.turn + 1} ──`, entry.text, ...(entry.calls ?? []).map((/** @type {any} */ call) => `calls ${call.tool} ${JSON.stringify(call.arguments, null, 2)}`)];
    if (entry.type === "tool_result") return [`── ${entry.tool}${entry.failed ? " (failed)" : ""} ──`, entry.text];
    return [];
  }).filter(Boolean).join("\n");
}
