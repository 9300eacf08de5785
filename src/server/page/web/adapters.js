// Adapters: where each one is, how it is used, and, for the administrator, load, pin and unload.
import {json, request} from "./api.js";
import {announce, el, field, notify, scroller, setText} from "./dom.js";
import {bytes, count, milliseconds} from "./format.js";

const EVERY_MS = 2000;
const STEP = 100;   // rows that are shown before the next are asked for
const PLACES = {device: "Device", arriving: "Arriving", host: "Host memory", disk: "Disk", broken: "Broken"};
const RANKS = Object.keys(PLACES);

const placeOf = (adapter) => adapter.state === "broken" ? "broken" : adapter.place;
const byNumber = (key) => (a, b) => (a[key] ?? -1) - (b[key] ?? -1);
const COLUMNS = [
  {name: "Name", text: (a) => a.name, compare: (a, b) => a.name.localeCompare(b.name)},
  {name: "Place", text: (a) => PLACES[placeOf(a)], compare: (a, b) => RANKS.indexOf(placeOf(b)) - RANKS.indexOf(placeOf(a))},
  {name: "Rank", text: (a) => a.rank ? count(a.rank) : "–", compare: byNumber("rank")},
  {name: "Size", text: (a) => a.bytes ? bytes(a.bytes) : "–", compare: byNumber("bytes")},
  {name: "Running", text: (a) => count(a.running ?? 0), compare: byNumber("running")},
  {name: "Waiting", text: (a) => count(a.waiting ?? 0), compare: byNumber("waiting")},
  {name: "Uses", text: (a) => count(a.uses ?? 0), compare: byNumber("uses")},
  {name: "Loads", text: (a) => count(a.loads ?? 0), compare: byNumber("loads")},
  {name: "Last load", text: (a) => milliseconds(a.last_load_ms), compare: byNumber("last_load_ms")},
  {name: "Idle for", text: (a) => milliseconds(a.idle_ms), compare: byNumber("idle_ms")},
];

export function start(panel) {
  const state = {adapters: [], changes: "none", sort: COLUMNS[0], down: false, most: STEP, rows: new Map(), timer: 0};
  const ui = build(panel, state);
  const look = async () => {
    clearTimeout(state.timer);
    const turn = state.turn = {};
    try {
      const {adapters, changes} = await json("internal/adapters");
      Object.assign(state, {adapters, changes});
      ui.problem.hidden = true;
      draw(state, ui);
    } catch (error) {
      ui.problem.hidden = false;
      setText(ui.problem, error.message);
    }
    if (state.visible && turn === state.turn) state.timer = setTimeout(look, EVERY_MS);
  };
  ui.look = look;
  return {
    show: () => { state.visible = true; look(); },
    hide: () => { state.visible = false; clearTimeout(state.timer); },
  };
}

function build(panel, state) {
  const ui = {
    find: el("input", {type: "search", autocomplete: "off", spellcheck: "false"}),
    place: el("select", {}, el("option", {value: ""}, "Everywhere"), RANKS.map((place) => el("option", {value: place}, PLACES[place]))),
    used: el("input", {type: "checkbox"}),
    total: el("p", {class: "muted", role: "status"}),
    problem: el("p", {class: "error", role: "alert", hidden: true}),
    body: el("tbody"),
    more: el("button", {type: "button", hidden: true}, "Show more"),
    admin: el("details", {class: "box", hidden: true}),
  };
  const redraw = () => { state.most = STEP; draw(state, ui); };
  for (const control of [ui.find, ui.place, ui.used]) control.addEventListener("input", redraw);
  ui.more.addEventListener("click", () => { state.most += STEP; draw(state, ui); });
  ui.heads = COLUMNS.map((column, i) => el("th", {scope: "col", class: i > 1 ? "number" : null},
    el("button", {type: "button", class: "sort", onclick: () => {
      state.down = state.sort === column ? !state.down : i > 1;
      state.sort = column;
      draw(state, ui);
    }}, column.name)));
  buildLoad(ui);
  panel.append(
    el("div", {class: "stack"},
      el("h2", {class: "sr"}, "Adapters"),
      el("div", {class: "row filters"}, field("Find", ui.find), field("Place", ui.place), el("label", {class: "check"}, ui.used, "With requests only"), ui.total),
      ui.problem, ui.admin,
      scroller("Adapters", el("table", {class: "adapters"},
        el("caption", {class: "sr"}, "Adapters; a heading sorts by its column"),
        el("thead", {}, el("tr", {}, ui.heads, el("th", {scope: "col"}, "Changes"))), ui.body)),
      ui.more));
  return ui;
}

function draw(state, ui) {
  const words = ui.find.value.trim().toLowerCase();
  const found = state.adapters.filter((a) => a.name.toLowerCase().includes(words) &&
    (ui.place.value === "" || placeOf(a) === ui.place.value) && (!ui.used.checked || (a.running ?? 0) + (a.waiting ?? 0) > 0));
  const {compare} = state.sort;
  found.sort((a, b) => (state.down ? -1 : 1) * compare(a, b) || a.name.localeCompare(b.name));
  setText(ui.total, `${count(found.length)} of ${count(state.adapters.length)} adapters`);
  ui.heads.forEach((head, i) => head.setAttribute("aria-sort", COLUMNS[i] !== state.sort ? "none" : state.down ? "descending" : "ascending"));
  const shown = found.slice(0, state.most);
  const rows = shown.map((adapter) => {
    let row = state.rows.get(adapter.name);
    if (!row) state.rows.set(adapter.name, row = makeRow(ui));
    fill(row, adapter, state);
    return row.element;
  });
  // Rows that stay keep the focus and the selection.
  rows.forEach((element, i) => { if (ui.body.children[i] !== element) ui.body.insertBefore(element, ui.body.children[i] ?? null); });
  while (ui.body.children.length > rows.length) ui.body.lastChild.remove();
  if (state.rows.size > 4 * state.most) for (const [name, row] of state.rows) if (!row.element.isConnected) state.rows.delete(name);
  ui.more.hidden = found.length <= state.most;
  ui.admin.hidden = state.changes === "none";
}

function makeRow(ui) {
  const cells = COLUMNS.map((_, i) => i === 0 ? el("th", {scope: "row"}) : el("td", {class: i > 1 ? "number" : null}));
  const place = el("span", {class: "place"}), pinned = el("span", {class: "pinned", hidden: true}, "pinned"), why = el("small", {class: "muted"});
  cells[1].append(place, " ", pinned, why);
  const pin = el("button", {type: "button", class: "quiet"}), unload = el("button", {type: "button", class: "quiet"}, "Unload");
  const row = {cells, place, pinned, why, pin, unload, adapter: null};
  pin.addEventListener("click", () => change(ui, "v1/load_lora_adapter",
    {lora_name: row.adapter.name, lora_path: row.adapter.path, load_inplace: true, pinned: !row.adapter.pinned}));
  unload.addEventListener("click", () => askToUnload(ui, row.adapter.name));
  row.actions = el("td", {class: "actions"}, pin, unload);
  row.element = el("tr", {}, cells, row.actions);
  return row;
}

function fill(row, adapter, state) {
  row.adapter = adapter;
  const place = placeOf(adapter);
  COLUMNS.forEach((column, i) => { if (i !== 1) setText(row.cells[i], column.text(adapter)); });
  setText(row.place, PLACES[place]);
  row.place.dataset.place = place;
  row.pinned.hidden = !adapter.pinned;
  setText(row.why, adapter.reason ?? adapter.warning ?? "");
  const may = state.changes !== "none" && place !== "broken";
  row.pin.hidden = row.unload.hidden = !may;
  setText(row.pin, adapter.pinned ? "Unpin" : "Pin");
  row.pin.setAttribute("aria-label", `${adapter.pinned ? "Unpin" : "Pin"} ${adapter.name}`);
  row.unload.setAttribute("aria-label", `Unload ${adapter.name}`);
}

// ---- changes ----

async function change(ui, path, body) {
  try {
    const text = await (await request(path, {body, key: "admin"})).text();
    announce(text);
    notify(text);
  } catch (error) {
    if (error.status !== 401) notify(error.message);
    return false;
  } finally {
    ui.look();
  }
  return true;
}

function askToUnload(ui, name) {
  const dialog = el("dialog", {"aria-label": `Unload ${name}`},
    el("form", {class: "stack", onsubmit: (event) => { event.preventDefault(); dialog.close(); change(ui, "v1/unload_lora_adapter", {lora_name: name}); }},
      el("p", {}, "Unload ", el("strong", {}, name), "? Requests that run finish with it; later ones are refused."),
      el("div", {class: "row end"}, el("button", {type: "button", class: "quiet", onclick: () => dialog.close()}, "Keep it"),
        el("button", {type: "submit", class: "primary"}, "Unload"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function buildLoad(ui) {
  const name = el("input", {type: "text", required: "", autocomplete: "off", spellcheck: "false"});
  const path = el("input", {type: "text", required: "", autocomplete: "off", spellcheck: "false"});
  const pinned = el("input", {type: "checkbox"});
  const form = el("form", {class: "row filters", onsubmit: async (event) => {
    event.preventDefault();
    const done = await change(ui, "v1/load_lora_adapter", {lora_name: name.value, lora_path: path.value, pinned: pinned.checked});
    if (done) form.reset();
  }}, field("Name", name), field("Folder on the server, or source", path), el("label", {class: "check"}, pinned, "Pin it"),
    el("button", {type: "submit", class: "primary"}, "Load"));
  ui.admin.append(el("summary", {}, "Load an adapter"), form);
}
