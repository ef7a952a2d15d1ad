// Changes of runs, from the stream of all runs, so that lists are kept up to date. One page of a browser follows the stream and
// notifies the others: a browser has six connections for each server.
import { connection } from "./connection.mjs";
import { follow } from "./stream.mjs";

/** A burst of changes is reported once in this time. */
const PAUSE = 1_000;
/** A hidden page lets another page follow the stream after this time. */
const HIDDEN = 15_000;
const NAME = "millrace.runs";

/** @type {Set<(hasQuestions: boolean) => void>} */
const reactions = new Set();
/** The number of open questions of each run that has any. @type {Map<string, number>} */
const asking = new Map();
const pages = new BroadcastChannel(NAME);
let timer = 0;
let reported = 0;
let hasQuestions = false;

/** @param {boolean} isAsking `true` if the questions of a run may have changed. */
function report(isAsking) {
  hasQuestions ||= isAsking;
  if (timer) return;
  timer = setTimeout(() => {
    timer = 0;
    reported = performance.now();
    const isChanged = hasQuestions;
    hasQuestions = false;
    for (const reaction of [...reactions]) reaction(isChanged);
  }, Math.max(0, reported + PAUSE - performance.now()));
}

/**
 * Calls a function when a run has changed, at most once a second.
 * @param {(hasQuestions: boolean) => void} reaction With `true` if its questions may have changed too.
 * @returns {() => void}
 */
export function onRunChange(reaction) {
  reactions.add(reaction);
  return () => reactions.delete(reaction);
}

/** Returns `true` if a run had or has open questions. @param {{run?: string, open_questions?: number}} summary */
function noteQuestions({ run, open_questions: count = 0 }) {
  if (!run) return false;
  const isAsking = count > 0 || asking.has(run);
  if (count > 0) asking.set(run, count);
  else asking.delete(run);
  return isAsking;
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
      onEvents: (events) => {
        const isAsking = events.map(({ data }) => noteQuestions(data)).includes(true);
        report(isAsking);
        pages.postMessage(isAsking);
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

pages.onmessage = ({ data }) => report(data);
document.addEventListener("visibilitychange", followRuns);
connection.onRecovery(followRuns);
followRuns();
