// What the page keeps of the events of a run: of each decision its sequence and time (16 bytes), of each attempt its segments, a line
// of the usage of bounded length, and the newest events. The log reads earlier events from the gateway.
import { tokens } from "../format.mjs";
import { Segments } from "./segments.mjs";

/** The number of events that are kept whole. When there are as many again, the earlier half goes. */
const KEPT = 2_000;
/** The maximum number of points of a line. */
const POINTS = 2_000;

/** Numbers that are appended, 8 bytes each. */
class Numbers {
  constructor() {
    this.values = new Float64Array(1_024);
    this.length = 0;
  }

  /** @param {number} value */
  push(value) {
    if (this.length === this.values.length) {
      const larger = new Float64Array(this.length * 2);
      larger.set(this.values);
      this.values = larger;
    }
    this.values[this.length] = value;
    this.length += 1;
  }
}

/** The usage after each event that adds to it. With too many points every second one goes. */
class UsageLine {
  /** @param {(usage: any) => number} measure */
  constructor(measure) {
    this.measure = measure;
    this.sum = 0;
    /** @type {number[]} */
    this.times = [];
    /** @type {number[]} */
    this.values = [];
  }

  /** @param {any} event */
  add(event) {
    const used = [event.usage, event.verdict?.usage, event.error?.usage].reduce((total, usage) => total + (usage ? this.measure(usage) : 0), 0);
    this.sum += used;
    if (used === 0 && !(event.type === "run_started" && this.times.length === 0)) return;
    if (this.times.length === POINTS) {
      this.times = this.times.filter((_, index) => index % 2 === 0);
      this.values = this.values.filter((_, index) => index % 2 === 0);
    }
    this.times.push(Date.parse(event.at));
    this.values.push(this.sum);
  }

  /** The line up to a time. @param {number} time */
  until(time) {
    const end = this.times.findIndex((one) => one > time);
    return end < 0 ? { times: this.times, values: this.values } : { times: this.times.slice(0, end), values: this.values.slice(0, end) };
  }
}

export class History {
  constructor() {
    /** The newest events, oldest first. @type {any[]} */
    this.events = [];
    /** The number of events up to now. */
    this.count = 0;
    this.sequences = new Numbers();
    /** In milliseconds. */
    this.times = new Numbers();
    this.segments = new Segments();
    this.cost = new UsageLine((usage) => usage.cost_micros ?? 0);
    this.tokens = new UsageLine(tokens);
  }

  /** The number of decisions. */
  get decisions() {
    return this.sequences.length;
  }

  /** The sequence of the last decision, 0 without one. */
  get last() {
    return this.decisions > 0 ? this.sequences.values[this.decisions - 1] : 0;
  }

  /** `true` if the decisions after a sequence are all among the newest events. @param {number} sequence */
  hasAllAfter(sequence) {
    return this.count === this.events.length || this.events[0].sequence <= sequence;
  }

  /** @param {any} event */
  add(event) {
    if (event.sequence > this.last) {
      this.sequences.push(event.sequence);
      this.times.push(Date.parse(event.at));
    }
    this.count += 1;
    this.events.push(event);
    // A decision stays whole.
    if (this.events.length >= KEPT * 2) {
      const first = this.events[this.events.length - KEPT].sequence;
      this.events = this.events.filter((one) => one.sequence >= first);
    }
    this.segments.add(event);
    this.cost.add(event);
    this.tokens.add(event);
  }

  /** The number of decisions up to a sequence. @param {number} sequence */
  countUntil(sequence) {
    let [low, high] = [0, this.decisions];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.sequences.values[middle] <= sequence) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The sequence of a decision, counted from 0. @param {number} index */
  sequenceAt(index) {
    return this.sequences.values[index];
  }

  /** The time of a decision, counted from 0; the first one's if there is none before. @param {number} index */
  timeAt(index) {
    return this.decisions > 0 ? this.times.values[Math.max(0, index)] : null;
  }
}
