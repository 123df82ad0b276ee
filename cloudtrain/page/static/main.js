// The page: its address says which view is open. #/ is the list, #/run/NAME/TAB a run.

import { html, render, useEffect, useRef, useState } from "./vendor/standalone.module.js";
import { Compare, Costs, Queue } from "./others.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { start } from "./store.js";

const KEYS = [
  ["/", "filter the runs"],
  ["j, k", "next, previous run"],
  ["Enter", "open the run"],
  ["x", "choose the run, to compare"],
  ["g", "back to all runs"],
  ["?", "this help"],
];

const placeOf = () => location.hash.replace(/^#\/?/, "").split("/").map(decoded);

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand
  }
}

function App() {
  const [place, setPlace] = useState(placeOf());
  // kept here, so that the list is as it was when one comes back to it
  const [view, setView] = useState({ filter: "", sort: [null, false], group: "", chosen: [] });
  const help = useRef(null);

  useEffect(() => {
    const look = () => setPlace(placeOf());
    const press = (event) => {
      if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) {
        if (event.key === "Escape") event.target.blur();
        return;
      }
      if (event.key === "?") help.current.showModal();
      if (event.key === "g") location.hash = "#/";
      if (event.key === "/") {
        event.preventDefault();
        location.hash = "#/";
        requestAnimationFrame(() => document.getElementById("filter")?.focus());
      }
    };
    addEventListener("hashchange", look);
    look(); // the address may have changed since it was drawn
    addEventListener("keydown", press);
    return () => {
      removeEventListener("hashchange", look);
      removeEventListener("keydown", press);
    };
  }, []);

  const [kind, name = "", tab = "", path = ""] = place;
  useEffect(() => {
    document.title = name ? `${name} · cloudtrain` : "cloudtrain";
  }, [name]);
  const link = (to, title) => html`<a href=${`#/${to}`} aria-current=${kind === to ? "page" : undefined}>${title}</a>`;
  return html`
    <header class="top"><h1><a href="#/">cloudtrain</a></h1>
      <nav aria-label="views">${link("", "runs")}${link("queue", "queue")}${link("cost", "cost")}</nav>
      <button type="button" aria-label="keys" onClick=${() => help.current.showModal()}>?</button></header>
    ${kind === "run" && html`<${Run} key=${name} name=${name} tab=${tab} path=${path}/>`}
    ${kind === "compare" && html`<${Compare} key=${name} names=${name.split(",")}/>`}
    ${kind === "queue" && html`<${Queue}/>`}
    ${kind === "cost" && html`<${Costs}/>`}
    ${!["run", "compare", "queue", "cost"].includes(kind) && html`<${Runs} view=${view} setView=${setView}/>`}
    <dialog ref=${help} aria-label="keys"><h2>Keys</h2><table><tbody>
      ${KEYS.map(([key, what]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${what}</td></tr>`)}
    </tbody></table><form method="dialog"><button>close</button></form></dialog>`;
}

start().then(() => {
  render(html`<${App}/>`, document.getElementById("app"));
  requestAnimationFrame(() => performance.mark("listed"));
});
