// The frame of the page: tabs, keys, and which part is shown. Each part is a module with `start(panel)`, which returns
// {show, hide}; hidden parts ask the server for nothing.
import {json, keys} from "./api.js";
import {notify} from "./dom.js";
import * as adapters from "./adapters.js";
import * as live from "./live.js";
import * as playground from "./playground.js";
import * as replay from "./replay.js";

const PARTS = {playground, adapters, live, replay};
const NAMES = Object.keys(PARTS);
const tabs = Object.fromEntries(NAMES.map((name) => [name, document.getElementById(`tab-${name}`)]));
const panels = Object.fromEntries(NAMES.map((name) => [name, document.getElementById(`panel-${name}`)]));
const started = {};
let shown = null;

function select(name, {focus = false} = {}) {
  if (name === shown) return;
  if (shown) started[shown].hide?.();
  shown = name;
  for (const each of NAMES) {
    const chosen = each === name;
    tabs[each].setAttribute("aria-selected", String(chosen));
    tabs[each].tabIndex = chosen ? 0 : -1;
    panels[each].hidden = !chosen;
  }
  if (focus) tabs[name].focus();
  history.replaceState(null, "", name === "playground" ? location.pathname + location.search : `#${name}`);
  document.title = `${tabs[name].textContent} – loramux`;
  started[name] ??= PARTS[name].start(panels[name]);
  if (!document.hidden) started[name].show?.();
}

function move(event) {
  const at = NAMES.indexOf(shown);
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: NAMES.length - 1}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  select(NAMES[(to + NAMES.length) % NAMES.length], {focus: true});
}

for (const name of NAMES) {
  tabs[name].addEventListener("click", () => select(name));
  tabs[name].addEventListener("keydown", move);
}
document.addEventListener("visibilitychange", () => {
  if (!shown) return;
  if (document.hidden) started[shown].hide?.();
  else started[shown].show?.();
});
window.addEventListener("hashchange", () => {
  const name = location.hash.slice(1);
  if (NAMES.includes(name)) select(name);
});

// ---- keys ----

const dialog = document.getElementById("keys");

function openKeys(which = "api") {
  for (const each of ["api", "admin"]) document.getElementById(`${each}-key`).value = keys.get(each);
  if (!dialog.open) dialog.showModal();
  document.getElementById(`${which}-key`).focus();
}

document.getElementById("open-keys").addEventListener("click", () => openKeys());
document.getElementById("keys-cancel").addEventListener("click", () => dialog.close());
document.getElementById("keys-form").addEventListener("submit", (event) => {
  event.preventDefault();
  for (const each of ["api", "admin"]) keys.set(each, document.getElementById(`${each}-key`).value.trim());
  dialog.close();
  notify("");
  if (shown) started[shown].hide?.();
  document.dispatchEvent(new CustomEvent("loramux:keys-changed"));
  if (shown) started[shown].show?.();
  showModel();
});
document.addEventListener("loramux:key-needed", (event) => {
  const what = event.detail === "admin" ? "Changing adapters needs the admin key" : "This server needs an API key";
  const wrong = keys.get(event.detail) ? ", and the one that was sent is not right" : "";
  notify(`${what}${wrong}.`, {label: "Enter it", run: () => openKeys(event.detail)});
});

async function showModel() {
  try {
    const {data} = await json("v1/models");
    document.getElementById("model").textContent = data.find((card) => card.parent === null)?.id ?? "";
  } catch { /* the part that is shown says why */ }
}

select(NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "playground");
showModel();
