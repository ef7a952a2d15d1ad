// Changes of runs, from the stream of all runs, so that lists are kept up to date. One page of a browser follows the stream and
// notifies the others: a browser has six connections for each server.
import { connection } from "./connection.mjs";
import { follow } from "./stream.mjs";

/** A burst of changes is reported once in this time. */
const PAUSE = 1_000;
/** A hidden page lets another page follow the stream after this time. */
const HIDDEN = 15_000;
const NAME = "millrace.runs";

/** @type {Set<() => void>} */
const reactions = new Set();
const pages = new BroadcastChannel(NAME);
let timer = 0;
let reported = 0;

function report() {
  if (timer) return;
  timer = setTimeout(() => {
    timer = 0;
    reported = performance.now();
    for (const reaction of [...reactions]) reaction();
  }, Math.max(0, reported + PAUSE - performance.now()));
}

/**
 * Calls a function when a run has changed, at most once a second.
 * @param {() => void} reaction
 * @returns {() => void}
 */
export function onRunChange(reaction) {
  reactions.add(reaction);
  return () => reactions.delete(reaction);
}

/** Follows the stream until the page is hidden, or the server refuses. */
function lead() {
  if (document.hidden) return undefined;
  return new Promise((resolve) => {
    let hiding = 0;
    const onVisibility = () => {
      clearTimeout(hiding);
      if (document.hidden) hiding = setTimeout(leave, HIDDEN);
    };
    const leave = () => {
      clearTimeout(hiding);
      document.removeEventListener("visibilitychange", onVisibility);
      stop();
      resolve(undefined);
    };
    const stop = follow("/events", {
      query: { types: "run_summary" },
      onEvents: () => {
        report();
        pages.postMessage("changed");
      },
      onFailure: leave,
    });
    document.addEventListener("visibilitychange", onVisibility);
  });
}

let isWaiting = false;

async function followRuns() {
  if (isWaiting || document.hidden) return;
  isWaiting = true;
  // Without HTTPS or the loopback address there are no locks, and each page follows the stream.
  await (navigator.locks ? navigator.locks.request(NAME, lead) : lead());
  isWaiting = false;
}

pages.onmessage = report;
document.addEventListener("visibilitychange", followRuns);
connection.onRecovery(followRuns);
followRuns();
