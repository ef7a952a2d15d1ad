// The open questions of all runs, and answers to them.
import { ApiError, command, get } from "./api.mjs";
import { connection } from "./connection.mjs";
import { onRunChange } from "./live-runs.mjs";
import { Store } from "./store.mjs";

/** The time between two reads while the page is hidden: its title still has the number of questions. */
const HIDDEN = 30_000;

/** The open questions, oldest first; `null` until they have been read. @type {Store<any[] | null>} */
export const openQuestions = new Store(/** @type {any[] | null} */ (null));

let isReading = false;
let isStale = false;

/** Reads the open questions again. */
export async function readQuestions() {
  isStale = isReading;
  if (isReading || connection.value.status === "signed-out") return;
  isReading = true;
  try {
    const { questions } = await get("/questions");
    questions.sort((/** @type {any} */ a, /** @type {any} */ b) => a.asked_at.localeCompare(b.asked_at));
    if (JSON.stringify(questions) !== JSON.stringify(openQuestions.value)) openQuestions.set(questions);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  } finally {
    isReading = false;
    if (isStale) setTimeout(readQuestions, 0);
  }
}

setInterval(() => document.hidden && readQuestions(), HIDDEN);
onRunChange((hasQuestions) => hasQuestions && readQuestions());
connection.onRecovery(readQuestions);
readQuestions();

/** @param {string} id */
export const questionPath = (id) => `/questions/${id.split("/").map(encodeURIComponent).join("/")}`;

/**
 * Answers a question. The first answer counts.
 * @param {string} id @param {any} body
 */
export async function answerQuestion(id, body) {
  try {
    return await command(questionPath(id), body);
  } finally {
    readQuestions();
  }
}
