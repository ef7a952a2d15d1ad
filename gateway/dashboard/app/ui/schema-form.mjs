// A form made from a JSON Schema. What a form can't show (unions, free objects) is edited as JSON.
import { useState } from "../../vendor/vendor.mjs";
import { html } from "../html.mjs";

/** @param {any} schema @returns {string} */
function typeOf(schema) {
  const type = Array.isArray(schema?.type) ? schema.type.find((/** @type {string} */ one) => one !== "null") : schema?.type;
  if (Array.isArray(schema?.enum)) return "enum";
  if (type === "object" && schema.properties) return "object";
  return ["string", "number", "integer", "boolean"].includes(type) ? type : type === "array" && typeOf(schema.items) === "string" ? "strings" : "json";
}

/**
 * Finds what is wrong with a value; the server checks it completely.
 * @param {any} schema @param {any} value @param {string} path
 * @returns {{path: string, message: string}[]}
 */
export function mistakesOf(schema, value, path = "") {
  const type = typeOf(schema);
  const wrong = (/** @type {string} */ message) => [{ path, message }];
  if (type === "object") {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return wrong("must be an object");
    const missing = (schema.required ?? []).filter((/** @type {string} */ name) => value[name] === undefined || value[name] === "");
    const names = missing.map((/** @type {string} */ name) => ({ path: path ? `${path}.${name}` : name, message: "is needed" }));
    const inner = Object.entries(schema.properties).flatMap(([name, part]) => (value[name] === undefined || missing.includes(name) ? [] : mistakesOf(part, value[name], path ? `${path}.${name}` : name)));
    return [...names, ...inner];
  }
  if (type === "integer" && !Number.isInteger(value)) return wrong("must be a whole number");
  if (type === "number" && typeof value !== "number") return wrong("must be a number");
  if (typeof schema?.minimum === "number" && value < schema.minimum) return wrong(`must be at least ${schema.minimum}`);
  if (typeof schema?.maximum === "number" && value > schema.maximum) return wrong(`must be at most ${schema.maximum}`);
  if (typeof schema?.maxLength === "number" && String(value).length > schema.maxLength) return wrong(`has more than ${schema.maxLength} characters`);
  return [];
}

/**
 * @param {{schema: any, value: any, onChange: (value: any) => void, name?: string, path?: string, required?: boolean, mistakes?: {path: string, message: string}[], first?: boolean}} properties
 */
export function SchemaField({ schema, value, onChange, name = "", path = "", required = false, mistakes = [], first = false }) {
  const type = typeOf(schema);
  const mistake = mistakes.find((one) => one.path === path)?.message;
  if (type === "object") {
    const extra = Object.keys(value ?? {}).filter((key) => !(key in schema.properties));
    const fields = Object.entries(schema.properties).map(([key, part], index) => html`<${SchemaField} key=${key} name=${key} schema=${part} value=${value?.[key]} path=${path ? `${path}.${key}` : key}
      required=${(schema.required ?? []).includes(key)} mistakes=${mistakes} first=${first && index === 0}
      onChange=${(/** @type {any} */ next) => {
        const changed = { ...value, [key]: next };
        if (next === undefined) delete changed[key];
        onChange(changed);
      }} />`);
    const body = html`${fields}${extra.length > 0 && html`<p class="hint">Unchanged: ${extra.join(", ")}</p>`}`;
    return name ? html`<fieldset class="stack"><legend>${name}</legend>${schema.description && html`<p class="hint">${schema.description}</p>`}${body}</fieldset>` : html`<div class="stack">${body}</div>`;
  }
  const label = html`<span class="name">${name || "Value"}${required ? "" : html` <span class="muted">optional</span>`}</span>`;
  const hint = html`${schema?.description && html`<span class="hint">${schema.description}</span>`}${mistake && html`<span class="mistake" role="alert">${name || "It"} ${mistake}</span>`}`;
  const set = (/** @type {any} */ event) => onChange(event.target.value === "" && !required && type !== "string" ? undefined : event.target.value);
  if (type === "boolean") {
    return html`<label class="field"><span class="row"><input type="checkbox" checked=${Boolean(value)} autofocus=${first} onChange=${(/** @type {any} */ event) => onChange(event.target.checked)} />${label}</span>${hint}</label>`;
  }
  if (type === "enum") {
    return html`<label class="field">${label}<select autofocus=${first} value=${JSON.stringify(value)} onChange=${(/** @type {any} */ event) => onChange(event.target.value === "" ? undefined : JSON.parse(event.target.value))}>
      ${(!required || value === undefined) && html`<option value="">-</option>`}${schema.enum.map((/** @type {any} */ one) => html`<option key=${JSON.stringify(one)} value=${JSON.stringify(one)}>${String(one)}</option>`)}</select>${hint}</label>`;
  }
  if (type === "number" || type === "integer") {
    return html`<label class="field">${label}<input type="number" step=${type === "integer" ? "1" : "any"} autofocus=${first} value=${value ?? ""} aria-invalid=${Boolean(mistake)}
      onInput=${(/** @type {any} */ event) => onChange(event.target.value === "" ? undefined : Number(event.target.value))} />${hint}</label>`;
  }
  if (type === "strings") {
    return html`<label class="field">${label}<textarea rows="3" autofocus=${first} aria-invalid=${Boolean(mistake)} value=${(value ?? []).join("\n")}
      onInput=${(/** @type {any} */ event) => onChange(event.target.value === "" ? [] : event.target.value.split("\n"))}></textarea><span class="hint">One a line</span>${hint}</label>`;
  }
  if (type === "string") {
    const isLong = String(value ?? "").length > 70 || /\n/.test(String(value ?? ""));
    return html`<label class="field">${label}${isLong
      ? html`<textarea rows=${Math.min(14, String(value).split("\n").length + 2)} autofocus=${first} aria-invalid=${Boolean(mistake)} value=${value} onInput=${set}></textarea>`
      : html`<input type="text" autofocus=${first} aria-invalid=${Boolean(mistake)} value=${value ?? ""} onInput=${set} />`}${hint}</label>`;
  }
  return html`<${JsonField} label=${label} hint=${hint} value=${value} onChange=${onChange} first=${first} />`;
}

/** A value as JSON text. @param {{label: any, hint?: any, value: any, onChange: (value: any) => void, first?: boolean}} properties */
export function JsonField({ label, hint, value, onChange, first = false }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  const [mistake, setMistake] = useState("");
  const change = (/** @type {any} */ event) => {
    setText(event.target.value);
    try {
      onChange(event.target.value.trim() === "" ? undefined : JSON.parse(event.target.value));
      setMistake("");
    } catch (error) {
      setMistake(`This is not JSON: ${/** @type {Error} */ (error).message}. What is sent is the last valid value.`);
    }
  };
  return html`<label class="field">${label}<textarea class="mono" rows=${Math.min(16, text.split("\n").length + 1)} autofocus=${first} aria-invalid=${Boolean(mistake)} value=${text} onInput=${change}></textarea>${hint}${mistake && html`<span class="mistake" role="alert">${mistake}</span>`}</label>`;
}
