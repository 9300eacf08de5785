// Requests to the server. All addresses are relative to the page, so it works behind a path prefix.

const KEYS = {api: "loramux.api-key", admin: "loramux.admin-key"};

export const keys = {
  get: (which) => sessionStorage.getItem(KEYS[which]) ?? "",
  set: (which, text) => text ? sessionStorage.setItem(KEYS[which], text) : sessionStorage.removeItem(KEYS[which]),
};

// What the server answered instead of what was asked for.
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function errorOf(response) {
  const text = await response.text();
  try {
    const {error} = JSON.parse(text);
    return new ServerError(response.status, error.message ?? text);
  } catch {
    return new ServerError(response.status, text.slice(0, 300) || `status ${response.status}`);
  }
}

// request("v1/models"), request("v1/load_lora_adapter", {body: {...}, key: "admin", signal}). Returns the response if
// its status is 200. Throws ServerError otherwise.
export async function request(path, {body, key = "api", signal} = {}) {
  const headers = {};
  const secret = keys.get(key);
  if (secret) headers.Authorization = `Bearer ${secret}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(new URL(path, document.baseURI), {
    method: body === undefined ? "GET" : "POST",
    headers, signal, cache: "no-store", credentials: "same-origin",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (response.ok) return response;
  const error = await errorOf(response);
  if (response.status === 401) document.dispatchEvent(new CustomEvent("loramux:key-needed", {detail: key}));
  throw error;
}

export const json = async (path, options) => (await request(path, options)).json();

// The data of each server-sent event, until the stream or the signal ends.
export async function* events(path, options) {
  const response = await request(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }
}
