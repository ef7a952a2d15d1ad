// The plan as a graph: tasks from left to right in the order of their dependencies, delegated tasks behind their parents. A
// large plan is shown as groups of tasks.
import { Graph as Layout, layout, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/vendor.mjs";
import { html } from "../html.mjs";
import { plural } from "../format.mjs";
import { setQuery, withQuery } from "../router.mjs";
import { Empty, VirtualList } from "../ui/basics.mjs";
import { Glyph, State, TASK_STATES, TaskProgress, stateLabel, tone } from "../ui/states.mjs";
import { countStates, criticalPath, dependents, groupTasks } from "./plan.mjs";

/** The number of tasks above which a plan is shown in groups. */
const GROUPED = 250;
const [WIDTH, HEIGHT] = [210, 54];

/**
 * Places nodes and edges.
 * @param {{id: string}[]} nodes @param {{from: string, to: string, kind?: string, count?: number}[]} edges
 */
function arrange(nodes, edges) {
  const graph = new Layout().setGraph({ rankdir: "LR", nodesep: 14, ranksep: 52, marginx: 16, marginy: 16 }).setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(node.id, { width: WIDTH, height: HEIGHT });
  for (const edge of edges) if (graph.hasNode(edge.from) && graph.hasNode(edge.to)) graph.setEdge(edge.from, edge.to);
  layout(graph);
  const places = new Map(nodes.map((node) => [node.id, graph.node(node.id)]));
  const lines = edges.filter((edge) => graph.hasEdge(edge.from, edge.to)).map((edge) => {
    const [from, to] = [places.get(edge.from), places.get(edge.to)];
    const middle = graph.edge(edge.from, edge.to).points.slice(1, -1);
    const [x1, x2] = [from.x + WIDTH / 2, to.x - WIDTH / 2];
    const points = [{ x: x1, y: from.y }, ...(middle.length > 1 ? middle : []), { x: x2, y: to.y }];
    let path = `M${points[0].x} ${points[0].y}`;
    for (let i = 1; i < points.length; i += 1) {
      const [a, b] = [points[i - 1], points[i]];
      const bend = (b.x - a.x) / 2;
      path += `C${a.x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`;
    }
    return { ...edge, path };
  });
  const { width = 0, height = 0 } = graph.graph();
  return { places, lines, width, height };
}

/** @param {{counts: Record<string, number>, selected: string}} properties */
function Legend({ counts, selected }) {
  return html`<div class="row wrap legend" role="group" aria-label="Select tasks by state">${TASK_STATES.filter((state) => counts[state] > 0).map((state) => html`
    <a key=${state} class=${`chip tone-${tone(state)} ${selected === state ? "on" : ""}`} href=${withQuery({ state: selected === state ? "" : state })} aria-current=${selected === state ? "true" : undefined}>
      <${State} state=${state} label=${`${counts[state]} ${stateLabel(state)}`} /></a>`)}</div>`;
}

/** @param {import("../screens/run.mjs").TabProperties} properties */
export function Graph({ run, query, now }) {
  const { tasks } = run;
  const isGrouped = query.grouped ? query.grouped === "yes" : tasks.length > GROUPED;
  const shape = useMemo(() => tasks.map((/** @type {any} */ task) => `${task.id}<${task.depends_on.join()}<${task.parent?.task ?? ""}`).join("|"), [tasks]);
  const plan = useMemo(() => {
    if (isGrouped) {
      const { groups, edges } = groupTasks(tasks);
      return arrange(groups, edges);
    }
    /** @type {{from: string, to: string, kind: string}[]} */
    const edges = tasks.flatMap((/** @type {any} */ task) => [
      ...task.depends_on.map((/** @type {string} */ from) => ({ from, to: task.id, kind: "needs" })),
      ...(task.parent?.task ? [{ from: task.parent.task, to: task.id, kind: "child" }] : []),
    ]);
    return arrange(tasks, edges);
  }, [shape, isGrouped]);
  const groups = useMemo(() => (isGrouped ? groupTasks(tasks).groups : []), [tasks, isGrouped]);
  const critical = useMemo(() => new Set(criticalPath(tasks, now)), [tasks, Math.floor(now / 5_000)]);
  const after = useMemo(() => dependents(tasks), [shape]);
  if (tasks.length === 0) {
    return html`<div class="panel"><${Empty} title=${run.end ? "The plan has no tasks" : "The plan is being made"}>${run.end ? "The run ended before it had a task." : "The planner reads the objective and the documents; its tasks appear here."}<//></div>`;
  }
  const select = (/** @type {string} */ id) => setQuery(isGrouped ? { group: query.group === id ? "" : id } : { task: query.task === id ? "" : id });
  const group = groups.find((one) => one.id === query.group);
  const next = (/** @type {string} */ id, /** @type {string} */ key) => {
    if (isGrouped) return undefined;
    const task = tasks.find((/** @type {any} */ one) => one.id === id);
    if (key === "ArrowRight") return after.get(id)?.[0];
    if (key === "ArrowLeft") return task?.depends_on[0] ?? task?.parent?.task;
    const column = tasks.filter((/** @type {any} */ one) => Math.abs(plan.places.get(one.id).x - plan.places.get(id).x) < WIDTH / 2);
    column.sort((/** @type {any} */ a, /** @type {any} */ b) => plan.places.get(a.id).y - plan.places.get(b.id).y);
    return column[column.findIndex((/** @type {any} */ one) => one.id === id) + (key === "ArrowDown" ? 1 : -1)]?.id;
  };
  return html`<div class="panel graph">
    <header><${Legend} counts=${run.task_counts} selected=${query.state ?? ""} />
      <div class="row graph-tools">
        <a class="button small" href=${withQuery({ path: query.path === "off" ? "" : "off" })} aria-current=${query.path === "off" ? undefined : "true"} title="The chain of tasks that decides when the run ends">Critical path</a>
        <a class="button small" href=${withQuery({ grouped: isGrouped ? "no" : "yes", group: "" })} aria-current=${isGrouped ? "true" : undefined}>Groups</a>
      </div></header>
    <${Canvas} plan=${plan} fitKey=${`${run.run} ${isGrouped} ${Math.ceil(tasks.length / 8)}`}
      nodes=${isGrouped
        ? groups.map((one) => html`<${GroupNode} key=${one.id} group=${one} place=${plan.places.get(one.id)} isSelected=${query.group === one.id} state=${query.state} select=${select} />`)
        : tasks.map((/** @type {any} */ task) => html`<${TaskNode} key=${task.id} task=${task} place=${plan.places.get(task.id)} isSelected=${query.task === task.id}
            isDimmed=${Boolean(query.state) && task.state !== query.state} isCritical=${query.path !== "off" && critical.has(task.id)} select=${select} next=${next} />`)}
      lines=${plan.lines.map((line) => html`<path key=${`${line.from} ${line.to}`} d=${line.path} class=${`edge ${line.kind ?? ""} ${query.path !== "off" && !isGrouped && line.kind === "needs" && critical.has(line.from) && critical.has(line.to) ? "critical" : ""}`} marker-end="url(#arrow)" />`)} />
    ${group && html`<section class="group-list" aria-label="Tasks of the group">
      <header class="row"><h3 class="grow">${plural(group.tasks.length, `${group.capability} task`)}, ${group.from === group.to ? `level ${group.from + 1}` : `levels ${group.from + 1} to ${group.to + 1}`}</h3><a class="button small" href=${withQuery({ group: "" })}>Close</a></header>
      <${VirtualList} label="Tasks of the group" height=${30} max=${300} items=${query.state ? group.tasks.filter((task) => task.state === query.state) : group.tasks}
        render=${(/** @type {any} */ task) => html`<a class="row list-line" href=${withQuery({ task: task.id })} aria-current=${query.task === task.id ? "true" : undefined}><${State} state=${task.state} /><b class="nowrap">${task.id}</b><span class="cut muted">${task.objective}</span></a>`} /></section>`}
  </div>`;
}

/** @param {any} properties */
function TaskNode({ task, place, isSelected, isDimmed, isCritical, select, next }) {
  if (!place) return null;
  const attempts = task.attempts.length;
  const text = stateLabel(task.state);
  const open = task.attempts.flatMap((/** @type {any} */ attempt) => attempt.questions ?? []).some((/** @type {any} */ question) => question.status === "open");
  const move = (/** @type {KeyboardEvent} */ event) => {
    if (!event.key.startsWith("Arrow")) return;
    const id = next(task.id, event.key);
    if (!id) return;
    event.preventDefault();
    const node = /** @type {HTMLElement | null} */ (document.querySelector(`[data-node="${CSS.escape(id)}"]`));
    node?.focus();
    node?.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  return html`<button type="button" data-node=${task.id} class=${`node tone-${tone(task.state)} ${isSelected ? "selected" : ""} ${isDimmed ? "dimmed" : ""} ${isCritical ? "critical" : ""} ${task.parent ? "child" : ""}`}
    style=${{ transform: `translate(${place.x - WIDTH / 2}px, ${place.y - HEIGHT / 2}px)` }} title=${task.objective} aria-pressed=${isSelected} onClick=${() => select(task.id)} onKeyDown=${move}>
    <span class="node-title"><${Glyph} state=${task.state} /><b class="cut">${task.id}</b>${task.final && html`<span class="badge" title="Its result is the deliverable">final</span>`}${open && html`<span class="badge ask">asks</span>`}${attempts > 1 && html`<span class="badge" title=${`${attempts} attempts`}>×${attempts}</span>`}</span>
    <span class="node-line cut">${text} · ${task.capability}</span></button>`;
}

/** @param {any} properties */
function GroupNode({ group, place, isSelected, state, select }) {
  if (!place) return null;
  const counts = countStates(group.tasks);
  return html`<button type="button" class=${`node group ${isSelected ? "selected" : ""} ${state && !counts[state] ? "dimmed" : ""}`} aria-pressed=${isSelected}
    style=${{ transform: `translate(${place.x - WIDTH / 2}px, ${place.y - HEIGHT / 2}px)` }} onClick=${() => select(group.id)}
    title=${`${plural(counts.total, `${group.capability} task`)}, ${counts.completed ?? 0} completed`}>
    <span class="node-title"><b class="cut">${group.capability}</b><span class="badge">${counts.completed ?? 0} of ${counts.total}</span></span><${TaskProgress} counts=${counts} /></button>`;
}

/** The area that is moved and zoomed. @param {{plan: any, nodes: any, lines: any, fitKey: string}} properties */
function Canvas({ plan, nodes, lines, fitKey }) {
  const area = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [zoom, setZoom] = useState(1);
  const fit = () => {
    const box = area.current;
    if (!box || plan.width === 0) return;
    setZoom(Math.min(1, Math.max(0.18, Math.min((box.clientWidth - 8) / plan.width, (box.clientHeight - 8) / plan.height))));
    box.scrollTo(0, 0);
  };
  useLayoutEffect(fit, [fitKey]);
  useEffect(() => {
    const box = area.current;
    if (!box) return undefined;
    const wheel = (/** @type {WheelEvent} */ event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      setZoom((/** @type {number} */ before) => Math.min(1.6, Math.max(0.12, before * Math.exp(-event.deltaY / 300))));
    };
    /** @type {{x: number, y: number, left: number, top: number} | null} */
    let drag = null;
    const down = (/** @type {PointerEvent} */ event) => {
      if (/** @type {Element} */ (event.target).closest(".node") || event.button !== 0) return;
      drag = { x: event.clientX, y: event.clientY, left: box.scrollLeft, top: box.scrollTop };
    };
    const move = (/** @type {PointerEvent} */ event) => drag && box.scrollTo(drag.left + drag.x - event.clientX, drag.top + drag.y - event.clientY);
    const up = () => {
      drag = null;
    };
    box.addEventListener("wheel", wheel, { passive: false });
    box.addEventListener("pointerdown", down);
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
    return () => {
      box.removeEventListener("wheel", wheel);
      box.removeEventListener("pointerdown", down);
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
    };
  }, []);
  const step = (/** @type {number} */ factor) => setZoom(Math.min(1.6, Math.max(0.12, zoom * factor)));
  return html`<div class="canvas-frame"><div class="canvas" ref=${area} tabIndex="0" role="group" aria-label="Plan graph; the arrow keys move along the dependencies">
    <div style=${{ width: `${plan.width * zoom}px`, height: `${plan.height * zoom}px` }}><div class="plane" style=${{ width: `${plan.width}px`, height: `${plan.height}px`, transform: `scale(${zoom})` }}>
      <svg width=${plan.width} height=${plan.height} aria-hidden="true"><defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 .8 7 4 0 7.2Z" fill="context-stroke" /></marker></defs>${lines}</svg>
      ${nodes}</div></div></div>
    <div class="zoom row"><button type="button" class="button small" aria-label="Zoom out" onClick=${() => step(1 / 1.25)}>−</button><button type="button" class="button small" onClick=${fit}>Fit</button><button type="button" class="button small" aria-label="Zoom in" onClick=${() => step(1.25)}>+</button></div></div>`;
}
