// The places of verified statements in the tokens of a Markdown text. The API gives positions in Unicode characters of the text; tokens
// name no positions, so each is looked for in the text from the end of the one before it. What is not found has no statement.

/**
 * @typedef {object} Piece A part of the text of a token.
 * @property {string} text
 * @property {number | null} statement The number of its statement, from 0; `null` if it belongs to none.
 * @property {boolean} [isEnd] `true` if its statement ends with it.
 */

/**
 * @typedef {object} StatementPlaces
 * @property {Map<any, Piece[]>} pieces The pieces of each token of text.
 * @property {Map<any, number>} rows The statements that are rows of tables, by row.
 * @property {Map<any, number[]>} ends The statements that end inside of an inline token.
 * @property {Set<number>} placed The statements that have a place.
 */

/** @typedef {{statement: number, start: number, end: number}} Range Positions in UTF-16 units of the text with normalised line ends. */

const LIST_MARKER = /^[ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?/;

/**
 * Converts the positions of statements to UTF-16 units of the text with `\n` as its line end, as the lexer reads it.
 * @param {string} text @param {any[]} statements @returns {Range[]} In order, without those that were taken out of the text.
 */
function toRanges(text, statements) {
  const wanted = new Set(statements.flatMap((one) => [one.start, one.end]));
  const units = new Map();
  let position = 0;
  let unit = 0;
  let before = "";
  for (const character of text) {
    if (wanted.has(position)) units.set(position, unit);
    position += 1;
    if (!(character === "\n" && before === "\r")) unit += character.length;
    before = character;
  }
  const place = (/** @type {number} */ at) => units.get(at) ?? unit;
  return statements.map((one, statement) => ({ statement, start: place(one.start), end: place(one.end) }))
    .filter(({ start, end }) => start < end).sort((one, other) => one.start - other.start);
}

/** The text of a token without tokens of its own: what its kind stands for, or what is written if the kind is not known. @param {any} token */
export const shownText = (token) => String(["text", "codespan", "escape"].includes(token.type) ? token.text : (token.raw ?? ""));

/** Walks the tokens of a text in order, with the position of each. */
class Placement {
  /** @param {string} source @param {Range[]} ranges */
  constructor(source, ranges) {
    this.source = source;
    this.ranges = ranges;
    /** @type {StatementPlaces} */
    this.places = { pieces: new Map(), rows: new Map(), ends: new Map(), placed: new Set() };
    /** The last piece of each statement, its token, and the outermost inline token around it. @type {Map<number, {piece: Piece, token: any, host: any}>} */
    this.last = new Map();
  }

  /** The position of a text between two positions, or -1. @param {string} text @param {number} from @param {number} to */
  find(text, from, to) {
    if (this.source.startsWith(text, from) && from + text.length <= to) return from;
    const at = this.source.slice(from, to).indexOf(text);
    return at < 0 ? -1 : from + at;
  }

  /** @param {any[]} tokens @param {number} from @param {number} to @param {any} [host] @returns {number} The position after them. */
  walk(tokens, from, to, host) {
    let at = from;
    for (const token of tokens ?? []) {
      const raw = String(token.raw ?? "").replace(/\n+$/, "");
      if (raw === "") continue;
      const start = this.find(raw, at, to);
      // In lists and quotations, the lines of a token lack the indentation that they have in the text.
      if (start < 0) at = this.visit(token, at, to, host);
      else {
        this.visit(token, start, start + raw.length, host);
        at = start + raw.length;
      }
    }
    return at;
  }

  /** @param {any} token @param {number} from @param {number} to @param {any} host @returns {number} */
  visit(token, from, to, host) {
    switch (token.type) {
      case "space": case "hr": case "def": case "code": case "br": case "image": case "checkbox": return from;
      case "list": return this.walk(token.items, from, to);
      case "list_item": {
        const marker = LIST_MARKER.exec(this.source.slice(from, to))?.[0] ?? "";
        return this.walk(token.tokens, from + marker.length, to);
      }
      case "table": return this.placeRows(token, from, to);
      case "blockquote": case "paragraph": case "heading": return this.walk(token.tokens, from, to);
      case "text": return token.tokens ? this.walk(token.tokens, from, to) : this.placeText(token, from, to, host);
      case "strong": case "em": case "del": case "link": return this.walk(token.tokens, from, to, host ?? token);
      default: return this.placeText(token, from, to, host);
    }
  }

  /** A row is one statement. @param {any} table @param {number} from @param {number} to */
  placeRows(table, from, to) {
    let at = from;
    const lines = this.source.slice(from, to).split("\n").map((line) => {
      const start = at;
      at += line.length + 1;
      return { start, end: start + line.length, isRow: line.includes("|") };
    });
    const first = Math.max(0, lines.findIndex((line) => line.isRow));
    let end = from;
    table.rows.forEach((/** @type {any} */ row, /** @type {number} */ index) => {
      const line = lines[first + 2 + index];
      if (!line) return;
      end = line.end;
      const range = this.overlapping(line.start, line.end)[0];
      if (!range) return;
      this.places.rows.set(row, range.statement);
      this.places.placed.add(range.statement);
    });
    return end;
  }

  /** @param {any} token @param {number} from @param {number} to @param {any} host @returns {number} */
  placeText(token, from, to, host) {
    /** @type {Piece[]} */
    const pieces = [];
    // The end of a line belongs to a statement only if it continues on the next line.
    let gap = "";
    const add = (/** @type {string} */ text, /** @type {number | null} */ statement) => {
      if (!text) return;
      const before = pieces.at(-1);
      if (before && before.statement === statement) before.text += gap + text;
      else if (gap && statement !== null) pieces.push({ text: gap, statement: null }, { text, statement });
      else pieces.push({ text: gap + text, statement });
      gap = "";
    };
    let at = from;
    if (token.type !== "text" || token.raw !== token.text) {
      // Code, an escaped character or HTML: what is shown is not what is written, so it is one piece.
      add(shownText(token), this.overlapping(from, to)[0]?.statement ?? null);
      at = to;
    } else {
      for (const [index, line] of token.raw.split("\n").entries()) {
        if (index > 0) gap = "\n";
        const start = this.find(line, at, to);
        if (start < 0) add(line, null);
        else {
          this.cut(line, start, add);
          at = start + line.length;
        }
      }
    }
    this.places.pieces.set(token, pieces);
    for (const piece of pieces) {
      if (piece.statement !== null) this.last.set(piece.statement, { piece, token, host: host ?? token });
    }
    return at;
  }

  /** Cuts a line at the borders of statements. @param {string} line @param {number} start @param {(text: string, statement: number | null) => void} add */
  cut(line, start, add) {
    let at = start;
    const end = start + line.length;
    for (const range of this.overlapping(start, end)) {
      const [first, last] = [Math.max(range.start, at), Math.min(range.end, end)];
      if (last <= first) continue;
      add(line.slice(at - start, first - start), null);
      add(line.slice(first - start, last - start), range.statement);
      at = last;
    }
    add(line.slice(at - start), null);
  }

  /** The statements that share a character with a range. @param {number} from @param {number} to */
  overlapping(from, to) {
    let [low, high] = [0, this.ranges.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ranges[middle].end <= from) low = middle + 1;
      else high = middle;
    }
    let last = low;
    while (last < this.ranges.length && this.ranges[last].start < to) last += 1;
    return this.ranges.slice(low, last);
  }

  /** @returns {StatementPlaces} */
  finish() {
    for (const [statement, { piece, token, host }] of this.last) {
      this.places.placed.add(statement);
      // What follows a statement must not be inside of a link.
      if (token === host) piece.isEnd = true;
      else this.places.ends.set(host, [...(this.places.ends.get(host) ?? []), statement]);
    }
    return this.places;
  }
}

/**
 * Finds the places of statements.
 * @param {any[]} tokens @param {string} text @param {{start: number, end: number}[]} statements
 * @returns {StatementPlaces}
 */
export function placeStatements(tokens, text, statements) {
  const source = text.replace(/\r\n?/g, "\n");
  const placement = new Placement(source, toRanges(text, statements));
  placement.walk(tokens, 0, source.length);
  return placement.finish();
}
