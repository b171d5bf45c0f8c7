// Markdown to DOM nodes: headings, paragraphs, lists, quotes, tables, fenced code. No markup is ever parsed: every
// piece of the source reaches the page as a text node (markdown_inline.js), so nothing a model writes can run.
import {renderInline} from "./markdown_inline.js";

const MAX_DEPTH = 8;               // lists in quotes in lists ...
const MAX_MARKDOWN_CHARS = 200000;  // longer texts are shown as they are
const MAX_TABLE_COLUMNS = 32;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const ITEM = /^( {0,11})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const QUOTE = /^ {0,3}> ?/;

function isRule(line) {
  return /^(-{3,}|\*{3,}|_{3,})$/.test(line.replace(/[ \t]/g, ""));
}

function isBlank(line) {
  return line.trim() === "";
}

// Cells of "| a | b |"; an escaped bar is part of its cell.
function cells(line) {
  const row = [];
  let cell = "";
  for (let i = 0; i < line.length; ++i) {
    if (line[i] === "\\" && line[i + 1] === "|") {
      cell += "|";
      ++i;
    } else if (line[i] === "|") {
      row.push(cell.trim());
      cell = "";
    } else {
      cell += line[i];
    }
  }
  row.push(cell.trim());
  if (row.length > 1 && row[0] === "") row.shift();
  if (row.length > 1 && row.at(-1) === "") row.pop();
  return row;
}

function isTableAt(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return false;
  const rule = cells(lines[at + 1]);
  return rule.length <= MAX_TABLE_COLUMNS && rule.every((cell) => /^:?-+:?$/.test(cell)) &&
         rule.length === cells(lines[at]).length;
}

function startsBlock(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || isRule(line) ||
         isTableAt(lines, at);
}

// Where the block that begins at line `at` ends, and how it is made.
function blockAt(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) {
    let end = at + 1;
    const closing = fence[1][0].repeat(fence[1].length);
    while (end < lines.length && !(lines[end].trim().startsWith(closing) &&
                                   lines[end].trim().replaceAll(fence[1][0], "") === "")) ++end;
    return {kind: "code", end: Math.min(end + 1, lines.length), codeEnd: end, language: fence[2]};
  }
  if (HEADING.test(line)) return {kind: "heading", end: at + 1};
  if (isRule(line)) return {kind: "rule", end: at + 1};
  if (QUOTE.test(line)) {
    let end = at + 1;
    while (end < lines.length && QUOTE.test(lines[end])) ++end;
    return {kind: "quote", end};
  }
  if (ITEM.test(line)) return {kind: "list", end: listEnd(lines, at)};
  if (isTableAt(lines, at)) {
    let end = at + 2;
    while (end < lines.length && lines[end].includes("|") && !isBlank(lines[end])) ++end;
    return {kind: "table", end};
  }
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !startsBlock(lines, end)) ++end;
  return {kind: "paragraph", end};
}

function indent(line) {
  return line.length - line.trimStart().length;
}

// A list goes on over items, what is indented below them, and single blank lines between these.
function listEnd(lines, at) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  let end = at + 1;
  for (let i = at + 1; i < lines.length; ++i) {
    if (isBlank(lines[i])) continue;
    const item = ITEM.exec(lines[i]);
    const sibling = item && item[1].length < first[1].length + 2;
    if (sibling && (/\d/.test(item[2]) !== ordered || isRule(lines[i]))) break;
    const inside = indent(lines[i]) > first[1].length;
    const lazy = i === end && !startsBlock(lines, i);  // a paragraph's next line, not indented
    if (!sibling && !inside && !lazy) break;
    end = i + 1;
  }
  return end;
}

function listNode(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const list = document.createElement(ordered ? "ol" : "ul");
  if (ordered) list.start = Number.parseInt(first[2], 10);
  let item = [];
  const close = () => {
    const node = document.createElement("li");
    const task = /^\[([ xX])\] /.exec(item[0]);
    if (task) item[0] = (task[1] === " " ? "\u2610 " : "\u2611 ") + item[0].slice(4);
    node.append(...blocks(item, depth + 1, true));
    list.append(node);
  };
  let width = 0;
  for (const line of lines) {
    const mark = ITEM.exec(line);
    if (mark && mark[1].length < first[1].length + 2) {
      if (item.length) close();
      width = mark[0].length;
      item = [line.slice(width)];
    } else {
      item.push(line.slice(Math.min(indent(line), width)));
    }
  }
  close();
  return list;
}

function tableNode(lines) {
  const table = document.createElement("table");
  const sides = cells(lines[1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : ""));
  lines.filter((_, i) => i !== 1).forEach((line, i) => {
    const row = table.insertRow();
    cells(line).slice(0, sides.length).forEach((text, column) => {
      const cell = document.createElement(i === 0 ? "th" : "td");
      if (sides[column]) cell.className = sides[column];
      cell.append(...renderInline(text));
      row.append(cell);
    });
  });
  const frame = document.createElement("div");
  frame.className = "table";
  frame.append(table);
  return frame;
}

function codeNode(language, text) {
  const frame = document.createElement("div");
  frame.className = "code";
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const name = document.createElement("span");
  name.textContent = language.slice(0, 40) || "code";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "small";
  copy.textContent = "Copy";
  copy.dataset.copy = "code";
  copy.setAttribute("aria-label", "Copy this code");
  bar.append(name, copy);
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  const code = document.createElement("code");
  code.textContent = text;
  pre.append(code);
  frame.append(bar, pre);
  return frame;
}

function blockNode(lines, block, depth, tight) {
  switch (block.kind) {
    case "code": return codeNode(block.language, lines.slice(1, block.codeEnd).join("\n"));
    case "rule": return document.createElement("hr");
    case "quote": {
      const quote = document.createElement("blockquote");
      quote.append(...blocks(lines.map((line) => line.replace(QUOTE, "")), depth + 1));
      return quote;
    }
    case "list": return listNode(lines, depth);
    case "table": return tableNode(lines);
    case "heading": {
      const [, marks, text] = HEADING.exec(lines[0]);
      const node = document.createElement("h" + Math.min(marks.length + 2, 6));  // below the page's own
      node.append(...renderInline(text.replace(/[ \t]#+[ \t]*$/, "")));
      return node;
    }
    default: {
      const node = document.createElement(tight ? "span" : "p");
      node.append(...renderInline(lines.map((line) => line.trim()).join("\n")));
      return node;
    }
  }
}

// [{block, lines}] of the top level.
function split(lines) {
  const parts = [];
  for (let at = 0; at < lines.length;) {
    if (isBlank(lines[at])) {
      ++at;
      continue;
    }
    const block = blockAt(lines, at);
    const part = lines.slice(at, block.end);
    if (block.codeEnd !== undefined) block.codeEnd -= at;
    parts.push({block, lines: part});
    at = block.end;
  }
  return parts;
}

function blocks(lines, depth, tight = false) {
  if (depth > MAX_DEPTH) return [document.createTextNode(lines.join("\n"))];
  const parts = split(lines);
  const plain = tight && parts.filter((p) => p.block.kind === "paragraph").length < 2;
  return parts.map((part) => blockNode(part.lines, part.block, depth, plain));
}

// A growing text in `container`: blocks whose source has not changed keep their nodes, so that a selection in them and
// the time of an update do not depend on how long the answer already is.
export class MarkdownView {
  constructor(container) {
    this.container = container;
    this.sources = [];
  }

  update(text) {
    if (text.length > MAX_MARKDOWN_CHARS) {
      this.sources = [];
      const pre = document.createElement("pre");
      pre.textContent = text;
      this.container.replaceChildren(pre);
      return;
    }
    const parts = split(text.replace(/\r\n?/g, "\n").split("\n"));
    if (this.sources.length === 0) this.container.replaceChildren();
    parts.forEach((part, i) => {
      const source = part.block.kind + "\n" + part.lines.join("\n");
      if (this.sources[i] === source) return;
      const node = blockNode(part.lines, part.block, 0, false);
      const old = this.container.children[i];
      if (old && this.sources[i] !== undefined) old.replaceWith(node);
      else this.container.append(node);
      this.sources[i] = source;
    });
    while (this.container.children.length > parts.length) this.container.lastChild.remove();
    this.sources.length = parts.length;
  }
}
