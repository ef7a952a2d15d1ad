// Pieces that all screens use.
import { useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "../../vendor/vendor.mjs";
import { html } from "../html.mjs";
import { Store, clock, useStore } from "../store.mjs";
import { absoluteTime, age, duration } from "../format.mjs";

/** The number of characters of a text that is shown before the reader asks for the rest. */
const LONG = 4_000;

/**
 * The age of a time, which grows; the absolute time is shown on hover.
 * @param {{at: string | null | undefined, suffix?: string}} properties
 */
export function Ago({ at, suffix = " ago" }) {
  const now = useStore(clock);
  if (!at) return html`<span class="muted">not known</span>`;
  const passed = Math.max(now, Date.now()) - Date.parse(at);
  const text = passed < 0 ? `in ${age(-passed)}` : `${age(passed)}${suffix}`;
  return html`<time class="nowrap" datetime=${at} title=${absoluteTime(at)}>${text}</time>`;
}

/**
 * The time between two times, or until now.
 * @param {{from: string | null | undefined, to?: string | null, now?: number}} properties
 */
export function Elapsed({ from, to, now }) {
  const current = useStore(clock);
  if (!from) return html`<span class="muted">-</span>`;
  const end = to ? Date.parse(to) : (now ?? Math.max(current, Date.now()));
  const title = `${absoluteTime(from)}${to ? ` to ${absoluteTime(to)}` : ""}`;
  return html`<span class="nowrap" title=${title}>${duration(end - Date.parse(from))}</span>`;
}

/**
 * A text of any length; of a long one the beginning, until the reader asks for more.
 * @param {{text: string, class?: string, as?: string}} properties
 */
export function LongText({ text, class: name = "words", as = "div" }) {
  const [shown, setShown] = useState(LONG);
  const rest = text.length - shown;
  // What scrolls must be reachable with the keyboard.
  return html`<${as} class=${name} tabIndex=${as === "pre" ? "0" : undefined}>${rest > 0 ? text.slice(0, shown) : text}${
    rest > 0 && html`… <button type="button" class="link no-print" onClick=${() => setShown(shown * 10)}>show ${Math.min(rest, shown * 9).toLocaleString("en")} more of ${rest.toLocaleString("en")} characters</button>`
  }<//>`;
}

/**
 * A value as indented JSON, or a text as it is.
 * @param {{value: any}} properties
 */
export function Value({ value }) {
  return html`<${LongText} as="pre" class="code" text=${typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "null"} />`;
}

/**
 * An error with the remedy, and a button to try again.
 * @param {{error: any, retry?: () => void, title?: string}} properties
 */
export function Failure({ error, retry, title = "This could not be read" }) {
  return html`<div class="notice tone-bad" role="alert">
    <h3>${title}</h3>
    <p class="words">${String(error?.message ?? error)}</p>
    ${retry && html`<p><button type="button" class="button small" onClick=${retry}>Try again</button></p>`}
  </div>`;
}

/**
 * A part of the page that may fail alone, so that the rest stays usable.
 * @param {{children?: any}} properties
 */
export function Guard({ children }) {
  const [error, reset] = useErrorBoundary((/** @type {any} */ reason) => console.error(reason));
  return error ? html`<${Failure} error=${error} retry=${reset} title="This part of the page has failed" />` : children;
}

/**
 * The message of a refused command, at the place where it was given.
 * @param {{error: any}} properties
 */
export function Refusal({ error }) {
  if (!error) return null;
  return html`<div class="notice tone-bad" role="alert"><h3>${error.status === 409 ? "Refused" : "Not possible"}</h3>
    <p class="words">${error.message}</p>
    ${error.mistakes?.length > 1 && html`<ul>${error.mistakes.map((/** @type {any} */ one) => html`<li class="words">${one.pointer && html`<code>${one.pointer}</code> `}${one.message}</li>`)}</ul>`}
  </div>`;
}

/** @param {{title: string, children?: any}} properties */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** A place that keeps its height while something is read. @param {{height?: number}} properties */
export function Loading({ height = 160 }) {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 250);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="row muted loading" style=${{ minHeight: `${height}px`, justifyContent: "center" }} role="status">${isLate ? "Reading…" : ""}</div>`;
}

/** @param {{text: string | (() => string), label?: string}} properties */
export function CopyButton({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    const content = typeof text === "string" ? text : text();
    try {
      await navigator.clipboard.writeText(content);
    } catch {
      // Without HTTPS there is no clipboard interface.
      const area = Object.assign(document.createElement("textarea"), { value: content });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
    setTimeout(() => setDone(false), 1_500);
  };
  return html`<button type="button" class="button small" onClick=${copy} aria-live="polite">${isDone ? "Copied" : label}</button>`;
}

/**
 * A dialog. It closes with Escape, and gives the focus back.
 * @param {{title: string, onClose: () => void, children?: any, footer?: any, width?: number}} properties
 */
export function Dialog({ title, onClose, children, footer, width = 640 }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    element.current?.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${element} aria-label=${title} style=${{ width: `min(${width}px, calc(100vw - 24px))` }}
    onCancel=${(/** @type {Event} */ event) => {
      event.preventDefault();
      onClose();
    }} onClick=${(/** @type {MouseEvent} */ event) => event.target === element.current && onClose()}>
    <header><h2 class="grow">${title}</h2><button type="button" class="button plain" aria-label="Close" onClick=${onClose}>✕</button></header>
    <div class="body">${children}</div>
    ${footer && html`<footer>${footer}</footer>`}
  </dialog>`;
}

/** Messages that disappear. @type {Store<{id: number, text: string}[]>} */
const messages = new Store(/** @type {{id: number, text: string}[]} */ ([]));
let messageId = 0;

/** Shows a message for some seconds. @param {string} text */
export function toast(text) {
  messageId += 1;
  const id = messageId;
  messages.set([...messages.value, { id, text }]);
  setTimeout(() => messages.set(messages.value.filter((message) => message.id !== id)), 6_000);
}

export function Toasts() {
  const shown = useStore(messages);
  return html`<div class="toasts" role="status" aria-live="polite">${shown.map(({ id, text }) => html`<div class="toast" key=${id}>${text}</div>`)}</div>`;
}

/**
 * Rows of one height, of which only those that can be seen are in the page.
 * @param {{items: any[], height: number, render: (item: any, index: number) => any, label: string, max?: number, follow?: boolean, show?: number}} properties
 *   `max`: the height of the list; `follow`: stay at the end; `show`: the index of a row to scroll to.
 */
export function VirtualList({ items, height, render, label, max = 640, follow = false, show = -1 }) {
  const element = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [top, setTop] = useState(0);
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    if (element.current && follow && isAtEnd.current) element.current.scrollTop = items.length * height;
  }, [items.length]);
  useLayoutEffect(() => {
    if (element.current && show >= 0) element.current.scrollTop = Math.max(0, show * height - max / 2);
  }, [show]);
  const first = Math.max(0, Math.floor(top / height) - 8);
  const visibleCount = Math.ceil(max / height) + 16;
  const onScroll = () => {
    const list = element.current;
    if (!list) return;
    isAtEnd.current = list.scrollTop + list.clientHeight >= list.scrollHeight - height;
    setTop(list.scrollTop);
  };
  return html`<div class="virtual" ref=${element} onScroll=${onScroll} style=${{ maxHeight: `${max}px` }} tabIndex="0" role="group" aria-label=${label}>
    <div style=${{ height: `${items.length * height}px`, position: "relative" }} role="list">
      ${items.slice(first, first + visibleCount).map((item, index) => html`<div role="listitem" class="virtual-row" key=${first + index}
        style=${{ transform: `translateY(${(first + index) * height}px)`, height: `${height}px` }}>${render(item, first + index)}</div>`)}
    </div>
  </div>`;
}

/**
 * Tabs as links, so that each has an address.
 * @param {{label: string, tabs: {id: string, name: any, href: string}[], current: string}} properties
 */
export function Tabs({ label, tabs, current }) {
  return html`<nav class="tabs" aria-label=${label}>${tabs.map(({ id, name, href }) => html`<a key=${id} href=${href} aria-current=${id === current ? "page" : undefined}>${name}</a>`)}</nav>`;
}
