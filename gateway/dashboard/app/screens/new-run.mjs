// Starting a run: objective, documents, plan, models, budget.
import { useEffect, useRef, useState } from "../../vendor/vendor.mjs";
import { ApiError, hasResource, newKey, request, useResource, runPath } from "../api.mjs";
import { html } from "../html.mjs";
import { bytes, plural, shortId } from "../format.mjs";
import { address, go } from "../router.mjs";
import { useTitle } from "../title.mjs";
import { Refusal } from "../ui/basics.mjs";
import { parseBudget } from "../run/steer.mjs";

/** The largest submission that the server takes. */
const MOST = 512 * 1024 * 1024;
const PLAN_EXAMPLE = "objective: What do these notes say?\ntasks:\n  - {id: read, objective: Read the notes, capability: research}\n  - {id: report, objective: Write the report, capability: producer, depends_on: [read], final: true}\n";

/** All files of a drop, with their paths; folders are read completely. @param {DataTransfer} transfer @returns {Promise<{path: string, file: File}[]>} */
async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (entries.length === 0) return [...transfer.files].map((file) => ({ path: file.name, file }));
  /** @type {{path: string, file: File}[]} */
  const files = [];
  const walk = async (/** @type {any} */ entry) => {
    const path = entry.fullPath.replace(/^\//, "");
    if (entry.isFile) files.push({ path, file: await new Promise((resolve, reject) => entry.file(resolve, reject)) });
    else {
      const reader = entry.createReader();
      for (;;) {
        const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
        if (part.length === 0) break;
        for (const one of part) await walk(one);
      }
    }
  };
  for (const entry of entries) await walk(entry);
  return files;
}

/** The mistakes of a plan by line. @param {any} error @returns {{line: number | null, text: string}[]} */
function planMistakes(error) {
  if (!error) return [];
  const texts = (error.mistakes ?? []).filter((/** @type {any} */ one) => /^plan/.test(one.pointer ?? "")).map((/** @type {any} */ one) => ({ ...one, text: one.message }));
  return texts.flatMap((/** @type {any} */ one) => String(one.text).split("\n").filter(Boolean).map((text) => {
    const found = /\bline (\d+)/.exec(text);
    return { line: one.line ?? (found ? Number(found[1]) : null), text };
  }));
}

/** A text with line numbers; lines with mistakes are marked. @param {{value: string, onInput: (text: string) => void, mistakes: {line: number | null, text: string}[]}} properties */
function PlanEditor({ value, onInput, mistakes }) {
  const numbers = useRef(/** @type {HTMLDivElement | null} */ (null));
  const lines = value.split("\n").length;
  return html`<div class="stack tight"><div class="editor"><div class="editor-numbers" ref=${numbers} aria-hidden="true">${Array.from({ length: Math.max(lines, 8) }, (_, index) => html`<div key=${index} class=${mistakes.some((one) => one.line === index + 1) ? "wrong" : ""}>${index + 1}</div>`)}</div>
      <textarea class="mono" aria-label="Plan file" rows=${Math.min(26, Math.max(8, lines + 1))} spellcheck="false" wrap="off" value=${value} placeholder=${PLAN_EXAMPLE} aria-invalid=${mistakes.length > 0}
        onScroll=${(/** @type {any} */ event) => numbers.current?.scrollTo(0, event.target.scrollTop)} onInput=${(/** @type {any} */ event) => onInput(event.target.value)}></textarea></div>
    ${mistakes.map((one, index) => html`<p class="mistake" key=${index} role="alert">${one.line ? html`<b>Line ${one.line}</b> ` : ""}${one.text}</p>`)}</div>`;
}

/** @param {{route: import("../router.mjs").Route}} properties */
export function NewRunScreen({ route }) {
  const { after = "", session = "", objective: given = "" } = route.query;
  const [objective, setObjective] = useState(given);
  const [documents, setDocuments] = useState(/** @type {{path: string, file: File}[]} */ ([]));
  const [plan, setPlan] = useState("");
  const [hasPlan, setHasPlan] = useState(false);
  const [fields, setFields] = useState({ models: "", budget: "", labels: "", criteria: "", session });
  const [approve, setApprove] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isOver, setOver] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const key = useRef(newKey());
  const { data: earlier } = useResource(after ? runPath(after) : null);
  const { data: capabilities } = useResource("/capabilities");
  const checked = usePlanCheck(hasPlan ? plan : "");
  useTitle("New run");
  const size = documents.reduce((sum, { file }) => sum + file.size, 0);
  const add = (/** @type {{path: string, file: File}[]} */ files) => {
    const plans = files.filter(({ path }) => /\.ya?ml$/i.test(path) && files.length === 1);
    if (plans.length === 1) {
      plans[0].file.text().then((text) => {
        setPlan(text);
        setHasPlan(true);
      });
      return;
    }
    setDocuments((/** @type {any[]} */ before) => [...new Map([...before, ...files].map((one) => [one.path, one])).values()]);
  };
  const drop = async (/** @type {any} */ event) => {
    event.preventDefault();
    setOver(false);
    add(await droppedFiles(event.dataTransfer));
  };
  const list = (/** @type {string} */ text) => text.split(/[\n,]/).map((part) => part.trim()).filter(Boolean);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      /** @type {any} */
      const run = {};
      if (objective.trim()) run.objective = objective.trim();
      if (hasPlan && plan.trim()) run.plan = plan;
      if (list(fields.models).length > 0) run.models = list(fields.models);
      if (fields.budget.trim()) run.budget = parseBudget(fields.budget);
      if (fields.labels.trim()) run.labels = parseBudget(fields.labels);
      if (fields.criteria.trim()) run.criteria = fields.criteria.split("\n").map((line) => line.trim()).filter(Boolean);
      for (const name of Object.keys(run.labels ?? {})) run.labels[name] = String(run.labels[name]);
      if (approve) run.approve_plan = true;
      if (fields.session.trim()) run.session = fields.session.trim();
      if (after) run.after = [after];
      const body = new FormData();
      body.append("run", new Blob([JSON.stringify(run)], { type: "application/json" }));
      for (const { path, file } of documents) body.append("documents", file, path);
      const reply = await request("POST", "/runs", { body, headers: { "Idempotency-Key": key.current } });
      go(address(["runs", reply.run]));
    } catch (failure) {
      setError(failure);
      setBusy(false);
      // Another content needs another key; a failure of the connection keeps it, so that the run is started once.
      if (!(failure instanceof ApiError) || !failure.isTransient) key.current = newKey();
    }
  };
  const mistakes = hasPlan ? (planMistakes(error).length > 0 ? planMistakes(error) : checked) : [];
  const field = (/** @type {"models" | "budget" | "labels" | "criteria" | "session"} */ name, /** @type {string} */ label, /** @type {string} */ hint, area = false) => html`<label class="field"><span class="name">${label} <span class="muted">optional</span></span>
    ${area ? html`<textarea rows="3" value=${fields[name]} onInput=${(/** @type {any} */ event) => setFields({ ...fields, [name]: event.target.value })}></textarea>` : html`<input type="text" value=${fields[name]} onInput=${(/** @type {any} */ event) => setFields({ ...fields, [name]: event.target.value })} />`}<span class="hint">${hint}</span></label>`;
  return html`<form class="stack new-run" onSubmit=${submit} onDragOver=${(/** @type {Event} */ event) => {
    event.preventDefault();
    setOver(true);
  }} onDragLeave=${(/** @type {any} */ event) => event.currentTarget.contains(event.relatedTarget) || setOver(false)} onDrop=${drop}>
    <h1>${after ? "Follow up on a run" : "Start a run"}</h1>
    ${after && html`<p class="notice tone-active words">The agents read the result and the files of <a href=${address(["runs", after])}>${shortId(after)}</a>${earlier?.objective ? `: ${earlier.objective}` : ""}</p>`}
    <label class="field"><span class="name">Objective${hasPlan ? html` <span class="muted">optional: the plan may have one</span>` : ""}</span><textarea rows="3" autofocus value=${objective} placeholder="What do these licences require of somebody who ships a product?" onInput=${(/** @type {any} */ event) => setObjective(event.target.value)}></textarea></label>
    <section class=${`panel drop ${isOver ? "over" : ""}`} aria-label="Documents"><div class="body stack tight">
      <div class="row wrap"><b class="grow">${documents.length === 0 ? "Drop documents here, or a whole folder" : `${plural(documents.length, "document")}, ${bytes(size)}`}</b>
        <label class="button">Choose files<input id="documents" type="file" multiple class="visually-hidden" onChange=${(/** @type {any} */ event) => {
          add([...event.target.files].map((file) => ({ path: file.webkitRelativePath || file.name, file })));
          event.target.value = "";
        }} /></label>${documents.length > 0 && html`<button type="button" class="button" onClick=${() => setDocuments([])}>Remove all</button>`}</div>
      <p class="hint">Text, Markdown, HTML, PDF, Word, PowerPoint, Excel, mail. Agents quote them by line. A single YAML file is taken for a plan.</p>
      ${size > MOST && html`<p class="mistake">These are ${bytes(size)}; a submission has at most 512 MB.</p>`}
      <ul class="documents">${documents.slice(0, 200).map(({ path, file }) => html`<li key=${path} class="row"><span class="words grow">${path}</span><span class="muted nowrap">${bytes(file.size)}</span><button type="button" class="button plain small" aria-label=${`Remove ${path}`} onClick=${() => setDocuments(documents.filter((one) => one.path !== path))}>✕</button></li>`)}</ul>
      ${documents.length > 200 && html`<p class="muted">and ${documents.length - 200} more</p>`}</div></section>
    <section class="stack tight"><label class="row"><input type="checkbox" checked=${hasPlan} onChange=${(/** @type {any} */ event) => setHasPlan(event.target.checked)} /> <b>My own plan</b> <span class="muted">otherwise a model makes it</span></label>
      ${hasPlan && html`<${PlanEditor} value=${plan} onInput=${setPlan} mistakes=${mistakes} />`}
      ${hasPlan && capabilities && html`<p class="hint">Capabilities: ${capabilities.capabilities.map((/** @type {any} */ one, /** @type {number} */ index) => html`${index > 0 ? ", " : ""}<span title=${one.description ?? ""}>${one.name}</span>`)}</p>`}</section>
    <div class="grid">${field("models", "Models", "provider:model, or CAPABILITY=provider:model; separated by commas. By default those of the cluster.")}${field("budget", "Budget", "Such as tokens=200k, cost=2.00, time=30m")}${field("labels", "Labels", "To find the run by, such as team=search, purpose=test")}${field("session", "Session", "Runs of a session start one after the other, and each reads the results of those before it")}</div>
    ${field("criteria", "Criteria for the result", "One sentence a line; a critic checks each", true)}
    <label class="row"><input type="checkbox" checked=${approve} onChange=${(/** @type {any} */ event) => setApprove(event.target.checked)} /> A person approves the plan before it starts</label>
    ${error && planMistakes(error).length === 0 && html`<${Refusal} error=${error} />`}
    <div class="row"><button class="button primary" disabled=${isBusy || (!objective.trim() && !(hasPlan && plan.trim())) || size > MOST}>${isBusy ? "Starting…" : "Start the run"}</button><a class="button" href="/runs">Back</a></div>
  </form>`;
}

/** The mistakes in a plan that the server finds while it is written. @param {string} plan */
function usePlanCheck(plan) {
  const [mistakes, setMistakes] = useState(/** @type {{line: number | null, text: string}[]} */ ([]));
  useEffect(() => {
    if (!plan.trim()) {
      setMistakes([]);
      return undefined;
    }
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      if (!(await hasResource("/plans/check")) || abort.signal.aborted) return;
      try {
        const reply = await request("POST", "/plans/check", { body: { plan }, signal: abort.signal });
        setMistakes((reply.mistakes ?? []).map((/** @type {any} */ one) => ({ line: one.line ?? null, text: one.message })));
      } catch (error) {
        if (!abort.signal.aborted) setMistakes(planMistakes(error));
      }
    }, 500);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [plan]);
  return mistakes;
}
