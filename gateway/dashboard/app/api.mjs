// Requests to the API. A failure is an `ApiError` with the problem details of the server, or of the network.
import { useEffect, useRef, useState } from "../vendor/vendor.mjs";
import { connection } from "./connection.mjs";

/** The root of the API. */
export const API = "/api/v1";

export class ApiError extends Error {
  /** @param {any} problem @param {number} status */
  constructor(problem, status) {
    super(problem?.detail || problem?.title || `the server answered with the status ${status}`);
    this.status = status;
    /** The name of the problem, such as `run-not-found`. */
    this.kind = String(problem?.type ?? "").split(":").pop() ?? "";
    /** @type {{pointer: string, message: string}[]} */
    this.mistakes = problem?.errors ?? [];
  }

  /** `true` if the same request may succeed later. */
  get isTransient() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

/**
 * Sends a request.
 * @param {string} method
 * @param {string} path Below the root of the API.
 * @param {{query?: Record<string, any>, body?: any, headers?: Record<string, string>, signal?: AbortSignal}} [options]
 * @returns {Promise<Response>}
 */
export async function send(method, path, { query = {}, body, headers = {}, signal } = {}) {
  const entries = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(entries.map(([name, value]) => [name, String(value)])).toString();
  const isForm = body instanceof FormData;
  /** @type {Record<string, string>} */
  const content = body === undefined || isForm ? {} : { "Content-Type": "application/json" };
  /** @type {Response} */
  let response;
  try {
    response = await fetch(`${API}${path}${search ? `?${search}` : ""}`, {
      method, signal, headers: { ...content, ...headers }, body: body === undefined || isForm ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (/** @type {any} */ (error).name === "AbortError") throw error;
    connection.failed("the gateway does not respond");
    throw new ApiError({ type: "network", detail: "The gateway does not respond. Check that it is running; the page continues by itself." }, 0);
  }
  if (response.ok || response.status === 304) return response;
  const problem = await response.json().catch(() => null);
  const error = new ApiError(problem, response.status);
  if (response.status === 401) connection.signedOut();
  if (error.isTransient) connection.failed(error.message);
  throw error;
}

/**
 * Sends a request and returns the JSON of the reply.
 * @param {string} method @param {string} path @param {Parameters<typeof send>[2]} [options]
 * @returns {Promise<any>}
 */
export async function request(method, path, options) {
  return (await send(method, path, options)).json();
}

/** @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal] @returns {Promise<any>} */
export const get = (path, query, signal) => request("GET", path, { query, signal });

/** A key by which the server recognises a repetition. `randomUUID` needs HTTPS or this machine. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Sends a command that is applied once, also if it is repeated after a failure of the connection.
 * @param {string} path @param {any} [body] @param {string} [method]
 */
export async function command(path, body, method = "POST") {
  const headers = { "Idempotency-Key": newKey() };
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await request(method, path, { body, headers });
    } catch (error) {
      if (!(error instanceof ApiError) || !error.isTransient || attempt >= 3) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** attempt));
    }
  }
}

/** The paths of the API's description, read when they are first needed. @type {Promise<Set<string>> | null} */
let resources = null;

/**
 * Returns `true` if this gateway has a resource. Gateways of an earlier release may lack some.
 * @param {string} path As in the description, such as `/runs/{run}/timeline`.
 */
export async function hasResource(path) {
  resources ??= get("/openapi.json").then((document) => new Set(Object.keys(document.paths)));
  try {
    return (await resources).has(`${API}${path}`);
  } catch {
    resources = null;
    return false;
  }
}

/** The same in a component; `false` until it is known. @param {string} path */
export function useHasResource(path) {
  const [isThere, setThere] = useState(false);
  useEffect(() => {
    let isShown = true;
    hasResource(path).then((has) => isShown && setThere(has));
    return () => {
      isShown = false;
    };
  }, [path]);
  return isThere;
}

/** The path of a run and what is below it. @param {string} run @param {string[]} parts */
export const runPath = (run, ...parts) => `/runs/${[run, ...parts].map(encodeURIComponent).join("/")}`;

/**
 * The data of a resource: read when the path changes, again after the connection has recovered, and on `reload`. What was read
 * before is shown until then.
 * @param {string | null} path Nothing is read if it is `null`.
 * @param {Record<string, any>} [query]
 * @param {{every?: number, as?: "json" | "text"}} [options] `every`: the milliseconds after which it is read again.
 * @returns {{data: any, error: any, loading: boolean, reload: () => void}}
 */
export function useResource(path, query, { every = 0, as = "json" } = {}) {
  const key = path === null ? null : `${path}?${JSON.stringify(query ?? {})}`;
  const [state, setState] = useState(/** @type {any} */ ({ key: null, data: undefined, error: undefined, loading: true }));
  const [turn, setTurn] = useState(0);
  const latest = useRef(key);
  latest.current = key;
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    const read = async () => {
      try {
        const response = await send("GET", path, { query, signal: abort.signal });
        const data = as === "text" ? await response.text() : await response.json();
        if (latest.current === key) setState({ key, data, error: undefined, loading: false });
      } catch (error) {
        if (abort.signal.aborted || latest.current !== key) return;
        setState((/** @type {any} */ before) => ({ key, data: before.key === key ? before.data : undefined, error, loading: false }));
      }
    };
    read();
    const timer = every > 0 ? setInterval(() => document.hidden || read(), every) : 0;
    const stop = connection.onRecovery(read);
    return () => {
      abort.abort();
      clearInterval(timer);
      stop();
    };
  }, [key, turn, every]);
  const isOwn = state.key === key;
  return {
    data: isOwn ? state.data : undefined, error: isOwn ? state.error : undefined,
    loading: path !== null && (!isOwn || state.loading), reload: () => setTurn((/** @type {number} */ before) => before + 1),
  };
}
