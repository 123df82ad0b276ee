// Curves. uPlot draws a line of 100,000 points in the time of a frame.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/standalone.module.js";
import { Empty, Failed, bytes, number, useData } from "./parts.js";

// Eight colours that people who do not see red or green tell apart (Okabe and Ito), for dark and for
// light; lines beyond them are dashed.
const LIGHT = ["#0072b2", "#d55e00", "#007a5e", "#a6457f", "#8a6d00", "#2b7bba", "#555555", "#7a4bb5"];
const DARK = ["#56b4e9", "#e69f00", "#2fbf95", "#e08fc0", "#f0e442", "#9ad0f5", "#bbbbbb", "#bda0f0"];

const dark = matchMedia("(prefers-color-scheme: dark)");

export function useTheme() {
  const [isDark, setDark] = useState(dark.matches);
  useEffect(() => {
    const look = () => setDark(dark.matches);
    dark.addEventListener("change", look);
    return () => dark.removeEventListener("change", look);
  }, []);
  return isDark;
}

export const colour = (index, isDark) => (isDark ? DARK : LIGHT)[index % LIGHT.length];

// A moving average in which the first values count as much as later ones, as in TensorBoard.
export function smoothed(values, weight) {
  if (!weight) return values;
  let average = 0;
  let share = 1;
  return values.map((value) => {
    if (value === null) return null;
    average = average * weight + (1 - weight) * value;
    share *= weight;
    return average / (1 - share);
  });
}

// What uPlot is told about lines of { label, xs, ys }.
function optionsOf(lines, { x, isLogarithmic, isDark, height, format, onSelect }) {
  const shown = (value) => (value === null ? "" : format(value));
  const ink = getComputedStyle(document.body).color;
  const grid = { stroke: isDark ? "#ffffff1c" : "#0000001c", width: 1 };
  const axis = { stroke: ink, grid, ticks: { show: false } };
  const series = lines.map((line, index) => ({
    label: line.label,
    stroke: colour(index, isDark),
    width: 1.5,
    dash: index < LIGHT.length ? undefined : [6, 3],
    spanGaps: true,
    points: { show: line.xs.length < 3, size: 6 },
    value: (_, value) => shown(value),
  }));
  const below = { label: x };
  if (x !== "time") below.value = (_, value) => (value === null ? "" : number(value));
  return {
    height,
    scales: { x: { time: x === "time" }, y: { distr: isLogarithmic ? 3 : 1 } },
    series: [below, ...series],
    axes: [{ ...axis, size: 32 }, { ...axis, size: 64, values: (_, ticks) => ticks.map(shown) }],
    cursor: { drag: { x: true, y: false } },
    hooks: { setSelect: [onSelect] },
  };
}

// Draw lines with one axis below. What one drags over is shown alone, and told to `onZoom`.
export function Chart({ title, lines, x, isLogarithmic, smooth, height = 220, format = number, onZoom }) {
  const place = useRef(null);
  const plot = useRef(null);
  const isZoomed = useRef(false);
  const isDark = useTheme();
  const names = lines.map((line) => line.label).join("\n");
  const data = useMemo(() => {
    const tables = lines.map((line) => {
      const ys = isLogarithmic ? line.ys.map((value) => (value > 0 ? value : null)) : line.ys;
      return [line.xs, smoothed(ys, smooth)];
    });
    return tables.length === 1 ? tables[0] : uPlot.join(tables);
  }, [lines, isLogarithmic, smooth]);

  useEffect(() => {
    const onSelect = ({ select, posToVal }) => {
      if (!select.width) return;
      isZoomed.current = true;
      onZoom?.(posToVal(select.left, "x"), posToVal(select.left + select.width, "x"));
    };
    const element = place.current;
    const width = element.clientWidth;
    const options = optionsOf(lines, { x, isLogarithmic, isDark, height, format, onSelect });
    const drawn = new uPlot({ ...options, width }, data, element);
    const size = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height }));
    size.observe(element);
    plot.current = drawn;
    isZoomed.current = false;
    return () => {
      size.disconnect();
      drawn.destroy();
    };
  }, [names, isLogarithmic, x, isDark, height]);

  useEffect(() => {
    plot.current.setData(data, !isZoomed.current);
    if (isZoomed.current) plot.current.redraw();
  }, [data]);

  const showAll = () => {
    isZoomed.current = false;
    onZoom?.(null, null);
  };
  return html`<figure class=${lines.length > 1 ? "chart" : "chart single"}>
    <figcaption class="foreign">${title}</figcaption>
    <div ref=${place} role="img" aria-label=${`${title}: ${described(lines)}`} onDblClick=${showAll}></div>
  </figure>`;
}

// What a chart says in words, for those who do not see it.
function described(lines) {
  const words = lines.map(({ label, ys }) => {
    const last = ys.findLast((value) => value !== null);
    return `${label}, ${ys.length} values, last ${number(last)}`;
  });
  return words.join("; ");
}

const IN_BYTES = /memory|disk|network/;
const AXES = [["step", "step"], ["epoch", "epoch"], ["time", "time"], ["relative", "seconds"]];

// The controls of charts: their axis, scale and smoothing.
export function useControls(axis = "step") {
  const [x, setX] = useState(axis);
  const [isLogarithmic, setLogarithmic] = useState(false);
  const [smooth, setSmooth] = useState(0);
  const bar = (curves) => html`<div class="controls">
    <label>x <select value=${x} onChange=${(event) => setX(event.target.value)}>
      ${AXES.filter(([axis]) => axis !== "epoch" || curves.some((curve) => curve.epoch)).map(([axis, title]) => html`
        <option value=${axis}>${title}</option>`)}
    </select></label>
    <label><input type="checkbox" checked=${isLogarithmic}
      onChange=${(event) => setLogarithmic(event.target.checked)}/> log scale</label>
    <label>smoothing <input type="range" min="0" max="0.99" step="0.01" value=${smooth}
      onInput=${(event) => setSmooth(Number(event.target.value))}/> ${smooth}</label>
    <span class="dim">drag to zoom, double click for all</span>
  </div>`;
  return { x, isLogarithmic, smooth, bar };
}

// Return the values of an axis of one curve; null if they are not known.
export function places(curve, x) {
  if (x === "relative") return curve.time.map((time) => time - curve.time[0]);
  return curve[x];
}

// The curves of one run, drawn again while it runs; or those of its machines, which have no steps.
export function Curves({ address, seconds, ofMachines = false }) {
  const [range, setRange] = useState([null, null]);
  const controls = useControls(ofMachines ? "relative" : "step");
  const [start, end] = range;
  const isZoomed = start !== null && controls.x === "step";
  const query = isZoomed ? `?start=${start}&end=${end}` : "";
  const { data, error } = useData(`${address}/curves${query}`, seconds);
  const kept = useRef(null);
  if (data) kept.current = data;
  const shown = data ?? kept.current;
  if (error && !shown) return html`<${Failed} error=${error}/>`;
  if (!shown) return null;
  const names = Object.keys(shown).filter((name) => places(shown[name], controls.x));
  if (!names.length && ofMachines) {
    return html`<${Empty}>No figures of the machines. They are taken every 10 seconds while a run lasts.<//>`;
  }
  if (!names.length) {
    return html`<${Empty}>No metrics yet. A script reports them by${" "}
      <code>runtime.report(step=step, loss=loss)</code>; others are read from what it prints.<//>`;
  }
  return html`${controls.bar(Object.values(shown))}<div class="charts">${names.map((name) => {
    const curve = shown[name];
    const lines = [{ label: name, xs: places(curve, controls.x), ys: curve.value }];
    const format = ofMachines && IN_BYTES.test(name) ? bytes : number;
    return html`<${Chart} key=${name} title=${`${name} ${format(curve.last)}`} lines=${lines} format=${format} ...${controls}
      onZoom=${(from, to) => setRange([from, to])}/>`;
  })}</div>`;
}

// A line of few pixels, beside others in a table. `trend` has a digit from 0 to f for each height.
export function Sparkline({ trend, label }) {
  if (!trend || trend.length < 2) return null;
  const points = [...trend].map((digit, index) => {
    const x = (index / (trend.length - 1)) * 78 + 1;
    return `${x.toFixed(1)},${17 - (parseInt(digit, 16) * 16) / 15}`;
  });
  return html`<svg class="spark" viewBox="0 0 80 18" role="img" aria-label=${label}>
    <polyline points=${points.join(" ")}/></svg>`;
}

// Points of trials: one hyperparameter against the result.
export function Scatter({ points, xName, yName, best }) {
  const numbers = points.filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y));
  if (!numbers.length) return html`<${Empty}>No trial has a result yet.<//>`;
  const span = (values) => {
    const least = Math.min(...values);
    const most = Math.max(...values);
    return least === most ? [least - 1, most + 1] : [least, most];
  };
  const [left, right] = span(numbers.map((point) => point.x));
  const [low, high] = span(numbers.map((point) => point.y));
  const x = (value) => 90 + ((value - left) / (right - left)) * 490;
  const y = (value) => 210 - ((value - low) / (high - low)) * 190;
  return html`<svg class="scatter" viewBox="0 0 600 250" role="img"
      aria-label=${`${numbers.length} trials, ${xName} against ${yName}`}>
    <line x1="90" y1="210" x2="580" y2="210"/><line x1="90" y1="20" x2="90" y2="210"/>
    <text x="90" y="230">${number(left)}</text><text x="580" y="230" text-anchor="end">${number(right)}</text>
    <text x="335" y="245" text-anchor="middle">${xName}</text>
    <text x="84" y="210" text-anchor="end">${number(low)}</text><text x="84" y="28" text-anchor="end">${number(high)}</text>
    <text x="98" y="14">${yName}</text>
    ${numbers.map((point) => html`<circle class=${point.number === best ? "best" : ""}
      cx=${x(point.x)} cy=${y(point.y)} r=${point.number === best ? 7 : 4}>
      <title>trial ${point.number}: ${xName} ${point.x}, ${yName} ${point.y}</title></circle>`)}
  </svg>`;
}
