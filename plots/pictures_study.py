"""Pictures of docs/numerics.md, from plots/data/study.csv."""

import studies
from drawing import INK, STYLES, axis_of_lengths, needed, nested, panels_over_legend, plt


def error_vs_n(rows):
    methods = (
        "divided once, kept in fp32",
        "divided at every tile, kept in fp32",
        "divided once, kept in bf16",
        "divided at every tile, kept in bf16",
    )
    fig, ax = plt.subplots()
    lengths = set()
    whole = {"color": INK, "linestyle": "-", "marker": "none"}
    for method, look in [*zip(methods, nested(STYLES)), ("a whole step: P and O rounded to bf16", whole)]:
        found = [r for r in studies.of(rows, "growth_error") if r["variant"] == f"{method}: random scores"]
        found = sorted(needed(found, f"the study, {method}"), key=lambda row: row["Nk"])
        ax.plot([row["Nk"] for row in found], [row["median"] for row in found], label=method, **look)
        lengths.update(row["Nk"] for row in found)
    ax.set_yscale("log")
    ax.set_ylim(1e-7, 1)
    ax.set_ylabel("relative error of O")
    axis_of_lengths(ax, sorted(lengths), label="N (keys)")
    ax.legend(fontsize=9, loc="upper left", ncol=2)
    return fig


def axis_of_sizes(ax, sizes):
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes], rotation=30 if len(sizes) > 5 else 0)
    ax.minorticks_off()
    ax.set_xlabel("spread of the scaled scores (σ)")


def lines(ax, table, methods):
    """Draws {size: error} of each method."""
    for method, look in methods:
        points = sorted(needed(table.get(method), f"the study, {method}").items())
        ax.plot([x for x, _ in points], [y for _, y in points], label=method, **look)


def where_to_scale(rows):
    whole = {"color": INK, "linestyle": "-", "marker": "none"}
    fig, panels, legend = panels_over_legend(2, (7.2, 4.2), 0.7)
    for ax, head_dim in zip(panels, (64, 128)):
        found = needed([r for r in studies.of(rows, "scale_error") if r["D"] == head_dim], "the study of the scale")
        table = studies.by_size(found)
        methods = [*zip(studies.SCALE_METHODS, nested(STYLES)), ("folded, P and O in bf16", whole)]
        lines(ax, table, methods)
        axis_of_sizes(ax, sorted(table[methods[0][0]]))
        ax.set_title(f"D = {head_dim}, scale = 1/{'8' if head_dim == 64 else '11.3'}", fontsize=11)
    panels[0].set_ylabel("relative error of O")
    panels[0].set_ylim(2e-7, 0.1)
    legend(ncol=2)
    return fig


def large_logits(rows):
    fig, panels, legend = panels_over_legend(2, (7.2, 4.0))
    for ax, dtype in zip(panels, ("fp16", "bf16")):
        found = needed([r for r in studies.of(rows, "logit_error") if r["dtype"] == dtype], "the study of large logits")
        table = studies.by_size(found)
        lines(ax, table, zip(studies.LOGIT_METHODS, STYLES))
        axis_of_sizes(ax, sorted(table[studies.LOGIT_METHODS[0]]))
        lost = [r for r in studies.of(rows, "logit_nan_rows") if r["dtype"] == dtype and r["median"] > 0]
        for row in lost:
            ax.annotate("NaN", (studies.size_of(row), 0.05), color=STYLES[2]["color"], ha="center")
        ax.set_title(f"inputs in {dtype}", fontsize=11)
    panels[0].set_ylabel("relative error of O")
    legend(ncol=3)
    return fig


PICTURES = {picture.__name__: picture for picture in (error_vs_n, where_to_scale, large_logits)}
