"""Pictures of the GPU steps, from the rows of their benches, of peers.py and of profile.py."""

import itertools
import math
import re

import results
from drawing import INK, LOOKS, ON_COLOUR, STYLES, Skip, axis_of_lengths, needed, panels_over_legend, plt

STEPS = ("04", "05", "06", "07", "08")
BESIDE_PEERS = "beside peers"
FLASH, CUDNN = "SDPA flash", "SDPA cuDNN"


def gpu_rows(rows, metric, **wanted):
    return results.series(rows, metric, backend="cuda", dtype="bf16", **wanted)


def of_step(rows, metric, step, **wanted):
    """A step's forward: as timed in one process with its peers where it was, else by its own bench."""
    mine = [
        row
        for row in gpu_rows(rows, metric, step=step, op="forward", **wanted)
        if row["variant"] in (BESIDE_PEERS, "forward", "three kernels")
    ]
    return [row for row in mine if row["variant"] == BESIDE_PEERS] or mine


def of_peer(rows, metric, name, **wanted):
    return gpu_rows(rows, metric, step="", variant=name, op="forward", **wanted)


def ceilings(rows):
    """(label, GFLOP/s) of what no kernel here can exceed."""
    found = [
        ("a loop of mma.sync", [r for r in gpu_rows(rows, "rate", op="peak") if r["step"]]),
        ("cuBLAS matrix product", gpu_rows(rows, "rate", op="matmul")),
    ]
    return [(label, max(row["median"] for row in some)) for label, some in found if some]


def bandwidth(rows):
    """GB/s of a large copy, read plus written."""
    found = [row["median"] for row in results.series(rows, "bandwidth", backend="cuda") if row["op"] in ("peak", "copy")]
    return max(needed(found, "the copy bandwidth of a GPU"))


def under(height, heights, room):
    """Whether a line's label goes under it, since the next line above is nearer than the label needs."""
    return any(0 < other - height < room for other in heights)


def gpu_ladder(rows):
    problem = {"mask": "none", "D": 128, "Nq": 4096, "Nk": 4096}
    heights = {}
    for step in STEPS:
        found = of_step(rows, "rate", step, **problem)
        if found:
            heights[step] = found[-1]["median"] / 1e3
    needed(heights, "the GPU steps at N = 4096, D = 128, bf16")
    fig, ax = plt.subplots(figsize=(7.2, 4.6))
    places = range(len(heights))
    ax.bar(places, heights.values(), color=STYLES[1]["color"], width=0.6)
    peers = [(name, of_peer(rows, "rate", name, **problem)) for name in (FLASH, CUDNN)]
    marks = [(name, found[-1]["median"]) for name, found in peers if found] + ceilings(rows)
    lines = [rate / 1e3 for _, rate in marks]
    top = max([*lines, *heights.values()])
    for place, height in zip(places, heights.values()):
        # A high bar has its number inside, where no line crosses it.
        look = {"xytext": (0, -15), "color": ON_COLOUR} if height > 0.1 * top else {"xytext": (0, 3)}
        ax.annotate(f"{height:.3g}", (place, height), textcoords="offset points", ha="center", **look)
    for (name, rate), dash in zip(marks, ("-", "--", "-.", ":")):
        ax.axhline(rate / 1e3, color=STYLES[0]["color"] if name in (FLASH, CUDNN) else INK, linestyle=dash, linewidth=1.5)
        aside = (0, -11 if under(rate / 1e3, lines, 0.05 * top) else 3)
        ax.annotate(f"{name}: {rate / 1e3:.3g}", (-0.45, rate / 1e3), aside, textcoords="offset points", fontsize=9)
    ax.set_xlim(-0.5, len(heights) - 0.5)
    ax.set_xticks(list(places), [f"step {step}" for step in heights])
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("TFLOP/s (N = 4096, D = 128, bf16)")
    return fig


def share_of_sdpa(rows):
    found = [
        row
        for row in gpu_rows(rows, "ratio_to_sdpa_flash", op="forward", variant=BESIDE_PEERS)
        if row["D"] in (64, 128) and results.is_square(row)
    ]
    step = max(row["step"] for row in needed(found, "steps beside SDPA flash in one process"))
    fig, ax = plt.subplots()
    lengths = set()
    cases = [(head_dim, mask) for head_dim in (64, 128) for mask in ("none", "causal")]
    for (head_dim, mask), look in zip(cases, STYLES):
        line = [r for r in found if (r["step"], r["D"], r["mask"]) == (step, head_dim, mask)]
        if line:
            name = f"D = {head_dim}" + (", causal" if mask == "causal" else "")
            ax.plot([row["Nk"] for row in line], [100 * row["median"] for row in line], label=name, **look)
            low, high = ([100 * row[p] for row in line] for p in ("p10", "p90"))
            ax.fill_between([row["Nk"] for row in line], low, high, color=look["color"], alpha=0.2, linewidth=0)
            lengths.update(row["Nk"] for row in line)
    ax.axhline(100, color=INK, linewidth=1.2)
    ax.annotate(FLASH, (min(lengths), 100), xytext=(0, 3), textcoords="offset points", fontsize=9)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"step {step}, % of SDPA flash's speed")
    axis_of_lengths(ax, sorted(lengths))
    ax.legend(loc="lower right")
    return fig


SHAPE = re.compile(r"(\d+)x(\d+), (\d+) warps, (\d+) stages")


def tile_heatmap(rows):
    import numpy as np

    found = needed([r for r in gpu_rows(rows, "rate", op="sweep") if SHAPE.fullmatch(r["variant"])], "the sweep of tile shapes")
    known = [tuple(map(int, SHAPE.fullmatch(row["variant"]).groups())) for row in found]
    tiles = sorted({shape[:2] for shape in known})
    teams = sorted({shape[2:] for shape in known})
    dims = sorted({row["D"] for row in found})
    fig, panels = plt.subplots(1, len(dims), squeeze=False, sharey=True, figsize=(7.2, 0.55 * len(tiles) + 1.9))
    top = max(row["median"] for row in found) / 1e3
    for ax, head_dim in zip(panels[0], dims):
        rates = np.full((len(tiles), len(teams)), np.nan)
        for row, shape in zip(found, known):
            if row["D"] == head_dim:
                rates[tiles.index(shape[:2]), teams.index(shape[2:])] = row["median"] / 1e3
        image = ax.imshow(rates, cmap="viridis", vmin=0, vmax=top, aspect="auto")
        for (y, x), rate in np.ndenumerate(rates):
            if not np.isnan(rate):
                colour = "black" if rate > 0.6 * top else "white"
                best = rate == np.nanmax(rates)
                ax.text(x, y, f"{rate:.0f}", ha="center", va="center", color=colour, weight="bold" if best else "normal")
        ax.set_xticks(range(len(teams)), [f"{warps} warps\n{stages} stages" for warps, stages in teams], fontsize=9)
        ax.set_yticks(range(len(tiles)), [f"{q} x {kv}" for q, kv in tiles])
        ax.grid(visible=False)
        lengths = sorted({row["Nk"] for row in found if row["D"] == head_dim})
        ax.set_title(f"D = {head_dim}, N = {lengths[-1]}", fontsize=11)
    panels[0][0].set_ylabel("queries x keys of a tile")
    fig.colorbar(image, ax=list(panels[0]), label="TFLOP/s", shrink=0.9)
    return fig


def ablation(rows):
    length = 4096
    found = needed(gpu_rows(rows, "rate", op="ablation", Nk=length), f"the ablation at N = {length}")
    dims = sorted({row["D"] for row in found})
    ideas = [name for name in dict.fromkeys(row["variant"] for row in found) if name != "forward"]
    fig, panels, legend = panels_over_legend(len(dims), (7.2, 0.42 * len(ideas) + 1.8))
    for ax, head_dim in zip(panels, dims):
        for shift, mask, hatch in ((-0.2, "none", ""), (0.2, "causal", "////")):
            rates = {r["variant"]: r["median"] for r in found if r["D"] == head_dim and r["mask"] == mask}
            if "forward" not in rates:
                continue
            changes = {name: 100 * (rates[name] / rates["forward"] - 1) for name in ideas if name in rates}
            places = [ideas.index(name) + shift for name in changes]
            label = "causal" if mask == "causal" else "no mask"
            look = {"facecolor": STYLES[0 if hatch else 1]["color"], "hatch": hatch, "edgecolor": ON_COLOUR, "linewidth": 0}
            ax.barh(places, changes.values(), height=0.38, label=label, **look)
        ax.axvline(0, color=INK, linewidth=1)
        ax.grid(axis="y", visible=False)
        ax.set_title(f"D = {head_dim}, N = {length}", fontsize=11)
        ax.set_xlabel("change of speed, %")
    panels[0].set_yticks(range(len(ideas)), [name.replace("_", " ") for name in ideas])
    panels[0].invert_yaxis()
    legend(ncol=2)
    return fig


def memory_gpu(rows):
    """Of a whole call. A step's own bench does not count L, which the caller hands in."""

    def in_all(row):
        of_lse = 0 if row["variant"] == BESIDE_PEERS or not row["step"] else 4 * row["Nq"] * row["B"] * row["Hq"]
        return row["Nk"], row["median"] + of_lse

    def alike(some, others):
        """On the lengths of both; a random generator's state of 1 KiB is no difference."""
        both = some.keys() & others.keys()
        return both and all(math.isclose(some[n], others[n], rel_tol=0.01) for n in both)

    wanted = {"mask": "none", "D": 64}
    rows = list(filter(results.is_square, rows))
    found = [(f"step {step}", of_step(rows, "extra_memory", step, **wanted)) for step in STEPS]
    needed(any(some for _, some in found), "the extra memory of the GPU steps at D = 64")
    found += [(peer, of_peer(rows, "extra_memory", peer, **wanted)) for peer in ("unfused cuBLAS", FLASH)]
    named, heads = [], {}  # (names, points), where a line that lies on another one shares it; slices of a call
    for name, some in found:
        heads.update((row["Nk"], row["B"] * row["Hq"]) for row in some)
        points = dict(map(in_all, some))
        same = next((line for line in named if alike(points, line[1])), None)
        if same:
            same[0].append(name)
            same[1].update({**points, **same[1]})
        elif points:
            named.append(([name], points))
    fig, ax = plt.subplots(figsize=(7.2, 4.6))
    lengths = sorted(heads)
    matrices = [6 * n * n * heads[n] for n in lengths]
    lse = [4 * n * heads[n] for n in lengths]
    wide = {"color": INK, "linewidth": 7, "alpha": 0.35}
    ax.plot(lengths, matrices, label="S in fp32 and P in bf16: 6 N² bytes a head", **wide)
    ax.plot(lengths, lse, label="L: 4 N bytes a head", linestyle=":", **wide)
    for (names, points), look in zip(named, itertools.cycle(LOOKS)):
        label = ", ".join(names).replace(", step ", ", ")
        ax.plot(*zip(*sorted(points.items())), label=label.replace("step", "steps") if ", 0" in label else label, **look)
    ax.set_yscale("log", base=2)
    ticks = [(2.0 ** (10 * i + j), f"{2**j} {unit}") for i, unit in enumerate(("KiB", "MiB", "GiB"), 1) for j in (0, 5)]
    ax.set_yticks([t for t, _ in ticks], [name for _, name in ticks])
    ax.set_ylim(min(lse) / 4, 2 * max(matrices))
    rows_in_all = {n * heads[n] for n in lengths}
    same = f"; B H N = {rows_in_all.pop()} in every call" if len(rows_in_all) == 1 else ""
    ax.set_ylabel("extra memory of a call")
    axis_of_lengths(ax, lengths, f"N (queries and keys){same}")
    ax.legend(fontsize=10, loc="center left", bbox_to_anchor=(0.0, 0.42))
    return fig


def roofline(rows):
    points = []
    for step in STEPS:
        wanted = {"op": "profile", "step": step, "variant": "forward"}
        moved, rate, time = (gpu_rows(rows, metric, **wanted) for metric in ("dram_bytes", "rate", "time"))
        if moved and rate and time and moved[-1]["median"]:
            operations = rate[-1]["median"] * time[-1]["median"] * 1e6
            points.append((step, operations / moved[-1]["median"], rate[-1]["median"] / 1e3))
    needed(points, "profiled steps")
    slope = bandwidth(rows) / 1e3  # TFLOP/s at one operation a byte
    flops = [r["median"] for r in results.series(rows, "rate", backend="cuda", op="peak", dtype="fp32")]
    roofs = [*ceilings(rows), *([("fp32 multiply-adds on CUDA cores", max(flops))] if flops else [])]
    if not roofs:
        raise Skip("no results for the ceilings of a GPU")
    left, right = min(10, *(x for _, x, _ in points)) / 2, max(x for _, x, _ in points) * 5
    fig, ax = plt.subplots(figsize=(7.2, 4.8))
    highest = max(rate for _, rate in roofs) / 1e3
    ax.plot([left, highest / slope], [left * slope, highest], color=INK, linewidth=1.5)
    beside = {"textcoords": "offset points", "fontsize": 9}
    ax.annotate(f"device copy: {slope:.2g} TB/s", (3 * left, 3 * left * slope), xytext=(8, -12), **beside)
    heights = [math.log(rate / 1e3) for _, rate in roofs]
    for (name, rate), dash in zip(roofs, ("-", "--", "-.")):
        height = rate / 1e3
        ax.plot([height / slope, right], [height, height], color=INK, linestyle=dash, linewidth=1.5)
        aside = -11 if under(math.log(height), heights, math.log(1.5)) else 3
        ax.annotate(f"{name}: {height:.3g}", (height / slope, height), xytext=(10, aside), **beside)
    for (step, x, y), look in zip(points, LOOKS):
        ax.plot(x, y, marker=look["marker"], color=look["color"], markersize=9, linestyle="none")
        # Points that lie close together push their labels apart.
        close = [there[1] for _, *there in points if max(abs(math.log(a / b)) for a, b in zip((x, y), there)) < math.log(1.5)]
        aside = -4 + sum(6 * ((other < y) - (other > y)) for other in close)
        ax.annotate(f"step {step}: {y:.3g}", (x, y), xytext=(8, aside), textcoords="offset points")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(left, right)
    ax.set_xlabel("operations for each byte of device memory moved (profiled)")
    ax.set_ylabel("TFLOP/s")
    return fig


PICTURES = {
    picture.__name__: picture
    for picture in (gpu_ladder, share_of_sdpa, tile_heatmap, ablation, memory_gpu, roofline)
}
