// The slider of the time: shows all views as of any decision of the log.
import { useEffect, useRef, useState } from "../../vendor/vendor.mjs";
import { duration, words } from "../format.mjs";
import { html } from "../html.mjs";
import { useKeys } from "../keys.mjs";
import { setQuery } from "../router.mjs";
import { useGrowing } from "../store.mjs";

/** @param {{events: any[], at: string | undefined, version: number}} properties */
export function TimeSlider({ events, at, version }) {
  // The last event of each decision. Events are only added, so that the earlier ones need no second look.
  const { decisions } = useGrowing(events, version, () => ({ decisions: /** @type {any[]} */ ([]) }), ({ decisions: list }, event) => {
    if (list.at(-1)?.sequence === event.sequence) list[list.length - 1] = event;
    else list.push(event);
  });
  const about = (/** @type {any} */ event) => `${words(event.type)}${event.task ? ` ${event.task}` : ""}`;
  const end = decisions.length - 1;
  const chosen = at ? decisions.findLastIndex((decision) => decision.sequence <= Number(at)) : end;
  const [dragged, setDragged] = useState(/** @type {number | null} */ (null));
  const timer = useRef(0);
  const index = Math.max(0, dragged ?? chosen);
  const show = (/** @type {number} */ next, delay = 0) => {
    const position = Math.max(0, Math.min(end, next));
    setDragged(position);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      setDragged(null);
      setQuery({ at: position >= end ? "" : decisions[position]?.sequence }, { replace: true });
    }, delay);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  useKeys([
    { keys: ",", about: "One decision back in time", action: () => show(index - 1) },
    { keys: ".", about: "One decision forward", action: () => show(index + 1) },
  ]);
  if (decisions.length < 2) return html`<div class="slider"></div>`;
  const decision = decisions[index];
  const passed = Date.parse(decision.at) - Date.parse(decisions[0].at);
  const isPast = Boolean(at) || dragged !== null;
  return html`<div class=${`slider no-print ${isPast ? "past" : ""}`}>
    <button type="button" class="button plain small" aria-label="One decision back" onClick=${() => show(index - 1)} disabled=${index === 0}>◂</button>
    <input type="range" min="0" max=${end} value=${index} aria-label="Time: the run as of a decision" aria-valuetext=${`decision ${index + 1} of ${end + 1}: ${about(decision)}`}
      onInput=${(/** @type {any} */ event) => show(Number(event.target.value), 120)} />
    <button type="button" class="button plain small" aria-label="One decision forward" onClick=${() => show(index + 1)} disabled=${index === end}>▸</button>
    <span class="slider-text cut" title=${about(decision)}>${isPast ? html`<b>As of decision ${index + 1}</b> of ${end + 1}` : html`Now: ${end + 1} decisions`} · ${duration(passed)} · ${about(decision)}</span>
    <button type="button" class="button small" style=${{ visibility: isPast ? "visible" : "hidden" }} onClick=${() => show(end)}>Back to now</button>
  </div>`;
}
