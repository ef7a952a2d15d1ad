// Answers to questions.

/** @typedef {import('../types/api.js').AnswerBody} AnswerBody */
/** @typedef {import('../types/api.js').AnswerScope} AnswerScope */

/**
 * An answer; it has exactly one of these.
 *
 * @typedef {{scope?: AnswerScope} & (
 *   {approve: true} | {edit: unknown} | {reject: string} | {respond: string} | {value: unknown} | {decline: true} |
 *   {pass: true} | {fail: string}
 * )} Answer
 */

const TEXTS = ['reject', 'respond', 'fail']
/** @type {Record<string, string>} */
const KINDS = { value: 'answer' }

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
export function answerBody(answer) {
  const { scope, ...kinds } = answer
  const [entry, ...others] = Object.entries(kinds)
  if (entry === undefined || others.length > 0) {
    throw new TypeError('an answer has one of approve, edit, reject, respond, value, decline, pass or fail')
  }
  const [name, value] = entry
  const body = /** @type {Record<string, unknown>} */ ({ answer: KINDS[name] ?? name })
  if (TEXTS.includes(name)) body.text = value
  else if (name === 'edit' || name === 'value') body.value = value
  if (scope !== undefined) body.scope = scope
  return /** @type {AnswerBody} */ (/** @type {unknown} */ (body))
}
