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
    this.area = document.createElementNS(SVG, "path");
    this.line = document.createElementNS(SVG, "path");
    this.area.setAttribute("class", "plot-area");
    this.line.setAttribute("class", "plot-line");
    this.svg.append(this.area, this.line);
    frame.append(this.svg);
    this.most = part(frame, "span", "plot-top");
    this.draw();
  }

  // `value`: null where it is not known, which leaves a gap.
  add(value) {
    this.values.push(value);
    if (this.values.length > this.points) this.values.shift();
    this.now.textContent = value === null ? "\u2013" : this.format(value);
    this.draw();
  }

  // Coordinates of the values, parted where one is not known.
  runs(top) {
    const step = WIDTH / (this.points - 1);
    const first = this.points - this.values.length;
    const runs = [[]];
    this.values.forEach((value, i) => {
      if (value === null) runs.push([]);
      else runs.at(-1).push([((first + i) * step).toFixed(1), (HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1)]);
    });
    return runs.filter((run) => run.length);
  }

  draw() {
    const top = Math.max(this.top, ...this.values.map((value) => value ?? 0));
    const runs = this.runs(top);
    this.line.setAttribute("d", runs.map((run) => "M" + run.join("L")).join(""));
    this.area.setAttribute("d", runs.map((run) => `M${run[0][0]},${HEIGHT}L${run.join("L")}L${run.at(-1)[0]},${HEIGHT}Z`).join(""));
    this.most.textContent = this.format(top);
    this.svg.setAttribute("aria-label", `${this.name}: now ${this.now.textContent}, at most ${this.format(top)}`);
  }
}
