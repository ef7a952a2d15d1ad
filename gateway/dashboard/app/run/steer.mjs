// The commands that steer a run or a task. Each says before what it will do, and shows a refusal where it was given.
import { useState } from "../../vendor/vendor.mjs";
import { command, newKey, runPath } from "../api.mjs";
import { html } from "../html.mjs";
import { plural } from "../format.mjs";
import { address } from "../router.mjs";
import { Dialog, Refusal, toast } from "../ui/basics.mjs";
import { isLive } from "../ui/states.mjs";
import { dependents } from "./plan.mjs";

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {string} [hint]
 * @property {string} [value]
 * @property {"text" | "area"} [kind]
 * @property {boolean} [required]
 */

/**
 * @typedef {object} Steering
 * @property {string} title
 * @property {any} consequence What the command will do.
 * @property {string} action The label of the button.
 * @property {Field[]} fields
 * @property {string} path
 * @property {string} [method]
 * @property {boolean} [isDanger]
 * @property {(values: Record<string, string>) => any} body Returns the body; throws an `Error` if a field is wrong.
 */

/** @param {{steering: Steering, onClose: () => void, refresh: () => void}} properties */
export function SteeringDialog({ steering, onClose, refresh }) {
  const { title, consequence, action, fields, path, method, isDanger, body } = steering;
  const [values, setValues] = useState(Object.fromEntries(fields.map(({ name, value }) => [name, value ?? ""])));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const id = useState(newKey)[0].slice(0, 6);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const reply = await command(path, body(values), method);
      refresh();
      toast(reply.message ?? reply.description ?? (reply.events ? `${action}: done` : `${action}: accepted`));
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const input = (/** @type {Field} */ field, /** @type {number} */ index) => {
    const common = { id: `${id}-${field.name}`, value: values[field.name], required: field.required, autofocus: index === 0,
      onInput: (/** @type {any} */ event) => setValues({ ...values, [field.name]: event.target.value }) };
    return html`<label class="field" key=${field.name}><span class="name">${field.label}</span>
      ${field.kind === "area" ? html`<textarea rows="4" ...${common}></textarea>` : html`<input type="text" ...${common} />`}
      ${field.hint && html`<span class="hint">${field.hint}</span>`}</label>`;
  };
  return html`<${Dialog} title=${title} onClose=${onClose} footer=${html`<button type="button" class="button" onClick=${onClose}>Leave it</button>
      <button class=${`button ${isDanger ? "danger" : "primary"}`} form=${`${id}-form`} disabled=${isBusy} autofocus=${fields.length === 0}>${action}</button>`}>
    <form id=${`${id}-form`} class="stack" onSubmit=${send}><p class="words">${consequence}</p>${fields.map(input)}<${Refusal} error=${error} /></form>
  <//>`;
}

/** Text of a list of values, one a line or separated by commas. @param {string} text */
const list = (text) => text.split(/[,\n]/).map((part) => part.trim()).filter(Boolean);

/**
 * Parses `NAME=VALUE` pairs of a budget.
 * @param {string} text
 */
export function parseBudget(text) {
  return Object.fromEntries(list(text).map((part) => {
    const [name, ...rest] = part.split("=");
    if (!name || rest.length === 0) throw new Error(`${JSON.stringify(part)}: write NAME=AMOUNT, such as tokens=200k, cost=2.00 or time=30m`);
    const value = rest.join("=").trim();
    return [name.trim(), /^\d+$/.test(value) ? Number(value) : value];
  }));
}

/** Parses tasks that a person wrote: JSON, or YAML as text, which the server parses. @param {string} text */
function parseTasks(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** @param {any} run @returns {Record<string, Steering>} */
function runSteerings(run) {
  const path = (/** @type {string} */ name) => runPath(run.run, name);
  const counts = run.task_counts;
  const open = counts.total - counts.completed - counts.failed - counts.cancelled;
  const budgetHint = "NAME=AMOUNT, separated by commas: tokens=400k, cost=5.00, time=1h. These are new totals, not additions.";
  const reason = { name: "reason", label: "Reason (for the log)" };
  return {
    pause: { title: "Pause the run", action: "Pause", path: path("pause"), fields: [], body: () => undefined,
      consequence: `No new task starts. ${counts.running > 0 ? `${plural(counts.running, "running task")} will finish.` : "No task is running now."} Resume continues where it stopped.` },
    interrupt: { title: "Interrupt the run", action: "Interrupt", path: path("interrupt"), fields: [], body: () => undefined,
      consequence: `Nothing of the run runs until it is resumed. ${counts.running > 0 ? `${plural(counts.running, "running task")} will be stopped; the same attempts continue from their journals later.` : ""}` },
    resume: { title: "Resume the run", action: "Resume", path: path("resume"),
      consequence: run.end ? "The run continues after its end. Finished work is not repeated." : "Tasks start again. Finished work is not repeated.",
      fields: [{ name: "budget", label: "New limits (optional)", hint: budgetHint }],
      body: ({ budget }) => (budget.trim() ? { budget: parseBudget(budget) } : {}) },
    budget: { title: "Raise the budget", action: "Set the limits", path: path("resume"),
      consequence: "The new totals apply at once; limits that you do not name stay. A paused run continues.",
      fields: [{ name: "budget", label: "New limits", hint: budgetHint, required: true }], body: ({ budget }) => ({ budget: parseBudget(budget) }) },
    cancel: { title: "Cancel the run", action: "Cancel the run", isDanger: true, path: path("cancel"), fields: [reason],
      consequence: `The run ends now. ${open > 0 ? `${plural(open, "task")} will not be completed; work in progress is stopped and open questions are withdrawn.` : ""} This cannot be undone.`,
      body: ({ reason: text }) => (text ? { reason: text } : {}) },
    message: { title: "Tell the planner something", action: "Send", path: path("message"),
      consequence: "The planner reads the message in its next turn and may change the plan: add, edit or cancel tasks.",
      fields: [{ name: "text", label: "Message", kind: "area", required: true }], body: ({ text }) => ({ text }) },
    add: { title: "Add tasks", action: "Add", path: path("tasks"),
      consequence: "All are added, or none. They may depend on tasks of the run, and start when these are completed.",
      fields: [{ name: "tasks", label: "Tasks, as in a plan file", kind: "area", required: true, value: '[{"id": "extra", "objective": "…", "capability": "research", "depends_on": []}]' }],
      body: ({ tasks }) => ({ tasks: parseTasks(tasks) }) },
    signal: { title: "Signal an event", action: "Signal", path: path("signal"), consequence: "Ends the waits of tasks that wait for an event of this name. They receive the data.",
      fields: [{ name: "name", label: "Name of the event", required: true }, { name: "data", label: "Data as JSON (optional)", kind: "area" }],
      body: ({ name, data }) => {
        try {
          return data.trim() ? { name, data: JSON.parse(data) } : { name };
        } catch (error) {
          throw new Error(`The data is not JSON: ${/** @type {Error} */ (error).message}`);
        }
      } },
  };
}

/** @param {{run: any, refresh: () => void}} properties */
export function RunActions({ run, refresh }) {
  const [open, setOpen] = useState(/** @type {string} */ (""));
  const all = runSteerings(run);
  const live = isLive(run.state);
  const stopped = ["paused", "interrupted"].includes(run.state);
  const names = [
    stopped || run.resumable ? "resume" : null,
    live && !stopped ? "pause" : null,
    live ? "message" : null,
  ].filter((name) => name !== null);
  const more = live ? ["add", "budget", "signal", "interrupt", "cancel"] : [];
  const labels = /** @type {Record<string, string>} */ ({ resume: "Resume", pause: "Pause", message: "Tell the planner", add: "Add tasks", budget: "Raise the budget", signal: "Signal an event", interrupt: "Interrupt", cancel: "Cancel the run" });
  return html`<div class="row wrap no-print actions">
    ${names.map((name) => html`<button type="button" key=${name} class="button" onClick=${() => setOpen(name)}>${labels[name]}</button>`)}
    ${!live && html`<a class="button" href=${address(["new"], { after: run.run, session: run.session ?? "" })} title="A new run that reads the result of this one">Follow up</a>`}
    ${!live && html`<a class="button" href=${address(["compare"], { left: `${run.run}` })}>Compare</a>`}
    ${more.length > 0 && html`<details class="menu"><summary class="button" aria-label="More commands">More ▾</summary><div class="menu-list">
      ${more.map((name) => html`<button type="button" key=${name} class=${`button plain ${name === "cancel" ? "danger" : ""}`} onClick=${(/** @type {any} */ event) => {
        event.target.closest("details").open = false;
        setOpen(name);
      }}>${labels[name]}</button>`)}</div></details>`}
    ${open && html`<${SteeringDialog} key=${open} steering=${all[open]} refresh=${refresh} onClose=${() => setOpen("")} />`}
  </div>`;
}

/** @param {any} run @param {any} task @returns {Record<string, Steering>} */
function taskSteerings(run, task) {
  const path = (/** @type {string[]} */ ...parts) => runPath(run.run, "tasks", task.id, ...parts);
  const after = dependents(run.tasks);
  const all = new Set();
  for (const stack = [...(after.get(task.id) ?? [])]; stack.length > 0; ) {
    const id = stack.pop();
    if (all.has(id)) continue;
    all.add(id);
    stack.push(...(after.get(String(id)) ?? []));
  }
  const names = [...all].slice(0, 8).join(", ") + (all.size > 8 ? ` and ${all.size - 8} more` : "");
  return {
    retry: { title: `Retry ${task.id}`, action: "Retry", path: path("retry"),
      consequence: `The task gets a new attempt with your feedback.${all.size > 0 ? ` ${plural(all.size, "dependent task")} will run again after it: ${names}.` : ""} ${run.end ? "The run continues after its end." : ""}`,
      fields: [{ name: "feedback", label: "Feedback for the next attempt (optional)", kind: "area" }], body: ({ feedback }) => (feedback ? { feedback } : {}) },
    edit: { title: `Edit ${task.id}`, action: "Change the task", method: "PATCH", path: path(),
      consequence: "Only a task that no worker has claimed can be changed. A field that you leave as it is stays.",
      fields: [{ name: "objective", label: "Objective", kind: "area", value: task.objective }, { name: "capability", label: "Capability", value: task.capability },
        { name: "depends_on", label: "Depends on", hint: "Ids, separated by commas", value: task.depends_on.join(", ") }, { name: "parameters", label: "Parameters to set, as JSON (optional)", kind: "area" }],
      body: ({ objective, capability, depends_on, parameters }) => {
        /** @type {any} */
        const patch = {};
        if (objective !== task.objective) patch.objective = objective;
        if (capability !== task.capability) patch.capability = capability.trim();
        if (list(depends_on).join() !== task.depends_on.join()) patch.depends_on = list(depends_on);
        if (parameters.trim()) {
          try {
            patch.parameters = JSON.parse(parameters);
          } catch (error) {
            throw new Error(`The parameters are not JSON: ${/** @type {Error} */ (error).message}`);
          }
        }
        if (Object.keys(patch).length === 0) throw new Error("Nothing is changed yet.");
        return patch;
      } },
    cancel: { title: `Cancel ${task.id}`, action: "Cancel the task", isDanger: true, path: path("cancel"),
      consequence: `The task ends without a result.${all.size > 0 ? ` Tasks that need it are cancelled too, unless they may start without it: ${names}.` : ""}`,
      fields: [{ name: "reason", label: "Reason (for the log)" }], body: ({ reason }) => (reason ? { reason } : {}) },
    final: { title: `Make ${task.id} the deliverable`, action: "Make it the deliverable", method: "PATCH", path: path(), fields: [], body: () => ({ final: true }),
      consequence: "Its result becomes the result of the run." },
  };
}

/** @param {{run: any, task: any, refresh: () => void}} properties */
export function TaskActions({ run, task, refresh }) {
  const [open, setOpen] = useState("");
  const all = taskSteerings(run, task);
  if (run.end && !run.end.resume_with) return html`<p class="hint no-print">The run has ended for good; "Follow up" starts a run that sees its results.</p>`;
  const isOpen = !["completed", "failed", "cancelled"].includes(task.state);
  const names = [task.state === "pending" || task.state === "ready" || task.state === "errored" ? "edit" : null, isOpen ? "cancel" : "retry", isOpen && task.state !== "pending" ? "retry" : null, isOpen && !task.final ? "final" : null].filter((name) => name !== null);
  const labels = /** @type {Record<string, string>} */ ({ retry: "Retry", edit: "Edit", cancel: "Cancel", final: "Make it the deliverable" });
  return html`<div class="row wrap no-print">${names.map((name) => html`<button type="button" key=${name} class=${`button small ${name === "cancel" ? "danger" : ""}`} onClick=${() => setOpen(name)}>${labels[name]}</button>`)}
    ${open && html`<${SteeringDialog} key=${open} steering=${all[open]} refresh=${refresh} onClose=${() => setOpen("")} />`}</div>`;
}
