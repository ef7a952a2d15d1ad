// The text of a source beside the deliverable, by line.
import { useEffect, useRef, useState } from "../../vendor/vendor.mjs";
import { runPath, useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { words } from "../format.mjs";
import { withQuery } from "../router.mjs";
import { Loading } from "../ui/basics.mjs";
import { lineNumbers } from "./verdicts.mjs";

/** The number of lines around a quotation that are shown at first. */
const AROUND = 12;
/** The number of lines of the whole text that are shown at once. */
const PAGE = 2_000;

/**
 * Lines of a source with their numbers, the borders of its pages, and marks.
 * @param {{part: any, isMarked: (line: number) => boolean, first?: number, marked?: any}} properties `part`: as the API has it; `marked`: a
 *   reference to the line `first`.
 */
export function LineList({ part, isMarked, first, marked }) {
  const places = new Map((part.places ?? []).map((/** @type {any} */ one) => [one.first_line, one.name]));
  return html`<ol class="lines" aria-label="Lines of the source">${part.lines.map((/** @type {string} */ text, /** @type {number} */ index) => {
    const number = part.first_line + index;
    const place = places.get(number);
    return html`${place && html`<li key=${`place ${number}`} class="place">${place}</li>`}<li key=${number} class=${isMarked(number) ? "quoted" : ""} ref=${number === first ? marked : undefined}><span class="number">${number}</span><span class="words">${text || " "}</span></li>`;
  })}</ol>`;
}

/**
 * @param {{run: string, source: any, quotations: any[], line: string | undefined, last: string | undefined}} properties `line` and `last`: the
 *   lines that the reader chose.
 */
export function SourcePanel({ run, source, quotations, line, last: lastLine }) {
  const [page, setPage] = useState(/** @type {number | null} */ (null));
  const marked = useRef(/** @type {HTMLElement | null} */ (null));
  const wanted = Number(line) > 0 ? { first_line: Number(line), last_line: Math.max(Number(line), Number(lastLine) || 0) } : null;
  const chosen = quotations.find((one) => String(one.first_line) === line) ?? wanted ?? quotations[0];
  const isWhole = page !== null || !chosen;
  const first = isWhole ? (page ?? 0) * PAGE + 1 : Math.max(1, chosen.first_line - AROUND);
  const last = isWhole ? first + PAGE - 1 : chosen.last_line + AROUND;
  const { data, error } = useResource(runPath(run, "sources", source.id), { first, last });
  const latest = useRef(/** @type {any} */ (null));
  latest.current = data ?? latest.current;
  const part = latest.current;
  useEffect(() => {
    const panel = marked.current?.closest("aside");
    // Only the panel is scrolled, and not the page.
    if (panel && marked.current) panel.scrollTop += marked.current.getBoundingClientRect().top - panel.getBoundingClientRect().top - panel.clientHeight / 3;
  }, [data, chosen?.first_line]);
  const panel = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    // On a narrow screen the source is below the report.
    if (matchMedia("(max-width: 1000px)").matches) panel.current?.scrollIntoView({ block: "start" });
  }, []);
  const isQuoted = (/** @type {number} */ number) => [...quotations, ...(wanted ? [wanted] : [])].some((one) => number >= one.first_line && number <= one.last_line);
  const web = /^https?:/.test(source.location) ? source.location : null;
  const lineCount = part?.line_count ?? 0;
  const heading = part && isWhole && lineCount > PAGE ? `Lines ${part.first_line} to ${part.first_line + part.lines.length - 1} of ${lineCount.toLocaleString("en")}` : isWhole ? "The whole text" : part?.place ? `In the source, ${part.place}` : "In the source";
  const turn = (/** @type {number} */ by, /** @type {string} */ label) => html`<button type="button" class="button small" onClick=${() => setPage((page ?? 0) + by)}>${label}</button>`;
  return html`<aside class="panel source" ref=${panel} aria-label=${`Source ${source.id}`}>
    <header><h2 class="grow cut" title=${source.title}>[${source.id}] ${source.title}</h2><a class="button plain" aria-label="Close" href=${withQuery({ source: "", line: "", last: "" })}>✕</a></header>
    <div class="body stack">
      <p class="muted words">${web ? html`<a href=${web} target="_blank" rel="noreferrer noopener">${source.location}</a>` : source.location} · ${words(source.kind)}${source.accessed_at ? ` · read ${source.accessed_at}` : ""}</p>
      ${quotations.map((one) => html`<blockquote key=${one.first_line} class=${one === chosen ? "chosen" : ""}><a href=${withQuery({ line: one.first_line, last: "" })}>${one.place ? `${one.place}, ` : ""}${lineNumbers(one)}</a><br /><span class="words">${one.text}</span></blockquote>`)}
      ${error && html`<p class="hint words">The text of the source cannot be shown: ${error.message}</p>`}
      ${!part && !error && html`<${Loading} height=${120} />`}
      ${part && html`<div class="row wrap"><h3 class="grow">${heading}</h3>
          ${isWhole && first > 1 && turn(-1, "Earlier lines")}${isWhole && lineCount >= first + PAGE && turn(1, "Later lines")}
          ${chosen && html`<button type="button" class="button small" onClick=${() => setPage(isWhole ? null : Math.floor((chosen.first_line - 1) / PAGE))}>${isWhole ? "Only around the quotation" : "Whole text"}</button>`}</div>
        <${LineList} part=${part} isMarked=${isQuoted} first=${chosen?.first_line} marked=${marked} />`}
    </div></aside>`;
}
