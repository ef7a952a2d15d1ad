// Facts about a plan that several views need: who depends on whom, levels, the critical path. Pure.

/** @param {any[]} tasks @returns {Map<string, any>} */
export const byId = (tasks) => new Map(tasks.map((task) => [task.id, task]));

/** The tasks that depend on each task. @param {any[]} tasks @returns {Map<string, string[]>} */
export function dependents(tasks) {
  /** @type {Map<string, string[]>} */
  const map = new Map();
  for (const task of tasks) {
    for (const id of task.depends_on) {
      const list = map.get(id);
      if (list) list.push(task.id);
      else map.set(id, [task.id]);
    }
  }
  return map;
}

/** The tasks that each task delegated. @param {any[]} tasks @returns {Map<string, any[]>} */
export function children(tasks) {
  /** @type {Map<string, any[]>} */
  const map = new Map();
  for (const task of tasks) {
    const parent = task.parent?.task;
    if (!parent) continue;
    const list = map.get(parent);
    if (list) list.push(task);
    else map.set(parent, [task]);
  }
  return map;
}

/**
 * The level of each task: 0 without dependencies, or else one more than the highest level before it.
 * @param {any[]} tasks @returns {Map<string, number>}
 */
export function levels(tasks) {
  const all = byId(tasks);
  /** @type {Map<string, number>} */
  const level = new Map();
  for (const root of tasks) {
    const stack = [root.id];
    while (stack.length > 0) {
      const id = stack[stack.length - 1];
      const task = all.get(id);
      if (!task || level.has(id)) {
        stack.pop();
        continue;
      }
      const before = [...task.depends_on, ...(task.parent?.task ? [task.parent.task] : [])].filter((one) => all.has(one));
      const open = before.filter((one) => !level.has(one) && !stack.includes(one));
      if (open.length > 0) stack.push(...open);
      else {
        level.set(id, Math.max(-1, ...before.map((one) => level.get(one) ?? -1)) + 1);
        stack.pop();
      }
    }
  }
  return level;
}

/** @param {any} task */
export const startOf = (task) => {
  const times = task.attempts.map((/** @type {any} */ attempt) => attempt.claimed_at).filter(Boolean).map(Date.parse);
  return times.length > 0 ? Math.min(...times) : null;
};

/** When the last attempt of a task ended; `null` if it has not. @param {any} task */
export const endOf = (task) => {
  const last = task.attempts.at(-1);
  return last?.ended_at ? Date.parse(last.ended_at) : null;
};

/**
 * The critical path: from the task that ended last, back along the dependency that ended last. A task that runs counts until now.
 * @param {any[]} tasks @param {number} now @returns {string[]}
 */
export function criticalPath(tasks, now) {
  const all = byId(tasks);
  const end = (/** @type {any} */ task) => (task.state === "cancelled" ? null : (endOf(task) ?? (startOf(task) === null ? null : now)));
  const latest = (/** @type {any[]} */ some) => some.reduce((/** @type {any} */ best, task) => {
    const time = end(task);
    return time !== null && (best === null || time > /** @type {number} */ (end(best))) ? task : best;
  }, /** @type {any} */ (null));
  /** @type {string[]} */
  const path = [];
  for (let task = latest(tasks.filter((one) => !one.parent)); task && !path.includes(task.id); ) {
    path.unshift(task.id);
    task = latest(task.depends_on.map((/** @type {string} */ id) => all.get(id)).filter(Boolean));
  }
  return path;
}

/**
 * Groups the tasks of a large plan by level and capability, so that at most some hundred groups remain.
 * @param {any[]} tasks @param {number} [most]
 */
export function groupTasks(tasks, most = 120) {
  const level = levels(tasks);
  const depth = Math.max(0, ...level.values()) + 1;
  const capabilities = new Set(tasks.map((task) => task.capability)).size;
  const span = Math.max(1, Math.ceil((depth * capabilities) / most));
  /** @type {Map<string, {id: string, capability: string, from: number, to: number, tasks: any[]}>} */
  const groups = new Map();
  /** @type {Map<string, string>} */
  const groupOf = new Map();
  for (const task of tasks) {
    const band = Math.floor((level.get(task.id) ?? 0) / span);
    const id = `${band}:${task.capability}`;
    const group = groups.get(id) ?? { id, capability: task.capability, from: band * span, to: Math.min(depth - 1, band * span + span - 1), tasks: /** @type {any[]} */ ([]) };
    group.tasks.push(task);
    groups.set(id, group);
    groupOf.set(task.id, id);
  }
  /** @type {Map<string, {from: string, to: string, count: number}>} */
  const edges = new Map();
  for (const task of tasks) {
    for (const before of task.depends_on) {
      const [from, to] = [groupOf.get(before), groupOf.get(task.id)];
      if (!from || !to || from === to) continue;
      const key = `${from} ${to}`;
      const edge = edges.get(key) ?? { from, to, count: 0 };
      edge.count += 1;
      edges.set(key, edge);
    }
  }
  return { groups: [...groups.values()], edges: [...edges.values()] };
}

/** @param {any[]} tasks */
export function countStates(tasks) {
  /** @type {Record<string, number>} */
  const counts = { total: tasks.length };
  for (const task of tasks) counts[task.state] = (counts[task.state] ?? 0) + 1;
  return counts;
}
