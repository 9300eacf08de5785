// Shows openapi.json: the routes by topic, the fields of each body, and what the server does with them.
import {json} from "./api.js";
import {el, field, notify, scroller} from "./dom.js";
import {count} from "./format.js";

const METHODS = ["get", "post"];
const USES = {served: "served", accepted: "accepted, without effect", refused: "refused"};

async function start() {
  const place = document.getElementById("docs");
  let api;
  try { api = await json("openapi.json"); } catch (error) { return notify(error.message); }
  const find = el("input", {type: "search", autocomplete: "off", spellcheck: "false"});
  const routes = Object.entries(api.paths).flatMap(([path, item]) => METHODS.filter((m) => item[m]).map((method) => ({path, method, ...item[method]})));
  const sections = api.tags.map((tag) => el("section", {class: "stack"},
    el("h2", {}, tag.name), tag.description && el("p", {class: "muted"}, tag.description),
    routes.filter((route) => route.tags.includes(tag.name)).map((route) => showRoute(route, api))));
  find.addEventListener("input", () => filter(place, find.value.trim().toLowerCase()));
  place.append(el("p", {}, api.info.description), el("p", {class: "muted"}, `Version ${api.info.version}`), field("Find a route or a field", find), ...sections);
  document.getElementById("status").textContent = `${count(routes.length)} routes`;
}

function showRoute(route, api) {
  const details = el("details", {class: "box route"},
    el("summary", {}, el("span", {class: `method ${route.method}`}, route.method.toUpperCase()), " ", el("code", {}, route.path), " ", el("span", {class: "muted"}, route.summary)));
  const schema = resolve(route.requestBody?.content?.["application/json"]?.schema, api);
  details.dataset.words = [route.path, route.summary, ...Object.keys(schema?.properties ?? {})].join(" ").toLowerCase();
  // Long tables are made when they are first looked at.
  details.addEventListener("toggle", () => {
    if (!details.open || details.dataset.made) return;
    details.dataset.made = "yes";
    details.append(body(route, schema, api));
  });
  return details;
}

function body(route, schema, api) {
  const parts = [];
  if (route.description) parts.push(el("p", {}, route.description));
  if (route.parameters?.length) parts.push(el("h3", {}, "Parameters"), fields("Parameters", route.parameters.map((p) => [p.name, {...p.schema, description: p.description}]), []));
  if (schema?.properties) parts.push(el("h3", {}, "Fields of the body"), fields(`Fields of ${route.path}`, entriesOf(schema, api), schema.required ?? []), refusals(schema));
  else if (schema?.description) parts.push(el("p", {}, schema.description));
  parts.push(el("h3", {}, "Answers"), el("ul", {}, Object.entries(route.responses).map(([status, r]) => el("li", {}, el("strong", {}, status), ` ${resolve(r, api).description}`))));
  return el("div", {class: "stack"}, parts);
}

const resolve = (thing, api) => thing?.$ref ? thing.$ref.split("/").slice(1).reduce((at, key) => at[key], api) : thing;

// Fields of an object within the body follow it: `parameters`, `parameters.seed`.
const entriesOf = (schema, api) => Object.entries(schema.properties).flatMap(([name, part]) => {
  const inner = part.$ref ? resolve(part, api) : undefined;
  return inner ? [[name, {...part, type: "object"}], ...Object.entries(inner.properties).map(([of, schema]) => [`${name}.${of}`, schema])] : [[name, part]];
});

function refusals(schema) {
  const names = Object.keys(schema["x-loramux-refused"] ?? {});
  return names.length > 0 && el("p", {class: "muted"}, `Refused by name: ${names.join(", ")}.`);
}

function fields(caption, entries, required) {
  return scroller(caption, el("table", {class: "fields"},
    el("caption", {class: "sr"}, caption),
    el("thead", {}, el("tr", {}, ["Field", "Type", "What happens"].map((text) => el("th", {scope: "col"}, text)))),
    el("tbody", {}, entries.map(([name, schema]) => el("tr", {},
      el("th", {scope: "row"}, el("code", {}, name), required.includes(name) && el("span", {class: "pinned"}, "needed")),
      el("td", {}, typeOf(schema)), el("td", {}, [USES[schema["x-loramux-use"]], schema.description].filter(Boolean).join(": ")))))));
}

function typeOf(schema) {
  if (schema.oneOf) return schema.oneOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (Array.isArray(schema.type)) return schema.type.map((type) => typeOf({...schema, type})).join(" or ");
  const type = schema.type === "array" ? `array of ${schema.items ? typeOf(schema.items) : "any"}` : schema.type ?? "any";
  const range = [schema.minimum !== undefined && `from ${schema.minimum}`, schema.maximum !== undefined && `to ${schema.maximum}`].filter(Boolean).join(" ");
  return range ? `${type}, ${range}` : type;
}

function filter(place, words) {
  for (const details of place.querySelectorAll("details.route")) details.hidden = !details.dataset.words.includes(words);
}

start();
