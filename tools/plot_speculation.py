#!/usr/bin/env python3
"""Plots the speed-up of speculation: over batch size, a line for each set of flags, with the tokens that a step brought
beside each point; or over the tokens that a step brings, a line for each batch size.

    python3 tools/plot_speculation.py figures.json docs/speculation.svg [--by-cpu]
    python3 tools/plot_speculation.py rows.jsonl docs/speculation-acceptance.svg --by-acceptance "Llama-3.1-8B's shape, H200"

figures.json is what `warpweave bench spec --json FILE` measured, rows.jsonl the rows of `speculation_bench ... accepted`
(bench/gpu). --by-cpu: the ratio of CPU times in place of that by the clock, for machines that others use, too.
"""
import json
import pathlib
import re
import sys

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 800, 420, 60, 40, 60, 330
COLOURS = ("#06c", "#c30", "#080", "#808", "#a70", "#088", "#555", "#b06")
TITLES = {"speed_up": "Speed-up", "speed_up_by_cpu": "Speed-up by CPU time"}
STYLE = ("text{font:11px sans-serif;fill:#333}.axis{stroke:#333}.one{stroke:#999;stroke-dasharray:4}"
         "polyline{fill:none;stroke-width:1.5}.small{font-size:9px;fill:#666}")


def label(flags):
    """EAGLE, 3 steps, topk 1"""
    name = re.search(r"--speculative-algorithm (\S+)", flags)[1]
    parts = [name]
    for flag, text in (("num-steps", "{} steps"), ("eagle-topk", "topk {}"), ("num-draft-tokens", "{} tokens")):
        found = re.search(rf"--speculative-{flag} (\S+)", flags)
        parts += [text.format(found[1])] if found else []
    parts += ["map"] if "--speculative-token-map" in flags else []
    parts += ["adaptive"] if "--speculative-adaptive" in flags else []
    return ", ".join(parts)


class Chart:
    """Axes and lines of points (x between 0 and 1, speed-up, note)."""

    def __init__(self, title, source, axis, most):
        self.most = max(1.2, most) * 1.1
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">', f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', f'<text x="{LEFT}" y="16">{title}</text>',
            f'<text x="{LEFT}" y="30" class="small">{source}</text>',
            f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{bottom}" class="axis"/>',
            f'<line x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" class="axis"/>',
            f'<line x1="{LEFT}" y1="{self.y(1):.1f}" x2="{right}" y2="{self.y(1):.1f}" class="one"/>',
            f'<text x="{LEFT}" y="{bottom + 34}">{axis}</text>']
        for step in range(int(self.most / 0.25) + 1):
            self.lines.append(f'<text x="{LEFT - 6}" y="{self.y(step / 4) + 4:.1f}" text-anchor="end">{step / 4:.2f}</text>')
        self.series = 0

    @staticmethod
    def x(share):
        return LEFT + 30 + (WIDTH - LEFT - RIGHT - 30) * share

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.most

    def mark(self, share, text):
        self.lines.append(f'<text x="{self.x(share):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')

    def line(self, name, points):
        colour = COLOURS[self.series % len(COLOURS)]
        dashes = ' stroke-dasharray="3 2"' if self.series >= len(COLOURS) else ""
        places = [(self.x(share), self.y(value), note) for share, value, note in points]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        self.lines.append(f'<polyline points="{joined}" stroke="{colour}"{dashes}/>')
        for x, y, note in places:
            self.lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>')
            self.lines.append(f'<text x="{x + 4:.1f}" y="{y - 3:.1f}" class="small">{note}</text>')
        top, left = TOP + 10 + 18 * self.series, WIDTH - RIGHT + 20
        self.lines.append(f'<line x1="{left}" y1="{top}" x2="{left + 24}" y2="{top}" stroke="{colour}"{dashes} stroke-width="2"/>')
        self.lines.append(f'<text x="{left + 30}" y="{top + 4}">{name}</text>')
        self.series += 1

    def text(self):
        return "\n".join(self.lines + ["</svg>"]) + "\n"


def plot_batches(figures, ratio):
    rows = [row for row in figures["rows"] if row["flags"]]
    batches = sorted({row["batch"] for row in rows})
    shares = {batch: i / max(len(batches) - 1, 1) for i, batch in enumerate(batches)}
    chart = Chart(f"{TITLES[ratio]} against no speculation, by requests at a time; beside each point: tokens a step",
                  f'{pathlib.Path(figures["model"]).name}, {figures["device"]}', "requests at a time",
                  max(row[ratio] for row in rows))
    for batch in batches:
        chart.mark(shares[batch], batch)
    for flags in dict.fromkeys(row["flags"] for row in rows):
        chart.line(label(flags), [(shares[row["batch"]], row[ratio], f'{row["accept_length"]:.1f}')
                                  for row in rows if row["flags"] == flags])
    return chart.text()


def plot_acceptance(rows, source):
    chart = Chart("Speed-up against no speculation, by the tokens that a step brings", f"{label(rows[0]['flags'])}; {source}",
                  "tokens a step", max(row["speed_up"] for row in rows))
    for tokens in (1, 2, 3, 4):
        chart.mark((tokens - 1) / 3, tokens)
    for batch in sorted({row["batch"] for row in rows}):
        own = sorted((row["accept_length"], row["speed_up"]) for row in rows if row["batch"] == batch)
        chart.line(f"{batch} at a time" if batch > 1 else "one request",
                   [((tokens - 1) / 3, speed_up, f"{speed_up:.2f}") for tokens, speed_up in own])
    return chart.text()


def main():
    text = pathlib.Path(sys.argv[1]).read_text()
    if "--by-acceptance" in sys.argv:
        plot = plot_acceptance([json.loads(line) for line in text.splitlines()], sys.argv[sys.argv.index("--by-acceptance") + 1])
    else:
        plot = plot_batches(json.loads(text), "speed_up_by_cpu" if "--by-cpu" in sys.argv else "speed_up")
    pathlib.Path(sys.argv[2]).write_text(plot)


if __name__ == "__main__":
    main()
