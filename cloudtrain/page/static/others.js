// Compared runs, the queue, and what runs cost.

import { html, useMemo, useState } from "./vendor/standalone.module.js";
import {
  Document, ENDED, Empty, Failed, State, age, dollars, lasted, number, post, priceOf, runAddress, runLink, useData,
} from "./parts.js";
import { Chart, places, useControls } from "./curves.js";
import { own, runNamed, useRuns } from "./store.js";

export function Compare({ names }) {
  useRuns();
  const runs = names.map(runNamed).filter(Boolean);
  const isLive = runs.some((run) => !ENDED.has(run.state));
  const query = names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
  const { data, error } = useData(`/api/compared?${query}`, isLive ? 5 : 0);
  const controls = useControls();
  const charts = useMemo(() => chartsOf(data ?? {}, controls.x), [data, controls.x]);
  const differing = differingFields(runs);
  return html`<main class="compare-view">
    <h2>${names.length} runs</h2>
    <p><a class="button" href=${`/api/saved?${query}`} download>save as HTML</a></p>
    <${Failed} error=${error}/>
    <div class="scrolls" tabindex="0"><table>
      <thead><tr><th scope="col"></th>${runs.map((run) => html`<th scope="col" class="foreign">
        <a href=${runLink(run.name)}>${run.name}</a></th>`)}</tr></thead>
      <tbody>
        <tr><th scope="row">state</th>${runs.map((run) => html`<td><${State} state=${run.state}/></td>`)}</tr>
        <tr><th scope="row">duration</th>${runs.map((run) => html`<td>${lasted(run)}</td>`)}</tr>
        ${runs.some(priceOf) && html`<tr><th scope="row">cost</th>${runs.map((run) => html`<td>${dollars(priceOf(run))}</td>`)}</tr>`}
        ${differing.map((name) => html`<tr key=${name}><th scope="row" class="foreign">${name}</th>
          ${runs.map((run) => html`<td class="foreign">${givenTo(run, name)}</td>`)}</tr>`)}
        <tr><th scope="row">main metric</th>${runs.map((run) => html`<td>${run.main
          && `${run.main.name} ${number(run.main.last)}, best ${number(run.main.best)}`}</td>`)}</tr>
      </tbody></table></div>
    ${charts.length > 0 && controls.bar(Object.values(data).flatMap(Object.values))}
    ${data && !charts.length && html`<${Empty}>None of these runs has metrics.<//>`}
    <div class="charts">${charts.map(({ title, lines }) => html`
      <${Chart} key=${title} title=${title} lines=${lines} ...${controls}/>`)}</div>
    ${names.length === 2 && html`<${Difference} before=${names[0]} after=${names[1]}/>`}
  </main>`;
}

const givenTo = (run, name) => own(name, run.hyperparameters) ?? "";

function Difference({ before, after }) {
  const query = `before=${encodeURIComponent(before)}&after=${encodeURIComponent(after)}`;
  const { data, error } = useData(`/api/difference?${query}`);
  if (!data) return html`<${Failed} error=${error}/>`;
  return html`<h3>What differs</h3><${Document} blocks=${data}/>`;
}

function differingFields(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.hyperparameters ?? {})))];
  return names.filter((name) => new Set(runs.map((run) => givenTo(run, name))).size > 1);
}

// Return a chart of each metric, with a line of each run.
function chartsOf(curvesOfRuns, x) {
  const charts = new Map();
  for (const [run, curves] of Object.entries(curvesOfRuns)) {
    for (const [name, curve] of Object.entries(curves)) {
      const xs = places(curve, x);
      if (!xs) continue;
      const lines = charts.get(name) ?? [];
      lines.push({ label: run, xs, ys: curve.value });
      charts.set(name, lines);
    }
  }
  return [...charts].map(([title, lines]) => ({ title, lines }));
}

export function Queue() {
  const [moved, setMoved] = useState(0);
  const [failure, setFailure] = useState(null);
  const { data, error } = useData(`/api/queue?n=${moved}`, 2);
  const move = async (name, body) => {
    try {
      await post(`${runAddress(name)}/move`, body);
      setFailure(null);
    } catch (problem) {
      setFailure(problem.message);
    }
    setMoved(moved + 1);
  };
  const waiting = (data ?? []).filter((run) => run.place !== null);
  return html`<main class="queue-view"><h2>Queue</h2>
    <${Failed} error=${failure ?? error}/>
    ${data && !data.length && html`<${Empty}>Nothing waits. <code>cloudtrain submit job.yaml --queue</code> adds a run.<//>`}
    <div class="scrolls" tabindex="0" hidden=${!data?.length}><table>
      <thead><tr>${["place", "run", "move", "needs", "has", "priority", "since"].map((title) => html`
        <th scope="col">${title}</th>`)}</tr></thead>
      <tbody>${(data ?? []).map((run) => html`<tr key=${run.name}>
        <td class="number">${run.place ?? ""}</td>
        <td class="foreign"><a href=${runLink(run.name)}>${run.name}</a></td>
        <td>${run.place !== null && html`
          <button type="button" disabled=${run.place === 1} aria-label=${`move ${run.name} up`}
            onClick=${() => move(run.name, { before: before(waiting, run)?.name })}>▲</button>
          <button type="button" disabled=${run.place === waiting.length} aria-label=${`move ${run.name} to the end`}
            onClick=${() => move(run.name, { last: true })}>▼</button>`}</td>
        <td>${run.needs}</td><td>${run.has}</td><td class="number">${run.priority}</td><td>${age(run.since)}</td></tr>`)}</tbody>
    </table></div></main>`;
}

const before = (waiting, run) => waiting.find((other) => other.place === run.place - 1);

export function Costs() {
  const [by, setBy] = useState("job");
  const [tag, setTag] = useState("");
  const group = by === "tag" ? tag && `tag:${tag}` : by;
  const { data, error } = useData(group ? `/api/costs?by=${encodeURIComponent(group)}` : null);
  const groups = data ?? [];
  const most = Math.max(0, ...groups.map((found) => found.total));
  return html`<main class="cost-view"><h2>Cost</h2>
    <div class="controls"><label>by <select value=${by} onChange=${(event) => setBy(event.target.value)}>
      ${["job", "month", "target", "tag"].map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      ${by === "tag" && html`<label>tag <input value=${tag} onInput=${(event) => setTag(event.target.value)}/></label>`}</div>
    <${Failed} error=${error}/>
    ${data && !groups.length && html`<${Empty}>No run has cost anything yet.<//>`}
    <div class="scrolls" tabindex="0" hidden=${!groups.length}><table>
      <thead><tr>${[by, "runs", "billed", "estimated", "total", ""].map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
      <tbody>${groups.map((found) => html`<tr key=${found.group}>
        <th scope="row" class="foreign">${found.group}</th><td class="number">${found.runs}</td>
        <td class="number">${dollars(found.billed)}</td><td class="number">${dollars(found.estimated)}</td>
        <td class="number">${found.free_runs === found.runs ? "free" : dollars(found.total)}</td>
        <td class="bar">${most > 0 && html`<meter min="0" max=${most} value=${found.total}
          aria-label=${`${found.group}: ${dollars(found.total)}`}></meter>`}</td></tr>`)}</tbody>
    </table></div>
    <p class="dim">US dollars at list prices. Runs on this machine and on your own cluster are free.</p></main>`;
}
