// Follows a run: shows its events as they come.
//
// Events come by a stream (server-sent events). A browser allows six connections to one host, so hidden tabs hold no
// stream and all tabs together hold at most STREAMS; one more tab asks for news once a second instead.

import { refresh } from "./page.js";

const TYPES = [
  "run.queued", "run.started", "run.retrying", "run.rerouted", "run.completed", "run.failed", "run.cancelled",
  "node.started", "node.progress", "node.token", "node.completed", "node.failed", "node.skipped", "log",
]; // prettier-ignore
const LAST = new Set(["run.completed", "run.failed", "run.cancelled"]);
const STREAMS = 3;
const ASK_MS = 1000;
const AGAIN_MS = 3000;
const SHOW_MS = 30;

/** Say what matters of an event's data in a few words. */
function words(event) {
  const data = event.data || {};
  if (data.error) return `${data.error.code}: ${data.error.message}`;
  switch (event.type) {
    case "run.queued":
      return data.targetRole ? `for ${data.targetRole}, variant ${data.variant}` : data.reason || "";
    case "run.started":
      return data.worker ? `by ${data.worker.node}` : "";
    case "run.rerouted":
      return `from ${data.from} to ${data.to}: ${data.reason}`;
    case "run.retrying":
      return `${data.code}, in ${data.inMs} ms`;
    case "node.progress":
      return [data.fraction === undefined ? "" : `${Math.round(100 * data.fraction)} %`, data.message || ""].join(" ");
    default:
      return String(data.text ?? data.message ?? data.reason ?? "");
  }
}

/** Take one of the browser's streams: return a function that gives it back, or null if all are taken. */
async function takeStream() {
  if (!navigator.locks) return () => {}; // only pages from https or from this machine can count
  for (let n = 0; n < STREAMS; n++) {
    const giveBack = await new Promise((resolve) => {
      navigator.locks.request(`rolecall-stream-${n}`, { ifAvailable: true }, (lock) =>
        lock ? new Promise((done) => resolve(done)) : resolve(null),
      );
    });
    if (giveBack) return giveBack;
  }
  return null;
}

class Timeline {
  constructor(list) {
    this.list = list;
    this.state = list.parentElement.querySelector("[data-timeline-state]");
    this.row = document.getElementById("event-row").content.firstElementChild;
    this.after = 0; // the last event shown, and its epoch
    this.epoch = 0;
    this.first = null; // the time of the first event
    this.last = null; // the row that was made last
    this.rows = new DocumentFragment(); // rows to be shown at the next turn, all at once
    this.turn = 0;
    this.ended = false;
    this.stop = null; // ends the stream or the asking that goes on
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.go()));
    this.go();
  }

  /** Begin to follow, unless it is done, going on, or nobody looks. */
  async go() {
    if (this.ended || this.stop || document.hidden) return;
    this.stop = () => {};
    const giveBack = await takeStream();
    if (giveBack) this.stream(giveBack);
    else this.ask();
  }

  pause() {
    this.stop?.();
    this.stop = null;
  }

  goLater(ms) {
    const timer = setTimeout(() => {
      this.stop = null;
      this.go();
    }, ms);
    this.stop = () => clearTimeout(timer);
  }

  /** The address of what comes after the last event shown. */
  get next() {
    return `${this.list.dataset.timeline}?after=${this.epoch}:${this.after}`;
  }

  stream(giveBack) {
    const source = new EventSource(this.next);
    this.stop = () => {
      source.close();
      giveBack();
    };
    source.onopen = () => this.say("Live");
    source.onerror = () => {
      this.say("The connection was lost; trying again…");
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries by itself
      this.stop();
      this.goLater(AGAIN_MS);
    };
    source.addEventListener("reset", (message) => this.reset(JSON.parse(message.data).epoch));
    for (const type of TYPES) source.addEventListener(type, (message) => this.take(JSON.parse(message.data)));
    source.onmessage = (message) => this.take(JSON.parse(message.data));
  }

  async ask() {
    try {
      const headers = { Accept: "application/json" };
      const response = await fetch(`${this.next}&limit=1000`, { headers });
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
      this.say("Live, once a second");
      const { events, reset } = await response.json();
      if (reset) this.reset(events[0]?.epoch);
      for (const event of events) this.take(event);
      if (!this.ended) this.goLater(ASK_MS);
    } catch {
      this.say("The connection was lost; trying again…");
      this.goLater(AGAIN_MS);
    }
  }

  /** Forget what was shown: Redis lost the run, and its story begins anew. */
  reset(epoch = 0) {
    this.epoch = epoch;
    this.after = 0;
    this.first = this.last = null;
    this.rows.replaceChildren();
    this.list.replaceChildren();
    this.say("Redis lost this run; it was made anew and its story begins again");
  }

  take(event) {
    if (event.seq <= this.after) return;
    this.after = event.seq;
    this.epoch = event.epoch || 0;
    const at = Date.parse(event.at);
    this.first ??= at;
    this.show(event, at);
    if (LAST.has(event.type)) {
      this.ended = true;
      this.pause();
      this.say(`Ended: ${event.type.slice(4)}. ${event.seq} events.`);
    }
    if (event.type.startsWith("run.")) setTimeout(refresh, 50);
  }

  show(event, at) {
    const { last } = this;
    if (event.type === "node.token" && last?.dataset.type === event.type && last.dataset.node === (event.node || "")) {
      last.querySelector(".text").textContent += words(event);
      return;
    }
    const row = this.row.cloneNode(true);
    row.dataset.type = event.type;
    row.dataset.node = event.node || "";
    const time = row.querySelector("time");
    time.dateTime = event.at;
    time.title = event.at;
    time.textContent = `+${((at - this.first) / 1000).toFixed(2)} s`;
    row.querySelector(".type").textContent = event.type;
    row.querySelector(".node").textContent = event.node || "";
    row.querySelector(".text").textContent = words(event);
    if (event.data && event.type !== "node.token" && Object.keys(event.data).length) {
      row.querySelector("details").hidden = false;
      row.querySelector("pre").textContent = JSON.stringify(event.data, null, 2);
    }
    this.last = row;
    this.rows.append(row);
    this.turn ||= setTimeout(() => this.flush(), SHOW_MS);
  }

  /** Show the rows that have come; whoever looks at the end goes on looking at the end. */
  flush() {
    this.turn = 0;
    const { list } = this;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 48;
    list.append(this.rows);
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  say(text) {
    this.state.textContent = text;
  }
}

for (const list of document.querySelectorAll("[data-timeline]")) new Timeline(list);
