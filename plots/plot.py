"""Draws every picture of the lessons from results files.

    plot.py --out DIR [FILE.csv ...]    without files: the committed results

A picture that needs numbers which the files lack is skipped, and said to be.
"""

import argparse
import itertools
import math
import pathlib
import sys

if __name__ == "__main__" and {"-h", "--help"} & set(sys.argv[1:]):  # before matplotlib, which may be missing
    print(__doc__.strip())
    sys.exit()

import pictures_backward
import pictures_gpu
import pictures_lessons
import pictures_step09
import pictures_study
import results
from drawing import FAINT, INK, LOOKS, ON_COLOUR, STYLES, Skip, axis_of_lengths, needed, panels_over_legend, plt, save, style

VERSIONS = {"full": STYLES[0], "tiled": STYLES[1], "simd": STYLES[2]}

# The largest finite number of each type.
LARGEST = {"fp16": 65504.0, "bf16": (2 - 2**-7) * 2.0**127, "fp32": (2 - 2**-23) * 2.0**127}


def square_cpu_rows(rows, metric, version, **more):
    wanted = {"step": "03", "op": "forward", "variant": version, "mask": "none", "Hq": 1, "B": 1, **more}
    return [row for row in results.series(rows, metric, **wanted) if results.is_square(row)]


def memory_vs_n(rows):
    fig, ax = plt.subplots()
    lengths = set()
    for version, look in VERSIONS.items():
        found = needed(square_cpu_rows(rows, "extra_memory", version, D=64), f"step 03, {version}, D = 64")
        lengths.update(row["Nk"] for row in found)
        ax.plot([row["Nk"] for row in found], [row["median"] for row in found], label=f"{version}, measured", **look)
    longest = results.series(rows, "extra_memory_computed", step="03", variant="full")
    if longest:
        last, n = longest[-1], sorted(lengths)[-1]
        reach = [n * 2**i for i in range(int(math.log2(last["Nk"] / n)) + 1)]
        look = {**VERSIONS["full"], "linestyle": (0, (1, 2)), "marker": "none"}
        ax.plot(reach, [4.0 * m * m for m in reach], label="full, 4 N² bytes by formula", **look)
        lengths.update(reach)
        one_tile = results.series(rows, "extra_memory", step="03", variant="tiled", Nk=last["Nk"])
        for row in one_tile:
            look = {**VERSIONS["tiled"], "linestyle": "none", "fillstyle": "none", "markersize": 9}
            ax.plot(row["Nk"], row["median"], label=f"tiled, one tile of {row['Nq']} queries", **look)
    n = sorted(lengths)
    ax.plot(n, [4 * m for m in n], color=INK, linestyle=":", label="L itself, 4 N bytes")
    ax.set_yscale("log", base=2)
    ticks = [(2.0**10, "1 KiB"), (2.0**15, "32 KiB"), (2.0**20, "1 MiB"), (2.0**25, "32 MiB"), (2.0**30, "1 GiB")]
    ticks.append((2.0**34, "16 GiB"))
    ax.set_yticks([t for t, _ in ticks], [name for _, name in ticks])
    ax.set_ylabel("extra memory of one head")
    axis_of_lengths(ax, n)
    ax.legend(fontsize=10)
    return fig


def share_of_peak(rows):
    fig, ax = plt.subplots()
    lengths, looks = set(), iter(STYLES)
    for head_dim in (64, 128):
        for mask in ("none", "causal"):
            found = [
                row
                for row in results.series(
                    rows, "share_of_peak", step="03", variant="simd", D=head_dim, mask=mask, Hq=1, B=1
                )
                if results.is_square(row)
            ]
            if len(found) < 2:
                continue
            lengths.update(row["Nk"] for row in found)
            name = f"simd, D = {head_dim}" + (", causal" if mask == "causal" else "")
            ax.plot([row["Nk"] for row in found], [row["median"] for row in found], label=name, **next(looks))
    needed(lengths, "step 03, simd, as a share of the peak")
    for version, look in (("full", {"linewidth": 1.2}), ("tiled", {"linestyle": "none", "marker": "x"})):
        found = square_cpu_rows(rows, "share_of_peak", version, D=64)
        if found:
            name = f"{version}, D = 64"
            ax.plot([row["Nk"] for row in found], [row["median"] for row in found], color=INK, label=name, **look)
    ax.set_ylim(0, 100)
    ax.set_ylabel("% of the multiply-add peak")
    axis_of_lengths(ax, sorted(lengths))
    ax.legend(loc="center right", fontsize=10, bbox_to_anchor=(1.0, 0.35))
    return fig


def io_model(rows):
    attention = [row for row in rows if row["op"] in ("forward", "backward")]
    counted = results.series(attention, "traffic_per_launch", mask="none", D=64)
    needed(counted, "counted traffic (the emulator's)")
    dtype = "bf16" if any(row["dtype"] == "bf16" for row in counted) else counted[0]["dtype"]
    lines = {}  # steps that move the same bytes share a line
    for step, variant in sorted({(row["step"], row["variant"]) for row in counted if row["dtype"] == dtype}):
        wanted = {"step": step, "variant": variant, "mask": "none", "dtype": dtype, "D": 64}
        # Where there is a formula for a block, it is the one with the re-reads of K and V in it.
        of_block = (results.series(attention, f"{m}_per_block", **wanted) for m in ("model", "traffic"))
        level = "per_block" if all(of_block) else "per_launch"
        found = {m: results.series(attention, f"{m}_{level}", **wanted) for m in ("model", "traffic")}
        points = {m: tuple((row["Nk"], row["median"]) for row in found[m]) for m in found}
        words = step if found["traffic"][0]["op"] == "forward" else f"{step}, backward, {variant}"
        lines.setdefault((level, points["model"], points["traffic"]), []).append(words)
    fig, panels, legend = panels_over_legend(1, (7.2, 4.8), 0.8)
    (ax,) = panels
    lengths = set()
    for look, ((level, model, traffic), steps) in zip(itertools.cycle(LOOKS), lines.items()):
        name = f"step{'s' if len(steps) > 1 else ''} {', '.join(steps)}, {level.replace('_', ' ')}"
        ax.plot(*zip(*model), **{**look, "marker": "none"})
        ax.plot(*zip(*traffic), **{**look, "linestyle": "none"})
        ax.plot([], [], label=name, **look)
        lengths.update(n for n, _ in traffic)
    ax.set_yscale("log", base=2)
    ticks = [(2.0**15, "32 KiB"), (2.0**17, "128 KiB"), (2.0**19, "512 KiB"), (2.0**21, "2 MiB")]
    ax.set_yticks([t for t, _ in ticks], [name for _, name in ticks])
    ax.set_ylabel(f"moved for one head ({dtype}, D = 64)\nlines: formula, points: counted")
    axis_of_lengths(ax, sorted(lengths))
    legend(ncol=2)
    return fig


def loop_orders(rows):
    parts = {"key_value_loads": "K and V loaded", "output_loads": "O loaded", "output_stores": "O stored"}
    orders = ("FA1 order", "FA2 order")
    found = {order: results.series(rows, "traffic", step="03", variant=order) for order in orders}
    needed(all(found.values()), "the loop orders of step 03")
    n = min(found[order][-1]["Nk"] for order in orders)

    def at_n(order, metric):
        found = results.series(rows, metric, step="03", variant=order, Nk=n)
        return needed(found, f"{metric} of step 03, {order}")[-1]["median"]

    fig, ax = plt.subplots(figsize=(7.2, 2.6))
    for y, order in enumerate(orders):
        values = {m: at_n(order, m) for m in parts}
        whole = at_n(order, "traffic")
        values["rest"] = whole - sum(values.values())
        left = 0
        for (part, value), look in zip(values.items(), STYLES):
            words = parts.get(part, "Q and the row states")
            ax.barh(y, value / 1e3, left=left / 1e3, color=look["color"], label=words if y == 0 else None, height=0.6)
            if value > 0.1 * whole:  # wide enough to say what it is
                inside = {"ha": "center", "va": "center", "fontsize": 10, "color": ON_COLOUR}
                ax.text((left + value / 2) / 1e3, y, "\n".join(words.rsplit(" ", 1)), **inside)
            left += value
    ax.set_yticks(range(len(orders)), orders)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(f"thousand elements moved, one head, N = {n}, D = 64, tiles of 64 x 64")
    ax.legend(fontsize=10, ncol=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return fig


def softmax_overflow(rows):
    found = needed(results.series(rows, "overflow_at", step="01"), "where the softmax of step 01 overflows")
    measured = {row["dtype"]: row["median"] for row in found}
    fig, ax = plt.subplots()
    ax.plot([0, 96], [0, 96 * math.log10(math.e)], color=INK, label="exp(x)")
    for look, (dtype, largest) in zip(STYLES, LARGEST.items()):
        height = math.log10(largest)
        ax.axhline(height, color=look["color"], linestyle=look["linestyle"], linewidth=1.2)
        if dtype in measured:
            x = measured[dtype]
            label = f"naive {dtype} softmax fails from {x:.2f} on (measured)"
            marker = {"color": look["color"], "marker": look["marker"], "markersize": 9, "linestyle": "none"}
            ax.plot(x, x * math.log10(math.e), label=label, **marker)
    words = {
        "fp16": (22, 1.3, "fp16 ends at 65504 = exp({:.2f})"),
        "bf16": (16, -1.3, "bf16 ends at 3.39e38 = exp({:.2f}), fp32 at 3.40e38"),
    }
    for dtype, (x, shift, text) in words.items():
        height = math.log10(LARGEST[dtype])
        ax.text(x, height + shift, text.format(math.log(LARGEST[dtype])), va="center", fontsize=10)
    ax.set_xlabel("x")
    ax.set_ylabel("exp(x)")
    powers = range(0, 41, 10)
    ax.set_yticks(powers, [f"1e{power}" for power in powers])
    ax.set_xlim(0, 96)
    ax.set_ylim(0, 42)
    ax.legend(loc="lower right", fontsize=10, bbox_to_anchor=(1.0, 0.16))
    return fig


def online_softmax(_rows):
    elements = [2.0, 1.0, 5.0, 3.0]
    states, row_max, row_sum = [], -math.inf, 0.0
    for x in elements:
        new_max = max(row_max, x)
        row_sum = row_sum * math.exp(row_max - new_max) + math.exp(x - new_max)
        row_max = new_max
        states.append((row_max, row_sum))
    ratios = {"height_ratios": (3, 2)}
    fig, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7.2, 4.6), gridspec_kw=ratios)
    places = range(1, len(elements) + 1)
    top.bar(places, elements, **FAINT, width=0.5, label="x, the element that arrives")
    top.step(places, [m for m, _ in states], where="mid", **STYLES[0], label="m, the running maximum")
    top.set_ylabel("x and m")
    top.set_ylim(0, 6.4)
    top.legend(loc="upper left", fontsize=10)
    sums = [total for _, total in states]
    bottom.plot(places, sums, **STYLES[1], label="l, the running sum of exp(x - m)")
    for place, total, after in zip(places, sums, [*sums[1:], 0]):
        aside = -18 if after > total else 8  # on the side that the line does not take
        bottom.annotate(f"{total:.4f}", (place, total), xytext=(0, aside), textcoords="offset points", ha="center")
    middle = (states[1][1] + states[2][1]) / 2
    arrow = {"arrowstyle": "->", "color": INK}
    words = "a new maximum: the old sum\nis multiplied by exp(2 - 5)"
    bottom.annotate(words, (2.5, middle), xytext=(2.7, 1.5), fontsize=10, arrowprops=arrow)
    bottom.set_ylim(0.7, 2)
    bottom.set_ylabel("l")
    bottom.legend(loc="upper left", fontsize=10)
    bottom.set_xticks(list(places), [f"element {i}\n{x:g}" for i, x in zip(places, elements)])
    return fig


def real_attention(_rows):
    import numpy as np

    fixture = results.ROOT / "tests" / "fixtures" / "minilm_qkv.npy"
    if not fixture.exists():
        raise Skip(f"{fixture} is missing")
    head, shown = 11, 32
    q, k, _v = np.load(fixture).astype(np.float64)
    scores = q[head] @ k[head].T / math.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    tokens = (fixture.parent / "minilm_tokens.txt").read_text(encoding="utf-8").splitlines()[:shown]
    fig, ax = plt.subplots(figsize=(7.2, 6.6))
    image = ax.imshow(weights[:shown, :shown], cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    ax.set_xticks(range(shown), tokens, rotation=90, fontsize=9)
    ax.set_yticks(range(shown), tokens, fontsize=9)
    ax.grid(visible=False)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    fig.colorbar(image, ax=ax, shrink=0.8, label="attention weight")
    return fig


LESSONS = {
    picture.__name__: picture
    for picture in (
        softmax_overflow,
        online_softmax,
        real_attention,
        memory_vs_n,
        share_of_peak,
        loop_orders,
        io_model,
    )
}
PICTURES = {
    **LESSONS,
    **pictures_lessons.PICTURES,
    **pictures_step09.PICTURES,
    **pictures_gpu.PICTURES,
    **pictures_backward.PICTURES,
    **pictures_study.PICTURES,
}


def rows_for(name, rows):
    """A picture shows one machine: the first that ran what it needs."""
    column, value = "step", "03"
    if name == "io_model":
        column, value = "backend", "emulator"
    elif name in pictures_gpu.PICTURES or name in pictures_backward.PICTURES:
        column, value = "backend", "cuda"
    elif name in pictures_study.PICTURES:
        column, value = "op", "study"
    machines = [row["machine"] for row in rows if row[column] == value]
    return [row for row in rows if not machines or row["machine"] == machines[0]]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory for the pictures")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="results files")
    options = parser.parse_args(arguments)
    rows = [row for path in options.files or results.committed() for row in results.read(path)]
    try:
        results.writable_directory(options.out)
    except OSError as error:
        sys.exit(f"error: cannot write pictures to '{options.out}': {error.strerror}")
    for name, picture in PICTURES.items():
        style()
        path = options.out / f"{name}.svg"
        try:
            fig = picture(rows_for(name, rows))
        except Skip as why:
            print(f"{name}.svg skipped: {why}")
            continue
        save(fig, path)
        print(path)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except results.ResultsError as error:
        sys.exit(f"error: {error}")
