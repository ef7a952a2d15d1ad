/**
 * Returns the body of an answer.
 *
 * `approve` approves a call or a plan, and `edit` with changed arguments does too. `reject` refuses it with a reason, and
 * `respond` with content instead of its result. `value` answers a question of an agent, and `decline` refuses to. `pass` and
 * `fail` with feedback judge a result.
 *
 * @param {Answer} answer
 * @returns {AnswerBody}
 */
export function answerBody(answer: Answer): AnswerBody;
export type AnswerBody = import("../types/api.js").AnswerBody;
export type AnswerScope = import("../types/api.js").AnswerScope;
/**
 * An answer; it has exactly one of these.
 */
export type Answer = {
    scope?: AnswerScope;
} & ({
    approve: true;
} | {
    edit: unknown;
} | {
    reject: string;
} | {
    respond: string;
} | {
    value: unknown;
} | {
    decline: true;
} | {
    pass: true;
} | {
    fail: string;
});
