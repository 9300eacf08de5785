// Charts as SVG, each with a legend, a text that says what is shown, and a table of its numbers.
import {el, newId, plainTable, svg, setText} from "./dom.js";

const HEIGHT = 150, LEFT = 58, BOTTOM = 20, TOP = 8, RIGHT = 8;
const TABLE_ROWS = 60;

// makeChart({title, series: [{name, of: (sample) => number}], stacked, format, most: (samples) => number, time: text of a
// sample's time}). `draw(samples)` shows them; each sample has `x`, ascending. Colours are those of style.css, by the
// place in `series`; `--1` means no colour of its own (free memory).
export function makeChart({title, series, stacked = false, format, most, time}) {
  const label = newId("chart");
  const picture = svg("svg", {role: "img", class: "chart", height: HEIGHT, "aria-labelledby": label});
  const name = svg("title", {id: label});
  const body = svg("g");
  picture.append(name, body);
  const values = series.map(() => el("span", {class: "value"}));
  const legend = el("ul", {class: "legend"}, series.map((one, i) => el("li", {},
    el("span", {class: `swatch s${one.colour ?? i + 1}`, "aria-hidden": "true"}), el("span", {}, one.name), values[i])));
  const table = el("div");
  const details = el("details", {class: "numbers"}, el("summary", {}, "As a table", el("span", {class: "sr"}, `: ${title}`)), table);
  const chart = {samples: [], mark: null};
  const element = el("figure", {class: "figure"}, el("figcaption", {}, title), picture, legend, details);

  const drawTable = () => {
    if (!details.open) return table.replaceChildren();
    const step = Math.max(1, Math.ceil(chart.samples.length / TABLE_ROWS));
    const rows = chart.samples.filter((_, i) => i % step === 0);
    table.replaceChildren(el("div", {class: "scroll short", role: "region", tabindex: "0", "aria-label": `Numbers of: ${title}`},
      plainTable(title, ["Time", ...series.map((one) => one.name)], rows.map((s) => [time(s), ...series.map((one) => format(one.of(s)))]))));
  };
  details.addEventListener("toggle", drawTable);

  const draw = () => {
    const {samples} = chart;
    const width = Math.max(200, picture.clientWidth || element.clientWidth || 600);
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const shown = chart.mark ?? samples.at(-1);
    series.forEach((one, i) => setText(values[i], shown ? format(one.of(shown)) : "–"));
    setText(name, describe(title, series, samples, format, time));
    if (samples.length === 0) return body.replaceChildren();
    const top = most ? Math.max(1, most(samples)) : niceTop(highest(series, samples, stacked));
    const from = samples[0].x, to = samples.at(-1).x > from ? samples.at(-1).x : from + 1;
    const x = (sample) => LEFT + (sample.x - from) / (to - from) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [grid(top, y, width, format), times(samples, x, time)];
    parts.push(...(stacked ? areas(series, samples, x, y) : lines(series, samples, x, y)));
    if (chart.mark) parts.push(svg("line", {class: "mark", x1: x(chart.mark), x2: x(chart.mark), y1: TOP, y2: HEIGHT - BOTTOM}));
    body.replaceChildren(...parts);
  };
  new ResizeObserver(draw).observe(element);
  return {
    element,
    // `mark`: the sample whose numbers the legend shows; without it, the last.
    draw: (samples, mark = null) => { chart.samples = samples; chart.mark = mark; draw(); if (details.open && !details.matches(":focus-within")) drawTable(); },
  };
}

function describe(title, series, samples, format, time) {
  if (samples.length === 0) return `${title}: nothing yet.`;
  const last = samples.at(-1);
  const parts = series.map((one) => {
    const all = samples.map(one.of);
    return `${one.name} ${format(one.of(last))}, ${format(Math.min(...all))} to ${format(Math.max(...all))}`;
  });
  return `${title}, ${time(samples[0])} to ${time(last)}. At the end and in all: ${parts.join("; ")}.`;
}

const highest = (series, samples, stacked) => Math.max(1, ...samples.map((sample) => {
  const all = series.map((one) => one.of(sample));
  return stacked ? all.reduce((a, b) => a + b, 0) : Math.max(...all);
}));

// The least round number that is not below `value`.
function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 4, 5, 8, 10].map((m) => m * power).find((top) => top >= value * 0.999) ?? value;
}

function grid(top, y, width, format) {
  const group = svg("g", {class: "grid-lines"});
  for (const share of [0, 0.5, 1]) {
    const at = y(top * share);
    group.append(svg("line", {x1: LEFT, x2: width - RIGHT, y1: at, y2: at}),
      svg("text", {x: LEFT - 6, y: at + 4, "text-anchor": "end"}, document.createTextNode(format(top * share))));
  }
  return group;
}

function times(samples, x, time) {
  const group = svg("g", {class: "grid-lines"});
  const ends = samples.length > 1 ? [[samples[0], "start"], [samples.at(-1), "end"]] : [[samples[0], "start"]];
  for (const [sample, anchor] of ends) {
    group.append(svg("text", {x: x(sample), y: HEIGHT - 5, "text-anchor": anchor}, document.createTextNode(time(sample))));
  }
  return group;
}

const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");

function areas(series, samples, x, y) {
  const below = samples.map(() => 0);
  return series.map((one, i) => {
    const lower = samples.map((sample, at) => [x(sample), y(below[at])]);
    samples.forEach((sample, at) => { below[at] += one.of(sample); });
    const upper = samples.map((sample, at) => [x(sample), y(below[at])]);
    return svg("path", {class: `area s${one.colour ?? i + 1}`, d: `${path(upper)}${path(lower.reverse()).replace("M", "L")}Z`});
  });
}

const lines = (series, samples, x, y) => series.map((one, i) =>
  svg("path", {class: `line s${one.colour ?? i + 1}${i ? " dashed" : ""}`, d: path(samples.map((sample) => [x(sample), y(one.of(sample))]))}));
