"""A decode step's kernels from what kernel_trace.cc wrote: python3 kernel_timeline.py TRACE [STEP]

Steps begin with the embedding kernel, or with attention's plans where these stand before it. Prints, for a long one of the largest batch's steps that are graphs (or the STEPth), one line a kernel name and
place in a layer: how often, its mean length, the mean time from the latest end before it to its start (negative: it began
under its predecessor), and what both are of the whole step."""
import re
import statistics
import sys
from collections import OrderedDict


def short(name):
    name = re.sub(r"_Z[NLK]*", "", name)
    found = re.findall(r"((?:[a-z]+[0-9]*_)+kernel|sm\d+_(?:decode|extend)|nvjet_\w+)", name)
    return (found[0] if found else name)[:44]


kernels = []
for line in open(sys.argv[1]):
    start, end, blocks, threads, registers, shared, graph, name = line.rstrip("\n").split(" ", 7)
    kernels.append((int(start), int(end), int(blocks), int(threads), int(registers), int(shared), short(name), name, graph == "1"))
begins = [i - ("decode_plans" in kernels[max(i - 1, 0)][7]) for i, k in enumerate(kernels) if "embedding" in k[7]]
steps = [kernels[a:b] for a, b in zip(begins, begins[1:])]
steps = [s for s in steps if all(k[8] for k in s[2:-4])]  # those of graphs
if not steps:
    sys.exit("no step ran as a graph")
batch = [next(k[2] for k in s if "embedding" in k[7]) for s in steps]  # its blocks
steps = [s for s, rows in zip(steps, batch) if rows == max(batch)]
usual = statistics.mode(len(s) for s in steps)
steps = [s for s in steps if len(s) == usual]
by_length = sorted(steps, key=lambda s: s[-1][1] - s[0][0])
step = steps[int(sys.argv[2])] if len(sys.argv) > 2 else by_length[len(steps) * 3 // 4]
whole = (step[-1][1] - step[0][0]) / 1e3
print(f"{len(steps)} steps of {usual} kernels; this one: {whole:.1f} us; all: median "
      f"{statistics.median((s[-1][1] - s[0][0]) / 1e3 for s in steps):.1f}")
rows = OrderedDict()
latest = step[0][0]
previous = ""
for k in step:
    key = (k[6], k[2], k[3], k[4], k[5], previous)
    row = rows.setdefault(key, [0, 0.0, 0.0, 0.0])
    row[0] += 1
    row[1] += (k[1] - k[0]) / 1e3
    row[2] += (k[0] - latest) / 1e3
    row[3] += max(0, k[1] - latest) / 1e3
    latest = max(latest, k[1])
    previous = k[6]
print("count  length_us  start_after_us  adds_us  adds_all  blocks threads regs shared  name < before")
for (name, blocks, threads, registers, shared, before), (count, length, gap, adds) in rows.items():
    print(f"{count:5d} {length / count:10.2f} {gap / count:15.2f} {adds / count:8.2f} {adds:9.1f} {blocks:7d} {threads:7d} "
          f"{registers:4d} {shared:6d}  {name} < {before}")
