// The verdicts on the statements of a deliverable: texts for people.

/**
 * @typedef {object} Counts The fields of the API's counts.
 * @property {number} statements
 * @property {number} supported
 * @property {number} by_quotation
 * @property {Record<string, number>} by_model
 * @property {string} [author]
 * @property {number} partly
 * @property {number} contradicted
 * @property {number} unsupported
 * @property {number} unverified
 * @property {number} removed
 */

/** `true` if the sources say the whole statement. @param {any} statement */
export const isSupported = (statement) => statement.verdict === "supported";

/** The counts as a sentence, as the commands print it. @param {Counts} counts */
export function describeCounts(counts) {
  if (counts.statements === 0) return "no statements to verify";
  const finders = [
    ...(counts.by_quotation > 0 ? [`${counts.by_quotation} by quotation`] : []),
    ...Object.entries(counts.by_model).sort().map(([model, count]) => `${count} by model ${model}${model === counts.author ? ", which also wrote the text" : ""}`),
  ];
  /** @type {[number, string][]} */
  const others = [
    [counts.partly, "in part"], [counts.contradicted, "contradicted"], [counts.unsupported, "not supported"], [counts.unverified, "not verified"], [counts.removed, "removed"],
  ];
  const found = finders.length > 0 ? ` (${finders.join(", ")})` : "";
  const rest = others.filter(([count]) => count > 0).map(([count, what]) => `, ${count} ${what}`).join("");
  return `${counts.supported} of ${counts.statements} ${counts.statements === 1 ? "statement" : "statements"} verified${found}${rest}`;
}

/** Lines of a source. @param {{first_line: number, last_line: number}} lines */
export const lineNumbers = ({ first_line, last_line }) => (first_line === last_line ? `line ${first_line}` : `lines ${first_line} to ${last_line}`);
