// Puts the page together: settings, buttons, keys.
import {apiKey} from "./api.js";
import {Chat} from "./chat.js";
import {showChats} from "./chat_list.js";
import {refresh, served, startLiveView} from "./live.js";
import {copyWithWord} from "./message_view.js";
import {loadChats, loadSettings, newChat, saveSettings} from "./store.js";

const byId = (id) => document.getElementById(id);
const count = (n) => Number(n).toLocaleString("en");

// ---- settings ----
function numberIn(id) {
  const value = Number.parseFloat(byId(id).value);
  return Number.isFinite(value) ? value : null;
}

function clamp(value, least, most) {
  return value === null ? null : Math.min(most, Math.max(least, value));
}

function settings() {
  const most = served.contextTokens || Number.MAX_SAFE_INTEGER;
  const maxTokens = clamp(numberIn("max-tokens"), 1, most);
  return {
    system: byId("system").value.trim(),
    temperature: clamp(numberIn("temperature"), 0, 2),
    maxTokens: maxTokens === null ? null : Math.floor(maxTokens),
  };
}

// Says what a request will send where that is not what was written.
function checkMaxTokens() {
  const asked = numberIn("max-tokens"), context = served.contextTokens;
  if (context) byId("max-tokens").max = String(context);
  byId("max-tokens-note").textContent = !context ? ""
      : asked === null ? `Empty: as long as the context of ${count(context)} tokens allows.`
      : asked > context ? `The context holds ${count(context)} tokens, so ${count(context)} is asked for.` : "";
}

function settleMaxTokens() {
  const {maxTokens} = settings();
  byId("max-tokens").value = maxTokens === null ? "" : String(maxTokens);
}

function keepSettings() {
  const theme = document.documentElement.dataset.theme ?? "";
  saveSettings({system: byId("system").value, temperature: byId("temperature").value,
                maxTokens: byId("max-tokens").value, theme});
}

function restoreSettings() {
  const kept = loadSettings();
  if (typeof kept.system === "string") byId("system").value = kept.system;
  if (typeof kept.temperature === "string") byId("temperature").value = kept.temperature;
  if (typeof kept.maxTokens === "string") byId("max-tokens").value = kept.maxTokens;
  if (kept.theme === "light" || kept.theme === "dark") document.documentElement.dataset.theme = kept.theme;
}

restoreSettings();
byId("api-key").value = apiKey.get();
byId("api-key").addEventListener("change", (event) => {
  apiKey.set(event.target.value.trim());
  refresh();
});
byId("max-tokens").addEventListener("input", checkMaxTokens);
byId("max-tokens").addEventListener("change", settleMaxTokens);
for (const id of ["system", "temperature", "max-tokens"]) byId(id).addEventListener("change", keepSettings);

// ---- chats ----
const chat = new Chat({settings, kept: (saved) => listChats(saved)});

function listChats(saved = true) {
  showChats({
    current: chat.chat.id,
    saved,
    open: (other) => {
      chat.open(other);
      closeOverlays();
      listChats();
    },
    removed: (gone) => {
      if (gone.id === chat.chat.id) chat.open(newChat());
      listChats();
    },
  });
}

byId("new-chat").addEventListener("click", () => {
  chat.open(newChat());
  closeOverlays();
  listChats();
  byId("prompt").focus();
});
addEventListener("pagehide", () => { if (chat.running) chat.keep(); });
const [newest] = loadChats();
if (newest && Date.now() - newest.changed < 12 * 3600 * 1000) chat.open(newest);
listChats();

// ---- the composer ----
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (chat.running) return chat.stop();
  const prompt = byId("prompt");
  const text = prompt.value.trim();
  if (!text) return;
  prompt.value = "";
  prompt.style.height = "";
  chat.ask(text);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !chat.running) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});
byId("prompt").addEventListener("input", (event) => {
  event.target.style.height = "";
  event.target.style.height = event.target.scrollHeight + 2 + "px";
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") chat.stop();
});
byId("log").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copyWithWord(button, button.closest(".code").querySelector("code").textContent);
});

// ---- the header ----
function toggle(button, id) {
  const open = byId(id).classList.toggle("open");
  byId(button).setAttribute("aria-expanded", String(open));
  return open;
}

function closeOverlays() {
  for (const [button, id] of [["toggle-chats", "chats"], ["toggle-panel", "panel"]]) {
    if (byId(id).classList.contains("open")) toggle(button, id);
  }
}

byId("toggle-chats").addEventListener("click", () => {
  if (byId("panel").classList.contains("open")) toggle("toggle-panel", "panel");
  toggle("toggle-chats", "chats");
});
byId("toggle-panel").addEventListener("click", () => {
  if (byId("chats").classList.contains("open")) toggle("toggle-chats", "chats");
  toggle("toggle-panel", "panel");
});
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark"
                                  : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  keepSettings();
});

served.changed = () => {
  checkMaxTokens();
  if (served.contextTokens) settleMaxTokens();
  if (chat.chat.messages.length === 0) chat.showEmpty();
};
startLiveView();
