// The deliverable. Its citations open the lines of their source beside the text, its statements their verdicts.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/vendor.mjs";
import { runPath, send, useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { bytes, plural } from "../format.mjs";
import { useKeys } from "../keys.mjs";
import { address, setQuery, withQuery } from "../router.mjs";
import { CopyButton, Empty, Failure, Loading } from "../ui/basics.mjs";
import { Markdown } from "../ui/markdown.mjs";
import { isLive } from "../ui/states.mjs";
import { SourcePanel } from "./source.mjs";
import { StatementPanel, StatementSign, statementClass } from "./statements.mjs";
import { isSupported } from "./verdicts.mjs";

/** The time for which the cursor must stay on a statement, in milliseconds. */
const HOVER = 60;

/**
 * Saves a text as a file.
 * @param {string} name @param {string} text @param {string} type
 */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function Report({ run, query, at }) {
  const hasResult = Boolean(run.deliverable) && !at;
  const { data, error, loading, reload } = useResource(hasResult ? runPath(run.run, "result") : null, { of: undefined });
  const result = data ?? run.result;
  if (error) return html`<${Failure} error=${error} retry=${reload} title="The report could not be read" />`;
  if (hasResult && loading && !result) return html`<${Loading} />`;
  if (!result) {
    const final = run.tasks.find((/** @type {any} */ task) => task.final);
    return html`<div class="panel"><${Empty} title=${run.end ? "The run ended without a report" : "No report yet"}>${run.end ? html`${run.end.detail || "No task has a result that was accepted."}<br /><a class="button" href=${address(["runs", run.run, "tasks"], { state: "failed" })}>See what failed</a>`
      : final ? html`It is the result of the task <a href=${withQuery({ task: final.id })}>${final.id}</a>.${isLive(run.state) ? html`<br /><a class="button" href=${address(["runs", run.run, "journal"], { task: final.id })}>Watch it being written</a>` : ""}` : "The planner has not named a final task."}<//></div>`;
  }
  return html`<${Deliverable} run=${run} query=${query} result=${result} />`;
}

/** @param {{run: any, query: Record<string, string>, result: any}} properties */
function Deliverable({ run, query, result }) {
  const text = result.output || result.summary;
  const sources = result.sources ?? [];
  const quotations = result.quotations ?? [];
  const statements = useMemo(() => /** @type {any[]} */ (result.statements ?? []), [result]);
  const choice = useStatementChoice(statements, query);
  const name = `${run.run}-report`;
  const page = async () => {
    const response = await send("GET", runPath(run.run, "report"), { headers: { Accept: "text/html" } });
    download(`${name}.html`, await response.text(), "text/html");
  };
  const cite = (/** @type {string} */ id) => {
    const source = sources.find((/** @type {any} */ one) => one.id === id);
    if (!source) return null;
    return html`<a class="citation" key=${id} href=${withQuery({ source: query.source === id ? "" : id, line: "", last: "" })} aria-current=${query.source === id ? "true" : undefined} title=${`${source.title}: ${source.location}`}>${id}</a>`;
  };
  const marks = statements.length > 0 ? {
    statements, toneOf: (/** @type {number} */ number) => statementClass(statements[number]),
    sign: (/** @type {number} */ number, /** @type {string | undefined} */ label) => html`<${StatementSign} statement=${statements[number]} number=${number} label=${label} onMove=${choice.move} />`,
  } : undefined;
  // The cursor changes what is shown beside the text, and not the text.
  const shownText = useMemo(() => html`<${Markdown} text=${text} cite=${cite} marks=${marks} />`, [text, result, JSON.stringify(query)]);
  const chosen = sources.find((/** @type {any} */ one) => one.id === query.source);
  const hasColumn = chosen || statements.length > 0;
  return html`<div class=${`report-frame ${hasColumn ? "with-source" : ""}`}>
    <article class="panel report">
      <header class="no-print"><span class="grow muted">The result of <a href=${withQuery({ task: run.deliverable?.task })}>${run.deliverable?.task ?? "the final task"}</a>${run.deliverable?.reason ? ` (${run.deliverable.reason})` : ""}${run.answered === false ? html` · <b>it says that it does not answer the question</b>` : ""}</span>
        <${CopyButton} text=${text} /><button type="button" class="button small" onClick=${() => download(`${name}.md`, text, "text/markdown")}>Markdown</button>
        <button type="button" class="button small" onClick=${page}>HTML</button><button type="button" class="button small" onClick=${() => print()}>Print or PDF</button></header>
      <div class="body"><div ref=${choice.element} onMouseOver=${choice.onPoint} onFocusIn=${choice.onPoint} onClick=${choice.onClick}>${shownText}</div>
        ${result.data !== null && result.data !== undefined && html`<h3>Data</h3><pre class="code" tabIndex="0">${JSON.stringify(result.data, null, 2)}</pre>`}
        ${sources.length > 0 && html`<section class="sources no-print" aria-label="Sources"><h3>${plural(sources.length, "source")}, ${plural(quotations.length, "quotation")}</h3><ul>${sources.map((/** @type {any} */ source) => html`<li key=${source.id}><a href=${withQuery({ source: source.id })}>[${source.id}] ${source.title}</a> <span class="muted">${source.location} · ${plural(quotations.filter((/** @type {any} */ one) => one.source === source.id).length, "quotation")}</span></li>`)}</ul></section>`}
        ${(result.artifacts ?? []).length > 0 && html`<section class="no-print"><h3>Files</h3><ul>${result.artifacts.map((/** @type {any} */ file) => html`<li key=${file.path}><a href=${address(["runs", run.run, "files"], { path: file.path, version: file.version })}>${file.path}</a> <span class="muted">${bytes(file.bytes)}, version ${file.version}</span></li>`)}</ul></section>`}
      </div></article>
    ${chosen ? html`<${SourcePanel} key=${chosen.id} run=${run.run} source=${chosen} quotations=${quotations.filter((/** @type {any} */ one) => one.source === chosen.id)} line=${query.line} last=${query.last} />`
      : statements.length > 0 && html`<${StatementPanel} run=${run.run} counts=${run.verification} statements=${statements} sources=${sources} shown=${choice.shown} pinned=${choice.pinned} placed=${choice.placed} pin=${choice.pin} />`}
  </div>`;
}

/**
 * The statement that is shown beside the text: the one that is pinned in the address, or the last one under the cursor or with the focus.
 * @param {any[]} statements @param {Record<string, string>} query
 */
function useStatementChoice(statements, query) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const timer = useRef(0);
  const [pointed, point] = useState(/** @type {number | null} */ (null));
  const [placed, setPlaced] = useState(/** @type {Set<number>} */ (new Set()));
  const wanted = Number(query.statement) - 1;
  const pinned = statements[wanted] ? wanted : null;
  const shown = pinned ?? (pointed !== null && statements[pointed] ? pointed : null);
  const signs = () => /** @type {HTMLElement[]} */ ([...(element.current?.querySelectorAll(".sign") ?? [])]);
  const numberOf = (/** @type {Element | null} */ node) => (node instanceof HTMLElement ? Number(node.dataset.statement) : -1);
  const show = (/** @type {number} */ number) => signs().find((sign) => numberOf(sign) === number)?.scrollIntoView({ block: "nearest" });
  const pin = (/** @type {number | null} */ number) => {
    point(number);
    setQuery({ statement: number === null ? "" : number + 1, source: "", line: "", last: "" }, { replace: true });
    if (number !== null) show(number);
  };
  const at = (/** @type {Event} */ event) => /** @type {Element} */ (event.target).closest?.("[data-statement]") ?? null;
  const onPoint = (/** @type {Event} */ event) => {
    clearTimeout(timer.current);
    const number = numberOf(at(event));
    if (number >= 0) timer.current = setTimeout(() => point(number), event.type === "focusin" ? 0 : HOVER);
  };
  const onClick = (/** @type {MouseEvent} */ event) => {
    const number = numberOf(at(event));
    const target = /** @type {Element} */ (event.target);
    // A text that is being selected is not chosen.
    if (number < 0 || target.closest("a") || !(target.closest("button") || getSelection()?.isCollapsed)) return;
    pin(number === pinned ? null : number);
  };
  const focus = (/** @type {HTMLElement | undefined} */ sign) => {
    sign?.focus();
    sign?.scrollIntoView({ block: "nearest" });
  };
  const move = (/** @type {number} */ step, /** @type {Element | null} */ from, fits = (/** @type {any} */ _statement) => true) => {
    const all = signs();
    const start = all.indexOf(/** @type {HTMLElement} */ (from));
    const others = [...all.slice(start + 1), ...all.slice(0, Math.max(0, start))];
    focus((step > 0 ? others : others.reverse()).find((sign) => fits(statements[numberOf(sign)])));
  };
  useKeys(statements.length > 0 ? [
    { keys: "j", about: "Next statement", action: () => move(1, document.activeElement) },
    { keys: "k", about: "Previous statement", action: () => move(-1, document.activeElement) },
    { keys: "u", about: "Next statement to check", action: () => move(1, document.activeElement, (one) => !isSupported(one)) },
    ...(pinned === null ? [] : [{ keys: "Escape", about: "Unpin the statement", action: () => pin(null) }]),
  ] : []);
  useLayoutEffect(() => {
    for (const one of element.current?.querySelectorAll("[data-statement]") ?? []) one.toggleAttribute("data-shown", numberOf(one) === shown);
  });
  useEffect(() => {
    setPlaced(new Set(signs().map(numberOf)));
    if (pinned !== null) show(pinned);
    return () => clearTimeout(timer.current);
  }, [statements]);
  return { element, shown, pinned, placed, pin, move, onPoint, onClick };
}
