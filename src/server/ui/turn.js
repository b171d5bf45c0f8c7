// One answer: the request, the stream, its figures.
import {streamChat} from "./api.js";

function addCalls(message, deltas) {
  for (const delta of deltas) {
    const index = Number.isInteger(delta.index) ? delta.index : message.toolCalls.length;
    if (index < 0 || index > 127) continue;
    while (message.toolCalls.length <= index) message.toolCalls.push({name: "", arguments: ""});
    const call = message.toolCalls[index];
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
  }
}

// Figures of an answer while it comes. Tokens are counted by the server; the first piece starts the clock.
class Figures {
  constructor() {
    this.start = performance.now();
    this.first = 0;
    this.last = 0;
    this.tokens = 0;
    this.usage = null;
  }

  add(event) {
    const now = performance.now();
    if (event.usage) {
      this.usage = event.usage;
      this.tokens = event.usage.completion_tokens;
    }
    const delta = event.choices?.[0]?.delta;
    if (!delta?.content && !delta?.reasoning_content && !delta?.tool_calls) return;
    if (!event.usage) this.tokens += 1;
    this.last = now;
    if (!this.first) {
      this.first = now;
      this.tokensAtFirst = this.tokens;
    }
  }

  rate() {
    if (!this.first || this.last <= this.first) return null;
    return (this.tokens - this.tokensAtFirst) / ((this.last - this.first) / 1000);
  }

  firstTokenMs() {
    return this.first ? Math.round(this.first - this.start) : null;
  }
}

// Streams an answer into `message`; `progress(figures)` after each event. Returns {ending, error}: ending is "stop",
// "length", "tool_calls", "stopped" by the user, or "broken" with an error. Never throws.
export async function streamAnswer({body, message, signal, progress}) {
  const figures = new Figures();
  let ending = "";
  try {
    for await (const event of streamChat(body, signal)) {
      figures.add(event);
      const choice = event.choices?.[0];
      if (choice?.finish_reason) ending = choice.finish_reason;
      const delta = choice?.delta ?? {};
      if (delta.reasoning_content) message.reasoning += delta.reasoning_content;
      if (delta.content) message.content += delta.content;
      if (delta.tool_calls) addCalls(message, delta.tool_calls);
      progress(figures);
    }
    return {ending: ending || "stop", figures};
  } catch (error) {
    if (signal.aborted) return {ending: "stopped", figures};
    // An answer whose end has arrived is whole, whatever happens to the connection then.
    if (ending) return {ending, figures};
    return {ending: "broken", figures, error};
  }
}
