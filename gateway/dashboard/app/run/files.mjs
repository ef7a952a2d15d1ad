// The files of a run, with their versions.
import { useEffect, useState } from "../../vendor/vendor.mjs";
import { runPath, send, useResource } from "../api.mjs";
import { html } from "../html.mjs";
import { bytes, plural } from "../format.mjs";
import { withQuery } from "../router.mjs";
import { Ago, CopyButton, Empty, Failure, Loading, LongText } from "../ui/basics.mjs";
import { Diff } from "../ui/diff.mjs";
import { download } from "./report.mjs";
import { Markdown } from "../ui/markdown.mjs";

/** The path of a file; its slashes are part of the path. @param {string} run @param {string} path */
const filePath = (run, path) => `${runPath(run, "files")}/${path.split("/").filter(Boolean).map(encodeURIComponent).join("/")}`;

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function Files({ run, query, at, version, now }) {
  const { data, error, loading, reload } = useResource(runPath(run.run, "files"));
  useEffect(reload, [version]);
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (loading && !data) return html`<${Loading} />`;
  const files = (data?.files ?? []).filter((/** @type {any} */ file) => !at || Date.parse(file.at) <= now);
  if (files.length === 0) return html`<div class="panel"><${Empty} title="No files">Files that agents write appear here, each with all its versions.<//></div>`;
  const chosen = query.path ?? files[0].path;
  return html`<div class="split">
    <nav class="panel file-list" aria-label="Files"><header><h2>${plural(files.length, "file")}</h2></header>${files.map((/** @type {any} */ file) => html`<a key=${file.path} class="file-line" href=${withQuery({ path: file.path, version: "", with: "" })} aria-current=${file.path === chosen ? "true" : undefined}>
      <span class="words">${file.path}</span><span class="muted">${bytes(file.bytes)} · version ${file.version} · ${file.author}${file.deleted ? " · deleted" : ""}</span></a>`)}</nav>
    <div class="grow"><${FileView} key=${chosen} run=${run.run} path=${chosen} chosen=${query.version} against=${query.with} turn=${version} /></div></div>`;
}

/**
 * Reads a version of a file as text.
 * @param {string} run @param {string} path @param {any} version
 */
function useFileText(run, path, version) {
  const [state, setState] = useState(/** @type {any} */ ({ text: null, error: null }));
  useEffect(() => {
    if (!version) return undefined;
    const abort = new AbortController();
    setState({ text: null, error: null });
    (async () => {
      const response = await send("GET", filePath(run, path), { query: { version }, signal: abort.signal });
      const content = new Uint8Array(await response.arrayBuffer());
      const isBinary = content.subarray(0, 8_000).includes(0);
      setState({ text: isBinary ? null : new TextDecoder().decode(content), content, isBinary, error: null });
    })().catch((error) => abort.signal.aborted || setState({ text: null, error }));
    return () => abort.abort();
  }, [run, path, version]);
  return state;
}

/** @param {{run: string, path: string, chosen?: string, against?: string, turn: number}} properties */
function FileView({ run, path, chosen, against, turn }) {
  const { data, error, reload } = useResource(filePath(run, path), { versions: true });
  useEffect(reload, [turn]);
  const versions = (data?.files ?? []).filter((/** @type {any} */ file) => !file.deleted);
  const version = chosen ?? versions.at(-1)?.version;
  const file = useFileText(run, path, version);
  const other = useFileText(run, path, against);
  const [isPlain, setPlain] = useState(false);
  if (error) return html`<${Failure} error=${error} title=${`${path} could not be read`} />`;
  const isMarkdown = /\.(md|markdown)$/i.test(path);
  const name = path.split("/").pop() || "file";
  return html`<div class="panel"><header><h2 class="grow words">${path}</h2>
      ${versions.length > 1 && html`<div class="row wrap" role="group" aria-label="Versions">${versions.map((/** @type {any} */ one) => html`<a key=${one.version} class=${`chip ${String(one.version) === String(version) ? "on" : ""}`} href=${withQuery({ version: one.version, with: "" })} title=${`${one.author}, ${one.at}`}>version ${one.version}</a>`)}
        <a class="button small" aria-current=${against ? "true" : undefined} href=${withQuery({ version, with: against ? "" : versions.filter((/** @type {any} */ one) => one.version < version).at(-1)?.version ?? versions[0].version })}>What changed</a></div>`}
      ${isMarkdown && html`<button type="button" class="button small" aria-pressed=${isPlain} onClick=${() => setPlain(!isPlain)}>Source</button>`}
      ${file.text !== null && html`<${CopyButton} text=${file.text} />`}
      ${file.content && html`<button type="button" class="button small" onClick=${() => download(name, file.content, "application/octet-stream")}>Download</button>`}</header>
    <div class="body">
      ${file.error && html`<${Failure} error=${file.error} />`}
      ${file.text === null && !file.error && !file.isBinary && html`<${Loading} />`}
      ${file.isBinary && html`<${Empty} title="This file is not text">It has ${bytes(file.content.length)}. Download it to look at it.<//>`}
      ${file.text !== null && against && other.text !== null && html`<${Diff} label=${`version ${against} and version ${version}`} left=${other.text} right=${file.text} />`}
      ${file.text !== null && !against && (isMarkdown && !isPlain && file.text.length < 200_000 ? html`<${Markdown} text=${file.text} />` : html`<${LongText} as="pre" text=${file.text} />`)}
      ${versions.length > 0 && html`<p class="hint file-foot">Version ${version} by ${versions.find((/** @type {any} */ one) => String(one.version) === String(version))?.author ?? "?"}, <${Ago} at=${versions.find((/** @type {any} */ one) => String(one.version) === String(version))?.at} /></p>`}
    </div></div>`;
}
