// Replay: the result of `loramux simulate --replay RECORDING --json FILE.json`, over its time. The file is read in the
// browser and sent nowhere.
import {makeChart} from "./chart.js";
import {announce, el, field, newId, setText} from "./dom.js";
import {bytes, count, milliseconds, number, seconds} from "./format.js";

const MOST_BYTES = 256 * 2 ** 20;

export function start(panel) {
  const file = el("input", {type: "file", accept: ".json,application/json"});
  const problem = el("p", {class: "error", role: "alert", hidden: true});
  const place = el("div", {class: "stack"});
  file.addEventListener("change", async () => {
    problem.hidden = true;
    place.replaceChildren();
    try {
      if (!file.files[0]) return;
      if (file.files[0].size > MOST_BYTES) throw new Error(`the file has ${bytes(file.files[0].size)}; at most ${bytes(MOST_BYTES)} are read`);
      show(place, read(await file.files[0].text()));
      announce("The recording is shown.");
    } catch (error) {
      problem.hidden = false;
      setText(problem, `This file cannot be shown: ${error.message}`);
    }
  });
  panel.append(el("div", {class: "stack"},
    el("h2", {class: "sr"}, "Replay"),
    el("div", {class: "box stack"},
      field("Result of a replay or a simulation", file, "The file stays in this browser."),
      el("p", {class: "muted"}, "Record a server with ", el("code", {}, "loramux serve --record FILE"), ", replay it with ",
        el("code", {}, "loramux simulate --replay FILE --json RESULT.json"), ", and choose RESULT.json here."),
      problem),
    place));
  return {};
}

function read(text) {
  let report;
  try { report = JSON.parse(text); } catch (error) { throw new Error(`it is not JSON (${error.message})`); }
  if (report?.kind !== "loramux simulation" || !Array.isArray(report.presets)) {
    throw new Error('expected a result of `loramux simulate --json FILE.json`, with "kind": "loramux simulation"');
  }
  for (const run of report.presets) {
    if (!Array.isArray(run.over_time)) throw new Error(`the run "${run.preset}" has no samples over time`);
    run.samples = run.over_time.map((sample, i, all) => ({
      ...sample, x: sample.s,
      step_rate: i && sample.steps !== undefined ? (sample.steps - all[i - 1].steps) / Math.max(1e-9, sample.s - all[i - 1].s) : 0,
    }));
    if (run.samples.length > 1) run.samples[0].step_rate = run.samples[1].step_rate;   // it has nothing before it
  }
  return report;
}

function show(place, report) {
  const choice = el("select", {}, report.presets.map((run, i) => el("option", {value: i}, run.preset)));
  const runPlace = el("div", {class: "stack"});
  const draw = () => showRun(runPlace, report, report.presets[Number(choice.value)]);
  choice.addEventListener("change", draw);
  place.replaceChildren(
    el("dl", {class: "words"}, [["Server", report.device], ["Load", report.workload], ["Command", report.command]].map(([name, text]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, String(text))))),
    ...(report.presets.length > 1 ? [field("Run", choice)] : []), runPlace);
  draw();
}

function showRun(place, report, run) {
  const {samples} = run;
  const time = (sample) => seconds(sample.s);
  const pages = (key) => (s) => s[key] * report.page_bytes;
  const charts = [
    makeChart({title: "Device memory", stacked: true, format: bytes, time, most: () => report.device_pages * report.page_bytes, series: [
      {name: "Running requests", colour: 1, of: pages("running_kv_pages")}, {name: "Cached history", colour: 2, of: pages("history_pages")},
      {name: "Adapters", colour: 3, of: pages("adapter_pages")}, {name: "Free", colour: 0, of: pages("free_pages")}]}),
    makeChart({title: "Requests", format: number, time, series: [
      {name: "Running", of: (s) => s.running}, {name: "Waiting", of: (s) => s.waiting}]}),
  ];
  if (samples.some((s) => s.steps !== undefined)) {
    charts.push(makeChart({title: "Steps per second", format: number, time, series: [{name: "Steps", of: (s) => s.step_rate}]}));
  }
  const at = el("input", {type: "range", min: 0, max: Math.max(0, samples.length - 1), step: 1, value: Math.max(0, samples.length - 1)});
  const output = el("output", {id: newId("at"), class: "muted"});
  const move = () => {
    const sample = samples[Number(at.value)];
    const words = sample ? `${seconds(sample.s)}: ${count(sample.running)} running, ${count(sample.waiting)} waiting` : "no samples";
    at.setAttribute("aria-valuetext", words);
    setText(output, words);
    for (const chart of charts) chart.draw(samples, sample ?? null);
  };
  at.addEventListener("input", move);
  place.replaceChildren(
    el("dl", {class: "tiles"}, tiles(run).map(([name, text]) => el("div", {class: "tile"}, el("dt", {}, name), el("dd", {}, text)))),
    el("div", {class: "box"}, field("Time", at), output),
    el("div", {class: "charts"}, charts.map((chart) => chart.element)));
  move();
}

function tiles(run) {
  const p = (latency, q) => milliseconds(latency?.[q]);
  return [
    ["Requests", count(run.ttft_ms?.count ?? 0)],
    ["TTFT p50", p(run.ttft_ms, "p50")], ["TTFT p99", p(run.ttft_ms, "p99")],
    ["TPOT p50", p(run.tpot_ms, "p50")], ["TPOT p99", p(run.tpot_ms, "p99")],
    ["Cache", run.cache ?? "–"], ["Queue", run.queue ?? "–"],
  ];
}
