// Chats, theme and settings in this browser's local storage. What is read back is checked: another program, or an
// older page, may have written it. Storage may be full or forbidden; the page then works without keeping anything.

const CHATS = "warpweave.chats";
const SETTINGS = "warpweave.settings";
const MAX_CHATS = 50;
const MAX_CHARS = 2000000;  // of all chats together; browsers give about 5 million

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

function text(value) {
  return typeof value === "string" ? value : "";
}

function messageFrom(value) {
  if (!value || (value.role !== "user" && value.role !== "assistant")) return null;
  const message = {role: value.role, content: text(value.content)};
  if (message.role === "user") return message;
  message.facts = text(value.facts);
  message.unfinished = value.unfinished === true;
  message.reasoning = text(value.reasoning);
  message.toolCalls = Array.isArray(value.toolCalls)
      ? value.toolCalls.map((call) => ({name: text(call?.name), arguments: text(call?.arguments)})) : [];
  return message;
}

function chatFrom(value) {
  if (!value || typeof value.id !== "string" || !Array.isArray(value.messages)) return null;
  const messages = value.messages.map(messageFrom);
  if (messages.length === 0 || messages.includes(null)) return null;
  return {id: value.id, title: text(value.title), changed: Number(value.changed) || 0, messages};
}

// The newest first.
export function loadChats() {
  const all = read(CHATS);
  const chats = Array.isArray(all) ? all.map(chatFrom).filter((chat) => chat !== null) : [];
  return chats.sort((a, b) => b.changed - a.changed);
}

// Keeps the newest that fit. False where nothing can be kept.
function keep(chats) {
  let kept = chats.sort((a, b) => b.changed - a.changed).slice(0, MAX_CHATS);
  while (kept.length > 1 && JSON.stringify(kept).length > MAX_CHARS) kept = kept.slice(0, -1);
  while (true) {
    try {
      localStorage.setItem(CHATS, JSON.stringify(kept));
      return true;
    } catch {
      if (kept.length <= 1) return false;
      kept = kept.slice(0, Math.floor(kept.length / 2));
    }
  }
}

// Other tabs keep chats too, so only this one is replaced.
export function saveChat(chat) {
  const others = loadChats().filter((other) => other.id !== chat.id);
  return keep(chat.messages.length ? [{...chat, changed: Date.now()}, ...others] : others);
}

export function removeChat(id) {
  return keep(loadChats().filter((chat) => chat.id !== id));
}

export function newChat() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 10);
  return {id, title: "", changed: 0, messages: []};
}

export function loadSettings() {
  const all = read(SETTINGS);
  return all && typeof all === "object" ? all : {};
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch { /* not kept */ }
}
