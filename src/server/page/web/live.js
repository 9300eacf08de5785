// Live: what the server does now, from GET /internal/live. It watches only while it is shown.
import {events} from "./api.js";
import {makeChart} from "./chart.js";
import {el, plainTable, scroller, setText} from "./dom.js";
import {bytes, count, milliseconds, number, quantile} from "./format.js";

const KEPT = 300;              // events: five minutes
const WINDOW_MS = 60_000;      // of the tables by adapter and by tenant
const AGAIN_MS = 2000;         // after a broken connection
const MOST_ROWS = 50;
const MOST_ENDS = 5000;

export function start(panel) {
  const state = {samples: [], ends: [], last: null, watching: null, paused: false};
  const ui = build(panel, state);
  return {
    show: () => watch(state, ui),
    hide: () => { state.watching?.abort(); state.watching = null; },
  };
}

// ---- watching ----

async function watch(state, ui) {
  if (state.watching) return;
  const watching = state.watching = new AbortController();
  while (!watching.signal.aborted) {
    setText(ui.state, "Connecting …");
    let text = "The stream ended; it is asked for again.";
    try {
      for await (const data of events("internal/live", {signal: watching.signal})) {
        take(state, JSON.parse(data));
        setText(ui.state, state.paused ? "Paused; events are still kept." : "Live, an event a second.");
        if (!state.paused) draw(state, ui);
      }
    } catch (error) {
      if (watching.signal.aborted) return;
      text = error.message;
      if (error.status && error.status !== 503) { setText(ui.state, text); state.watching = null; return; }
    }
    if (watching.signal.aborted) return;
    setText(ui.state, text);
    state.last = null;
    await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
  }
}

// Adds an event. Rates come from the counters of two events; after a restart of the server they begin anew.
function take(state, event) {
  const last = state.last;
  if (last && event.steps < last.steps) { state.samples = []; state.last = null; }
  const passed = state.last ? (event.now_ms - state.last.now_ms) / 1000 : 0;
  const rate = (now, before) => passed > 0 ? (now - before) / passed : 0;
  state.samples.push({
    x: event.now_ms, event,
    generated: passed ? rate(event.tokens.generated, last.tokens.generated) : 0,
    prefilled: passed ? rate(event.tokens.prefilled, last.tokens.prefilled) : 0,
    steps: passed ? rate(event.steps, last.steps) : 0,
  });
  // The first event has nothing to compare with.
  if (passed && state.samples.length === 2) {
    const [{generated, prefilled, steps}] = state.samples.slice(1);
    Object.assign(state.samples[0], {generated, prefilled, steps});
  }
  if (state.samples.length > KEPT) state.samples.shift();
  for (const end of event.ended) state.ends.push({...end, at: event.now_ms});
  state.ends = state.ends.filter((end) => end.at > event.now_ms - WINDOW_MS).slice(-MOST_ENDS);
  state.last = event;
}

// ---- the panel ----

const TILES = [
  ["Running", (s) => `${count(s.event.requests.running)} of ${count(s.event.requests.max_running)}`],
  ["Waiting", (s) => count(s.event.requests.waiting)],
  ["Tokens/s", (s) => number(s.generated)],
  ["Prompt tokens/s", (s) => number(s.prefilled)],
  ["Steps/s", (s) => number(s.steps)],
  ["Loaded adapters", (s) => `${count(s.event.adapters.on_device)} of ${count(s.event.adapters.known)}`],
  ["Free memory", (s) => bytes(s.event.device.free * s.event.page_bytes)],
  ["Preemptions", (s) => count(s.event.requests.preemptions)],
  ["Watching", (s) => count(s.event.viewers)],
];

function build(panel, state) {
  const time = (sample) => {
    const ago = Math.round(((state.samples.at(-1)?.x ?? sample.x) - sample.x) / 1000);
    return ago === 0 ? "now" : `${ago} s ago`;
  };
  const memory = (tier, keys) => keys.map(([key, name, colour]) => ({name, colour, of: (s) => s.event[tier][key] * s.event.page_bytes}));
  const capacity = (tier) => (samples) => samples.at(-1).event[tier].pages * samples.at(-1).event.page_bytes;
  const ui = {
    state: el("p", {class: "muted", role: "status"}, "Connecting …"),
    pause: el("button", {type: "button", "aria-pressed": "false"}, "Pause"),
    tiles: TILES.map(([name]) => ({name, value: el("dd", {}, "–")})),
    charts: [
      makeChart({title: "Device memory", stacked: true, format: bytes, time, most: capacity("device"), series: memory("device", [
        ["requests", "Running requests", 1], ["history", "Cached history", 2], ["adapters", "Adapters in use", 3], ["idle_adapters", "Idle adapters", 4], ["free", "Free", 0]])}),
      makeChart({title: "Host memory", stacked: true, format: bytes, time, most: capacity("host"), series: memory("host", [
        ["history", "Cached history", 2], ["adapters", "Adapters", 3], ["free", "Free", 0]])}),
      makeChart({title: "Requests", format: number, time, series: [
        {name: "Running", of: (s) => s.event.requests.running}, {name: "Waiting", of: (s) => s.event.requests.waiting}]}),
      makeChart({title: "Tokens per second", format: number, time, series: [
        {name: "Generated", of: (s) => s.generated}, {name: "Prompts", of: (s) => s.prefilled}]}),
    ],
    lanes: el("div"), adapters: el("div"), tenants: el("div"),
  };
  ui.pause.addEventListener("click", () => {
    state.paused = !state.paused;
    ui.pause.setAttribute("aria-pressed", String(state.paused));
    if (!state.paused) draw(state, ui);
  });
  panel.append(el("div", {class: "stack"},
    el("h2", {class: "sr"}, "Live"),
    el("div", {class: "row"}, ui.pause, ui.state),
    el("dl", {class: "tiles"}, ui.tiles.map((tile) => el("div", {class: "tile"}, el("dt", {}, tile.name), tile.value))),
    el("div", {class: "charts"}, ui.charts.map((chart) => chart.element)),
    el("div", {class: "charts"},
      el("section", {class: "box whole"}, el("h3", {}, "By adapter, last minute"), ui.adapters),
      el("section", {class: "box"}, el("h3", {}, "By tenant, last minute"), ui.tenants),
      el("section", {class: "box"}, el("h3", {}, "Lanes of the queue"), ui.lanes))));
  return ui;
}

function draw(state, ui) {
  const sample = state.samples.at(-1);
  if (!sample) return;
  ui.tiles.forEach((tile, i) => setText(tile.value, TILES[i][1](sample)));
  for (const chart of ui.charts) chart.draw(state.samples);
  ui.charts[1].element.hidden = sample.event.host.pages === 0;
  show(ui.lanes, "Waiting requests by lane", ["Lane", "Waiting"], sample.event.requests.lanes.map((waiting, i) => [`Lane ${i + 1}`, count(waiting)]));
  const busy = new Map(sample.event.adapters.busy.map((adapter) => [adapter.name, adapter]));
  const headings = ["Running", "Waiting", "Requests", "Tokens", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95"];
  show(ui.adapters, "Requests by adapter", ["Adapter", ...headings],
    summaries(state.ends, (end) => end.adapter || sample.event.model, [...busy.keys()]).map(([name, s]) =>
      [name, count(busy.get(name)?.running ?? 0), count(busy.get(name)?.waiting ?? 0), ...figures(s)]));
  show(ui.tenants, "Requests by tenant", ["Tenant", ...headings.slice(2)],
    summaries(state.ends, (end) => end.tenant || "(no key)", []).map(([name, s]) => [name, ...figures(s)]));
}

// Puts a table into its place, unless someone reads there by keyboard: then only its cells change.
function show(place, caption, headings, rows) {
  if (rows.length === 0) return place.replaceChildren(el("p", {class: "muted"}, "Nothing in the last minute."));
  const table = plainTable(caption, headings, rows);
  const old = place.querySelector("table");
  if (old) old.replaceWith(table);
  else place.replaceChildren(scroller(caption, table));
}

// The ends of the last minute by name, the names with most tokens first.
function summaries(ends, nameOf, names) {
  const groups = new Map(names.map((name) => [name, {requests: 0, tokens: 0, ttft: [], tpot: []}]));
  for (const end of ends) {
    const name = nameOf(end);
    let group = groups.get(name);
    if (!group) groups.set(name, group = {requests: 0, tokens: 0, ttft: [], tpot: []});
    group.requests += 1;
    group.tokens += end.tokens;
    if (end.ttft_ms !== null) group.ttft.push(end.ttft_ms);
    if (end.tpot_ms !== null) group.tpot.push(end.tpot_ms);
  }
  return [...groups].sort((a, b) => b[1].tokens - a[1].tokens).slice(0, MOST_ROWS);
}

function figures({requests, tokens, ttft, tpot}) {
  const up = (a, b) => a - b;
  ttft.sort(up);
  tpot.sort(up);
  return [count(requests), count(tokens), ...[ttft, tpot].flatMap((all) => [0.5, 0.95].map((q) => milliseconds(quantile(all, q))))];
}
