// The list of all runs.

import { html, useEffect, useMemo, useState } from "./vendor/standalone.module.js";
import {
  ENDED, Empty, State, age, dollars, duration, lasted, number, priceOf, runLink, useData, useRows,
} from "./parts.js";
import { Sparkline } from "./curves.js";
import { filterOf, runNumber, useRuns } from "./store.js";

const HEIGHT = 38;
const HEIGHT_OF_TWO = 58; // on a phone, a run has two lines
const narrow = matchMedia("(max-width: 760px)");
const NOTHING = {};
const DAY = 24 * 3600;

const GROUPS = {
  "": null,
  job: (run) => run.job,
  target: (run) => run.target,
  state: (run) => run.state,
};

const COLUMNS = [
  ["name", "run", (run) => run.name],
  ["state", "state", (run) => run.state],
  ["target", "target", (run) => run.target],
  ["metric", "main metric", (run) => run.main?.last ?? null],
  ["age", "age", (run) => -run.created],
  ["duration", "duration", (run) => (run.ended ?? Date.now() / 1000) - (run.started ?? run.created)],
  ["cost", "cost", (run) => priceOf(run) ?? 0],
];

// Why a person should look at a run, and how soon: the lowest rank first. Null for most runs.
function attention(run, live, now) {
  const notice = live?.notices.find((found) => !found.ended);
  if (notice) return { run, rank: 0, why: notice.text };
  const isFresh = now - (run.ended ?? run.created) < DAY;
  if ((run.state === "failed" || run.state === "lost") && isFresh) return { run, rank: 1, why: run.reason ?? run.state };
  if (run.state === "queued") return { run, rank: 2, why: run.reason ?? "waits" };
  return null;
}

function Attention({ runs, live }) {
  const [isWhole, setWhole] = useState(false);
  const found = useMemo(() => {
    const now = Date.now() / 1000;
    const found = runs.map((run) => attention(run, live[run.name], now)).filter(Boolean);
    return found.sort((one, other) => one.rank - other.rank);
  }, [runs, live]);
  if (!found.length) return null;
  const shown = isWhole ? found.slice(0, 100) : found.slice(0, 4);
  return html`<section class="attention" aria-label="needs attention">
    ${shown.map(({ run, why }) => html`<a href=${runLink(run.name)} key=${run.name}>
      <${State} state=${run.state}/> <b class="foreign">${run.name}</b> <span class="foreign">${why}</span></a>`)}
    ${found.length > 4 && html`<button type="button" onClick=${() => setWhole(!isWhole)}>
      ${isWhole ? "fewer" : `${(found.length - 4).toLocaleString("en")} more`}</button>`}
  </section>`;
}

// Return the rows of the list: runs in their order, with a title before each group.
function rowsOf(runs, filter, sort, group) {
  const found = runs.filter(filterOf(filter));
  const [column, isReversed] = sort;
  if (column) {
    const key = COLUMNS.find(([name]) => name === column)[2];
    const sign = isReversed ? -1 : 1;
    const compare = (one, other) => (one === other ? 0 : one === null || one > other ? 1 : -1);
    found.sort((one, other) => sign * compare(key(one), key(other)));
  } else {
    found.sort((one, other) => Boolean(other.pinned) - Boolean(one.pinned));
  }
  const groupOf = group.startsWith("tag:") ? (run) => run.tags?.[group.slice(4)] ?? "(none)" : GROUPS[group];
  if (!groupOf) return { rows: found, count: found.length };
  const groups = Map.groupBy(found, groupOf);
  const rows = [...groups].flatMap(([title, members]) => [{ title, count: members.length }, ...members]);
  return { rows, count: found.length };
}

function counted(count, known) {
  const shown = count.toLocaleString("en");
  const all = runNumber().toLocaleString("en");
  return count < known || known < runNumber() ? `${shown} of ${all} runs` : `${shown} runs`;
}

export function Runs({ view, setView }) {
  const { runs, error } = useRuns();
  const { filter, sort, group, chosen } = view;
  const { rows, count } = useMemo(() => rowsOf(runs, filter, sort, group), [runs, filter, sort, group]);
  const height = narrow.matches ? HEIGHT_OF_TWO : HEIGHT;
  const list = useRows(rows.length, height);
  const [at, setAt] = useState(-1);
  const shown = rows.slice(list.first, list.first + list.count);
  const isLive = useMemo(() => runs.some((run) => !ENDED.has(run.state)), [runs]);
  const live = useData(isLive ? "/api/live" : null, 2).data ?? NOTHING;
  const states = useMemo(() => Map.groupBy(runs, (run) => run.state), [runs]);
  const tags = useMemo(() => [...new Set(runs.flatMap((run) => Object.keys(run.tags ?? {})))], [runs]);

  useEffect(() => {
    const press = (event) => {
      if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey) return;
      const step = { j: 1, k: -1 }[event.key];
      if (step) {
        const next = Math.max(0, Math.min(rows.length - 1, at + step));
        setAt(next);
        list.show(next);
      } else if (event.key === "Enter" && rows[at]?.name) {
        location.hash = runLink(rows[at].name);
      } else if (event.key === "x" && rows[at]?.name) {
        choose(rows[at].name);
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  const choose = (name) => {
    const others = chosen.filter((other) => other !== name);
    setView({ ...view, chosen: others.length === chosen.length ? [...chosen, name] : others });
  };
  const sortBy = (name) => {
    const [column, isReversed] = sort;
    const next = column !== name ? [name, false] : isReversed ? [null, false] : [name, true];
    setView({ ...view, sort: next });
  };

  return html`<main class="list-view">
    <div class="controls">
      <label class="grow"><span class="hidden">filter</span>
        <input id="filter" type="search" value=${filter} autocomplete="off" spellcheck="false"
          placeholder="filter: digits state:failed tag:team=vision learning_rate<0.01"
          onInput=${(event) => setView({ ...view, filter: event.target.value })}/></label>
      <label>group <select value=${group} onChange=${(event) => setView({ ...view, group: event.target.value })}>
        <option value="">none</option>
        ${[...Object.keys(GROUPS).filter(Boolean), ...tags.map((tag) => `tag:${tag}`)]
          .map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>
      ${chosen.length > 1 && html`<a class="button" href=${`#/compare/${chosen.map(encodeURIComponent).join(",")}`}>
        compare ${chosen.length}</a>`}
      <span class="dim" role="status">${counted(count, runs.length)}</span>
    </div>
    ${states.size > 1 && html`<div class="states" role="group" aria-label="states">
      ${[...states].map(([state, members]) => html`<button type="button" key=${state} aria-pressed=${filter === `state:${state}`}
        onClick=${() => setView({ ...view, filter: filter === `state:${state}` ? "" : `state:${state}` })}>
        <${State} state=${state}/> ${members.length.toLocaleString("en")}</button>`)}</div>`}
    ${error && html`<p class="said bad" role="alert">${error}</p>`}
    <${Attention} runs=${runs} live=${live}/>
    ${!runs.length && html`<${Empty}>No run yet. Start one:${" "}
      <code>cloudtrain submit bundled:digits_ddp</code><//>`}
    ${Boolean(runs.length) && !count && html`<${Empty}>No run matches this filter.<//>`}
    <div class="table" role="table" aria-label="runs" aria-rowcount=${rows.length + 1} hidden=${!count}>
      <div role="rowgroup"><div class="row head" role="row">
        <span role="columnheader" class="mark"><span class="hidden">chosen</span></span>
        ${COLUMNS.map(([name, title]) => html`<span class=${`c-${name}`} role="columnheader"
            aria-sort=${sort[0] !== name ? "none" : sort[1] ? "descending" : "ascending"}>
          <button type="button" onClick=${() => sortBy(name)}>${title}
            <span aria-hidden="true">${sort[0] !== name ? "" : sort[1] ? "▾" : "▴"}</span></button></span>`)}
      </div></div>
      <div class="rows" ref=${list.box} role="rowgroup" tabindex="0" aria-label="rows">
        <div class="tall" style=${{ height: `${list.pixels}px` }}></div>
        ${shown.map((row, index) => {
          const place = list.first + index;
          const top = { top: `${list.top + index * height}px` };
          if (row.title !== undefined) {
            return html`<div class="row group" role="row" key=${`group ${row.title}`} style=${top}>
              <span role="cell" class="foreign">${row.title} <span class="dim">${row.count}</span></span></div>`;
          }
          return html`<${Row} key=${row.name} run=${row} live=${live[row.name]} top=${top} index=${place}
            isAt=${place === at} isChosen=${chosen.includes(row.name)} choose=${choose}/>`;
        })}
      </div>
    </div>
  </main>`;
}

function Row({ run, live, top, index, isAt, isChosen, choose }) {
  const cost = priceOf(run);
  const { main } = run;
  return html`<div class=${`row ${isAt ? "at" : ""}`} role="row" aria-rowindex=${index + 2} style=${top}>
    <span role="cell" class="mark"><input type="checkbox" checked=${isChosen}
      aria-label=${`choose ${run.name}`} onChange=${() => choose(run.name)}/></span>
    <span role="cell" class="c-name foreign">${run.pinned && html`<span title="pinned">★ </span>`}
      <a href=${runLink(run.name)} title=${run.note || run.name}>${run.name}</a>
      ${Object.entries(run.tags ?? {}).map(([name, value]) => html` <span class="dim foreign">${name}=${value}</span>`)}</span>
    <span role="cell" class="c-state"><${State} state=${run.state}/></span>
    <span role="cell" class="c-target">${run.target}</span>
    <span role="cell" class="c-metric" title=${main && `${main.name}, best ${number(main.best)}`}>
      <${Sparkline} trend=${main?.trend} label=${`trend of ${main?.name}`}/>
      ${main && html`<span class="dim">${main.name}</span> ${number(main.last)}`}
      ${live?.progress && html`<span class="dim"> ${progress(live.progress)}</span>`}</span>
    <span role="cell" class="c-age">${age(run.created)}</span>
    <span role="cell" class="c-duration">${lasted(run)}</span>
    <span role="cell" class="c-cost">${dollars(cost)}${run.cost === undefined && cost ? " ~" : ""}</span>
  </div>`;
}

// How far a run is, and the time left where its pace is known.
export function progress({ at, end, seconds_left: left }) {
  const part = `${Math.floor(100 * Math.max(0, Math.min(1, at / end)))}%`;
  return left === null ? part : `${part}, ${duration(left)} left`;
}
