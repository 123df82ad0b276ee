// The runs of this machine's store, kept up to date. One tab listens for all: a browser opens only
// six connections to a host, and each open stream holds one.

import { useEffect, useState } from "./vendor/standalone.module.js";
import { get } from "./parts.js";

let revision = null;
let runs = new Map();
let sorted = null;
let number = 0;
let failure = null;
const listeners = new Set();
const channel = new BroadcastChannel("cloudtrain");

// The runs, newest first, and why they may be older than they look: a sentence, or null. The view is
// drawn again when they change.
export function useRuns() {
  const [, setCount] = useState(0);
  useEffect(() => {
    const look = () => setCount((count) => count + 1);
    listeners.add(look);
    look(); // they may have changed since it was drawn
    return () => listeners.delete(look);
  }, []);
  sorted ??= [...runs.values()].sort((one, other) => other.created - one.created);
  return { runs: sorted, error: failure };
}

// How many runs there are, also while most of them are still on their way.
export const runNumber = () => number;

export const runNamed = (name) => runs.get(name);

// Read what changed since the last time; everything if runs were removed.
async function update() {
  const since = revision === null ? "" : `?since=${revision}`;
  const answer = await get(`/api/runs${since}`);
  const known = since ? new Map(runs) : new Map();
  for (const run of answer.runs) known.set(run.name, run);
  if (known.size !== answer.number && since) {
    revision = null;
    await update();
    return;
  }
  const isNew = answer.runs.length || answer.revision !== revision || failure;
  revision = answer.revision;
  if (isNew) take(known, answer); // drawing 10,000 runs again takes time
  requestAnimationFrame(() => performance.mark("complete"));
}

function take(known, answer) {
  runs = known;
  number = answer.number;
  sorted = null;
  tell(null);
}

// The newest runs, so that a screen is full before all of them are here.
async function readFirst() {
  const answer = await get("/api/runs?newest=200");
  if (answer.runs.length === answer.number) revision = answer.revision;
  take(new Map(answer.runs.map((run) => [run.name, run])), answer);
}

function tell(why) {
  failure = why;
  for (const listener of listeners) listener();
}

let working = Promise.resolve();

const AGAIN = 3000; // milliseconds after a failure

let again = 0;

function updateSoon() {
  clearTimeout(again);
  // one after the other, so that an older answer never replaces a newer one
  working = working.then(update).catch(failed);
}

// The next change of a run may be far away, so what failed is tried again.
function failed(error) {
  tell(error.message);
  clearTimeout(again);
  again = setTimeout(updateSoon, AGAIN);
}

const LOST = "`cloudtrain ui` does not answer: this is what was known last";

function listen() {
  const stream = new EventSource("/api/events");
  stream.addEventListener("runs", (event) => {
    if (Number(event.data) !== revision || failure) updateSoon();
    channel.postMessage(null);
  });
  return new Promise((resolve) => {
    stream.addEventListener("error", () => {
      tell(LOST);
      channel.postMessage(LOST);
      // such as after a new start, whose token only newer tabs have: one of them is to listen
      if (stream.readyState === EventSource.CLOSED) setTimeout(resolve, AGAIN);
    });
  }); // or until this tab closes, and the next one takes over
}

async function keepListening() {
  // over a network without encryption, a browser has no locks
  while (navigator.locks) await navigator.locks.request("cloudtrain-listener", listen);
  for (;;) await listen();
}

export function start() {
  channel.onmessage = ({ data: lost }) => (lost ? tell(lost) : updateSoon());
  keepListening();
  // a machine that slept may have missed what changed
  addEventListener("visibilitychange", () => document.hidden || updateSoon());
  working = readFirst().catch(failed);
  const first = working;
  updateSoon();
  return first;
}

// Filters, as one types them: words of a name, `state:failed`, `target:slurm`, `tag:team=vision`,
// `job:digits`, `note:`, `learning_rate<0.01`.

const COMPARISON = /^([^<>=!:]+)(<=|>=|!=|=|<|>)(.+)$/;

const COMPARE = {
  "<": (one, other) => one < other,
  "<=": (one, other) => one <= other,
  ">": (one, other) => one > other,
  ">=": (one, other) => one >= other,
  "=": (one, other) => one === other,
  "!=": (one, other) => one !== other,
};

export function filterOf(text) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map(testOf);
  return (run) => tests.every((test) => test(run));
}

function testOf(word) {
  const [, kind, rest] = word.match(/^(state|target|job|tag|note|folder|is):(.*)$/) ?? [];
  if (kind === "tag") return (run) => hasTag(run, rest);
  if (kind === "is") return (run) => Boolean(run[rest]);
  if (kind) return (run) => (run[kind] ?? "").toLowerCase().includes(rest.toLowerCase());
  const comparison = word.match(COMPARISON);
  if (comparison) return (run) => compares(run, ...comparison.slice(1));
  const lower = word.toLowerCase();
  return (run) =>
    [run.name, run.target, run.state, run.note].some((text) => text?.toLowerCase().includes(lower));
}

// Return what one of these objects has under a name of a person, which may be `constructor`.
export function own(name, ...objects) {
  return objects.find((values) => Object.hasOwn(values ?? {}, name))?.[name];
}

function valueOf(run, name) {
  const main = run.main && { [run.main.name]: run.main.last };
  return own(name, run.hyperparameters, run.metrics, main);
}

function hasTag(run, wanted) {
  const [name, value] = wanted.split("=");
  const tag = own(name, run.tags);
  return tag !== undefined && (value === undefined || tag === value);
}

function compares(run, name, operator, wanted) {
  const value = valueOf(run, name);
  if (value === undefined) return false;
  const one = Number(value);
  const other = Number(wanted);
  const areNumbers = !Number.isNaN(one) && !Number.isNaN(other);
  return areNumbers ? COMPARE[operator](one, other) : COMPARE[operator](String(value), wanted);
}
