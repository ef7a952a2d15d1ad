/**
 * The events of a run: an async iterator that connects again by itself, and ends after the end of the run. No event is missing
 * or there twice, whatever was cut in between.
 *
 * @implements {AsyncIterable<RunEvent>}
 */
export class EventStream implements AsyncIterable<RunEvent> {
    /**
     * @param {Transport} transport
     * @param {OperationName} name
     * @param {Record<string, unknown>} values
     * @param {string | undefined} after
     * @param {AbortSignal | undefined} signal
     */
    constructor(transport: Transport, name: OperationName, values: Record<string, unknown>, after: string | undefined, signal: AbortSignal | undefined);
    /** The id of the last event that was received; `events({after})` continues after it. */
    lastId: string | undefined;
    /** The notice of the end: the last position, and whether the run can be resumed; undefined until then. */
    end: Record<string, unknown> | undefined;
    [Symbol.asyncIterator](): AsyncGenerator<RunEvent, void, unknown>;
    #private;
}
export type Transport = import("./transport.js").Transport;
export type OperationName = import("./transport.js").OperationName;
export type EventLine = import("../types/api.js").EventLine;
export type EntryLine = import("../types/api.js").EntryLine;
export type StreamNotice = import("../types/api.js").StreamNotice;
/**
 * An event of a run.
 */
export type RunEvent = {
    /**
     * its position, such as `17.0`; undefined for `delta` and `lagged`, which are not in the log
     */
    id: string | undefined;
    /**
     * its name, such as `task_completed`; `step` for an entry of a journal
     */
    type: string;
    /**
     * its fields: an `EventLine`, of a `step` an `EntryLine`, of a notice a `StreamNotice`
     */
    data: any;
};
