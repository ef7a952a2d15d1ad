// The state of the connection to the cluster, as the whole page sees it. Streams and requests report failures; a check of the
// gateway's health finds out when it works again, and then everything that was read is read again.
import { Store } from "./store.mjs";

/** The time between two checks while something has failed. */
const RETRY = 1_000;
/** The time between two checks while all is well: a gateway that has lost its cluster sends nothing by itself. */
const CHECK = 10_000;
/** The time for which the page says that it has caught up. */
const SHOWN = 4_000;

/**
 * @typedef {object} ConnectionState
 * @property {"connected" | "lost" | "recovered" | "signed-out"} status
 * @property {string} reason Why it was lost.
 * @property {number} since
 */

/** @extends {Store<ConnectionState>} */
class Connection extends Store {
  constructor() {
    super({ status: "connected", reason: "", since: Date.now() });
    /** @type {Set<() => void>} */
    this.recoveries = new Set();
    this.timer = 0;
    this.schedule(CHECK);
  }

  /** Reports that a request or a stream has failed. @param {string} reason */
  failed(reason) {
    if (this.value.status === "lost" || this.value.status === "signed-out") return;
    this.set({ status: "lost", reason, since: Date.now() });
    this.schedule(RETRY);
  }

  /** Reports that the server wants a token. */
  signedOut() {
    this.set({ status: "signed-out", reason: "", since: Date.now() });
  }

  /** Reports that the user has signed in. */
  signedIn() {
    this.set({ status: "connected", reason: "", since: Date.now() });
    this.recover();
  }

  /** Calls a function each time the connection works again. @param {() => void} reaction @returns {() => void} */
  onRecovery(reaction) {
    this.recoveries.add(reaction);
    return () => this.recoveries.delete(reaction);
  }

  recover() {
    for (const reaction of [...this.recoveries]) reaction();
  }

  /** @param {number} delay */
  schedule(delay) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), delay);
  }

  async check() {
    const { status } = this.value;
    if (status === "signed-out" || (document.hidden && status !== "lost")) {
      this.schedule(CHECK);
      return;
    }
    try {
      const response = await fetch("/api/v1/health", { signal: AbortSignal.timeout(8_000), cache: "no-store" });
      if (response.status === 401) this.signedOut();
      else if (!response.ok) throw new Error((await response.json().catch(() => null))?.detail ?? "the cluster does not respond");
      else if (status === "lost") {
        const recovered = /** @type {ConnectionState} */ ({ status: "recovered", reason: "", since: Date.now() });
        this.set(recovered);
        this.recover();
        setTimeout(() => this.value === recovered && this.set({ ...recovered, status: "connected" }), SHOWN);
      }
    } catch (error) {
      const isProblem = error instanceof Error && error.name === "Error";
      this.failed(isProblem ? /** @type {Error} */ (error).message : "the gateway does not respond");
    }
    this.schedule(this.value.status === "lost" ? RETRY : CHECK);
  }
}

export const connection = new Connection();
document.addEventListener("visibilitychange", () => document.hidden || connection.schedule(0));
