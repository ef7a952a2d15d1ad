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
    /**
     * Adds the next bytes of the stream, and returns the messages that are complete with them.
     *
     * @param {Uint8Array} chunk
     * @returns {Message[]}
     */
    feed(chunk: Uint8Array): Message[];
    #private;
}
export type Message = {
    /**
     * its id; undefined if it has none of its own
     */
    id: string | undefined;
    /**
     * its name, from the field `event`; `message` if it has none
     */
    name: string;
    /**
     * the lines of its data
     */
    data: string;
};
