// The runs of this machine's store, kept up to date. One tab listens for all: a browser opens only
// six connections to a host, and each open stream holds one.

import { get } from "./parts.js";

let revision = null;
let runs = new Map();
let sorted = null;
let number = 0;
let failure = null;
const listeners = new Set();
const channel = new BroadcastChannel("cloudtrain");

export function allRuns() {
  sorted ??= [...runs.values()].sort((one, other) => other.created - one.created);
  return sorted;
}

// How many runs there are, also while most of them are still on their way.
export const runNumber = () => number;

export const runNamed = (name) => runs.get(name);

// Why the runs may be older than they look: a sentence, or null.
export const lastFailure = () => failure;

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

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
  revision = answer.revision;
  take(known, answer);
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

function updateSoon() {
  // one after the other, so that an older answer never replaces a newer one
  working = working.then(update).catch((error) => tell(error.message));
  return working;
}

const LOST = "`cloudtrain ui` does not answer: this is what was known last";

function listen() {
  const stream = new EventSource("/api/events");
  stream.addEventListener("runs", (event) => {
    if (Number(event.data) !== revision || failure) updateSoon();
    channel.postMessage(null);
  });
  stream.addEventListener("error", () => {
    tell(LOST);
    channel.postMessage(LOST);
  });
  return new Promise(() => {}); // until this tab closes, and the next one takes over
}

export function start() {
  channel.onmessage = ({ data: lost }) => (lost ? tell(lost) : updateSoon());
  // over a network without encryption, a browser has no locks
  if (navigator.locks) navigator.locks.request("cloudtrain-listener", listen);
  else listen();
  working = readFirst().catch((error) => tell(error.message));
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
