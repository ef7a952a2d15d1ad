// The keyboard: keys of the whole page, and keys that a screen adds while it is shown.
import { useEffect, useRef } from "../vendor/vendor.mjs";
import { html } from "./html.mjs";
import { go } from "./router.mjs";
import { Store, useStore } from "./store.mjs";
import { Dialog } from "./ui/basics.mjs";

/** `true` while the list of keys is shown. */
export const keyHelp = new Store(false);

/**
 * @typedef {object} KeyBinding
 * @property {string} keys One key, or two with a space between them.
 * @property {string} about
 * @property {() => void} action
 */

/** The keys of the screens that are shown. @type {Store<KeyBinding[][]>} */
const bindings = new Store(/** @type {KeyBinding[][]} */ ([]));

/** @type {KeyBinding[]} */
const GLOBAL = [
  { keys: "g r", about: "Runs", action: () => go("/runs") },
  { keys: "g i", about: "Inbox", action: () => go("/inbox") },
  { keys: "g s", about: "Spend", action: () => go("/spend") },
  { keys: "g c", about: "Cluster", action: () => go("/cluster") },
  { keys: "n", about: "New run", action: () => go("/new") },
  { keys: "/", about: "Search", action: () => /** @type {HTMLElement | null} */ (document.querySelector("input[type=search]"))?.focus() },
  { keys: "?", about: "These keys", action: () => keyHelp.set(!keyHelp.value) },
];

/**
 * Adds keys while a component is shown.
 * @param {KeyBinding[]} own
 */
export function useKeys(own) {
  const latest = useRef(own);
  latest.current = own;
  useEffect(() => {
    const entry = own.map((binding, index) => ({ ...binding, action: () => latest.current[index]?.action() }));
    bindings.set([...bindings.value, entry]);
    return () => bindings.set(bindings.value.filter((one) => one !== entry));
  }, [own.map(({ keys }) => keys).join()]);
}

/** Moves the focus among elements. @param {string} selector @param {number} step */
export function moveFocus(selector, step) {
  const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(selector)]);
  const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

export function bindKeys() {
  let prefix = "";
  let timer = 0;
  addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if (event.key === "Escape" && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !target.closest("dialog")) {
      target.blur();
      return;
    }
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable) return;
    const isModal = document.querySelector("dialog[open]");
    const keys = prefix ? `${prefix} ${event.key}` : event.key;
    const all = isModal ? [] : [...bindings.value.flat(), ...GLOBAL];
    const found = all.findLast((binding) => binding.keys === keys);
    prefix = "";
    clearTimeout(timer);
    if (found) {
      event.preventDefault();
      found.action();
    } else if (all.some((binding) => binding.keys.startsWith(`${event.key} `))) {
      prefix = event.key;
      timer = setTimeout(() => {
        prefix = "";
      }, 1_200);
    }
  });
}

export function KeyHelp() {
  const isShown = useStore(keyHelp);
  const own = useStore(bindings);
  if (!isShown) return null;
  const list = (/** @type {string} */ title, /** @type {KeyBinding[]} */ keys) => keys.length > 0 && html`<section class="stack tight"><h3>${title}</h3>
    <dl class="facts">${keys.map((binding) => html`<dt>${binding.keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${binding.about}</dd>`)}</dl></section>`;
  return html`<${Dialog} title="Keyboard" width=${460} onClose=${() => keyHelp.set(false)}>${list("This screen", own.flat())}${list("Everywhere", GLOBAL)}<//>`;
}
