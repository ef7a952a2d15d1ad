// The slider of the time: shows all views as of any decision of the log.
import { useEffect, useRef, useState } from "../../vendor/vendor.mjs";
import { duration, words } from "../format.mjs";
import { html } from "../html.mjs";
import { useKeys } from "../keys.mjs";
import { setQuery } from "../router.mjs";

/** @param {{history: import("./history.mjs").History, at: string | undefined}} properties */
export function TimeSlider({ history, at }) {
  const end = history.decisions - 1;
  const chosen = at ? history.countUntil(Number(at)) - 1 : end;
  const [dragged, setDragged] = useState(/** @type {number | null} */ (null));
  const timer = useRef(0);
  const index = Math.max(0, dragged ?? chosen);
  const show = (/** @type {number} */ next, delay = 0) => {
    const position = Math.max(0, Math.min(end, next));
    setDragged(position);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      setDragged(null);
      setQuery({ at: position >= end ? "" : history.sequenceAt(position) }, { replace: true });
    }, delay);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  useKeys([
    { keys: ",", about: "One decision back in time", action: () => show(index - 1) },
    { keys: ".", about: "One decision forward", action: () => show(index + 1) },
  ]);
  if (end < 1) return html`<div class="slider"></div>`;
  const sequence = history.sequenceAt(index);
  const passed = Number(history.timeAt(index)) - Number(history.timeAt(0));
  // The last event of the decision. That of an early decision of a large run is not in the page.
  const event = history.events.findLast((one) => one.sequence === sequence);
  const about = event ? `${event.task ? `${event.task}: ` : ""}${words(event.type)}` : "";
  const isPast = Boolean(at) || dragged !== null;
  return html`<div class=${`slider no-print ${isPast ? "past" : ""}`}>
    <button type="button" class="button plain small" aria-label="One decision back" onClick=${() => show(index - 1)} disabled=${index === 0}>◂</button>
    <input type="range" min="0" max=${end} value=${index} aria-label="Time: the run as of a decision" aria-valuetext=${`decision ${index + 1} of ${end + 1}${about && `: ${about}`}`}
      onInput=${(/** @type {any} */ event) => show(Number(event.target.value), 120)} />
    <button type="button" class="button plain small" aria-label="One decision forward" onClick=${() => show(index + 1)} disabled=${index === end}>▸</button>
    <span class="slider-text cut" title=${about}>${isPast ? html`<b>As of decision ${index + 1}</b> of ${end + 1}` : html`Now: ${end + 1} decisions`} · ${duration(passed)}${about && ` · ${about}`}</span>
    <button type="button" class="button small" style=${{ visibility: isPast ? "visible" : "hidden" }} onClick=${() => show(end)}>Back to now</button>
  </div>`;
}
