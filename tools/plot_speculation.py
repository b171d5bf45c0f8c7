#!/usr/bin/env python3
"""Plots what `warpweave bench spec --json FILE` measured: speed-up over batch size, a line for each set of flags, with the
tokens that a step brought beside each point.

    python3 tools/plot_speculation.py figures.json docs/speculation.svg [--by-cpu]

--by-cpu: the ratio of CPU times in place of that by the clock, for machines that others use, too.
"""
import json
import pathlib
import re
import sys

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 800, 420, 60, 40, 60, 330
COLOURS = ("#06c", "#c30", "#080", "#808", "#a70", "#088", "#555", "#b06")


TITLES = {"speed_up": "Speed-up", "speed_up_by_cpu": "Speed-up by CPU time"}


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


def plot(figures, ratio):
    rows = [row for row in figures["rows"] if row["flags"]]
    batches = sorted({row["batch"] for row in rows})
    most = max(1.2, max(row[ratio] for row in rows)) * 1.1

    def x(batch):
        return LEFT + 30 + (WIDTH - LEFT - RIGHT - 30) * batches.index(batch) / max(len(batches) - 1, 1)

    def y(value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most

    style = ("text{font:11px sans-serif;fill:#333}.axis{stroke:#333}.one{stroke:#999;stroke-dasharray:4}"
             "polyline{fill:none;stroke-width:1.5}.small{font-size:9px;fill:#666}")
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">', f"<style>{style}</style>",
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
             f'<text x="{LEFT}" y="16">{TITLES[ratio]} against no speculation, by requests at a time; beside each point: tokens a step</text>',
             f'<text x="{LEFT}" y="30" class="small">{pathlib.Path(figures["model"]).name}, {figures["device"]}</text>',
             f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{HEIGHT - BOTTOM}" class="axis"/>',
             f'<line x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - RIGHT}" y2="{HEIGHT - BOTTOM}" class="axis"/>',
             f'<line x1="{LEFT}" y1="{y(1):.1f}" x2="{WIDTH - RIGHT}" y2="{y(1):.1f}" class="one"/>']
    for step in range(int(most / 0.25) + 1):
        lines.append(f'<text x="{LEFT - 6}" y="{y(step / 4) + 4:.1f}" text-anchor="end">{step / 4:.2f}</text>')
    for batch in batches:
        lines.append(f'<text x="{x(batch):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{batch}</text>')
    names = list(dict.fromkeys(row["flags"] for row in rows))
    for i, flags in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        dashes = ' stroke-dasharray="3 2"' if i >= len(COLOURS) else ""
        own = [row for row in rows if row["flags"] == flags]
        points = " ".join(f"{x(row['batch']):.1f},{y(row[ratio]):.1f}" for row in own)
        lines.append(f'<polyline points="{points}" stroke="{colour}"{dashes}/>')
        for row in own:
            at = x(row["batch"]), y(row[ratio])
            lines.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="2.5" fill="{colour}"/>')
            lines.append(f'<text x="{at[0] + 4:.1f}" y="{at[1] - 3:.1f}" class="small">{row["accept_length"]:.1f}</text>')
        top = TOP + 10 + 18 * i
        lines.append(f'<line x1="{WIDTH - RIGHT + 20}" y1="{top}" x2="{WIDTH - RIGHT + 44}" y2="{top}" stroke="{colour}"{dashes} stroke-width="2"/>')
        lines.append(f'<text x="{WIDTH - RIGHT + 50}" y="{top + 4}">{label(flags)}</text>')
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - BOTTOM + 34}">requests at a time</text>')
    return "\n".join(lines + ["</svg>"]) + "\n"


if __name__ == "__main__":
    by = "speed_up_by_cpu" if "--by-cpu" in sys.argv else "speed_up"
    pathlib.Path(sys.argv[2]).write_text(plot(json.loads(pathlib.Path(sys.argv[1]).read_text()), by))
