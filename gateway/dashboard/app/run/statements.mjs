// The column beside the deliverable: its statements, and the verdict on one of them with the lines of the sources.
import { useRef, useState } from "../../vendor/vendor.mjs";
import { runPath, useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { withQuery } from "../router.mjs";
import { LongText, VirtualList } from "../ui/basics.mjs";
import { Glyph, State, stateLabel, tone } from "../ui/states.mjs";
import { LineList } from "./source.mjs";
import { describeCounts, isSupported, lineNumbers } from "./verdicts.mjs";

/** The number of lines that are shown before and after those of a verdict. */
const AROUND = 2;
/** The most lines of one place of a source. */
const MAX_LINES = 60;
/** The height of a statement in the list, and of the list. */
const ROW = 30;
const LIST = 300;

/**
 * The sign after a statement in the text.
 * @param {{statement: any, number: number, label?: string, onMove: (step: number, from: HTMLElement) => void}} properties `label`: of its footnote.
 */
export function StatementSign({ statement, number, label, onMove }) {
  const name = `${label ? `${label}, ` : ""}statement ${number + 1}: ${stateLabel(statement.verdict)}`;
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    onMove(step, /** @type {HTMLElement} */ (event.currentTarget));
  };
  return html`<button type="button" class=${`sign tone-${tone(statement.verdict)}`} id=${label ? `ref-${label}` : undefined} data-statement=${number} data-verdict=${statement.verdict}
    aria-label=${name} title=${`${stateLabel(statement.verdict)}: ${statement.reason}`} onKeyDown=${onKeyDown}><${Glyph} state=${statement.verdict} size=${11} />${label}</button>`;
}

/** The classes of a statement in the text. @param {any} statement */
export const statementClass = (statement) => `tone-${tone(statement.verdict)} is-${statement.verdict}`;

/**
 * @typedef {object} StatementPanelProperties
 * @property {string} run
 * @property {import("./verdicts.mjs").Counts} counts
 * @property {any[]} statements
 * @property {any[]} sources
 * @property {number | null} shown The statement that is shown, by number.
 * @property {number | null} pinned The statement that stays.
 * @property {Set<number>} placed Those that have a sign in the text.
 * @property {(statement: number | null) => void} pin
 */

/** @param {StatementPanelProperties} properties */
export function StatementPanel({ run, counts, statements, sources, shown, pinned, placed, pin }) {
  const [isFiltered, filter] = useState(false);
  const isOpen = useRef(!matchMedia("(max-width: 1000px)").matches);
  const toCheck = statements.filter((one) => !isSupported(one)).length;
  const listed = statements.map((_, number) => number).filter((number) => !isFiltered || !isSupported(statements[number]));
  const at = shown === null ? -1 : listed.findIndex((number) => number >= shown);
  const isListed = at >= 0 && listed[at] === shown;
  const next = shown === null ? 0 : at < 0 ? listed.length : isListed ? at + 1 : at;
  const before = shown === null ? -1 : (at < 0 ? listed.length : at) - 1;
  const step = (/** @type {number} */ to, /** @type {string} */ label) => html`<button type="button" class="button small" disabled=${listed[to] === undefined} onClick=${() => pin(listed[to])}>${label}</button>`;
  const choice = (/** @type {boolean} */ value, /** @type {string} */ label) => html`<button type="button" class="button small" aria-pressed=${isFiltered === value} onClick=${() => filter(value)}>${label}</button>`;
  return html`<aside class="panel source verdicts no-print" aria-label="Verification">
    <header><h2 class="grow">Verification</h2>
      <div class="row segmented" role="group" aria-label="Statements">${choice(false, `All ${statements.length}`)}${choice(true, `To check ${toCheck}`)}</div>
      <div class="row">${step(before, "Previous")}${step(next, "Next")}</div></header>
    <div class="body stack">
      <p class="counts words">${describeCounts(counts)}</p>
      <section class="stack" aria-live="polite" aria-label="The statement">${shown === null ? html`<p class="hint">Point at a statement, or move to its sign with the keyboard.</p>` : html`<${Verdict} key=${shown} run=${run} statement=${statements[shown]} number=${shown} sources=${sources} isPlaced=${placed.has(shown)} unpin=${pinned === null ? null : () => pin(null)} />`}</section>
      <details open=${isOpen.current}><summary>${isFiltered ? "Statements to check" : "All statements"}</summary>
        ${listed.length === 0 ? html`<p class="hint">The sources say all of them.</p>` : html`<${VirtualList} items=${listed} height=${ROW} max=${LIST} label="Statements" show=${isListed ? at : -1}
          render=${(/** @type {number} */ number) => html`<button type="button" class="statement-line" aria-current=${number === shown ? "true" : undefined} title=${statements[number].text} onClick=${() => pin(number)}>
            <span class=${`state tone-${tone(statements[number].verdict)}`}><${Glyph} state=${statements[number].verdict} /><span class="visually-hidden">${stateLabel(statements[number].verdict)}</span></span><span class="cut">${statements[number].text}</span></button>`} />`}
      </details>
    </div></aside>`;
}

/** @param {{run: string, statement: any, number: number, sources: any[], isPlaced: boolean, unpin: (() => void) | null}} properties */
function Verdict({ run, statement, number, sources, isPlaced, unpin }) {
  const lines = statement.lines ?? [];
  return html`<div class="row wrap"><h3 class="row grow"><span>Statement ${number + 1}</span><${State} state=${statement.verdict} /></h3>${unpin && html`<button type="button" class="button small" onClick=${unpin}>Unpin</button>`}</div>
    <blockquote class="chosen"><${LongText} text=${statement.text} /></blockquote>
    ${statement.removed ? html`<p class="hint">It was taken out of the report.</p>` : !isPlaced && html`<p class="hint">It has no place in the text as it is shown.</p>`}
    <dl class="facts"><dt>Found by</dt><dd>${statement.found_by ?? "nobody"}</dd>
      ${typeof statement.probability === "number" && html`<dt>Probability</dt><dd>${Math.round(statement.probability * 100)}% that the sources say it</dd>`}
      <dt>Reason</dt><dd><${LongText} text=${statement.reason} /></dd></dl>
    ${lines.map((/** @type {any} */ one) => html`<${VerdictLines} key=${`${one.source} ${one.first_line}`} run=${run} lines=${one} source=${sources.find((source) => source.location === one.source)} />`)}`;
}

/** @param {{run: string, lines: any, source: any}} properties */
function VerdictLines({ run, lines, source }) {
  const first = Math.max(1, lines.first_line - AROUND);
  const last = Math.min(lines.last_line + AROUND, first + MAX_LINES);
  const { data, error } = useResource(runPath(run, "sources", source?.id ?? lines.source), { first, last });
  const name = `${lines.source}, ${lineNumbers(lines)}`;
  const isMarked = (/** @type {number} */ line) => line >= lines.first_line && line <= lines.last_line;
  return html`<div class="stack tight"><p class="words">${source ? html`<a href=${withQuery({ source: source.id, line: lines.first_line, last: lines.last_line })} title="Show the source">[${source.id}] ${name}</a>` : name}</p>
    ${!source && html`<p class="hint">The report does not cite this source.</p>`}
    ${error && html`<p class="hint words">The lines cannot be shown: ${error.message}</p>`}
    ${data && html`<${LineList} part=${data} isMarked=${isMarked} />`}
    ${lines.last_line > last && html`<p class="hint">These are its first lines.</p>`}</div>`;
}
