// The deliverable. Its citations open the lines of their source beside the text.
import { useEffect, useRef, useState } from "../../vendor/vendor.mjs";
import { runPath, send, useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { bytes, plural, words } from "../format.mjs";
import { address, withQuery } from "../router.mjs";
import { CopyButton, Empty, Failure, Loading } from "../ui/basics.mjs";
import { Markdown } from "../ui/markdown.mjs";
import { isLive } from "../ui/states.mjs";

/** The number of lines around a quotation that are shown at first. */
const AROUND = 12;
/** The number of lines of the whole text that are shown at once. */
const PAGE = 2_000;

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
  const text = result.output || result.summary;
  const sources = result.sources ?? [];
  const quotations = result.quotations ?? [];
  const name = `${run.run}-report`;
  const page = async () => {
    const response = await send("GET", runPath(run.run, "report"), { headers: { Accept: "text/html" } });
    download(`${name}.html`, await response.text(), "text/html");
  };
  const cite = (/** @type {string} */ id) => {
    const source = sources.find((/** @type {any} */ one) => one.id === id);
    if (!source) return null;
    return html`<a class="citation" key=${id} href=${withQuery({ source: query.source === id ? "" : id })} aria-current=${query.source === id ? "true" : undefined} title=${`${source.title}: ${source.location}`}>${id}</a>`;
  };
  const chosen = sources.find((/** @type {any} */ one) => one.id === query.source);
  return html`<div class=${`report-frame ${chosen ? "with-source" : ""}`}>
    <article class="panel report">
      <header class="no-print"><span class="grow muted">The result of <a href=${withQuery({ task: run.deliverable?.task })}>${run.deliverable?.task ?? "the final task"}</a>${run.deliverable?.reason ? ` (${run.deliverable.reason})` : ""}${run.answered === false ? html` · <b>it says that it does not answer the question</b>` : ""}</span>
        <${CopyButton} text=${text} /><button type="button" class="button small" onClick=${() => download(`${name}.md`, text, "text/markdown")}>Markdown</button>
        <button type="button" class="button small" onClick=${page}>HTML</button><button type="button" class="button small" onClick=${() => print()}>Print or PDF</button></header>
      <div class="body"><${Markdown} text=${text} cite=${cite} />
        ${result.data !== null && result.data !== undefined && html`<h3>Data</h3><pre class="code" tabIndex="0">${JSON.stringify(result.data, null, 2)}</pre>`}
        ${sources.length > 0 && html`<section class="sources no-print" aria-label="Sources"><h3>${plural(sources.length, "source")}, ${plural(quotations.length, "quotation")}</h3><ul>${sources.map((/** @type {any} */ source) => html`<li key=${source.id}><a href=${withQuery({ source: source.id })}>[${source.id}] ${source.title}</a> <span class="muted">${source.location} · ${plural(quotations.filter((/** @type {any} */ one) => one.source === source.id).length, "quotation")}</span></li>`)}</ul></section>`}
        ${(result.artifacts ?? []).length > 0 && html`<section class="no-print"><h3>Files</h3><ul>${result.artifacts.map((/** @type {any} */ file) => html`<li key=${file.path}><a href=${address(["runs", run.run, "files"], { path: file.path, version: file.version })}>${file.path}</a> <span class="muted">${bytes(file.bytes)}, version ${file.version}</span></li>`)}</ul></section>`}
      </div></article>
    ${chosen && html`<${SourcePanel} key=${chosen.id} run=${run.run} source=${chosen} quotations=${quotations.filter((/** @type {any} */ one) => one.source === chosen.id)} line=${query.line} />`}
  </div>`;
}

/** @param {{run: string, source: any, quotations: any[], line: string | undefined}} properties */
function SourcePanel({ run, source, quotations, line }) {
  const [page, setPage] = useState(/** @type {number | null} */ (null));
  const marked = useRef(/** @type {HTMLElement | null} */ (null));
  const chosen = quotations.find((one) => String(one.first_line) === line) ?? quotations[0];
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
  }, [data, chosen]);
  const panel = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    // On a narrow screen the source is below the report.
    if (matchMedia("(max-width: 1000px)").matches) panel.current?.scrollIntoView({ block: "start" });
  }, []);
  const isQuoted = (/** @type {number} */ number) => quotations.some((one) => number >= one.first_line && number <= one.last_line);
  const web = /^https?:/.test(source.location) ? source.location : null;
  const lineCount = part?.line_count ?? 0;
  const places = new Map((part?.places ?? []).map((/** @type {any} */ one) => [one.first_line, one.name]));
  const heading = part && isWhole && lineCount > PAGE ? `Lines ${part.first_line} to ${part.first_line + part.lines.length - 1} of ${lineCount.toLocaleString("en")}` : isWhole ? "The whole text" : part?.place ? `In the source, ${part.place}` : "In the source";
  const turn = (/** @type {number} */ by, /** @type {string} */ label) => html`<button type="button" class="button small" onClick=${() => setPage((page ?? 0) + by)}>${label}</button>`;
  return html`<aside class="panel source" ref=${panel} aria-label=${`Source ${source.id}`}>
    <header><h2 class="grow cut" title=${source.title}>[${source.id}] ${source.title}</h2><a class="button plain" aria-label="Close" href=${withQuery({ source: "", line: "" })}>✕</a></header>
    <div class="body stack">
      <p class="muted words">${web ? html`<a href=${web} target="_blank" rel="noreferrer noopener">${source.location}</a>` : source.location} · ${words(source.kind)}${source.accessed_at ? ` · read ${source.accessed_at}` : ""}</p>
      ${quotations.map((one) => html`<blockquote key=${one.first_line} class=${one === chosen ? "chosen" : ""}><a href=${withQuery({ line: one.first_line })}>${one.place ? `${one.place}, ` : ""}${one.first_line === one.last_line ? `line ${one.first_line}` : `lines ${one.first_line} to ${one.last_line}`}</a><br /><span class="words">${one.text}</span></blockquote>`)}
      ${error && html`<p class="hint words">The text of the source cannot be shown: ${error.message}</p>`}
      ${!part && !error && html`<${Loading} height=${120} />`}
      ${part && html`<div class="row wrap"><h3 class="grow">${heading}</h3>
          ${isWhole && first > 1 && turn(-1, "Earlier lines")}${isWhole && lineCount >= first + PAGE && turn(1, "Later lines")}
          ${chosen && html`<button type="button" class="button small" onClick=${() => setPage(isWhole ? null : Math.floor((chosen.first_line - 1) / PAGE))}>${isWhole ? "Only around the quotation" : "Whole text"}</button>`}</div>
        <ol class="lines" aria-label="Lines of the source">${part.lines.map((/** @type {string} */ text, /** @type {number} */ index) => {
          const number = part.first_line + index;
          const isFirst = chosen && number === chosen.first_line;
          const place = places.get(number);
          return html`${place && html`<li key=${`place ${number}`} class="place">${place}</li>`}<li key=${number} class=${isQuoted(number) ? "quoted" : ""} ref=${isFirst ? marked : undefined}><span class="number">${number}</span><span class="words">${text || " "}</span></li>`;
        })}</ol>`}
    </div></aside>`;
}
