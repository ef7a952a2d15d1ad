/** @typedef {import('../types/api.js').Operations} Operations */
/** @typedef {import('../types/api.js').RunLine} RunLine */
/** @typedef {import('../types/api.js').RunState} RunState */
/** @typedef {import('../types/api.js').RunWaitKind} RunWaitKind */
/** @typedef {import('../types/api.js').SubmissionBody} SubmissionBody */
/** @typedef {import('./answers.js').Answer} Answer */
/** @typedef {import('./transport.js').ClientOptions} ClientOptions */
/**
 * A submission: an objective, and what belongs to it.
 *
 * @typedef {Omit<SubmissionBody, 'documents'> & {
 *   documents?: Record<string, string | Blob | Uint8Array>,
 *   references?: SubmissionBody['documents'],
 *   idempotencyKey?: string,
 * }} Submission `documents` are contents by their paths; `references` are blobs of the store with their paths
 */
/**
 * The arguments of an operation.
 *
 * @template {keyof Operations} N
 * @typedef {{[K in keyof Operations[N]['arguments']]: Operations[N]['arguments'][K] | undefined}} Arguments
 */
/** A client of Millrace's HTTP API. */
export class Client {
    /** @param {ClientOptions | string} [options] the options, or the URL of a gateway */
    constructor(options?: ClientOptions | string);
    /** The connection. */
    transport: Transport;
    /**
     * Calls any operation of the API by its name, such as `client.call('readStatus')`. The methods of this class and of `Run` are
     * shorter forms of some.
     *
     * @template {keyof Operations} N
     * @param {N} name
     * @param {Arguments<N>} [values] the parameters by their names, and the `body`
     * @param {{signal?: AbortSignal}} [options]
     * @returns {Promise<Operations[N]['response']>}
     */
    call<N extends keyof Operations>(name: N, values?: Arguments<N>, options?: {
        signal?: AbortSignal;
    }): Promise<Operations[N]["response"]>;
    /**
     * Submits a run. The request is repeated after a failure and starts one run, since it has an idempotency key: a random one, or
     * `idempotencyKey`, by which a later call returns the same run.
     *
     * @param {Submission} submission
     * @returns {Promise<Run>}
     */
    submit({ documents, references, idempotencyKey, ...fields }: Submission): Promise<Run>;
    /**
     * Returns a run by its id, without a request. A unique prefix and `latest` are ids too.
     *
     * @param {string} id
     */
    run(id: string): Run;
    /**
     * Lists runs, newest first, part by part as the iteration goes on.
     *
     * @param {{state?: RunState[], waiting?: RunWaitKind[], label?: string[], since?: string, until?: string, limit?: number}} [options]
     * @returns {AsyncGenerator<RunLine, void, void>}
     */
    runs({ state, waiting, label, since, until, limit }?: {
        state?: RunState[];
        waiting?: RunWaitKind[];
        label?: string[];
        since?: string;
        until?: string;
        limit?: number;
    }): AsyncGenerator<RunLine, void, void>;
    /**
     * Lists the questions of all runs: the open ones, with `history` the closed ones too.
     *
     * @param {{history?: boolean}} [options]
     */
    questions({ history }?: {
        history?: boolean;
    }): Promise<import("../types/api.js").QuestionLine[]>;
    /**
     * Answers a question. The first answer counts. The request is not repeated: after `GatewayUnreachable` read the question again.
     *
     * @param {{id: string} | string} question
     * @param {Answer} answer
     */
    answer(question: {
        id: string;
    } | string, answer: Answer): Promise<import("../types/api.js").AnswerLine>;
}
export type Operations = import("../types/api.js").Operations;
export type RunLine = import("../types/api.js").RunLine;
export type RunState = import("../types/api.js").RunState;
export type RunWaitKind = import("../types/api.js").RunWaitKind;
export type SubmissionBody = import("../types/api.js").SubmissionBody;
export type Answer = import("./answers.js").Answer;
export type ClientOptions = import("./transport.js").ClientOptions;
/**
 * `documents` are contents by their paths; `references` are blobs of the store with their paths
 */
export type Submission = Omit<SubmissionBody, "documents"> & {
    documents?: Record<string, string | Blob | Uint8Array>;
    references?: SubmissionBody["documents"];
    idempotencyKey?: string;
};
/**
 * The arguments of an operation.
 */
export type Arguments<N extends keyof Operations> = { [K in keyof Operations[N]["arguments"]]: Operations[N]["arguments"][K] | undefined; };
import { Transport } from './transport.js';
import { Run } from './run.js';
