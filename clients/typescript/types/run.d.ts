/** A run. Creating one sends no request. */
export class Run {
    /**
     * @param {Client} client
     * @param {string} id
     * @param {number} [sequence]
     */
    constructor(client: Client, id: string, sequence?: number);
    /** The id of the run. */
    id: string;
    /** The sequence of the log at which its submission is visible; undefined unless this client submitted it. */
    sequence: number | undefined;
    /**
     * Follows the events of the run until it ends. The stream connects again by itself, and continues after the last event.
     *
     * @param {EventOptions} [options]
     * @returns {EventStream}
     */
    events(options?: EventOptions): EventStream;
    /**
     * Reads the run, now or as of a sequence of the log.
     *
     * @param {number} [at]
     */
    get(at?: number): Promise<import("../types/api.js").RunData>;
    /**
     * Waits for the end of the run, for as long as it takes or for `timeout` seconds.
     *
     * @param {{timeout?: number, signal?: AbortSignal}} [options]
     * @returns {Promise<RunData>}
     */
    wait({ timeout, signal }?: {
        timeout?: number;
        signal?: AbortSignal;
    }): Promise<RunData>;
    /** Reads the deliverable with its sources. */
    result(): Promise<import("../types/api.js").TaskResult>;
    /**
     * Reads the report.
     *
     * @param {'markdown' | 'html'} [format]
     * @returns {Promise<string>}
     */
    report(format?: "markdown" | "html"): Promise<string>;
    /**
     * Lists the files of the run, or those in a folder.
     *
     * @param {string} [folder]
     */
    files(folder?: string): Promise<import("../types/api.js").FileLine[]>;
    /**
     * Reads a file, in its newest version or in another one.
     *
     * @param {string} path
     * @param {number} [version]
     * @returns {Promise<Uint8Array>}
     */
    file(path: string, version?: number): Promise<Uint8Array>;
    /**
     * Lists the questions of the run: the open ones, with `history` the closed ones too.
     *
     * @param {{history?: boolean}} [options]
     */
    questions({ history }?: {
        history?: boolean;
    }): Promise<import("../types/api.js").QuestionLine[]>;
    /**
     * Answers a question. The first answer counts.
     *
     * @param {{id: string} | string} question
     * @param {Answer} answer
     */
    answer(question: {
        id: string;
    } | string, answer: Answer): Promise<import("../types/api.js").AnswerLine>;
    /**
     * Pauses the run: running tasks finish, and no new ones start.
     *
     * @param {CommandOptions} [options]
     */
    pause(options?: CommandOptions): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Interrupts the run: work in flight is returned, and nothing runs until it is resumed.
     *
     * @param {CommandOptions} [options]
     */
    interrupt(options?: CommandOptions): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Resumes the run, with new total limits if there is a budget.
     *
     * @param {CommandOptions & import('../types/api.js').ResumeBody} [options]
     */
    resume({ budget, ...options }?: CommandOptions & import("../types/api.js").ResumeBody): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Cancels the run.
     *
     * @param {string} [reason]
     * @param {CommandOptions} [options]
     */
    cancel(reason?: string, options?: CommandOptions): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Sends a message to the planner.
     *
     * @param {string} text
     * @param {CommandOptions} [options]
     */
    message(text: string, options?: CommandOptions): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Signals an event, which ends the waits for it.
     *
     * @param {string} name
     * @param {unknown} [data]
     * @param {CommandOptions} [options]
     */
    signal(name: string, data?: unknown, options?: CommandOptions): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Adds tasks, written as in a plan: all of them or none.
     *
     * @param {import('../types/api.js').AddBody['tasks']} tasks
     * @param {CommandOptions} [options]
     */
    add(tasks: import("../types/api.js").AddBody["tasks"], options?: CommandOptions): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Changes a task that no worker has claimed yet.
     *
     * @param {string} task
     * @param {import('../types/api.js').EditBody} changes
     * @param {CommandOptions} [options]
     */
    edit(task: string, changes: import("../types/api.js").EditBody, options?: CommandOptions): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Cancels a task and its dependents.
     *
     * @param {string} task
     * @param {string} [reason]
     * @param {CommandOptions} [options]
     */
    cancelTask(task: string, reason?: string, options?: CommandOptions): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    /**
     * Retries a task and everything that depends on it. `changes` are changes of the task, as of `edit`: the attempt begins
     * with them.
     *
     * @param {string} task
     * @param {string} [feedback]
     * @param {CommandOptions & { changes?: import('../types/api.js').EditBody }} [options]
     */
    retry(task: string, feedback?: string, { changes, ...options }?: CommandOptions & {
        changes?: import("../types/api.js").EditBody;
    }): Promise<({
        sequence: number;
    } & {
        type: "command_applied";
        run: import("../types/api.js").RunId;
        summary: string;
        events: import("../types/api.js").EventJson[];
    }) | import("../types/api.js").WrittenCommandReceipt>;
    #private;
}
export type Client = import("./client.js").Client;
export type RunData = import("../types/api.js").RunData;
export type TaskSpec = import("../types/api.js").TaskSpec;
export type Answer = import("./answers.js").Answer;
export type OperationName = import("./transport.js").OperationName;
export type EventOptions = {
    /**
     * `steps` has the entries of the journals too, `live` also model output
     */
    level?: "live" | "decisions" | "steps" | undefined;
    /**
     * only events with these names
     */
    types?: string[] | undefined;
    /**
     * only events of this task
     */
    task?: string | undefined;
    /**
     * only events after the one with this id
     */
    after?: string | undefined;
    /**
     * ends the stream
     */
    signal?: AbortSignal | undefined;
};
export type CommandOptions = {
    /**
     * when the command returns: when a supervisor has decided (default), or when the log has it
     */
    wait?: "accepted" | "decided" | undefined;
    /**
     * the longest wait for the decision in seconds
     */
    timeout?: number | undefined;
    /**
     * a key by which a repetition is recognised; random by default
     */
    idempotencyKey?: string | undefined;
};
import { EventStream } from './stream.js';
