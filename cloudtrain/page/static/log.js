// The output of a run: any place of a log of a million lines, its errors, and its end as it grows.

import { html, useEffect, useRef, useState } from "./vendor/standalone.module.js";
import { Failed, get, useRows } from "./parts.js";

const HEIGHT = 18;

export function Log({ address, isLive, every, failedRank, startsAtError }) {
  const [rank, setRank] = useState(failedRank ?? null);
  const [total, setTotal] = useState(0);
  const [shown, setShown] = useState({ first: 0, lines: [] });
  const [follows, setFollows] = useState(isLive);
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const rows = useRows(total, HEIGHT);
  const of = rank === null ? "" : `&rank=${rank}`;
  const wanted = useRef(0);

  const load = async (first) => {
    const number = (wanted.current += 1);
    try {
      const answer = await get(`${address}/log?first=${first}&count=${rows.count + 40}${of}`);
      if (number !== wanted.current) return; // a newer question is under way
      setTotal(answer.total);
      setShown(answer);
      setError(null);
    } catch (failure) {
      setError(failure.message);
      setTimeout(() => number === wanted.current && load(first), 3000);
    }
  };

  // the last lines come at the end of the run, and nothing is asked once the view is closed
  useEffect(() => () => { wanted.current += 1; }, []);

  const before = Math.max(0, rows.first - 20);
  useEffect(() => {
    load(before);
  }, [Math.floor(before / 10), rank, rows.count, isLive]);

  useEffect(() => {
    if (!isLive) return undefined;
    const timer = setInterval(() => load(Math.max(0, rows.first - 20)), 1000 * every);
    return () => clearInterval(timer);
  }, [isLive, rank, before, rows.count]);

  useEffect(() => {
    if (follows && rows.box.current) rows.box.current.scrollTop = rows.pixels;
  }, [follows, rows.pixels]);

  useEffect(() => {
    if (startsAtError) search(null, 0);
  }, []);

  // The next line with the text; without one, the next line that looks like an error.
  const search = async (words, first) => {
    setFollows(false);
    const query = words === null ? "" : `&text=${encodeURIComponent(words)}`;
    try {
      const { line } = await get(`${address}/find?first=${first}${of}${query}`);
      const sought = words === null ? "an error" : `\`${words}\``;
      setError(line === null ? `no further line has ${sought}` : null);
      setFound(line);
      if (line !== null) goTo.current(line);
    } catch (failure) {
      setError(failure.message);
    }
  };

  // the newest one: the list may have grown since the search began
  const goTo = useRef(null);
  goTo.current = (line) => {
    if (line < total) rows.show(line);
    else setTimeout(() => goTo.current(line), 100);
  };

  const next = found === null ? 0 : found + 1;
  return html`<section class="log-view">
    <div class="controls">
      <label>rank <input type="number" min="0" placeholder="all" value=${rank ?? ""} size="4"
        onInput=${(event) => setRank(event.target.value === "" ? null : Number(event.target.value))}/></label>
      <form onSubmit=${(event) => { event.preventDefault(); if (text) search(text, next); }}>
        <label><span class="hidden">search</span>
          <input type="search" placeholder="search" value=${text}
            onInput=${(event) => { setText(event.target.value); setFound(null); }}/></label>
        <button>next</button>
      </form>
      <button type="button" onClick=${() => search(null, next)}>next error</button>
      <label><input type="checkbox" checked=${follows}
        onChange=${(event) => setFollows(event.target.checked)}/> follow the end</label>
      <span class="dim" role="status">${total.toLocaleString("en")} lines</span>
    </div>
    <${Failed} error=${error}/>
    <div class="log" ref=${rows.box} tabindex="0" role="log" aria-label="output of the run"
        onWheel=${(event) => event.deltaY < 0 && setFollows(false)}>
      <div class="tall" style=${{ height: `${rows.pixels}px` }}></div>
      ${shown.lines.map(([time, of_, stream, text], index) => {
        const line = shown.first + index;
        const place = rows.top + (line - rows.first) * HEIGHT;
        const kind = `line ${stream} ${line === found ? "found" : ""}`;
        return html`<div class=${kind} key=${line} style=${{ top: `${place}px` }}
            title=${new Date(1000 * time).toLocaleString()}>
          <span class="number">${line + 1}</span><span class="rank">${of_ ?? ""}</span>${text}</div>`;
      })}
    </div>
  </section>`;
}
