// What every page does: keep what is live up to date, keep ages current, and serve buttons and the start form.
//
// An element with data-live="<key>" is replaced by the element of the same key in a fresh copy of the page, so that
// the server is the only one who knows how things look.

import { call } from "./api.js";

const EVERY_MS = 3000;
const clockOffset = Number(document.body.dataset.now) - Date.now();

function ago(ms) {
  const s = Math.max(0, Math.floor((Date.now() + clockOffset - ms) / 1000));
  if (s < 2) return "just now";
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.round(s / 60)} min ago`;
  if (s < 86400) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} d ago`;
}

function tick() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const text = ago(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}

const shown = new Map(); // element -> the markup it was last given, as the server wrote it

/** Fetch the page again and replace what is live. */
export async function refresh() {
  const stale = document.getElementById("stale");
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(8000) });
    if (!response.ok) throw new Error(`it answers HTTP ${response.status}`);
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    const parts = new Map([...fresh.querySelectorAll("[data-live]")].map((each) => [each.dataset.live, each]));
    for (const element of document.querySelectorAll("[data-live]")) {
      const part = parts.get(element.dataset.live);
      if (!part) continue;
      const markup = part.innerHTML.replace(/(<time[^>]*>)[^<]*/g, "$1");
      if (shown.get(element) === markup || element.contains(document.activeElement)) continue;
      const open = [...element.querySelectorAll("details")].map((each) => each.open);
      element.innerHTML = part.innerHTML;
      element.querySelectorAll("details").forEach((each, index) => (each.open = open[index] ?? false));
      if (part.dataset.state) element.dataset.state = part.dataset.state;
      shown.set(element, markup);
    }
    stale.hidden = true;
    tick();
    document.dispatchEvent(new Event("refreshed"));
  } catch (error) {
    if (stale.hidden) {
      const since = new Date().toLocaleTimeString();
      stale.textContent = `This page is as of ${since}: the admin app cannot be reached (${error.message}). It keeps trying.`;
      stale.hidden = false;
    }
  }
}

async function keepFresh() {
  if (!document.hidden) await refresh();
  setTimeout(keepFresh, EVERY_MS);
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  button.disabled = true;
  const said = button.closest(".actions").querySelector("[data-said]");
  try {
    const run = await call("POST", button.dataset.post, button.dataset.force ? { force: true } : {});
    if (button.dataset.then === "run") location.assign(`/runs/${encodeURIComponent(run.runId)}`);
    else {
      button.blur();
      await refresh();
    }
  } catch (problem) {
    said.textContent = problem.message;
    button.disabled = false;
    if (problem.code === "last_of_role") {
      // What would be lost has been shown; the same button now does it.
      button.dataset.force = "true";
      button.textContent = "Drain all the same";
      button.classList.add("danger");
    }
  }
});

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-start]");
  if (!form) return;
  event.preventDefault();
  const fields = new FormData(form);
  const said = form.querySelector("[data-said]");
  const button = form.querySelector("button");
  let input;
  try {
    input = JSON.parse(fields.get("input").trim() || "{}");
  } catch (error) {
    said.textContent = `The input is not JSON: ${error.message}`;
    return;
  }
  const session = fields.get("session").trim();
  button.disabled = true;
  said.textContent = "";
  try {
    const path = `/api/v1/deployments/${encodeURIComponent(fields.get("deployment"))}/runs`;
    const run = await call("POST", path, { input, ...(session ? { meta: { session_id: session } } : {}) });
    location.assign(form.dataset.start + encodeURIComponent(run.runId));
  } catch (problem) {
    said.textContent = problem.message;
    button.disabled = false;
  }
});

tick();
setInterval(tick, 1000);
setTimeout(keepFresh, EVERY_MS);
