// A small line over time: what it is, its last value, its largest value, and the line.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240, HEIGHT = 36;

function part(parent, name, className, text = "") {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  parent.append(node);
  return node;
}

export class Plot {
  // `format` writes a value; `top` is the least that the top of the plot means.
  constructor(parent, {name, id, points, top, format}) {
    this.points = points;
    this.top = top;
    this.format = format;
    this.name = name;
    this.values = [];
    const frame = part(parent, "div", "plot");
    const line = part(frame, "div", "plot-name");
    part(line, "span", "", name);
    this.now = part(line, "b", "", "\u2013");
    this.now.id = id;
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.area = document.createElementNS(SVG, "polygon");
    this.line = document.createElementNS(SVG, "polyline");
    this.svg.append(this.area, this.line);
    frame.append(this.svg);
    this.most = part(frame, "span", "plot-top");
    this.draw();
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > this.points) this.values.shift();
    this.now.textContent = this.format(value);
    this.draw();
  }

  draw() {
    const top = Math.max(this.top, ...this.values);
    const step = WIDTH / (this.points - 1);
    const first = this.points - this.values.length;
    const at = this.values.map((v, i) => `${((first + i) * step).toFixed(1)},${(HEIGHT - 1 - (v / top) * (HEIGHT - 3)).toFixed(1)}`);
    this.line.setAttribute("points", at.join(" "));
    this.area.setAttribute("points", at.length
        ? `${(first * step).toFixed(1)},${HEIGHT} ${at.join(" ")} ${WIDTH},${HEIGHT}` : "");
    this.most.textContent = this.format(top);
    this.svg.setAttribute("aria-label", `${this.name}: now ${this.now.textContent}, at most ${this.format(top)}`);
  }
}
