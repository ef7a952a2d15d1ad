// A parser of event streams (`text/event-stream`), by the rules of the HTML standard.

/**
 * @typedef {object} Message
 * @property {string | undefined} id its id; undefined if it has none of its own
 * @property {string} name its name, from the field `event`; `message` if it has none
 * @property {string} data the lines of its data
 */

/**
 * Splits a stream that arrives in pieces of any size into messages. A message is returned when its empty line has arrived, and
 * not before: what a cut left unfinished is void.
 */
export class StreamParser {
  #decoder = new TextDecoder()
  /** @type {string[]} */
  #pieces = []
  #followsCr = false
  /** @type {string | undefined} */
  #id = undefined
  #name = ''
  /** @type {string[]} */
  #data = []

  /**
   * Adds the next bytes of the stream, and returns the messages that are complete with them.
   *
   * @param {Uint8Array} chunk
   * @returns {Message[]}
   */
  feed(chunk) {
    let text = this.#decoder.decode(chunk, { stream: true })
    if (this.#followsCr && text) {
      // The last piece ended its line with a CR, and the LF of that end may be the first character of this one.
      if (text.startsWith('\n')) text = text.slice(1)
      this.#followsCr = false
    }
    this.#pieces.push(text)
    // Long lines are joined once, not with each piece.
    if (!/[\r\n]/.test(text)) return []
    const buffer = this.#pieces.join('')
    this.#followsCr = buffer.endsWith('\r')
    const lines = buffer.split(/\r\n|\r|\n/)
    this.#pieces = [lines.pop() ?? '']
    return lines.flatMap((line) => this.#addLine(line))
  }

  /**
   * @param {string} line
   * @returns {Message[]} the message that the line ends, if it ends one
   */
  #addLine(line) {
    if (line === '') {
      const message = { id: this.#id, name: this.#name || 'message', data: this.#data.join('\n') }
      const hasData = this.#data.length > 0
      this.#id = undefined
      this.#name = ''
      this.#data = []
      return hasData ? [message] : []
    }
    const colon = line.indexOf(':')
    const field = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? '' : line.slice(line.charAt(colon + 1) === ' ' ? colon + 2 : colon + 1)
    if (field === 'data') this.#data.push(value)
    else if (field === 'event') this.#name = value
    else if (field === 'id' && !value.includes('\0')) this.#id = value
    // A line that begins with a colon is a comment; fields with other names mean nothing.
    return []
  }
}
