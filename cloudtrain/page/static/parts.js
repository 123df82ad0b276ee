// What all views share: requests, times, states, and documents as the commands print them.

import { html, useEffect, useRef, useState } from "./vendor/standalone.module.js";

// Return the JSON data of an address. An error has the message and the hint of the command line.
export async function get(address, signal) {
  const answer = await fetch(address, { signal });
  return read(answer);
}

export async function post(address, body = {}) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(address, { method: "POST", headers, body: JSON.stringify(body) });
  return read(answer);
}

async function read(answer) {
  if (answer.status === 401) {
    throw new Error("this page is no longer served: open the address that `cloudtrain ui` printed");
  }
  if (answer.headers.get("content-type") !== "application/json") {
    const isOurs = answer.status < 500;
    throw new Error(isOurs ? await answer.text() : "the page failed: the terminal of `cloudtrain ui` says why");
  }
  const data = await answer.json();
  if (data.error) {
    const { message, hint } = data.error;
    throw new Error(hint ? `${message} (${hint})` : message);
  }
  return data;
}

// Return what an address answers, and ask again every `seconds` while the view is open.
export function useData(address, seconds = 0) {
  const [state, setState] = useState({ address: null, data: null, error: null });
  useEffect(() => {
    const stopping = new AbortController();
    let timer;
    const load = async () => {
      if (timer && document.hidden) await untilSeen();
      if (stopping.signal.aborted) return;
      const start = performance.now();
      let isLost = false;
      try {
        const data = address === null ? null : await get(address, stopping.signal);
        setState({ address, data, error: null });
      } catch (error) {
        if (stopping.signal.aborted) return;
        isLost = error instanceof TypeError; // there was no answer
        // what was known of this address stays
        setState((before) => ({ address, data: before.address === address ? before.data : null, error: error.message }));
      }
      if (stopping.signal.aborted || !(seconds || isLost)) return;
      const spent = performance.now() - start;
      timer = setTimeout(load, Math.max(1000 * (seconds || 3), 10 * spent)); // what takes long is asked rarely
    };
    load();
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [address, seconds]);
  // of another address, what was read is of no use
  return state.address === address ? state : { data: null, error: null };
}

// A tab that nobody sees asks nothing.
function untilSeen() {
  return new Promise((resolve) => {
    addEventListener("visibilitychange", resolve, { once: true });
  });
}

export const runAddress = (name) => `/api/runs/${encodeURIComponent(name)}`;
export const runLink = (name, tab = "") => `#/run/${encodeURIComponent(name)}${tab && `/${tab}`}`;

// Times and amounts.

export function duration(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${Math.floor(seconds % 60)}s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours}h ${minutes % 60}m`;
  return `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

export const age = (time, now = Date.now() / 1000) => duration(Math.max(0, Math.floor(now - time)));

// A time; without its date if that is the date of the time before.
export function moment(time, before) {
  const date = new Date(1000 * time);
  const isSameDay = before && new Date(1000 * before).toDateString() === date.toDateString();
  return isSameDay ? date.toLocaleTimeString() : date.toLocaleString();
}

export function lasted(run, now = Date.now() / 1000) {
  if (!run.started) return "";
  const isOver = ENDED.has(run.state);
  if (isOver && !run.ended) return "";
  return duration((isOver ? run.ended : now) - run.started);
}

export function number(value) {
  if (typeof value !== "number") return String(value ?? "");
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  return Number(value.toPrecision(4)).toString();
}

export const dollars = (value) => (value ? `$${value.toFixed(2)}` : "");

// What a run costs: its bill, or an estimate, which grows while it runs.
export function priceOf({ cost, estimate, hourly, started }, now = Date.now() / 1000) {
  const soFar = hourly && started ? (hourly * (now - started)) / 3600 : undefined;
  return cost ?? estimate ?? soFar;
}

export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

// States: each has a sign beside its colour, for those who do not see the colour.

export const ENDED = new Set(["succeeded", "failed", "stopped", "lost"]);

const SIGNS = {
  pending: "○", queued: "◔", preparing: "◑", running: "●", stopping: "◍",
  succeeded: "✓", failed: "✗", stopped: "■", lost: "?",
};

export function State({ state }) {
  return html`<span class=${`state ${state}`}>
    <span aria-hidden="true">${SIGNS[state] ?? ""}</span> ${state}
  </span>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

export function Failed({ error }) {
  return error && html`<p class="said bad" role="alert">${error}</p>`;
}

// Text of a program is shown as text: what a terminal hides was escaped by the server.
export const Code = ({ children }) => html`<code class="foreign">${children}</code>`;

export function Copy({ text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<span class="copy">
    <code class="foreign">${text}</code>
    ${navigator.clipboard && html`<button type="button" onClick=${copy}>${done ? "copied" : "copy"}</button>`}
  </span>`;
}

// Documents.

const cell = (value) =>
  typeof value === "string" ? value : html`<span class=${value.style}>${value.text}</span>`;

const BLOCKS = {
  heading: ({ text }) => html`<h3 class="foreign">${text}</h3>`,
  text: ({ text }) => html`<p class="foreign">${text}</p>`,
  pairs: ({ rows }) => html`<div class="scrolls" tabindex="0"><table class="pairs"><tbody>
    ${rows.map(([label, value]) => html`<tr><th scope="row">${label}</th><td>${cell(value)}</td></tr>`)}
  </tbody></table></div>`,
  table: ({ headers, rows }) => html`<div class="scrolls" tabindex="0"><table>
    <thead><tr>${headers.map((text) => html`<th scope="col">${text}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((value) => html`<td>${cell(value)}</td>`)}</tr>`)}</tbody>
  </table></div>`,
  lines: ({ lines }) => html`<pre class="foreign" tabindex="0">${lines.join("\n")}</pre>`,
  commandline: ({ text, variables }) => html`<pre class="foreign" tabindex="0">$ ${text}${
    variables.map(([name, value]) => `\n  ${name}=${value}`)}</pre>`,
  notice: (block) => html`<p class=${`said ${block.level === "error" ? "bad" : "warn"}`}>
    <strong>${block.level}:</strong> ${block.message} ${block.code && `[${block.code}]`}
    ${block.place && html`<br/><span class="dim">${block.place}</span>`}
    ${block.details?.map((text) => html`<br/>${text}`)}
    ${block.hint && html`<br/><strong>hint:</strong> ${block.hint}`}
  </p>`,
  section: ({ title, blocks }) => html`<details><summary>${title}</summary>
    <${Document} blocks=${blocks}/></details>`,
};

export function Document({ blocks }) {
  return html`<div class="document">${blocks.map((block) => BLOCKS[block.kind](block))}</div>`;
}

// Long lists: only the rows in view are in the page. Browsers refuse elements of more than some
// million pixels, so a longer list maps the place of its scroll bar to a row.

const TALLEST = 8_000_000;

export function useRows(total, height) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const element = box.current;
    let frame = 0;
    const look = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        setView({ top: element.scrollTop, height: element.clientHeight });
      });
    };
    const size = new ResizeObserver(look);
    size.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      cancelAnimationFrame(frame);
      size.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  const wanted = total * height;
  const pixels = Math.min(wanted, TALLEST);
  const fits = Math.ceil(view.height / height);
  const scale = wanted > TALLEST ? (total - fits + 1) / Math.max(1, TALLEST - view.height) : 1 / height;
  const first = Math.max(0, Math.min(total - 1, Math.floor(view.top * scale)));
  // where the first row stands: in a list that is not scaled, at its own place
  const top = wanted > TALLEST ? view.top : first * height;
  const show = (row) => {
    const place = row / scale;
    const element = box.current;
    const isAbove = place < element.scrollTop;
    const isBelow = place > element.scrollTop + element.clientHeight - 2 * height;
    if (isAbove || isBelow) element.scrollTop = Math.max(0, place - element.clientHeight / 3);
  };
  return { box, pixels, first, count: fits + 2, top, show };
}
