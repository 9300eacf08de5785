// Makes and changes elements. All text reaches the page as text nodes, so no name can become markup.

// el("button", {class: "quiet", onclick: f, "aria-label": "Stop"}, "Stop"). Children that are null or false are left out.
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  setAll(element, properties);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// The same for SVG.
export function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAll(element, properties);
  element.append(...children.flat());
  return element;
}

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "indeterminate", "open"]);

function setAll(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value);
  }
}

// Sets an element's text only if it changes, so that nothing is selected or read anew.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let lastId = 0;
export const newId = (prefix) => `${prefix}-${++lastId}`;

// A label above its control. `hint` stands below it.
export function field(text, control, hint) {
  control.id ||= newId("field");
  const parts = [el("label", {for: control.id}, text), control];
  if (hint) {
    const note = el("small", {id: `${control.id}-hint`, class: "muted"}, hint);
    control.setAttribute("aria-describedby", note.id);
    parts.push(note);
  }
  return el("div", {class: "field"}, parts);
}

// Tells readers of the screen what has happened.
export function announce(text) {
  document.getElementById("status").textContent = text;
}

// Shows a message above the content; an empty one hides it.
export function notify(text, action) {
  const notice = document.getElementById("notice");
  notice.hidden = !text;
  notice.replaceChildren(...(text ? [el("span", {}, text)] : []));
  if (text && action) notice.append(el("button", {class: "quiet", onclick: action.run}, action.label));
  if (text) notice.append(el("button", {class: "quiet", "aria-label": "Close the message", onclick: () => notify("")}, "×"));
}

// A table that may be wider than its place: the place scrolls, by keyboard too.
export function scroller(label, table) {
  return el("div", {class: "scroll", role: "region", "aria-label": label, tabindex: "0"}, table);
}

// A table with a caption, a row of headings, and rows of texts. The first cell of a row is its heading.
export function plainTable(caption, headings, rows) {
  return el("table", {},
    el("caption", {class: "sr"}, caption),
    el("thead", {}, el("tr", {}, headings.map((text, i) => el("th", {scope: "col", class: i ? "number" : null}, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((text, i) =>
      i ? el("td", {class: "number"}, text) : el("th", {scope: "row"}, text))))));
}
