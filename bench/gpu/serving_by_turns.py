"""Two builds of serving_bench by turns on one GPU: is serving slower than it was?

  python bench/gpu/serving_by_turns.py OLD/serving_bench NEW/serving_bench [--rounds 9] [--rows ROW,...] [--chain]
      [--seconds N] [flags of `serve`]

Both hold the model at the same time, with made-up weights, and measure one row after another, every other round in the
opposite order. ROWS are those of serving_bench; decode256, load64 and load256, which are not among those taken by
default, need more K/V (--max-total-tokens 360000; two such pools fit one H200). Told are the medians of both and the
median of the rounds' own ratios, each so that above 1 the new one is slower; all that was measured goes to --out as JSON.

--chain: each run is compared with the one before it, so that nine ratios take ten runs in place of eighteen.
--seconds: no run begins after so many, and what was measured until then is told.
"""
import argparse
import json
import statistics
import subprocess
import time

ROWS = "decode1,decode8,decode64,prefill,ttft"
RATES = ("tokens_per_s", "output_tokens_per_s")
TIMES = ("median_ms", "median_ttft_ms", "p99_ttft_ms")
LONG = ("load", "decode256")   # warm the GPU up by themselves
FLAGS = ["--device", "cuda", "--model-path", "bench/gpu/llama-3.1-8b-shape", "--load-format", "dummy", "--skip-tokenizer-init",
         "--context-length", "32768", "--disable-radix-cache", "--page-size", "64", "--max-total-tokens", "90000"]


class Build:
    def __init__(self, program, flags):
        self.process = subprocess.Popen([program, "-", *flags], text=True, bufsize=1, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def start(self):
        return self.line()

    def line(self):
        text = self.process.stdout.readline()
        if not text:
            raise SystemExit(f"{self.process.args[0]} ended with {self.process.wait()}")
        return json.loads(text)

    def measure(self, row):
        """{"row, field": value} of the rates and times that the row has."""
        self.process.stdin.write(row + "\n")
        out = {}
        while (line := self.line())["row"] != "done":
            fields = dict(line, **{f"token gap, {of}, ms": gap for of, gap in line.get("token_gap_ms", {}).items()})
            for field, value in fields.items():
                if field in RATES + TIMES or field.startswith("token gap"):
                    out[f"{line['row']}, {field}"] = value
        if not out:
            raise SystemExit(f"{self.process.args[0]} has no row {row}; for decode256 it must run 256 requests at once")
        return out


def in_rounds(builds, options):
    """Old and new values of a row as they are measured, two runs of each row a round."""
    for number in range(options.rounds):
        for row in options.rows:
            order = (0, 1) if number % 2 == 0 else (1, 0)
            values = {which: builds[which].measure(row) for which in order}
            yield values[0], values[1]


def in_a_chain(builds, options):
    """The same where each run is compared with the one before it, which was the other build's."""
    last = {}
    for number in range(options.rounds + 1):
        for row in options.rows:
            values = builds[number % 2].measure(row)
            if row in last:
                yield (last[row], values) if number % 2 == 1 else (values, last[row])
            last[row] = values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=ROWS)
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--out")
    options, flags = parser.parse_known_args()
    builds = [Build(program, FLAGS + flags) for program in (options.old, options.new)]
    starts = [build.start() for build in builds]
    for build, start in zip(builds, starts):
        print(json.dumps(start), flush=True)
        for row in options.rows:
            if not row.startswith(LONG):
                build.measure(row)   # warms up
    measured = {}
    begun = time.monotonic()
    for olds, news in (in_a_chain if options.chain else in_rounds)(builds, options):
        for name, old in olds.items():
            new = news[name]
            ratio = old / new if name.endswith(RATES) else new / old
            rounds = measured.setdefault(name, [])
            rounds.append((old, new, ratio))
            print(f"{time.monotonic() - begun:.0f} s, {len(rounds)}, {name}: {old:g} -> {new:g}, {ratio:.3f}", flush=True)
        if options.seconds and time.monotonic() - begun > options.seconds:
            break
    for name, rounds in measured.items():
        old, new, ratio = (statistics.median(column) for column in zip(*rounds))
        least, most = min(r[2] for r in rounds), max(r[2] for r in rounds)
        print(f"{name}: {old:g} -> {new:g}, median ratio {ratio:.3f} ({least:.3f} to {most:.3f})", flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump({"start": starts, "rounds": measured}, file)
    for build in builds:
        build.process.stdin.close()
        build.process.wait()


if __name__ == "__main__":
    main()
