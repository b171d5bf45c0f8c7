"""Joins what bench/gpu/run measured into one JSON file and one section of docs/benchmarks.md.
Run: report.py ATTENTION.json SERVING.jsonl PYTHON.txt RESULT.json DOCUMENT.md   (missing inputs are left out)"""
import json
import pathlib
import re
import sys
import time

BEGIN, END = "<!-- bench/gpu/run: begin -->", "<!-- bench/gpu/run: end -->"
FIELDS = ("case", "bytes", "flops")


def table(header, rows):
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header)] + [f"| {' | '.join(row)} |" for row in rows] + [""]


def cell(row, name, rate):
    """Time, rate and share of cuDNN's speed of one column."""
    us = row.get(name)
    if us is None:
        return ""
    peer = row.get("cudnn")
    ratio = f", {peer / us:.2f}" if peer and name != "cudnn" else ""
    return f"{us:.1f} us ({rate(us)}{ratio})"


def grid(rows, rate_of):
    """Rows with the same columns in one table."""
    lines, groups = [], {}
    for row in rows:
        groups.setdefault(tuple(k for k in row if k not in FIELDS), []).append(row)
    for names, members in groups.items():
        lines += table(["case", *names], [[r["case"], *(cell(r, n, rate_of(r)) for n in names)] for r in members])
    return lines


def attention_section(report):
    rows = report["rows"]
    lines = [f"Attention kernels beside cuDNN {report['cudnn']} SDPA (torch {report['torch']}, contiguous K and V): "
             "microseconds, rate, and the peer's time over ours (more than 1: ours is faster).", ""]
    lines += grid([r for r in rows if "flops" in r], lambda r: lambda us: f"{r['flops'] / us / 1e6:.0f} TFLOP/s")
    lines += grid([r for r in rows if "bytes" in r], lambda r: lambda us: f"{r['bytes'] / us / 1e3:.0f} GB/s")
    plain = [r for r in rows if "flops" not in r and "bytes" not in r]
    cells = [[r["case"], ", ".join(f"{v} {k}" if k != "fa3" and k != "decode" else f"{v} us" for k, v in r.items() if k != "case")]
             for r in plain]
    return lines + (table(["case", "figure"], cells) if cells else [])


def serving_section(rows):
    lines = ["Serving a Llama-3.1-8B shape in bf16 with dummy weights, without HTTP (`serving_bench`):", ""]
    cells = [[r.get("row", r.get("case", "")), ", ".join(f"{k} {v}" for k, v in r.items() if k not in ("row", "case"))] for r in rows]
    return lines + table(["case", "figures"], cells)


def json_lines(text):
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def main():
    attention, serving, python, result, document = (pathlib.Path(a) for a in sys.argv[1:6])
    everything = {"date": time.strftime("%Y-%m-%d")}
    lines = []
    if attention.exists():
        everything["attention"] = json.loads(attention.read_text())
        everything["device"] = everything["attention"]["device"]
        lines += attention_section(everything["attention"])
    if python.exists() and python.read_text().strip():
        everything["python"] = python.read_text().splitlines()
        lines += ["`flash_attn_func` of the Python package beside torch's SDPA:", ""]
        cells = [line.strip("| ").split(" | ") for line in everything["python"] if line.startswith("|")]
        lines += table(["batch x tokens", "ours", "cuDNN", "flash", "difference"], cells)
    if serving.exists():
        everything["serving"] = list(json_lines(serving.read_text()))
        if everything["serving"]:
            lines += serving_section(everything["serving"])
    result.write_text(json.dumps(everything, indent=1) + "\n")
    title = f"## GPU, all tables ({everything['date']}, {everything.get('device', 'no device')})"
    section = "\n".join([BEGIN, title, f"Written by `bench/gpu/run`; numbers in `bench/gpu/results/{result.name}`.", "", *lines, END])
    text = document.read_text()
    if BEGIN in text:
        text = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: section, text, flags=re.S)
    else:
        text = text.rstrip("\n") + "\n\n" + section + "\n"
    document.write_text(text)
    print(f"wrote {result} and the section of {document}")


if __name__ == "__main__":
    main()
