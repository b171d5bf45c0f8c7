// One message in the log: who, reasoning, text, tool calls, figures, and what can be done with it.
import {MarkdownView} from "./markdown.js";

function part(parent, name, className, text = "") {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  parent.append(node);
  return node;
}

// The clipboard API needs https or localhost; elsewhere a selected field does it.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "hidden";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

export async function copyWithWord(button, text) {
  const word = button.textContent;
  button.textContent = (await copyText(text)) ? "Copied" : "Not allowed";
  setTimeout(() => { button.textContent = word; }, 1200);
}

export class MessageView {
  // `does`: {edit(text), regenerate(), proceed()}, each for this message.
  constructor(message, does) {
    this.message = message;
    this.does = does;
    this.box = document.createElement("article");
    this.box.className = "message " + message.role;
    part(this.box, "span", "who", message.role === "user" ? "You" : "Model");
    if (message.role === "assistant") {
      this.reasoning = part(this.box, "details", "reasoning");
      this.reasoningTitle = part(this.reasoning, "summary", "", "Reasoning");
      this.reasoningText = part(this.reasoning, "div", "reasoning-text");
    }
    this.body = part(this.box, "div", "body");
    this.markdown = message.role === "assistant" ? new MarkdownView(this.body) : null;
    if (message.role === "assistant") {
      this.calls = part(this.box, "div", "calls");
      this.facts = part(this.box, "span", "facts");
    }
    this.actions = part(this.box, "div", "actions");
    this.update(false);
  }

  // Shows the message as it is now. `live`: it is still growing.
  update(live) {
    const message = this.message;
    if (message.role === "user") {
      this.body.textContent = message.content;
      return;
    }
    this.markdown.update(message.content);
    this.updateReasoning(live);
    this.updateCalls();
    this.box.classList.toggle("waiting", live && !message.content && !message.reasoning && !message.toolCalls.length);
    this.facts.textContent = message.facts;
  }

  updateReasoning(live) {
    const thinking = live && !this.message.content;
    this.reasoning.hidden = !this.message.reasoning;
    this.reasoningText.textContent = this.message.reasoning;
    this.reasoningTitle.textContent = thinking ? "Reasoning, so far" : "Reasoning";
    if (thinking && this.message.reasoning) this.reasoning.open = true;
    else if (live && this.wasThinking) this.reasoning.open = false;
    this.wasThinking = thinking;
  }

  updateCalls() {
    this.calls.replaceChildren(...this.message.toolCalls.map((call) => {
      const box = document.createElement("div");
      box.className = "call";
      part(box, "span", "call-name", `Calls ${call.name || "a tool"}`);
      let text = call.arguments;
      try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not complete yet */ }
      part(box, "pre", "", text);
      return box;
    }));
  }

  // Buttons below the message; `isLast`: of the log.
  showActions(isLast) {
    this.actions.replaceChildren();
    const add = (name, label, action) => {
      const button = part(this.actions, "button", "small", name);
      button.type = "button";
      button.setAttribute("aria-label", label);
      button.addEventListener("click", () => action(button));
    };
    if (this.message.content) add("Copy", "Copy this message", (button) => copyWithWord(button, this.message.content));
    if (this.message.role === "user") return add("Edit", "Edit this message and ask again", () => this.edit());
    if (!isLast) return;
    add("Regenerate", "Answer again", () => this.does.regenerate());
    if (this.message.unfinished && this.message.content) add("Continue", "Go on with this answer", () => this.does.proceed());
  }

  hideActions() {
    this.actions.replaceChildren();
  }

  edit() {
    const form = document.createElement("form");
    form.className = "edit";
    const field = part(form, "textarea", "");
    field.setAttribute("aria-label", "Edit your message");
    field.value = this.message.content;
    field.rows = Math.min(12, this.message.content.split("\n").length + 1);
    const buttons = part(form, "div", "actions");
    part(buttons, "button", "small primary", "Ask again").type = "submit";
    const cancel = part(buttons, "button", "small", "Cancel");
    cancel.type = "button";
    const close = () => {
      form.replaceWith(this.body);
      this.actions.hidden = false;
    };
    cancel.addEventListener("click", close);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (!text) return;
      close();
      this.does.edit(text);
    });
    this.body.replaceWith(form);
    this.actions.hidden = true;
    field.focus();
  }
}
