// What all runs have used.
import { useEffect, useState } from "../../vendor/vendor.mjs";
import { get } from "../api.mjs";
import { html } from "../html.mjs";
import { count, money, plural, shortId, sumUsage, tokens, cost } from "../format.mjs";
import { address, setQuery } from "../router.mjs";
import { useTitle } from "../title.mjs";
import { Empty, Failure, Loading } from "../ui/basics.mjs";
import { SpendTable } from "../ui/chart.mjs";
import { bySpend, spendRow } from "../run/spend.mjs";

/** @type {Record<string, string>} */
const PERIODS = { "24h": "the last day", "7d": "the last week", "30d": "the last 30 days", "": "any time" };

/** @param {{route: import("../router.mjs").Route}} properties */
export function SpendScreen({ route }) {
  const { since = "7d" } = route.query;
  const [state, setState] = useState(/** @type {any} */ ({ runs: null, error: null }));
  useTitle("Spend");
  useEffect(() => {
    const abort = new AbortController();
    (async () => {
      const runs = [];
      let cursor = "";
      do {
        const part = await get("/runs", { limit: 1000, cursor, since }, abort.signal);
        runs.push(...part.runs);
        cursor = part.next;
      } while (cursor && runs.length < 20_000);
      setState({ runs, error: null });
    })().catch((error) => abort.signal.aborted || setState({ runs: null, error }));
    return () => abort.abort();
  }, [since]);
  if (state.error) return html`<${Failure} error=${state.error} />`;
  if (!state.runs) return html`<${Loading} height=${300} />`;
  const runs = state.runs.filter((/** @type {any} */ run) => run.started_at);
  const total = sumUsage(runs.map((/** @type {any} */ run) => run.usage));
  const group = (/** @type {(run: any) => string[]} */ names) => {
    /** @type {Map<string, any[]>} */
    const groups = new Map();
    for (const run of runs) for (const name of names(run)) groups.set(name, [...(groups.get(name) ?? []), run.usage]);
    return [...groups.entries()].map(([name, usages]) => spendRow(name, name, sumUsage(usages)));
  };
  const days = group((run) => [run.started_at.slice(0, 10)]).sort((a, b) => b.key.localeCompare(a.key));
  const labels = group((run) => Object.entries(run.labels ?? {}).map(([name, value]) => `${name}=${value}`)).map((row) => ({ ...row, href: address(["runs"], { label: row.key }) })).sort(bySpend);
  const top = runs.map((/** @type {any} */ run) => spendRow(run.run, html`<span class="mono">${shortId(run.run)}</span> ${(run.objective ?? "").slice(0, 120)}`, run.usage, address(["runs", run.run, "spend"]))).filter((/** @type {any} */ row) => row.tokens > 0).sort(bySpend).slice(0, 50);
  const format = { count, money };
  return html`<div class="stack"><div class="row wrap filters"><h1 class="grow">${count(tokens(total))} tokens, ${cost(total) === "no price" ? "of models without a price" : `cost ${cost(total)}`} <span class="muted">in ${plural(runs.length, "run")}</span></h1>
      <label class="row"><span class="muted">Started in</span><select value=${since} onChange=${(/** @type {any} */ event) => setQuery({ since: event.target.value })}>${Object.entries(PERIODS).map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}</select></label></div>
    ${runs.length === 0 ? html`<div class="panel"><${Empty} title="No runs in this time" /></div>` : html`<div class="grid wide"><${SpendTable} title="By day" rows=${days} format=${format} />${labels.length > 0 && html`<${SpendTable} title="By label" rows=${labels} format=${format} />`}<${SpendTable} title="By run" rows=${top} format=${format} /></div>`}</div>`;
}
