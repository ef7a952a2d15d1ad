// The verdicts on the statements of a deliverable: counts, and texts for people.

/**
 * @typedef {object} Counts The fields of the API's counts.
 * @property {number} statements
 * @property {number} supported
 * @property {number} by_quotation
 * @property {Record<string, number>} by_model
 * @property {number} partly
 * @property {number} contradicted
 * @property {number} unsupported
 * @property {number} unverified
 * @property {number} removed
 */

/** `true` if the sources say the whole statement. @param {any} statement */
export const isSupported = (statement) => statement.verdict === "supported";

/** The model of a verdict, or `null`. @param {any} statement */
const modelOf = (statement) => /^model (.+)$/.exec(statement.found_by ?? "")?.[1] ?? null;

/** @param {any[]} statements @returns {Counts} */
export function countStatements(statements) {
  const number = (/** @type {(one: any) => boolean} */ fits) => statements.filter(fits).length;
  const of = (/** @type {string} */ verdict) => number((one) => one.verdict === verdict);
  /** @type {Record<string, number>} */
  const models = {};
  for (const model of statements.filter(isSupported).map(modelOf)) if (model) models[model] = (models[model] ?? 0) + 1;
  return {
    statements: statements.length, supported: of("supported"), by_quotation: number((one) => isSupported(one) && one.found_by === "quotation"), by_model: models,
    partly: of("partly"), contradicted: of("contradicted"), unsupported: of("unsupported"), unverified: of("unverified"), removed: number((one) => Boolean(one.removed)),
  };
}

/** The counts as a sentence, as the commands print it. @param {Counts} counts */
export function describeCounts(counts) {
  if (counts.statements === 0) return "no statements to verify";
  const finders = [
    ...(counts.by_quotation > 0 ? [`${counts.by_quotation} by quotation`] : []),
    ...Object.entries(counts.by_model).sort().map(([model, count]) => `${count} by model ${model}`),
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
