// Changes of runs, so that lists are kept up to date.

/** The time between two reads of a list. */
const EVERY = 2_000;

/** @type {Set<() => void>} */
const reactions = new Set();

/**
 * Calls a function when a run has changed.
 * @param {() => void} reaction
 * @returns {() => void}
 */
export function onRunChange(reaction) {
  reactions.add(reaction);
  return () => reactions.delete(reaction);
}

setInterval(() => {
  if (!document.hidden) for (const reaction of [...reactions]) reaction();
}, EVERY);
