// Markdown as nodes of the page. HTML in it is shown as text; images are links; citations such as [1] are buttons.
import { lexer } from "../../vendor/vendor.mjs";
import { html, safeAddress } from "../html.mjs";

/** The characters that the lexer escapes for HTML, which nodes do not need. @param {string} text */
const unescapeHtml = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&quot;", '"').replaceAll("&#39;", "'").replaceAll("&amp;", "&");

/**
 * Splits a text at its citations.
 * @param {string} text @param {(id: string) => any} cite
 */
function withCitations(text, cite) {
  return text.split(/(\[[A-Za-z]?\d{1,4}\])/).map((part) => {
    const id = /^\[([A-Za-z]?\d{1,4})\]$/.exec(part)?.[1];
    return id ? (cite(id) ?? part) : part;
  });
}

/** @param {any[]} tokens @param {(id: string) => any} cite @returns {any} */
function nodes(tokens, cite) {
  return (tokens ?? []).map((token) => node(token, cite));
}

/** @param {any} token @param {(id: string) => any} cite @returns {any} */
function node(token, cite) {
  const inner = () => nodes(token.tokens, cite);
  switch (token.type) {
    case "heading": return html`<${`h${Math.min(6, token.depth + 1)}`}>${inner()}<//>`;
    case "paragraph": return html`<p>${inner()}</p>`;
    case "text": return token.tokens ? inner() : withCitations(unescapeHtml(token.text), cite);
    case "strong": return html`<strong>${inner()}</strong>`;
    case "em": return html`<em>${inner()}</em>`;
    case "del": return html`<del>${inner()}</del>`;
    case "codespan": return html`<code>${unescapeHtml(token.text)}</code>`;
    case "code": return html`<pre class="code" tabIndex="0"><code>${token.text}</code></pre>`;
    case "blockquote": return html`<blockquote>${inner()}</blockquote>`;
    case "br": return html`<br />`;
    case "hr": return html`<hr />`;
    case "link": {
      const to = safeAddress(token.href);
      return to && /^https?:/i.test(to) ? html`<a href=${to} rel="noreferrer noopener" target="_blank">${inner()}</a>` : html`<span title=${token.href}>${inner()}</span>`;
    }
    case "image": return html`<span class="chip" title=${token.href}>image: ${token.text || token.href}</span>`;
    case "list": return html`<${token.ordered ? "ol" : "ul"} start=${token.ordered && token.start !== 1 ? token.start : undefined}>${token.items.map((/** @type {any} */ item) => html`<li>${item.task && html`<input type="checkbox" disabled checked=${item.checked} aria-label=${item.checked ? "done" : "open"} /> `}${nodes(item.tokens, cite)}</li>`)}<//>`;
    case "table": return html`<div class="scroll"><table><thead><tr>${token.header.map((/** @type {any} */ cell) => html`<th>${nodes(cell.tokens, cite)}</th>`)}</tr></thead><tbody>${token.rows.map((/** @type {any} */ row) => html`<tr>${row.map((/** @type {any} */ cell) => html`<td>${nodes(cell.tokens, cite)}</td>`)}</tr>`)}</tbody></table></div>`;
    case "escape": return unescapeHtml(token.text);
    case "checkbox": return null;
    case "space":
    case "def": return null;
    // HTML is text here, as everything that the lexer may know and this does not.
    default: return token.raw ?? "";
  }
}

/**
 * @param {{text: string, cite?: (id: string) => any}} properties
 */
export function Markdown({ text, cite = () => null }) {
  return html`<div class="markdown">${nodes(lexer(text, { gfm: true }), cite)}</div>`;
}
