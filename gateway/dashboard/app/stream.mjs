// Streams of events that continue by themselves: after any cut the next request names the last event that was received, so
// that none is missing and none comes twice.
import { connection } from "./connection.mjs";
import { API, ApiError } from "./api.mjs";

/** A stream without a comment for this time is dead; the gateway sends one every 15 seconds. */
const SILENCE = 40_000;
/** A hidden page gives its connection back after this time: a browser has six for each server. */
const HIDDEN = 15_000;

/**
 * @typedef {object} StreamEvent
 * @property {string} id Empty for notices, which are not in the log.
 * @property {string} name
 * @property {any} data
 */

/** Splits the bytes of an event stream into events. */
export class FrameParser {
  constructor() {
    this.rest = "";
    this.decoder = new TextDecoder();
  }

  /** @param {Uint8Array} bytes @returns {StreamEvent[]} */
  push(bytes) {
    this.rest += this.decoder.decode(bytes, { stream: true });
    const frames = this.rest.split("\n\n");
    this.rest = frames.pop() ?? "";
    /** @type {StreamEvent[]} */
    const events = [];
    for (const frame of frames) {
      const event = { id: "", name: "message", data: "" };
      for (const line of frame.split("\n")) {
        if (line.startsWith("id: ")) event.id = line.slice(4);
        else if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      if (event.data) events.push({ ...event, data: JSON.parse(event.data) });
    }
    return events;
  }
}

/**
 * Follows a stream until `stop` is called or the stream has ended.
 * @param {string} path Below the root of the API.
 * @param {{query?: Record<string, string>, after?: string, onEvents: (events: StreamEvent[]) => void, onEnd?: (data: any) => void,
 *   onFailure?: (error: Error) => void}} options
 * @returns {() => void}
 */
export function follow(path, { query = {}, after = "", onEvents, onEnd = () => {}, onFailure = () => {} }) {
  let last = after;
  let isStopped = false;
  let failures = 0;
  /** @type {AbortController | null} */
  let abort = null;
  let retry = 0;
  let hiding = 0;

  const reconnect = () => {
    clearTimeout(retry);
    if (!isStopped) retry = setTimeout(connect, failures === 0 ? 0 : Math.min(250 * 2 ** failures, 3_000) * (0.7 + 0.6 * Math.random()));
  };

  async function connect() {
    if (isStopped || abort || document.hidden) return;
    const own = new AbortController();
    abort = own;
    let watchdog = 0;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => own.abort(), SILENCE);
    };
    try {
      alive();
      const search = new URLSearchParams({ ...query, ...(last ? { after: last } : {}) });
      const response = await fetch(`${API}${path}?${search}`, { signal: own.signal, headers: { Accept: "text/event-stream" }, cache: "no-store" });
      if (response.status === 401) connection.signedOut();
      if (!response.ok || !response.body) {
        const problem = await response.json().catch(() => null);
        const error = new ApiError(problem, response.status);
        if (response.status >= 400 && response.status < 500 && response.status !== 429) {
          isStopped = true;
          onFailure(error);
        }
        throw error;
      }
      failures = 0;
      const [reader, parser] = [response.body.getReader(), new FrameParser()];
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        alive();
        const events = parser.push(value);
        const end = events.find((event) => event.name === "end");
        const failure = events.find((event) => event.name === "error" && !event.id);
        for (const event of events) if (event.id) last = event.id;
        if (events.length > 0) onEvents(events.filter((event) => event !== end));
        if (end) {
          isStopped = true;
          onEnd(end.data);
        }
        if (failure) throw new Error(failure.data.message);
      }
      if (!isStopped && !own.signal.aborted) failures = Math.max(failures, 1);
    } catch (error) {
      failures += 1;
      if (!isStopped && !document.hidden && failures > 1) connection.failed(error instanceof TypeError ? "the gateway does not respond" : String(/** @type {Error} */ (error).message));
    } finally {
      clearTimeout(watchdog);
      if (abort === own) abort = null;
      if (!document.hidden) reconnect();
    }
  }

  const onVisibility = () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => abort?.abort(), HIDDEN);
    else {
      failures = 0;
      reconnect();
    }
  };
  document.addEventListener("visibilitychange", onVisibility);
  const stopRecovery = connection.onRecovery(() => {
    failures = 0;
    if (!abort) reconnect();
  });
  connect();
  return () => {
    isStopped = true;
    clearTimeout(retry);
    clearTimeout(hiding);
    document.removeEventListener("visibilitychange", onVisibility);
    stopRecovery();
    abort?.abort();
  };
}
