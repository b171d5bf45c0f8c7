"""The table and the plot of a soak (soak.py), as Markdown and SVG."""

import datetime
import os
import pathlib
import platform
import re

WIDTH, PANEL, LEFT = 800, 110, 90
PANELS = [("rss_bytes", "resident memory, MiB", 1 / 2**20), ("descriptors", "file descriptors", 1),
          ("threads", "threads", 1), ("evictable_tokens", "tokens in the prefix cache", 1),
          ("health_p99_ms", "/health, p99, ms", 1)]


def panel(samples, name, title, scale, top):
    values = [getattr(s, name) * scale for s in samples]
    end = samples[-1].seconds
    most = max(values) * 1.1 or 1
    low, high = top + PANEL - 25, top + 20

    def x(seconds):
        return LEFT + (WIDTH - LEFT - 20) * seconds / end

    points = " ".join(f"{x(s.seconds):.1f},{low - (low - high) * v / most:.1f}" for s, v in zip(samples, values))
    lines = [f'<text x="{LEFT}" y="{top + 12}">{title}</text>',
             f'<line x1="{LEFT}" y1="{low}" x2="{WIDTH - 20}" y2="{low}" class="axis"/>',
             f'<text x="{LEFT - 6}" y="{low}" text-anchor="end">0</text>',
             f'<text x="{LEFT - 6}" y="{high + 8}" text-anchor="end">{most:.3g}</text>']
    for part in (1, 2, 3, 4):
        at = x(end * part / 4)
        lines.append(f'<line x1="{at:.1f}" y1="{high}" x2="{at:.1f}" y2="{low}" class="grid"/>')
        lines.append(f'<text x="{at:.1f}" y="{low + 13}" text-anchor="middle">{end * part / 240:.1f} min</text>')
    lines.append(f'<polyline points="{points}"/>')
    return lines


def plot(samples):
    height = PANEL * len(PANELS) + 10
    style = ("text{font:11px sans-serif;fill:#333}.axis{stroke:#333}.grid{stroke:#ccc;stroke-dasharray:3}"
             "polyline{fill:none;stroke:#06c;stroke-width:1.5}")
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">', f"<style>{style}</style>",
             f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>']
    for i, (name, title, scale) in enumerate(PANELS):
        lines += panel(samples, name, title, scale, i * PANEL)
    return "\n".join(lines + ["</svg>"]) + "\n"


def machine():
    """The CPU's name, the cores that may be used and the date."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return f"{len(os.sched_getaffinity(0))} cores of {found.group(1) if found else platform.machine()}, {datetime.date.today()}"


def write_report(path, samples, answers, growth, problems):
    minutes = samples[-1].seconds / 60
    rows = [samples[i * (len(samples) - 1) // 8] for i in range(9)]
    text = ["# A soak", "",
            f"`scripts/soak` for {minutes:.0f} minutes ({machine()}): {len(samples)} rounds of mixed load (streams, "
            "drops, aborts, log probabilities, adapters, kept answers, wrong requests, 3 times as many requests as fit), "
            f"{sum(answers.values())} requests. Counted at rest after a round; /health is asked under load.", "",
            "| minutes | resident MiB | of it anonymous | descriptors | threads | tokens of requests | tokens in the cache | /health p99 ms |",
            "|---|---|---|---|---|---|---|---|"]
    text += [f"| {s.seconds / 60:.1f} | {s.rss_bytes / 2**20:.2f} | {s.anonymous_bytes / 2**20:.2f} | {s.descriptors} | {s.threads} | {s.used_tokens} | "
             f"{s.evictable_tokens} | {s.health_p99_ms:.1f} |" for s in rows]
    text += ["", "Last quarter against the second, medians: " +
             ", ".join(f"{name} {100 * share:+.2f} %" for name, share in growth.items()) +
             " (at most 1 % more is allowed).", "", f"![over time]({path.with_suffix('.svg').name})", "",
             "| request | answers |", "|---|---|"]
    kinds = sorted({kind for kind, _ in answers})
    text += [f"| {kind} | " + ", ".join(f"{status}: {count}" for (k, status), count in sorted(answers.items())
                                        if k == kind) + " |" for kind in kinds]
    text += ["", "Problems: " + ("none." if not problems else "; ".join(problems[:5]))]
    path.write_text("\n".join(text) + "\n")
    path.with_suffix(".svg").write_text(plot(samples))
