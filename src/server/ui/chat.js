// The conversation on the page: asking, editing, answering again, going on, keeping.
import {MessageView} from "./message_view.js";
import {served} from "./live.js";
import {newChat, saveChat} from "./store.js";
import {streamAnswer} from "./turn.js";

const ENDINGS = {length: "cut at the token limit", stopped: "stopped", broken: "broken off", tool_calls: "asks for tools"};

const GENERAL_PROMPTS = ["Why is the sky blue?", "Write a Python function that counts the words of a text.",
                         "Plan a weekend in a city by the sea.", "Explain recursion to a child."];
// What the embedded model is, for those who meet it first.
const TALE_LLAMA = {
  title: "tale-llama tells tales",
  text: "It is a tiny model (8 million parameters) that comes with Warpweave so that a server answers at once. It was " +
        "trained on old storybooks: it tells short tales, knows no facts and follows few instructions.",
  prompts: ["Tell me a tale of a fox and a lantern.", "Once upon a time there was a miller who",
            "Tell me a story about a clever little girl.", "What happened to the king's golden ring?"],
};

const byId = (id) => document.getElementById(id);
const count = (n) => Number(n).toLocaleString("en");
const show = (id, text) => { byId(id).textContent = text; };

export class Chat {
  // `settings()`: {system, temperature, maxTokens}; `kept()` runs when a chat was saved.
  constructor({settings, kept}) {
    this.settings = settings;
    this.kept = kept;
    this.running = null;  // AbortController of the answer being streamed
    this.open(newChat());
  }

  open(chat) {
    this.stop();
    this.setRunning(null);
    this.chat = chat;
    this.notice("");
    this.clearFigures();
    this.render();
  }

  stop() {
    this.running?.abort();
  }

  notice(text) {
    byId("notice").textContent = text;
    byId("notice").hidden = !text;
  }

  // ---- the log ----
  render() {
    this.views = [];
    byId("log").replaceChildren();
    if (this.chat.messages.length === 0) return this.showEmpty();
    for (const message of this.chat.messages) this.addView(message);
    this.showActions();
    byId("log").scrollTop = byId("log").scrollHeight;
  }

  addView(message) {
    byId("log").querySelector(".empty")?.remove();
    const view = new MessageView(message, {
      edit: (text) => this.ask(text, this.chat.messages.indexOf(message)),
      regenerate: () => this.regenerate(),
      proceed: () => this.proceed(),
    });
    this.views.push(view);
    byId("log").append(view.box);
    return view;
  }

  showActions() {
    this.views.forEach((view, i) => (this.running ? view.hideActions() : view.showActions(i === this.views.length - 1)));
  }

  showEmpty() {
    const empty = document.createElement("div");
    empty.className = "empty";
    const isTale = /(^|\/)tale-llama\/?$/.test(served.modelPath) || served.model === "tale-llama";
    const add = (name, text) => {
      const node = document.createElement(name);
      node.textContent = text;
      empty.append(node);
      return node;
    };
    const offer = isTale ? TALE_LLAMA : { title: `Chat with ${served.model}`, text: "", prompts: GENERAL_PROMPTS };
    if (served.model) {
      add("h2", offer.title);
      if (offer.text) add("p", offer.text);
      const prompts = add("div", "");
      prompts.className = "prompts";
      for (const text of offer.prompts) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = text;
        button.addEventListener("click", () => this.ask(text));
        prompts.append(button);
      }
    }
    add("p", "Enter sends, Shift+Enter starts a new line, Escape stops an answer.");
    byId("log").replaceChildren(empty);
  }

  // ---- turns ----
  // Asks `text` in place of message `at` and all behind it; without `at`, behind the last.
  ask(text, at = this.chat.messages.length) {
    if (this.running) return;
    const before = this.chat.messages;
    this.chat.messages = [...before.slice(0, at), {role: "user", content: text}];
    this.answer({before, question: text});
  }

  regenerate() {
    if (this.running) return;
    const before = this.chat.messages;
    const last = before.findLastIndex((message) => message.role === "user");
    this.chat.messages = before.slice(0, last + 1);
    this.answer({before});
  }

  proceed() {
    if (this.running) return;
    this.answer({before: this.chat.messages, proceeds: true});
  }

  requestBody(messages, proceeds) {
    const {system, temperature, maxTokens} = this.settings();
    const turns = messages.map(({role, content}) => ({role, content}));
    const body = {
      model: served.model || "default",
      messages: system ? [{role: "system", content: system}, ...turns] : turns,
      stream: true,
      stream_options: {include_usage: true, continuous_usage_stats: true},
    };
    if (proceeds) body.continue_final_message = true;
    if (temperature !== null) body.temperature = temperature;
    if (maxTokens !== null) body.max_tokens = maxTokens;
    return body;
  }

  // `before`: the messages to return to if nothing comes. `question`: what the composer gets back then.
  async answer({before, question = "", proceeds = false}) {
    const chat = this.chat;
    const asked = chat.messages;
    const message = proceeds ? {...asked.at(-1), facts: ""}
                             : {role: "assistant", content: "", reasoning: "", toolCalls: [], facts: "", unfinished: true};
    const body = this.requestBody(asked, proceeds);
    const startLength = message.content.length;
    chat.messages = [...(proceeds ? asked.slice(0, -1) : asked), message];
    const controller = new AbortController();
    this.notice("");
    this.setRunning(controller);
    this.clearFigures();
    this.render();
    const view = this.views.at(-1);
    view.update(true);
    this.follow(true);
    const stream = () => streamAnswer({body, message, signal: controller.signal,
                                       progress: (figures) => this.progress(chat, view, figures)});
    let result = await stream();
    if (result.error?.field === "max_tokens") {  // more than the prompt leaves of the context: as much as it leaves
      delete body.max_tokens;
      result = await stream();
    }
    if (this.running === controller) this.setRunning(null);
    const got = message.content.length > startLength || (!proceeds && (message.reasoning || message.toolCalls.length));
    if (!got && (result.ending === "broken" || result.ending === "stopped")) chat.messages = before;
    message.unfinished = result.ending !== "stop" && result.ending !== "tool_calls";
    message.facts = this.factsOf(result.figures, ENDINGS[result.ending] ?? "");
    this.keep(chat);
    if (chat === this.chat) this.conclude(result, chat.messages === before ? question : "");
  }

  // Draws at most once a frame, however fast the pieces come.
  progress(chat, view, figures) {
    this.figures = figures;
    if (this.frame || chat !== this.chat) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (chat !== this.chat || !this.running) return;
      const log = byId("log");
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      this.showFigures(this.figures);
      view.message.facts = this.factsOf(this.figures, "");
      view.update(true);
      this.follow(atEnd);
    });
  }

  follow(atEnd) {
    if (atEnd) byId("log").scrollTop = byId("log").scrollHeight;
  }

  conclude(result, question) {
    if (result.error) this.notice(result.error.message || String(result.error));
    if (question) this.returnQuestion(question);
    this.showFigures(result.figures);
    this.render();
    byId("prompt").focus();
  }

  // Also while an answer is under way, when the page is left.
  keep(chat = this.chat) {
    chat.title ||= titleOf(chat);
    this.kept(saveChat(chat));
  }

  returnQuestion(question) {
    const prompt = byId("prompt");
    prompt.value = prompt.value.trim() ? question + "\n" + prompt.value : question;
    prompt.dispatchEvent(new Event("input"));
  }

  factsOf(figures, ending) {
    const rate = figures.rate();
    return [figures.tokens ? `${count(figures.tokens)} ${figures.tokens === 1 ? "token" : "tokens"}` : "", rate === null ? "" : `${rate.toFixed(1)} tokens/s`, ending]
        .filter((text) => text).join(" \u00b7 ");
  }

  showFigures(figures) {
    const rate = figures.rate(), first = figures.firstTokenMs();
    if (rate !== null) show("speed", `${rate.toFixed(1)} tokens/s`);
    if (first !== null) show("first-token", `${count(first)} ms`);
    if (!figures.usage) return;
    show("prompt-tokens", `${count(figures.usage.prompt_tokens)} tokens`);
    show("completion-tokens", `${count(figures.usage.completion_tokens)} tokens`);
    show("cached-tokens", `${count(figures.usage.prompt_tokens_details?.cached_tokens ?? 0)} tokens`);
  }

  clearFigures() {
    for (const id of ["speed", "first-token", "prompt-tokens", "cached-tokens", "completion-tokens"]) show(id, "\u2013");
  }

  setRunning(controller) {
    this.running = controller;
    show("send", controller ? "Stop" : "Send");
    byId("log").setAttribute("aria-busy", controller ? "true" : "false");
  }
}

function titleOf(chat) {
  const first = chat.messages.find((message) => message.role === "user")?.content ?? "";
  return first.replace(/\s+/g, " ").slice(0, 60);
}
