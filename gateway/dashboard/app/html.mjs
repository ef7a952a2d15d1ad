// The one place where text becomes part of the page. Text from models, tools, documents and users passes `visible`, so that
// control characters and changes of the writing direction are shown and never obeyed; links lead to web pages only.
import { h, htm } from "../vendor/vendor.mjs";

/** C0 and C1 controls without tab and line ends, DEL, marks and overrides of the direction, other line ends, invisible joiners of tags. */
const INVISIBLE = /\r(?!\n)|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/gu;

/**
 * Replaces characters that cannot be seen by a sign for them.
 * @param {string} text
 * @returns {string}
 */
export function visible(text) {
  return text.replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0) ?? 0;
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

/**
 * Returns the address if a link may lead there: a path of this server, or a web page.
 * @param {unknown} address
 * @returns {string | undefined}
 */
export function safeAddress(address) {
  const text = String(address ?? "");
  if (/^[/?#](?![/\\])/.test(text)) return text;
  return /^(https?|blob):/i.test(text) ? text : undefined;
}

/** Focuses an element when it appears; browsers do so once for each page only. @param {HTMLElement | null} node */
const focusNew = (node) => node?.focus();

const TEXTS = ["title", "aria-label", "placeholder", "alt"];

/** @param {any} child @returns {any} */
function visibleChild(child) {
  if (typeof child === "string") return visible(child);
  return Array.isArray(child) ? child.map(visibleChild) : child;
}

/**
 * Makes a node of the page. Children and labels that are text are made visible; `dangerouslySetInnerHTML` is not possible.
 * @param {any} type
 * @param {any} properties
 * @param {any[]} children
 */
function element(type, properties, ...children) {
  if (typeof type === "string" && properties) {
    for (const name of TEXTS) if (typeof properties[name] === "string") properties[name] = visible(properties[name]);
    if ("href" in properties) properties.href = safeAddress(properties.href);
    if (properties.autofocus && !properties.ref) properties.ref = focusNew;
    delete properties.dangerouslySetInnerHTML;
  }
  return h(type, properties, ...(typeof type === "string" ? children.map(visibleChild) : children));
}

/** Renders a template as nodes. @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(/** @type {any} */ (element));
