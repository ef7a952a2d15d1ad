// Numbers, times and amounts as people read them. What is not known is never shown as a number.

/** @param {number} milliseconds */
export function duration(milliseconds) {
  if (!Number.isFinite(milliseconds)) return "";
  const ms = Math.max(0, milliseconds);
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min ${Math.floor(s % 60)} s`;
  const hours = Math.floor(m / 60);
  if (hours < 24) return `${hours} h ${m % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A duration with one unit. @param {number} milliseconds */
export function age(milliseconds) {
  const s = Math.max(0, milliseconds) / 1000;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

/** @param {string | number} time */
export function absoluteTime(time) {
  return new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** The time of day with milliseconds. @param {string | number} time */
export function timeOfDay(time) {
  const date = new Date(time);
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** @param {number | null | undefined} value */
export function count(value) {
  if (value === null || value === undefined) return "not known";
  if (value < 10_000) return value.toLocaleString("en");
  if (value < 1_000_000) return `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(2)}M`;
}

/** @param {number} micros */
export function money(micros) {
  const dollars = micros / 1_000_000;
  return dollars === 0 ? "$0" : `$${dollars.toFixed(dollars < 0.01 ? 5 : dollars < 1 ? 4 : 2)}`;
}

/** @param {any} usage */
export const tokens = (usage) => (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);

/** The cost of a usage. A model without a price costs an unknown amount. @param {any} usage */
export function cost(usage) {
  if (!usage) return "not known";
  if (usage.cost_micros > 0) return money(usage.cost_micros);
  return tokens(usage) > 0 ? "no price" : "$0";
}

/** @param {any} usage */
export function usageText(usage) {
  if (!usage || (tokens(usage) === 0 && !usage.model_calls)) return "no model used";
  return `${count(tokens(usage))} tokens${usage.cost_micros > 0 ? ` · ${money(usage.cost_micros)}` : ""}`;
}

/** @param {number} value */
export function bytes(value) {
  if (value < 1024) return `${value} B`;
  if (value < 1024 * 1024) return `${(value / 1024).toFixed(1)} kB`;
  return `${(value / 1024 / 1024).toFixed(1)} MB`;
}

/** @param {number} number @param {string} noun @param {string} [plural] */
export const plural = (number, noun, plural = `${noun}s`) => `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;

/** A name of the API as words. @param {string} name */
export const words = (name) => name.replaceAll("_", " ");

/** The end of an id, where it differs. @param {string | null | undefined} id */
export const shortId = (id) => (id ?? "").replace(/^\d{8}-/, "");

/** Adds usages. @param {any[]} usages */
export function sumUsage(usages) {
  /** @type {Record<string, number>} */
  const sum = {};
  for (const usage of usages) {
    for (const [name, value] of Object.entries(usage ?? {})) if (typeof value === "number") sum[name] = (sum[name] ?? 0) + value;
  }
  return sum;
}
