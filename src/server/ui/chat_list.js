// The list of kept chats: open one, delete one (a second click makes sure).
import {loadChats, removeChat} from "./store.js";

const byId = (id) => document.getElementById(id);

function when(time) {
  const date = new Date(time);
  const sameDay = date.toDateString() === new Date().toDateString();
  return sameDay ? date.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"}) : date.toLocaleDateString();
}

function entry(chat, {current, open, removed}) {
  const row = document.createElement("li");
  const title = document.createElement("button");
  title.type = "button";
  title.className = "chat-title";
  title.textContent = chat.title || "Untitled";
  title.title = when(chat.changed);
  if (chat.id === current) title.setAttribute("aria-current", "true");
  title.addEventListener("click", () => open(chat));
  const remove = document.createElement("button");
  remove.type = "button";
  remove.className = "small";
  remove.textContent = "\u00d7";
  remove.setAttribute("aria-label", `Delete the chat ${chat.title || "Untitled"}`);
  remove.addEventListener("click", () => {
    if (remove.dataset.sure) {
      removeChat(chat.id);
      return removed(chat);
    }
    remove.dataset.sure = "yes";
    remove.textContent = "Delete?";
    remove.addEventListener("blur", () => {
      delete remove.dataset.sure;
      remove.textContent = "\u00d7";
    }, {once: true});
  });
  row.append(title, remove);
  return row;
}

// `saved`: false where the browser keeps nothing.
export function showChats({current, open, removed, saved = true}) {
  const chats = loadChats();
  byId("chat-list").replaceChildren(...chats.map((chat) => entry(chat, {current, open, removed})));
  byId("chats-note").textContent = !saved ? "This browser keeps nothing for this page: chats end with it."
      : chats.length ? "Kept in this browser only; the oldest go first." : "None yet. Chats are kept in this browser only.";
}
