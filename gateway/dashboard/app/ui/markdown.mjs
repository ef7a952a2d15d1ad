// Markdown as nodes of the page. HTML in it is shown as text; images are links; citations such as [1] are buttons; footnotes follow
// the text; statements of the text are marked with their verdicts.
import { lexer } from "../../vendor/vendor.mjs";
import { html, safeAddress } from "../html.mjs";
import { placeStatements, shownText } from "./statement-places.mjs";

/** The characters that the lexer escapes for HTML, which nodes do not need. @param {string} text */
const unescapeHtml = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&quot;", '"').replaceAll("&#39;", "'").replaceAll("&amp;", "&");

/** The mark of a footnote, and a citation. */
const MARKS = /(\[\^[\w-]{1,40}\]|\[[A-Za-z]?\d{1,4}\])/;
/** A line that begins the text of a footnote. */
const NOTE = /^\[\^([\w-]{1,40})\]:[ \t]*/;
/** The label of a footnote that gives the verdict on a statement. */
const VERDICT_LABEL = /^v\d+$/;

/**
 * @typedef {object} StatementMarks How the statements of a text are marked.
 * @property {any[]} statements As the API has them.
 * @property {(statement: number) => string} toneOf The classes of a statement, by its number.
 * @property {(statement: number, label?: string) => any} sign The sign after a statement, with the label of its footnote.
 */

/** Makes nodes of tokens. */
class Renderer {
  /** @param {(id: string) => any} cite @param {Map<string, string>} notes @param {StatementMarks} [marks] @param {import("./statement-places.mjs").StatementPlaces} [places] */
  constructor(cite, notes, marks, places) {
    this.cite = cite;
    this.notes = notes;
    this.marks = marks;
    this.places = places;
    /** The labels of the footnotes of statements. @type {Map<number, string>} */
    this.labels = new Map();
    /** The statement of the row that is made. @type {number | null} */
    this.row = null;
  }

  /** @param {any[]} tokens @returns {any} */
  nodes(tokens) {
    return (tokens ?? []).map((token) => {
      const node = this.node(token);
      const ends = this.places?.ends.get(token);
      return ends ? [node, ...ends.map((statement) => this.sign(statement))] : node;
    });
  }

  /** @param {number} statement */
  sign(statement) {
    return this.marks?.sign(statement, this.labels.get(statement));
  }

  /** A text with its citations and footnotes. @param {string} text @param {number | null} statement */
  text(text, statement) {
    return unescapeHtml(text).split(MARKS).map((part) => {
      const [, note, id] = /^\[(?:\^([\w-]{1,40})|([A-Za-z]?\d{1,4}))\]$/.exec(part) ?? [];
      if (note && this.notes.has(note)) return this.noteMark(note, statement);
      return id ? (this.cite(id) ?? part) : part;
    });
  }

  /** @param {string} label @param {number | null} statement */
  noteMark(label, statement) {
    if (statement === null || !VERDICT_LABEL.test(label)) return html`<sup><a id=${`ref-${label}`} href=${`#note-${label}`}>${label}</a></sup>`;
    // The sign after the statement has it.
    this.labels.set(statement, label);
    return null;
  }

  /**
   * The pieces of a token of text, each inside of its statement.
   * @param {any} token @param {(text: string, statement: number | null) => any} show
   */
  pieces(token, show) {
    const pieces = this.places?.pieces.get(token);
    if (!pieces) return show(shownText(token), this.row);
    return pieces.map(({ text, statement, isEnd }) => {
      if (statement === null) return show(text, null);
      const span = html`<span class=${`statement ${this.marks?.toneOf(statement)}`} data-statement=${statement}>${show(text, statement)}</span>`;
      return isEnd ? [span, this.sign(statement)] : span;
    });
  }

  /** @param {any} token @returns {any} */
  node(token) {
    const inner = () => this.nodes(token.tokens);
    switch (token.type) {
      case "heading": return html`<${`h${Math.min(6, token.depth + 1)}`}>${inner()}<//>`;
      case "paragraph": return NOTE.test(token.raw) ? null : html`<p>${inner()}</p>`;
      case "text": return token.tokens ? inner() : this.pieces(token, (text, statement) => this.text(text, statement));
      case "strong": return html`<strong>${inner()}</strong>`;
      case "em": return html`<em>${inner()}</em>`;
      case "del": return html`<del>${inner()}</del>`;
      case "codespan": return this.pieces(token, (text) => html`<code>${unescapeHtml(text)}</code>`);
      case "code": return html`<pre class="code" tabIndex="0"><code>${token.text}</code></pre>`;
      case "blockquote": return html`<blockquote>${inner()}</blockquote>`;
      case "br": return html`<br />`;
      case "hr": return html`<hr />`;
      case "link": return this.link(token);
      case "image": return html`<span class="chip" title=${token.href}>image: ${token.text || token.href}</span>`;
      case "list": return html`<${token.ordered ? "ol" : "ul"} start=${token.ordered && token.start !== 1 ? token.start : undefined}>${token.items.map((/** @type {any} */ item) => html`<li>${item.task && html`<input type="checkbox" disabled checked=${item.checked} aria-label=${item.checked ? "done" : "open"} /> `}${this.nodes(item.tokens)}</li>`)}<//>`;
      case "table": return html`<div class="scroll"><table><thead><tr>${token.header.map((/** @type {any} */ cell) => html`<th>${this.nodes(cell.tokens)}</th>`)}</tr></thead><tbody>${token.rows.map((/** @type {any} */ row) => this.tableRow(row))}</tbody></table></div>`;
      case "escape": return this.pieces(token, (text) => unescapeHtml(text));
      case "checkbox": return null;
      case "space":
      case "def": return null;
      // HTML is text here, as everything that the lexer may know and this does not.
      default: return this.pieces(token, (text) => text);
    }
  }

  /** @param {any} token */
  link(token) {
    // The lexer makes a link of the mark of a footnote whose text is one word.
    const label = /^\[\^([\w-]{1,40})\]$/.exec(token.raw)?.[1];
    if (label && this.notes.has(label)) return this.noteMark(label, null);
    const to = safeAddress(token.href);
    return to && /^https?:/i.test(to) ? html`<a href=${to} rel="noreferrer noopener" target="_blank">${this.nodes(token.tokens)}</a>` : html`<span title=${token.href}>${this.nodes(token.tokens)}</span>`;
  }

  /** @param {any} row */
  tableRow(row) {
    const statement = this.places?.rows.get(row);
    this.row = statement ?? null;
    const cells = row.map((/** @type {any} */ cell, /** @type {number} */ index) => html`<td>${this.nodes(cell.tokens)}${statement !== undefined && index === row.length - 1 && this.sign(statement)}</td>`);
    this.row = null;
    return statement === undefined ? html`<tr>${cells}</tr>` : html`<tr class=${`statement ${this.marks?.toneOf(statement)}`} data-statement=${statement}>${cells}</tr>`;
  }

  noteList() {
    if (this.notes.size === 0) return null;
    return html`<section class="notes" aria-label="Footnotes"><dl>${[...this.notes].map(([label, text]) => html`<dt id=${`note-${label}`}><a href=${`#ref-${label}`} aria-label=${`Footnote ${label}, back to the text`}>${label}</a></dt><dd>${this.nodes(lexer(text, { gfm: true }))}</dd>`)}</dl></section>`;
  }
}

/**
 * The texts of the footnotes, by label.
 * @param {any[]} tokens
 */
function readNotes(tokens) {
  const notes = new Map();
  for (const token of tokens) {
    if (token.type === "def" && NOTE.test(token.raw)) notes.set(token.raw.match(NOTE)[1], `${token.href}${token.title ? ` ${token.title}` : ""}`);
    if (token.type !== "paragraph" || !NOTE.test(token.raw)) continue;
    let label = "";
    for (const line of token.raw.split("\n")) {
      const found = NOTE.exec(line);
      label = found?.[1] ?? label;
      if (!found) notes.set(label, `${notes.get(label)}\n${line}`);
      else if (!notes.has(label)) notes.set(label, line.slice(found[0].length));
    }
  }
  return notes;
}

/**
 * @param {{text: string, cite?: (id: string) => any, marks?: StatementMarks}} properties
 */
export function Markdown({ text, cite = () => null, marks }) {
  const tokens = lexer(text, { gfm: true });
  const places = marks ? placeStatements(tokens, text, marks.statements) : undefined;
  const renderer = new Renderer(cite, readNotes(tokens), marks, places);
  return html`<div class="markdown">${renderer.nodes(tokens)}${renderer.noteList()}</div>`;
}
