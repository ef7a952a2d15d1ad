// Two texts side by side, line by line.
import { plural } from "../format.mjs";
import { html } from "../html.mjs";

/** The number of lines beyond which only equal beginnings and ends are matched. */
const MOST = 1_500;

/**
 * Returns the lines of two texts in pairs; a line that only one text has stands alone.
 * @param {string} left @param {string} right
 * @returns {{left: string | null, right: string | null}[]}
 */
export function diffLines(left, right) {
  const [a, b] = [left.split("\n"), right.split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const same = (/** @type {string[]} */ lines) => lines.map((line) => ({ left: /** @type {string | null} */ (line), right: /** @type {string | null} */ (line) }));
  const [x, y] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  return [...same(a.slice(0, start)), ...middle(x, y), ...same(end > 0 ? a.slice(-end) : [])];
}

/** @param {string[]} x @param {string[]} y */
function middle(x, y) {
  /** @type {{left: string | null, right: string | null}[]} */
  const pairs = [];
  if (x.length > MOST || y.length > MOST) {
    for (let i = 0; i < Math.max(x.length, y.length); i += 1) pairs.push({ left: x[i] ?? null, right: y[i] ?? null });
    return pairs;
  }
  // The length of the longest common part from each place.
  const width = y.length + 1;
  const common = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i -= 1) {
    for (let j = y.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = x[i] === y[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  let [i, j] = [0, 0];
  /** @type {[string[], string[]]} */
  let waiting = [[], []];
  const flush = () => {
    for (let k = 0; k < Math.max(waiting[0].length, waiting[1].length); k += 1) pairs.push({ left: waiting[0][k] ?? null, right: waiting[1][k] ?? null });
    waiting = [[], []];
  };
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) {
      flush();
      pairs.push({ left: x[i], right: y[j] });
      i += 1;
      j += 1;
    } else if (j >= y.length || (i < x.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      waiting[0].push(x[i]);
      i += 1;
    } else {
      waiting[1].push(y[j]);
      j += 1;
    }
  }
  flush();
  return pairs;
}

/**
 * @param {{left: string, right: string, label: string}} properties
 */
export function Diff({ left, right, label }) {
  const pairs = diffLines(left, right);
  const changed = pairs.filter((pair) => pair.left !== pair.right);
  if (!left && !right) return html`<p class="muted">${label}: there is none on either side.</p>`;
  if (changed.length === 0) return html`<p class="muted">${label}: no difference in ${plural(pairs.length, "line")}.</p>`;
  // Equal lines far from a change are left out.
  const near = new Set(pairs.flatMap((pair, index) => (pair.left === pair.right ? [] : [-3, -2, -1, 0, 1, 2, 3].map((step) => index + step))));
  const plus = changed.filter((pair) => pair.right !== null).length;
  const minus = changed.filter((pair) => pair.left !== null).length;
  return html`<div class="diff" role="table" aria-label=${`${label}: ${minus} lines of the left, ${plus} lines of the right differ`}>
    <div class="muted diff-count" role="caption">${label}: −${minus} +${plus}</div>
    ${pairs.map((pair, index) => {
      if (!near.has(index)) return near.has(index + 1) ? html`<div key=${index} class="diff-gap muted">…</div>` : null;
      const isEqual = pair.left === pair.right;
      const cell = (/** @type {string | null} */ line, /** @type {string} */ sign) => html`<div role="cell" class=${`words ${isEqual ? "" : line === null ? "absent" : sign === "−" ? "minus" : "plus"}`}>${line === null ? "" : html`${!isEqual && html`<span class="visually-hidden">${sign}</span>`}${line || " "}`}</div>`;
      return html`<div key=${index} class="diff-row" role="row">${cell(pair.left, "−")}${cell(pair.right, "+")}</div>`;
    })}</div>`;
}
