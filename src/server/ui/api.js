// Requests to the server that this page came from, and its streams.

const KEY = "warpweave.api-key";

// The key stays in the tab: it is gone when the tab is closed.
export const apiKey = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

export class ApiError extends Error {
  constructor(status, message, field = "") {
    super(message);
    this.status = status;  // of HTTP; 0: the server did not answer or broke off
    this.field = field;    // the one that the server names as wrong
  }
}

function headers() {
  const all = {"Content-Type": "application/json"};
  if (apiKey.get()) all.Authorization = "Bearer " + apiKey.get();
  return all;
}

async function failure(response) {
  const text = await response.text().catch(() => "");
  let message = text.slice(0, 2000) || response.statusText, field = "";
  try {
    const error = JSON.parse(text).error;
    message = error.message || message;
    field = error.param || "";
  } catch { /* not JSON: shown as it is */ }
  if (response.status === 401 || response.status === 403) message += " Enter the API key under Settings.";
  return new ApiError(response.status, `${response.status}: ${message}`, field);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, {...options, headers: headers()});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export async function getJson(path) {
  return (await request(path, {})).json();
}

// Server-sent events of a chat, as objects. Throws ApiError where the connection ends before the answer does.
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {method: "POST", body: JSON.stringify(body), signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new ApiError(0, "The connection broke before the answer was complete.");
    }
    if (piece.done) throw new ApiError(0, "The server ended the answer before it was complete.");
    rest += piece.value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split(/\r?\n/).filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trim());
      if (data.length === 0) continue;
      if (data[0] === "[DONE]") return;
      const event = JSON.parse(data.join("\n"));
      if (event.error) throw new ApiError(200, event.error.message || "The server reports an error.");
      yield event;
    }
  }
}
