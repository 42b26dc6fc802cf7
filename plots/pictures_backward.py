"""Pictures of the backward: beside PyTorch's, its two modes, its errors, and the losses of a training."""

import itertools

from matplotlib import ticker

import training_results
from drawing import INK, LOOKS, STYLES, Skip, axis_of_lengths, needed, panels_over_legend, plt
from gpu_tables import DETERMINISTIC, FAST, FLASH
from pictures_gpu import CUDNN
import results

CASES = [(head_dim, mask) for head_dim in (64, 128) for mask in ("none", "causal")]


def measured(rows, metric, **wanted):
    return [row for row in results.series(rows, metric, backend="cuda", **wanted) if results.is_square(row)]


def with_mask(text, mask):
    return text + (", causal" if mask == "causal" else "")


def band(ax, line, factor, look):
    low, high = ([factor * row[p] for row in line] for p in ("p10", "p90"))
    ax.fill_between([row["Nk"] for row in line], low, high, color=look["color"], alpha=0.2, linewidth=0)


def backward_share(rows):
    ratios = measured(rows, "ratio_to_sdpa_flash", op="backward", dtype="bf16")
    needed([r for r in ratios if r["variant"] == FAST], "the backward beside SDPA flash in one process")
    fig, panels, legend = panels_over_legend(2, (7.2, 4.4), 0.8)
    for ax, head_dim in zip(panels, (64, 128)):
        lengths = set()
        for variant, name, look in ((FAST, "fast", STYLES[0]), (DETERMINISTIC, "deterministic", STYLES[1]), (CUDNN, CUDNN, STYLES[2])):
            for mask, dash in (("none", "-"), ("causal", ":")):
                line = [r for r in ratios if (r["variant"], r["D"], r["mask"]) == (variant, head_dim, mask)]
                if line:
                    dashed = {**look, "linestyle": dash}
                    ax.plot([r["Nk"] for r in line], [100 * r["median"] for r in line], label=with_mask(name, mask), **dashed)
                    band(ax, line, 100, look)
                    lengths.update(r["Nk"] for r in line)
        needed(lengths, f"the backward beside SDPA flash in one process, D = {head_dim}")
        ax.axhline(100, color=INK, linewidth=1.2)
        ax.annotate(FLASH, (min(lengths), 100), xytext=(0, -11), textcoords="offset points", fontsize=9)
        ax.set_title(f"D = {head_dim}", fontsize=11)
        axis_of_lengths(ax, sorted(lengths))
        ax.tick_params(axis="x", labelrotation=30)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel(f"backward, % of {FLASH}'s speed")
    legend(ncol=3)
    return fig


def backward_modes(rows):
    times = {}
    for row in measured(rows, "time", op="backward", dtype="bf16"):
        if (row["D"], row["mask"]) in CASES:
            times.setdefault((row["D"], row["mask"], row["Nk"]), {})[row["variant"]] = row["median"]
    lines = {}
    for (head_dim, mask, n), modes in sorted(times.items()):
        if {FAST, DETERMINISTIC} <= modes.keys():
            lines.setdefault((head_dim, mask), []).append((n, 100 * modes[FAST] / modes[DETERMINISTIC]))
    needed(lines, "both modes of the backward in one process")
    fig, ax = plt.subplots()
    lengths = set()
    for (head_dim, mask), look in zip(CASES, STYLES):
        points = lines.get((head_dim, mask), [])
        if points:
            ax.plot(*zip(*points), label=with_mask(f"D = {head_dim}", mask), **look)
            lengths.update(n for n, _ in points)
    ax.axhline(100, color=INK, linewidth=1.2)
    ax.annotate("fast mode", (min(lengths), 100), xytext=(0, 3), textcoords="offset points", fontsize=9)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("deterministic, % of the fast speed")
    axis_of_lengths(ax, sorted(lengths))
    ax.legend(loc="lower right")
    return fig


def gradient_error(rows):
    """The largest of the errors of dQ, dK and dV, at one head dimension."""
    found = {}
    errors = [row for name in ("dq", "dk", "dv") for row in measured(rows, f"error_{name}", op="gradient_error")]
    widest = max(row["D"] for row in needed(errors, "errors of gradients"))
    for row in errors:
        if row["D"] == widest:
            line = found.setdefault((row["mask"], row["dtype"], row["variant"]), {})
            line[row["Nk"]] = max(line.get(row["Nk"], 0.0), row["median"])
    fig, panels, legend = panels_over_legend(2, (7.2, 4.4), 0.8)
    looks = [("bf16", FAST), ("bf16", FLASH), ("fp16", FAST), ("fp16", FLASH)]
    for ax, mask in zip(panels, ("none", "causal")):
        lengths = set()
        for (dtype, variant), look in zip(looks, STYLES):
            line = found.get((mask, dtype, variant))
            if line:
                name = "step 09, fast" if variant == FAST else variant
                ax.plot(*zip(*sorted(line.items())), label=f"{name}, {dtype}", **look)
                lengths.update(line)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-"))
        ax.yaxis.set_minor_locator(ticker.NullLocator())
        ax.set_title(with_mask(f"D = {widest}", mask), fontsize=11)
        if lengths:
            axis_of_lengths(ax, sorted(lengths))
            ax.tick_params(axis="x", labelrotation=30)
    panels[0].set_ylabel("largest of the relative\nerrors of dQ, dK and dV")
    legend(ncol=2)
    return fig


def training(_rows):
    found = training_results.newest()
    if not found:
        raise Skip("no results for a training")
    fig, ax = plt.subplots()
    looks = {**STYLES[1], "linewidth": 5, "alpha": 0.45}, STYLES[0], *LOOKS[2:]
    for (name, losses), look in zip(found.losses.items(), itertools.cycle(looks)):
        ax.plot(*zip(*losses), label=name, **{**look, "marker": "none", "linestyle": "-"})
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"training step ({found.device})")
    ax.set_ylabel("loss, nats a token")
    ax.legend()
    return fig


PICTURES = {
    picture.__name__: picture for picture in (backward_share, backward_modes, gradient_error, training)
}
