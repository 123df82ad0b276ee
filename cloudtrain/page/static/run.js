// One run: what it does, its curves, its output, and what can be done to it.

import { html, useEffect, useState } from "./vendor/standalone.module.js";
import {
  Copy, Document, Empty, Failed, State, bytes, dollars, duration, lasted, moment, number, post, priceOf,
  runAddress, runLink, useData,
} from "./parts.js";
import { Curves, Scatter } from "./curves.js";
import { Log } from "./log.js";
import { runNamed, useRuns } from "./store.js";

const TABS = [
  ["", "curves"],
  ["log", "log"],
  ["machines", "machines"],
  ["plan", "plan and changes"],
  ["code", "code"],
  ["files", "files"],
  ["stacks", "stacks"],
];

export function Run({ name, tab, path }) {
  const address = runAddress(name);
  // a service is asked rarely, and nobody about a run that is over
  const [seconds, setSeconds] = useState(2);
  const { data: run, error } = useData(address, seconds);
  useEffect(() => {
    if (run) setSeconds(run.is_final ? 0 : Math.max(2, run.every));
  }, [run?.is_final, run?.every]);
  useRuns(); // its notes and tags are there
  const stored = runNamed(name) ?? {};
  if (!run) {
    return html`<main class="run-view" aria-busy=${!error}><header class="run-head"><h2 class="foreign">${name}</h2>
      ${stored.state && html`<${State} state=${stored.state}/>`}</header><${Failed} error=${error}/></main>`;
  }
  const tabs = run.sweep ? [["", "trials"], ...TABS.slice(1)] : TABS;

  return html`<main class="run-view">
    <header class="run-head">
      <h2 class="foreign">${name}</h2>
      <${State} state=${run.state}/>
      <span class="dim">${run.target}</span>
      ${run.page?.startsWith("https://") && html`<a href=${run.page} target="_blank" rel="noopener noreferrer">at the service</a>`}
      <span>${lasted(run)}</span>
      ${run.cost && html`<span title="list price">${dollars(run.cost)}</span>`}
      ${!run.is_final && run.progress && html`<${Progress} progress=${run.progress}/>`}
      <${Actions} run=${run} stored=${stored}/>
    </header>
    ${run.notices.filter((notice) => !notice.ended).map((notice) => html`
      <p class="said warn" role="status"><strong>${notice.kind}</strong> ${notice.text}</p>`)}
    ${run.reason && html`<p class=${`said ${run.state === "failed" || run.state === "lost" ? "bad" : ""}`}>
      <span class="foreign">${run.reason}</span>
      ${run.failed_rank !== null && html` <a href=${runLink(name, "log-error")}>go to the error of rank ${run.failed_rank}</a>`}</p>`}
    <${Timeline} run=${run}/>
    ${stored.hyperparameters && html`<p class="given foreign">${Object.entries(stored.hyperparameters).slice(0, 20).map(([key, value]) => html`
      <span>${key} <b>${value}</b></span>`)}</p>`}
    <nav class="tabs" aria-label="parts of the run">
      ${tabs.map(([key, title]) => html`<a href=${runLink(name, key)} key=${key}
        aria-current=${tab === key || (key === "log" && tab === "log-error") ? "page" : undefined}>${title}</a>`)}
    </nav>
    <${Part} key=${`${name} ${tab}`} run=${run} tab=${tab} path=${path} address=${address} seconds=${seconds}/>
    <${Notes} run=${run} stored=${stored} address=${address}/>
  </main>`;
}

function Progress({ progress }) {
  const { at, end, seconds_left: left } = progress;
  const percent = Math.floor(100 * Math.max(0, Math.min(1, at / end)));
  return html`<span><progress max="100" value=${percent} aria-label="progress"></progress> ${percent}%
    ${left !== null && html`<span class="dim">, ${duration(left)} left</span>`}</span>`;
}

function Timeline({ run }) {
  const phases = run.phases.length ? run.phases : [
    { phase: "submitted", started: run.created, ended: run.started },
    { phase: "started", started: run.started, ended: run.ended },
    { phase: run.is_final ? run.state : "", started: run.ended },
  ];
  return html`<ol class="timeline">${phases.filter((phase) => phase.started && phase.phase).map((phase, index, all) => html`
    <li key=${phase.phase}><b>${phase.phase}</b> <time>${moment(phase.started, all[index - 1]?.started)}</time>
      ${phase.ended && html`<span class="dim"> (${duration(phase.ended - phase.started)})</span>`}</li>`)}</ol>`;
}

function Part({ run, tab, path, address, seconds }) {
  if (tab === "log" || tab === "log-error") {
    const isError = tab === "log-error";
    return html`<${Log} address=${address} isLive=${!run.is_final} every=${run.every} startsAtError=${isError}
      failedRank=${isError ? run.failed_rank : null}/>`;
  }
  if (tab === "machines") return html`<${Curves} address=${`${address}/machines`} seconds=${seconds} ofMachines=${true}/>`;
  if (tab === "plan") return html`<${Sent} address=${address}/>`;
  if (tab === "code") return html`<${CodeFiles} run=${run} address=${address} path=${path}/>`;
  if (tab === "files") return html`<${Files} run=${run} address=${address}/>`;
  if (tab === "stacks") return html`<${Stacks} run=${run} address=${address}/>`;
  if (run.sweep) return html`<${Sweep} run=${run}/>`;
  return html`<${Curves} address=${address} seconds=${seconds}/>
    <details><summary>status, as <code>cloudtrain status</code> shows it</summary>
      <${Document} blocks=${run.status}/></details>`;
}

function Sent({ address }) {
  const { data, error } = useData(`${address}/sent`);
  if (!data) return html`<${Failed} error=${error}/>`;
  return html`
    ${data.before && html`<h3>Changed since <a class="foreign" href=${runLink(data.before)}>${data.before}</a></h3>
      <${Document} blocks=${data.changes}/>`}
    <${Document} blocks=${data.document}/>`;
}

function Files({ run, address }) {
  const { data, error } = useData(`${address}/files`);
  if (!data) return html`<${Failed} error=${error}/>`;
  return html`
    ${!data.length && html`<${Empty}>No file of this run is on this machine.<//>`}
    <div class="scrolls" tabindex="0"><table><tbody>${data.map((file) => html`<tr key=${file.path}>
      <td><a class="foreign" href=${`${address}/file/${pathOf(file.path)}`} download>${file.path}</a></td>
      <td class="number">${bytes(file.size)}</td></tr>`)}</tbody></table></div>
    <p>All of it, into a folder: <${Copy} text=${`cloudtrain download ${run.name}`}/></p>`;
}

const pathOf = (file) => file.split("/").map(encodeURIComponent).join("/");

// The code as it was submitted, whatever has become of its folder since.
function CodeFiles({ run, address, path }) {
  const { data, error } = useData(`${address}/code`);
  const file = useData(path && data?.is_here ? `${address}/code/${pathOf(path)}` : null);
  if (!data) return html`<${Failed} error=${error}/>`;
  const link = (name) => runLink(run.name, `code/${encodeURIComponent(name)}`);
  return html`
    ${!data.files.length && html`<${Empty}>This run was submitted without code: it is in the image.<//>`}
    ${!data.is_here && html`<p class="said">The code is kept by ${run.target}, not on this machine.</p>`}
    <div class="code-view">
      <div class="scrolls" tabindex="0"><table><tbody>${data.files.map(({ path: name, size }) => html`<tr key=${name}>
        <td class="foreign">${data.is_here
          ? html`<a href=${link(name)} aria-current=${name === path ? "page" : undefined}>${name}</a>` : name}</td>
        <td class="number">${bytes(size)}</td></tr>`)}</tbody></table></div>
      ${file.data && html`<pre class="foreign" tabindex="0" aria-label=${path}>${file.data.text}</pre>`}
      <${Failed} error=${file.error}/>
    </div>
    <p>All of it, into a folder: <${Copy} text=${`cloudtrain code ${run.name} ./code`}/></p>`;
}

function Stacks({ run, address }) {
  const [asked, setAsked] = useState(0);
  const { data, error } = useData(asked ? `${address}/stacks?n=${asked}` : null);
  if (run.is_final) return html`<${Empty}>The processes of this run have ended.<//>`;
  return html`<p><button type="button" onClick=${() => setAsked(asked + 1)}>look where each rank is</button></p>
    <${Failed} error=${error}/>${data && html`<${Document} blocks=${data}/>`}`;
}

// A sweep: its trials as a table, and one hyperparameter against the result.
function Sweep({ run }) {
  const names = [...new Set(run.trials.flatMap((trial) => Object.keys(trial)))]
    .filter((name) => name.startsWith("values.")).map((name) => name.slice(7));
  const [name, setName] = useState(names[0] ?? "");
  const points = run.trials.map((trial) => ({ number: trial.trial, x: Number(trial[`values.${name}`]), y: trial.value }));
  return html`
    ${names.length > 0 && html`<div class="controls"><label>x <select value=${name}
        onChange=${(event) => setName(event.target.value)}>
        ${names.map((other) => html`<option value=${other}>${other}</option>`)}</select></label></div>
      <${Scatter} points=${points} xName=${name} yName=${run.objective ?? "result"} best=${run.best}/>`}
    <div class="scrolls" tabindex="0"><table>
      <thead><tr><th scope="col">trial</th>
        ${[run.objective ?? "result", ...names].map((title) => html`<th scope="col" class="number">${title}</th>`)}
        ${["state", "run", "duration"].map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
      <tbody>${run.trials.map((trial) => html`<tr key=${trial.trial} class=${trial.trial === run.best ? "best" : ""}>
        <td>${trial.trial === run.best ? "★ " : ""}${trial.trial}</td>
        <td class="number">${number(trial.value ?? "")}</td>
        ${names.map((other) => html`<td class="number foreign">${number(trial[`values.${other}`])}</td>`)}
        <td><${State} state=${trial.state}/></td>
        <td class="foreign">${trial.run && html`<a href=${runLink(trial.run)}>${trial.run}</a>`}</td>
        <td>${trial.started && trial.ended ? duration(trial.ended - trial.started) : ""}</td></tr>`)}</tbody>
    </table></div>
    <${Document} blocks=${run.status}/>`;
}

// Buttons. What costs money is not sent from here: the command is shown, to be typed by a person.
function Actions({ run, stored }) {
  const [asked, setAsked] = useState(null);
  const [said, setSaid] = useState(null);
  const [trials, setTrials] = useState(0);
  const act = async (action) => {
    setAsked(null);
    try {
      setSaid(await post(`${runAddress(run.name)}/${action}`, action === "continue" ? { trials } : {}));
    } catch (error) {
      setSaid({ error: error.message });
    }
  };
  const price = priceOf(stored);
  const soFar = price ? ` It has cost ${dollars(price)} so far.` : "";
  const asks = {
    stop: `Stop ${run.name}? Its processes may save first.${soFar}`,
    rerun: run.is_free ? `Run ${run.name} again, with the same code?` : null,
    continue: run.sweep ? `Continue ${run.name} with its failed trials, and more of them?` : `Let ${run.name} wait again?`,
  };
  const button = (action) => html`<button type="button" class=${action === "stop" ? "danger" : ""}
    onClick=${() => (asks[action] ? setAsked(action) : act(action))}>${action}</button>`;
  return html`<span class="actions">
    ${!run.is_final && button("stop")}
    ${run.is_final && button("rerun")}
    ${run.can_continue && button("continue")}
    <a class="button" href=${`${runAddress(run.name)}/saved`} download>save as HTML</a>
    ${asked && html`<span class="ask" role="alertdialog" aria-label=${asks[asked]}>${asks[asked]}
      ${asked === "continue" && run.sweep && html`<label>more trials <input type="number" min="0" value=${trials}
        onInput=${(event) => setTrials(Number(event.target.value))}/></label>`}
      <button type="button" class="danger" autofocus onClick=${() => act(asked)}>${asked}</button>
      <button type="button" onClick=${() => setAsked(null)}>no</button></span>`}
    ${said?.command && html`<span class="ask">This costs money, so type it: <${Copy} text=${said.command}/></span>`}
    ${said?.said && html`<span role="status">${said.said} ${said.run && html`<a href=${runLink(said.run)}>open</a>`}</span>`}
    <${Failed} error=${said?.error}/>
  </span>`;
}

function Notes({ run, stored, address }) {
  const [note, setNote] = useState(stored.note ?? "");
  const [tag, setTag] = useState("");
  const [error, setError] = useState(null);
  useEffect(() => setNote(stored.note ?? ""), [run.name, stored.note]);
  const change = async (what) => {
    try {
      await post(`${address}/annotate`, what);
      setError(null);
    } catch (failure) {
      setError(failure.message);
    }
  };
  const addTag = (event) => {
    event.preventDefault();
    const [name, value = ""] = tag.split("=", 2);
    if (name) change({ tags: { [name]: value } });
    setTag("");
  };
  return html`<section class="notes" aria-label="notes and tags">
    <button type="button" aria-pressed=${Boolean(stored.pinned)} onClick=${() => change({ pinned: !stored.pinned })}>
      ${stored.pinned ? "★ pinned" : "☆ pin"}</button>
    ${Object.entries(stored.tags ?? {}).map(([name, value]) => html`<span class="tag foreign" key=${name}>${name}=${value}
      <button type="button" aria-label=${`remove the tag ${name}`} onClick=${() => change({ tags: { [name]: null } })}>×</button></span>`)}
    <form onSubmit=${addTag}><label><span class="hidden">new tag</span><input size="14" placeholder="tag=value" value=${tag}
      onInput=${(event) => setTag(event.target.value)}/></label></form>
    <label class="grow">note <textarea rows="1" value=${note} onInput=${(event) => setNote(event.target.value)}
      onChange=${() => change({ note })}></textarea></label>
    <${Failed} error=${error}/>
  </section>`;
}
