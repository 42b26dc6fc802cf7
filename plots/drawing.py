"""What all pictures share: colours and fonts, the axis of lengths, and how a picture says what it lacks."""

import re

import matplotlib

matplotlib.use("Agg")  # no display is needed, whatever MPLBACKEND says

import matplotlib.pyplot as plt  # noqa: E402

# Readable on white and on near-black (a contrast of 3 or more on both), and apart from each other for colour-blind
# readers: from the palette of Okabe and Ito, with marker and dash as a second sign. Text and axes are in the grey whose
# contrast is the same on both backgrounds, 4.35, and no grey has more; so text is not small.
INK = "#727a85"
ON_COLOUR = "black"  # text and marks on a filled area, which hides the background: 4.8 or more on every colour below
STYLES = [
    {"color": "#d55e00", "marker": "o", "linestyle": "-"},
    {"color": "#0d7fc2", "marker": "s", "linestyle": "--"},
    {"color": "#009e73", "marker": "^", "linestyle": "-."},
    {"color": "#b8699b", "marker": "D", "linestyle": ":"},
]


# Of lines whose number the results decide: a picture takes them in turn and begins again where they end.
LOOKS = [
    {**look, "fillstyle": fill}
    for fill in ("full", "none", "left")
    for look in (*STYLES, {"color": INK, "marker": "v", "linestyle": "-"})
]

FAINT = {"facecolor": INK + "26", "edgecolor": INK}  # bars that lines and numbers cross


def nested(looks):
    """Looks whose points are seen where the second lies on the first, or the last two on any."""
    return [{**look, "markersize": size} for look, size in zip(looks, (10, 6, 8, 4.5))]


class Skip(Exception):
    """The data for a picture is not there; the text says what is missing."""


def style():
    plt.rcdefaults()
    plt.rcParams.update(
        {
            "figure.figsize": (7.2, 4.2),
            "figure.constrained_layout.use": True,
            "savefig.transparent": True,
            "svg.hashsalt": "flash-steps",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 12,
            "xtick.labelsize": 11,
            "ytick.labelsize": 11,
            "axes.formatter.use_locale": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "grid.color": INK,
            "legend.frameon": False,
            "lines.linewidth": 2,
            **{key: INK for key in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")},
        }
    )


def needed(found, what):
    if not found:
        raise Skip(f"no results for {what}")
    return found


def axis_of_lengths(ax, lengths, label="N (queries and keys)"):
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [str(n) for n in lengths], rotation=30 if len(lengths) > 8 else 0)
    ax.minorticks_off()
    ax.set_xlabel(label)


def panels_over_legend(count, figsize, legend_height=0.5):
    """A figure, panels side by side that share their y axis, and a strip below them for one legend."""
    heights = figsize[1] - legend_height, legend_height
    fig = plt.figure(figsize=figsize)
    grid = fig.add_gridspec(2, count, height_ratios=heights)
    panels = [fig.add_subplot(grid[0, 0])]
    panels += [fig.add_subplot(grid[0, i], sharey=panels[0]) for i in range(1, count)]
    for panel in panels[1:]:
        panel.tick_params(labelleft=False)
    strip = fig.add_subplot(grid[1, :])
    strip.axis("off")

    def legend(ncol):
        named = {}  # a panel may lack a line that another one has
        for panel in panels:
            for handle, label in zip(*panel.get_legend_handles_labels()):
                named.setdefault(label, handle)
        strip.legend(named.values(), named.keys(), loc="center", ncol=ncol, fontsize=9)

    return fig, panels, legend


def save(fig, path):
    fig.savefig(path, metadata={"Date": None, "Creator": "flash-steps"})
    plt.close(fig)
    # Blanks at line ends would be the only ones in the repository.
    path.write_text(re.sub(r"[ \t]+$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")
