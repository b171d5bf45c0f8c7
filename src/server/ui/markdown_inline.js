// Markdown inside a line to DOM nodes: code, emphasis, links. Text becomes text nodes and nothing else, so markup in
// it is shown, never obeyed. Images are not loaded: they become links that say so.
// Work is linear in the text: each search for a closing mark is remembered, and attempts are counted.

const MAX_DEPTH = 6;      // emphasis in links in emphasis ...
const MAX_ATTEMPTS = 16;  // closing marks looked at for one opening mark
const MARKS = /[\\`*_~[!<\n]|https?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}_]/u;

// Addresses a click may go to; anything else (javascript:, data:, file:, relative ones) stays text.
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function element(name, children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

function link(address, children) {
  const node = element("a", children);
  node.href = address;
  node.title = address;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}

class Inline {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.found = new Map();  // mark -> where it is next, -1 for nowhere
    this.nodes = [];
    this.plain = "";
  }

  // indexOf, remembering its last answer: a search that starts before that answer has the same one.
  find(mark, from) {
    const last = this.found.get(mark);
    if (last !== undefined && (last === -1 || last >= from)) return last;
    const at = this.text.indexOf(mark, from);
    this.found.set(mark, at);
    return at;
  }

  add(node) {
    if (this.plain) this.nodes.push(document.createTextNode(this.plain));
    this.plain = "";
    this.nodes.push(node);
  }

  inner(begin, end) {
    return renderInline(this.text.slice(begin, end), this.depth + 1);
  }

  // Each takes the position of a mark and returns where the text goes on, or -1 where it is only text.
  code(at) {
    let ticks = 1;
    while (this.text[at + ticks] === "`") ++ticks;
    const mark = "`".repeat(Math.min(ticks, 64));
    let end = this.find(mark, at + ticks);
    for (let attempt = 0; end !== -1 && attempt < MAX_ATTEMPTS; ++attempt) {
      let length = ticks;
      while (this.text[end + length] === "`") ++length;
      if (length === ticks) {
        let inside = this.text.slice(at + ticks, end).replaceAll("\n", " ");
        if (inside.startsWith(" ") && inside.endsWith(" ") && inside.trim()) inside = inside.slice(1, -1);
        this.add(element("code", [inside]));
        return end + ticks;
      }
      end = this.text.indexOf(mark, end + length);
    }
    this.plain += mark;
    return at + mark.length;
  }

  emphasis(at) {
    const sign = this.text[at];
    const double = this.text[at + 1] === sign;
    if (sign === "~" && !double) return -1;
    const mark = double ? sign + sign : sign;
    const begin = at + mark.length;
    if (begin >= this.text.length || /\s/.test(this.text[begin])) return -1;
    if (sign === "_" && at > 0 && WORD.test(this.text[at - 1])) return -1;
    let end = this.find(mark, begin + 1);
    for (let attempt = 0; end !== -1 && attempt < MAX_ATTEMPTS; ++attempt) {
      if (double && this.text[end + 2] === sign) ++end;  // **a *b***
      const after = this.text[end + mark.length] ?? " ";
      const closes = !/\s/.test(this.text[end - 1]) && this.text[end - 1] !== "\\" &&
                     (double || after !== sign) && (sign !== "_" || !WORD.test(after));
      if (closes) {
        this.add(element(sign === "~" ? "del" : double ? "strong" : "em", this.inner(begin, end)));
        return end + mark.length;
      }
      let next = end + mark.length;
      if (!double) while (this.text[next] === sign) ++next;
      end = this.text.indexOf(mark, next);
    }
    return -1;
  }

  // [text](address) and ![text](address); an address ends at the first blank or bracket.
  link(at) {
    const image = this.text[at] === "!";
    const begin = at + (image ? 2 : 1);
    const middle = this.find("](", begin);
    const nested = this.find("[", begin);
    if (middle === -1 || (nested !== -1 && nested < middle)) return -1;
    const end = this.find(")", middle + 2);
    if (end === -1 || end - middle > 4096) return -1;
    const address = safeAddress(this.text.slice(middle + 2, end).trim().split(/\s/)[0]);
    if (address === null) return -1;
    const label = this.inner(begin, middle);
    if (image) label.unshift("image, not loaded: ");
    this.add(link(address, label.length ? label : [address]));
    return end + 1;
  }

  bareAddress(at) {
    if (at > 0 && WORD.test(this.text[at - 1])) return -1;
    const run = /[^\s<>"'`]+/y;
    run.lastIndex = at;
    const text = run.exec(this.text)[0].slice(0, 4096).replace(/[.,;:!?)\]*_~]{1,8}$/, "");
    const address = safeAddress(text);
    if (address === null) return -1;
    this.add(link(address, [text]));
    return at + text.length;
  }

  mark(at) {
    switch (this.text[at]) {
      case "\\":
        if (this.text[at + 1] === undefined || !PUNCTUATION.test(this.text[at + 1])) return -1;
        this.plain += this.text[at + 1];
        return at + 2;
      case "\n": this.add(document.createElement("br")); return at + 1;
      case "`": return this.code(at);
      case "*": case "_": case "~": return this.emphasis(at);
      case "[": return this.link(at);
      case "!": return this.text[at + 1] === "[" ? this.link(at) : -1;
      case "h": return this.bareAddress(at);
      default: return -1;  // "<": markup is text, an address in it is found by itself
    }
  }

  render() {
    let at = 0;
    const marks = new RegExp(MARKS);
    while (at < this.text.length) {
      marks.lastIndex = at;
      const hit = marks.exec(this.text);
      const until = hit ? hit.index : this.text.length;
      this.plain += this.text.slice(at, until);
      if (!hit) break;
      const next = this.mark(until);
      if (next === -1) this.plain += hit[0];
      at = next === -1 ? until + hit[0].length : next;
    }
    if (this.plain) this.nodes.push(document.createTextNode(this.plain));
    return this.nodes;
  }
}

// An array of nodes for `text`, which holds no blocks.
export function renderInline(text, depth = 0) {
  if (depth > MAX_DEPTH) return [document.createTextNode(text)];
  return new Inline(text, depth).render();
}
