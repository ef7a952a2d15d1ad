// Amounts over time, and amounts as bars.
import { uPlot, useEffect, useRef } from "../../vendor/vendor.mjs";
import { html } from "../html.mjs";
import { useStore } from "../store.mjs";
import { theme } from "../theme.mjs";

/**
 * @param {{times: number[], values: number[], limit?: number | null, label: string, format: (value: number) => string}} properties
 */
export function LineChart({ times, values, limit, label, format }) {
  const element = useRef(/** @type {HTMLDivElement | null} */ (null));
  const { isDark } = useStore(theme);
  useEffect(() => {
    const box = element.current;
    if (!box || times.length < 2) return undefined;
    const style = getComputedStyle(box);
    const color = (/** @type {string} */ name) => {
      // A canvas needs a plain colour; the style's value depends on the theme.
      const probe = document.createElement("i");
      probe.style.color = `var(${name})`;
      box.append(probe);
      const value = getComputedStyle(probe).color;
      probe.remove();
      return value;
    };
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: `11px ${style.fontFamily}` };
    const plot = new uPlot({
      width: box.clientWidth, height: 190, cursor: { y: false }, legend: { show: false }, padding: [12, 12, 0, 0],
      scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ _low, /** @type {number} */ high) => [0, Math.max(high, limit ?? 0, 1) * 1.05] } },
      axes: [axis, { ...axis, size: 64, values: (/** @type {any} */ _, /** @type {number[]} */ all) => all.map(format) }],
      series: [{}, { label, stroke: color("--accent"), width: 2, fill: color("--accent").replace(/^rgb\((.*)\)$/, "rgba($1, .12)"), paths: uPlot.paths.stepped?.({ align: 1 }) }],
      hooks: { draw: [(/** @type {any} */ self) => {
        if (!limit) return;
        const y = self.valToPos(limit, "y", true);
        self.ctx.save();
        self.ctx.strokeStyle = color("--bad");
        self.ctx.setLineDash([6, 5]);
        self.ctx.beginPath();
        self.ctx.moveTo(self.bbox.left, y);
        self.ctx.lineTo(self.bbox.left + self.bbox.width, y);
        self.ctx.stroke();
        self.ctx.restore();
      }] },
    }, [times.map((time) => time / 1000), values], box);
    const resize = new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: 190 }));
    resize.observe(box);
    return () => {
      resize.disconnect();
      plot.destroy();
    };
  }, [times.length, values.at(-1), limit, isDark]);
  if (times.length < 2) return html`<p class="muted">Nothing was used yet.</p>`;
  return html`<div class="chart" ref=${element} role="img" aria-label=${`${label} over time: ${format(values.at(-1) ?? 0)} at the end${limit ? `, of ${format(limit)}` : ""}`}></div>`;
}

/**
 * A table of amounts with bars.
 * @param {{title: string, rows: {name: any, key: string, tokens: number, cost: number, calls: number, href?: string}[], format: {count: (value: number) => string, money: (value: number) => string}}} properties
 */
export function SpendTable({ title, rows, format }) {
  const most = Math.max(1, ...rows.map((row) => row.tokens));
  return html`<section class="panel"><header><h2>${title}</h2></header>${rows.length === 0 ? html`<p class="body muted">Nothing was used.</p>` : html`<div class="scroll"><table><thead><tr><th>${title.replace(/^By /, "")}</th><th class="bar-cell"><span class="visually-hidden">Share</span></th><th class="number">Tokens</th><th class="number">Cost</th><th class="number">Calls</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key}><td class="words">${row.href ? html`<a href=${row.href}>${row.name}</a>` : row.name}</td><td class="bar-cell"><div class="progress tone-active"><span style=${{ flexBasis: `${(row.tokens / most) * 100}%` }}></span></div></td>
      <td class="number">${format.count(row.tokens)}</td><td class="number">${row.cost > 0 ? format.money(row.cost) : row.tokens > 0 ? html`<span class="muted" title="The table of models has no price for them">no price</span>` : "-"}</td><td class="number">${format.count(row.calls)}</td></tr>`)}</tbody></table></div>`}</section>`;
}
