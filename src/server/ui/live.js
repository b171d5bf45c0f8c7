// The live view: asks the server once a second what it does, and tells the rest of the page what it learned.
import {ApiError, apiKey, getJson} from "./api.js";
import {Plot} from "./plot.js";

const INTERVAL_MS = 1000;
const POINTS = 120;

const byId = (id) => document.getElementById(id);
const show = (id, text) => { byId(id).textContent = text; };
const count = (n) => Number(n).toLocaleString("en");
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

// What is known of the server; `changed` runs when a field has another value.
export const served = {model: "", modelPath: "", contextTokens: 0, changed: () => {}};

let plots = null;
let before = null;  // {at, tokens} of the last answer, for the rate

// `brief` stands in the place of the model's name, which is narrow on phones.
function setState(up, label, brief) {
  byId("state").className = up ? "up" : "down";
  byId("state").setAttribute("aria-label", label);
  byId("state").title = label;
  show("model", brief);
  byId("model").title = up ? brief : label;
}

// What was last heard is no longer what the server does.
function forgetInfo() {
  before = null;
  for (const plot of Object.values(plots)) plot.add(null);
  for (const id of ["kv-used", "kv-cached", "hit-rate", "queued"]) show(id, "\u2013");
  for (const id of ["kv-bar-used", "kv-bar-cached"]) byId(id).style.width = "0";
  byId("kv").setAttribute("aria-valuetext", "not known");
}

function briefly(error) {
  if (!(error instanceof ApiError)) return "not understood";
  if (error.status === 0) return "does not answer";
  return error.status === 401 || error.status === 403 ? "needs an API key" : `error ${error.status}`;
}

function showKeyState(error, needed) {
  const state = byId("key-state");
  const refused = error?.status === 401 || error?.status === 403;
  state.className = refused ? "note bad" : "note";
  if (refused) {
    state.textContent = apiKey.get() ? "The server refuses this key." : "This server needs a key: enter it here.";
  } else if (error) {
    state.textContent = "The server does not answer, so nothing is known about keys.";
  } else if (needed) {
    state.textContent = "Accepted. Kept until this tab closes.";
  } else {
    state.textContent = apiKey.get() ? "This server needs no key; the one entered is not looked at."
                                     : "This server needs no key.";
  }
}

function learn(fields) {
  const changed = Object.keys(fields).some((name) => served[name] !== fields[name]);
  Object.assign(served, fields);
  if (changed) served.changed();
}

function showAttention(attention) {
  const rows = ["prefill", "decode"].map((phase) => {
    const row = document.createElement("p");
    row.className = "phase";
    const name = document.createElement("b");
    name.textContent = attention[phase];
    row.append(phase + ": ", name);
    return row;
  });
  const why = document.createElement("details");
  why.open = byId("attention").querySelector("details")?.open ?? false;
  const title = document.createElement("summary");
  title.textContent = "why";
  why.append(title);
  for (const reason of attention.reasons) {
    const row = document.createElement("p");
    row.className = "because";
    row.textContent = reason;
    why.append(row);
  }
  byId("attention").replaceChildren(...rows, why);
}

function showPool(info, state) {
  const total = Math.max(1, info.max_total_num_tokens);
  const used = state.num_used_tokens / total, cached = state.num_evictable_tokens / total;
  byId("kv-bar-used").style.width = `${100 * Math.min(1, used)}%`;
  byId("kv-bar-cached").style.width = `${100 * Math.min(1 - Math.min(1, used), cached)}%`;
  byId("kv").setAttribute("aria-valuenow", (100 * used).toFixed(1));
  byId("kv").setAttribute("aria-valuetext", `${percent(used)} in use, ${percent(cached)} cached prefixes`);
  show("kv-used", `${count(state.num_used_tokens)} of ${count(info.max_total_num_tokens)}`);
  show("kv-cached", count(state.num_evictable_tokens));
  show("hit-rate", percent(state.cache_hit_rate));
  return used + cached;
}

// Tokens per second since the last look; the server's own figure is of its last log interval.
function rate(state) {
  const now = {at: performance.now(), tokens: state.generation_tokens_total};
  const last = before;
  before = now;
  if (!last || now.tokens < last.tokens) return 0;
  return (now.tokens - last.tokens) / ((now.at - last.at) / 1000);
}

function showInfo(info) {
  const state = info.internal_states[0];
  const filled = showPool(info, state);
  plots.rate.add(rate(state));
  plots.running.add(state.num_running_reqs);
  plots.kv.add(filled);
  show("queued", count(state.num_queue_reqs));
  show("context", `${count(info.context_length)} tokens`);
  showAttention(info.attention);
}

export async function refresh() {
  try {
    if (!served.model) {
      const card = (await getJson("v1/models")).data[0];
      learn({model: card.id, contextTokens: card.max_model_len ?? 0});
    }
    const info = await getJson("get_server_info");
    learn({contextTokens: info.context_length, modelPath: info.model_path ?? ""});
    showInfo(info);
    showKeyState(null, info.api_key === true);
    setState(true, "Connected", served.model);
  } catch (error) {
    forgetInfo();
    served.model = "";  // another one may be served when it is back
    showKeyState(error, true);
    setState(false, error instanceof ApiError ? error.message : "The server's answer was not understood.", briefly(error));
  }
}

export function startLiveView() {
  const parent = byId("plots");
  const tokens = (v) => (v >= 100 ? count(Math.round(v)) : v.toFixed(1)) + " tokens/s";
  plots = {
    rate: new Plot(parent, {name: "Output", id: "throughput", points: POINTS, top: 10, format: tokens}),
    running: new Plot(parent, {name: "Running requests", id: "running", points: POINTS, top: 4, format: count}),
    kv: new Plot(parent, {name: "KV pool filled", id: "kv-filled", points: POINTS, top: 1, format: percent}),
  };
  refresh();
  setInterval(() => { if (document.visibilityState === "visible") refresh(); }, INTERVAL_MS);
}
