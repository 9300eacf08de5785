// Playground: one question to several models at the same time, their answers side by side.
import {events, json} from "./api.js";
import {announce, el, field, newId, setText} from "./dom.js";
import {count, milliseconds, number} from "./format.js";

const MOST_MODELS = 6;
const MOST_LISTED = 60;   // of the models that match the search
// Capabilities of cards without text: adapters with such alone, as those with a head for classes, cannot answer.
const WITHOUT_TEXT = ["classify", "score", "rerank", "embed", "embedding"];

const SETTINGS = [
  {name: "max_tokens", label: "Most tokens", value: "200", min: 1, step: 1},
  {name: "temperature", label: "Temperature", value: "0", min: 0, max: 100, step: "any"},
  {name: "top_p", label: "top_p", value: "", min: 0, max: 1, step: "any"},
  {name: "top_k", label: "top_k", value: "", min: -1, step: 1},
  {name: "min_p", label: "min_p", value: "", min: 0, max: 1, step: "any"},
  {name: "seed", label: "Seed", value: "", step: 1},
];
const FORMATS = {
  none: {label: "Any text"},
  object: {label: "JSON object"},
  schema: {label: "JSON schema", example: '{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}'},
  regex: {label: "Regular expression", example: "[0-9]+"},
  choice: {label: "One of these lines", example: "yes\nno"},
};

export function start(panel) {
  const state = {models: [], chosen: [], panes: new Map(), running: null};
  const ui = build(panel, state);
  const reload = () => loadModels(state, ui);
  document.addEventListener("loramux:keys-changed", reload);
  reload();
  return {};
}

// ---- the form ----

function build(panel, state) {
  const ui = {
    search: el("input", {type: "search", autocomplete: "off", spellcheck: "false", placeholder: "Find a model or adapter"}),
    list: el("div", {class: "choices", role: "group", "aria-label": "Models to ask"}),
    hint: el("small", {class: "muted", role: "status"}),
    chips: el("ul", {class: "chips", "aria-label": "Chosen models"}),
    system: el("textarea", {rows: 2}),
    prompt: el("textarea", {rows: 4, required: ""}),
    memory: el("input", {type: "checkbox"}),
    numbers: SETTINGS.map((s) => ({name: s.name, input: el("input", {type: "number", inputmode: "decimal", value: s.value, min: s.min, max: s.max, step: s.step}), label: s.label})),
    stop: el("input", {type: "text", autocomplete: "off", spellcheck: "false"}),
    format: el("select", {}, Object.entries(FORMATS).map(([value, {label}]) => el("option", {value}, label))),
    shape: el("textarea", {rows: 5, class: "code", spellcheck: "false"}),
    ask: el("button", {type: "submit", class: "primary"}, "Ask"),
    halt: el("button", {type: "button", disabled: true}, "Stop"),
    clear: el("button", {type: "button", class: "quiet"}, "Clear"),
    problem: el("p", {class: "error", role: "alert", hidden: true}),
    answers: el("div", {class: "answers"}),
  };
  const shapeField = field("What it must match", ui.shape);
  shapeField.hidden = true;
  ui.format.addEventListener("change", () => {
    const {example} = FORMATS[ui.format.value];
    shapeField.hidden = example === undefined;
    const untouched = Object.values(FORMATS).some((f) => f.example === ui.shape.value) || ui.shape.value === "";
    if (example !== undefined && untouched) ui.shape.value = example;
  });
  ui.search.addEventListener("input", () => listModels(state, ui));
  ui.prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  const settings = el("details", {class: "box", open: window.innerWidth > 900},
    el("summary", {}, "Sampling"),
    el("div", {class: "grid"}, ui.numbers.map((n) => field(n.label, n.input)), field("Stop text", ui.stop)));
  const form = el("form", {class: "stack", novalidate: "", onsubmit: (event) => { event.preventDefault(); ask(state, ui); }},
    el("fieldset", {class: "box stack"}, el("legend", {}, "Models"), field("Find", ui.search), ui.list, ui.hint, ui.chips),
    field("System prompt", ui.system), field("Prompt", ui.prompt, "Ctrl+Enter asks."),
    el("label", {class: "check"}, ui.memory, "Go on with the conversation"),
    el("div", {class: "row"}, ui.ask, ui.halt, ui.clear),
    ui.problem,
    el("div", {class: "box stack"}, field("Form of the answer", ui.format), shapeField),
    settings);
  ui.halt.addEventListener("click", () => state.running?.abort());
  ui.clear.addEventListener("click", () => { state.panes.clear(); ui.answers.replaceChildren(emptyAnswers()); ui.prompt.focus(); });
  ui.answers.append(emptyAnswers());
  panel.append(el("div", {class: "split"},
    el("div", {class: "side"}, el("h2", {class: "sr"}, "Question"), form),
    el("div", {class: "wide"}, el("h2", {class: "sr"}, "Answers"), ui.answers)));
  return ui;
}

const emptyAnswers = () => el("p", {class: "empty"}, "Answers appear here, one column for each chosen model.");

// ---- models ----

const writesText = ({capabilities}) => !capabilities?.length || !capabilities.every((one) => WITHOUT_TEXT.includes(one));

async function loadModels(state, ui) {
  try {
    const data = (await json("v1/models")).data.filter(writesText);
    state.models = data.map((card) => ({id: card.id, base: card.parent === null}));
    state.chosen = state.chosen.filter((id) => data.some((card) => card.id === id));
    if (state.chosen.length === 0 && data.length > 0) state.chosen = [data[0].id];
  } catch (error) {
    state.models = [];
    setText(ui.hint, `The list of models did not come: ${error.message}`);
    return;
  }
  listModels(state, ui);
  listChosen(state, ui);
}

function listModels(state, ui) {
  const wanted = ui.search.value.trim().toLowerCase();
  const found = state.models.filter((model) => model.id.toLowerCase().includes(wanted));
  ui.list.replaceChildren(...found.slice(0, MOST_LISTED).map((model) => el("label", {class: "choice"},
    el("input", {type: "checkbox", value: model.id, checked: state.chosen.includes(model.id), onchange: (event) => choose(state, ui, event.target)}),
    el("span", {}, model.id), model.base && el("small", {class: "muted"}, "base"))));
  const rest = found.length - MOST_LISTED;
  setText(ui.hint, found.length === 0 ? "No model has such a name." : rest > 0 ? `${count(rest)} more; type to find them.` : "");
}

function choose(state, ui, box) {
  if (box.checked && state.chosen.length >= MOST_MODELS) {
    box.checked = false;
    announce(`At most ${MOST_MODELS} models at a time.`);
    setText(ui.hint, `At most ${MOST_MODELS} models at a time.`);
    return;
  }
  state.chosen = box.checked ? [...state.chosen, box.value] : state.chosen.filter((id) => id !== box.value);
  listChosen(state, ui);
}

function listChosen(state, ui) {
  ui.chips.replaceChildren(...state.chosen.map((id) => el("li", {}, el("span", {}, id),
    el("button", {type: "button", "aria-label": `Do not ask ${id}`, onclick: () => {
      state.chosen = state.chosen.filter((other) => other !== id);
      listChosen(state, ui);
      listModels(state, ui);
      ui.search.focus();
    }}, "×"))));
}

// ---- asking ----

// The fields of the request besides model and messages. Throws an Error that says what to mend.
function demands(ui) {
  const body = {};
  for (const {name, input, label} of ui.numbers) {
    if (input.value === "") continue;
    if (!input.checkValidity()) throw new Error(`${label}: ${input.validationMessage}`);
    body[name] = Number(input.value);
  }
  if (ui.stop.value) body.stop = ui.stop.value;
  const text = ui.shape.value;
  switch (ui.format.value) {
    case "object": body.response_format = {type: "json_object"}; break;
    case "schema": {
      let schema;
      try { schema = JSON.parse(text); } catch (error) { throw new Error(`The schema is not JSON: ${error.message}`); }
      body.response_format = {type: "json_schema", json_schema: {name: "answer", schema}};
      break;
    }
    case "regex": body.structured_outputs = {regex: text}; break;
    case "choice": body.structured_outputs = {choice: text.split("\n").filter((line) => line !== "")}; break;
  }
  return body;
}

async function ask(state, ui) {
  const fail = (text) => { ui.problem.hidden = !text; setText(ui.problem, text); };
  fail("");
  if (state.chosen.length === 0) return fail("Choose a model first.");
  if (ui.prompt.value.trim() === "") { ui.prompt.focus(); return fail("Write a prompt first."); }
  let body;
  try { body = demands(ui); } catch (error) { return fail(error.message); }
  state.running?.abort();
  const running = state.running = new AbortController();
  ui.halt.disabled = false;
  const old = state.panes;
  state.panes = new Map(state.chosen.map((id) => [id, old.get(id) ?? makePane(id)]));
  ui.answers.replaceChildren(...[...state.panes.values()].map((pane) => pane.element));
  const asked = [...state.panes].map(([id, pane]) => {
    if (!ui.memory.checked) { pane.turns = []; pane.log.replaceChildren(); }
    const messages = [...(ui.system.value ? [{role: "system", content: ui.system.value}] : []), ...pane.turns, {role: "user", content: ui.prompt.value}];
    return answer(pane, {...body, model: id, messages, stream: true, stream_options: {include_usage: true}}, running.signal);
  });
  const ends = await Promise.all(asked);
  if (state.running !== running) return;
  state.running = null;
  ui.halt.disabled = true;
  announce(`${ends.filter(Boolean).length} of ${ends.length} answers are complete.`);
}

function makePane(id) {
  const title = newId("answer");
  const facts = Object.fromEntries(["TTFT", "Tokens/s", "Tokens", "End"].map((name) => [name, el("dd", {}, "–")]));
  const log = el("div", {class: "log", tabindex: "0", role: "region", "aria-label": `Conversation with ${id}`});
  const element = el("article", {class: "pane", "aria-labelledby": title},
    el("h3", {id: title}, id), log,
    el("dl", {class: "facts"}, Object.entries(facts).map(([name, value]) => el("div", {}, el("dt", {}, name), value))));
  return {element, log, facts, turns: []};
}

// Streams one answer into its pane. Returns whether it came to its end.
async function answer(pane, body, signal) {
  const question = body.messages.at(-1);
  const out = el("div", {class: "said"});
  const thought = el("div", {class: "thought", hidden: true});
  pane.log.append(el("div", {class: "asked"}, question.content), thought, out);
  pane.element.classList.add("busy");
  for (const value of Object.values(pane.facts)) setText(value, "–");
  const began = performance.now();
  let first = 0, last = 0, tokens = 0, end = "";
  try {
    for await (const data of events("v1/chat/completions", {body, signal})) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      if (event.usage) tokens = event.usage.completion_tokens;
      const choice = event.choices?.[0];
      if (!choice) continue;
      const said = choice.delta.content ?? "", reasoning = choice.delta.reasoning_content ?? choice.delta.reasoning ?? "";
      if (said || reasoning) {
        last = performance.now();
        if (!first) { first = last; setText(pane.facts.TTFT, milliseconds(first - began)); }
      }
      if (reasoning) { thought.hidden = false; thought.append(reasoning); }
      if (said) out.append(said);
      if (choice.finish_reason) end = choice.finish_reason;
      pane.log.scrollTop = pane.log.scrollHeight;
    }
  } catch (error) {
    end = signal.aborted ? "stopped" : "error";
    if (!signal.aborted) out.append(el("p", {class: "error"}, error.message));
  }
  pane.element.classList.remove("busy");
  setText(pane.facts.End, end || "–");
  if (tokens) setText(pane.facts.Tokens, count(tokens));
  if (tokens > 1 && last > first) setText(pane.facts["Tokens/s"], number((tokens - 1) / (last - first) * 1000));
  const complete = end === "stop" || end === "length";
  if (complete) pane.turns = [...pane.turns, question, {role: "assistant", content: out.textContent}];
  return complete;
}
