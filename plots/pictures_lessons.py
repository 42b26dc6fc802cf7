"""Drawings of the lessons, from plots/diagrams.csv: what tests/diagrams reads off the code itself.

Every line is picture,row,column,a,b:
    state            element, kind: 0 the score and its value, 1 m and l, 2 acc and acc / l
    accumulator      row, column of the 16 x 8 matrix: lane, register
    operand_...      row, column of a 16 x 16 tile: lane that receives the element, 2 * register + half
    swizzle          row, chunk: group of banks as it comes, and swizzled
    tiles_, walk_    query tile, key tile: 2 full, 1 boundary, 0 beyond; 1 if the kernel loads it
"""

import csv
import pathlib

from drawing import INK, STYLES, Skip, plt

FILE = pathlib.Path(__file__).resolve().parent / "diagrams.csv"
COLOURS = [look["color"] for look in STYLES]


def cells(picture):
    """{(row, column): (a, b)} of a drawing."""
    if not FILE.is_file():
        raise Skip(f"{FILE} is missing; tests/diagrams writes it")
    with open(FILE, encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["picture"] == picture]
    if not lines:
        raise Skip(f"{FILE.name} says nothing of {picture}")
    return {(int(line["row"]), int(line["column"])): (float(line["a"]), float(line["b"])) for line in lines}


def bare(ax, title=""):
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    ax.set_title(title, fontsize=11)


def board(ax, rows, columns, title=""):
    """An empty board of rows x columns cells, row 0 on top."""
    bare(ax, title)
    ax.set_xlim(-0.5, columns - 0.5)
    ax.set_ylim(rows - 0.5, -0.5)
    ax.set_aspect("equal")
    ax.set_xticks(range(columns))
    ax.set_yticks(range(rows))


def cell(ax, row, column, text, colour, strong=0.25, size=9):
    square = plt.Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, facecolor=colour, alpha=strong, edgecolor="none")
    ax.add_patch(square)
    ax.text(column, row, text, ha="center", va="center", fontsize=size)


def online_output(_rows):
    found = cells("state")
    count = 1 + max(row for row, _ in found)
    places = range(1, count + 1)
    fig, panels = plt.subplots(3, 1, sharex=True, figsize=(7.2, 5.6))
    scores, values = zip(*(found[i, 0] for i in range(count)))
    maxima, sums = zip(*(found[i, 1] for i in range(count)))
    _, outputs = zip(*(found[i, 2] for i in range(count)))
    panels[0].bar(places, scores, color=INK, alpha=0.35, width=0.5, label="score that arrives")
    panels[0].step(places, maxima, where="mid", **STYLES[0], label="m, the running maximum")
    panels[0].set_ylim(0, 7.4)
    panels[1].plot(places, sums, **STYLES[1], label="l, the running sum")
    panels[1].set_ylim(0.8, 1.75)
    panels[2].bar(places, values, color=INK, alpha=0.35, width=0.5, label="value of that score")
    panels[2].plot(places, outputs, **STYLES[2], label="o = acc / l, the output so far")
    panels[2].set_ylim(0, 62)
    for ax, numbers in zip(panels, (maxima, sums, outputs)):
        for place, number in zip(places, numbers):
            ax.annotate(f"{number:.4g}", (place, number), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=10)
        ax.legend(loc="upper left", fontsize=10, ncol=2)
    panels[2].set_xticks(list(places), [f"score {s:g}, value {v:g}" for s, v in zip(scores, values)])
    return fig


def matrix(ax, found, rows, columns, title, registers):
    """A matrix whose cells say which lane holds the element; the colour says in which register."""
    board(ax, rows, columns, title)
    for (row, column), (lane, place) in found.items():
        register = int(place) // registers
        cell(ax, row, column, f"{lane:.0f}", COLOURS[register % 4], size=8)
    ax.set_xticks(range(0, columns, 4))
    ax.set_yticks(range(0, rows, 4))
    ax.tick_params(labelsize=9)


def registers_legend(ax, names):
    for i, name in enumerate(names):
        ax.plot([], [], marker="s", linestyle="none", markersize=9, alpha=0.5, color=COLOURS[i], label=name)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.07), ncol=2, fontsize=9, handletextpad=0.1, columnspacing=1)


def mma_fragments(_rows):
    fig, (top, bottom) = plt.subplots(2, 2, figsize=(7.6, 9.8))
    accumulator = cells("accumulator")
    both = dict(accumulator) | {(row, column + 8): held for (row, column), held in accumulator.items()}
    # c[0], c[1] are a pair, c[2], c[3] the next; the right accumulator's are a[2] and a[3].
    pairs = {(row, c): (lane, 2 * (i // 2 + (2 if c >= 8 else 0))) for (row, c), (lane, i) in both.items()}
    matrix(top[0], pairs, 16, 16, "lanes of two accumulators of S", 2)
    registers_legend(top[0], ["left c[0], c[1]", "left c[2], c[3]", "right c[0], c[1]", "right c[2], c[3]"])
    top[0].axvline(7.5, color=INK, linewidth=1.5)
    operand = cells("operand_a")
    matrix(top[1], operand, 16, 16, "lanes of one A operand: P", 2)
    registers_legend(top[1], ["a[0]", "a[1]", "a[2]", "a[3]"])
    if any(operand[place] != (lane, held[1] + place[1] % 2) for place, held in pairs.items() for lane in [held[0]]):
        raise ValueError("accumulators and operand differ: the picture's statement would be false")
    matrix(bottom[0], cells("operand_b_of_k"), 16, 16, "K (key, channel) by ldmatrix", 2)
    registers_legend(bottom[0], ["b0, keys 0 to 7", "b1, keys 0 to 7", "b0, keys 8 to 15", "b1, keys 8 to 15"])
    matrix(bottom[1], cells("operand_b_of_v"), 16, 16, "V (key, channel) by ldmatrix, trans", 2)
    registers_legend(bottom[1], ["b0, channels 0 to 7", "b1, channels 0 to 7", "b0, channels 8 to 15", "b1, channels 8 to 15"])
    return fig


def swizzle(_rows):
    found = cells("swizzle")
    fig, panels = plt.subplots(1, 2, figsize=(7.6, 4.4))
    for which, (ax, title) in enumerate(zip(panels, ("as step 06 stores them", "swizzled: chunk xor row"))):
        passes = max(
            sum(1 for (_, chunk), groups in found.items() if chunk == 3 and groups[which] == group) for group in range(8)
        )
        board(ax, 8, 8, f"{title}\nchunk 3 of eight rows: {passes} pass{'es' if passes > 1 else ''}")
        for (row, chunk), groups in found.items():
            asked = chunk == 3
            cell(ax, row, groups[which], str(chunk), COLOURS[0] if asked else INK, 0.7 if asked else 0.12)
        ax.set_xlabel("group of four banks")
    panels[0].set_ylabel("row of the tile")
    return fig


CLASSES = {2: ("full", COLOURS[2]), 1: ("boundary", COLOURS[0]), 0: ("beyond", INK)}


def tile_classes(_rows):
    found = cells("tiles_08")
    rows, columns = (1 + max(place[i] for place in found) for i in (0, 1))
    fig, ax = plt.subplots(figsize=(7.6, 4.9))
    board(ax, rows, columns)
    for (row, column), (kind, loaded) in found.items():
        cell(ax, row, column, "" if loaded else "·", CLASSES[kind][1], 0.6 if loaded else 0.1)
    count = {kind: sum(1 for held in found.values() if held[0] == kind) for kind in CLASSES}
    loaded = sum(1 for held in found.values() if held[1])
    for kind, (name, colour) in CLASSES.items():
        alpha = 0.6 if kind else 0.15
        ax.plot([], [], marker="s", linestyle="none", markersize=10, color=colour, alpha=alpha, label=f"{name}: {count[kind]}")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=3, fontsize=11)
    ax.set_xlabel("key tile")
    ax.set_ylabel("query tile")
    ax.set_title(f"loaded: {loaded} of {len(found)}", fontsize=11)
    return fig


def tile_walk(_rows):
    fig, panels = plt.subplots(2, 1, figsize=(7.2, 6.6), gridspec_kw={"height_ratios": (5, 3)})
    words = ("walk_05", "step 05: 64 x 64, every tile"), ("walk_08", "step 08: 128 x 64, up to the diagonal")
    for ax, (name, title) in zip(panels, words):
        found = cells(name)
        rows, columns = (1 + max(place[i] for place in found) for i in (0, 1))
        board(ax, rows, columns, title)
        for row in range(rows):
            visited = [column for column in range(columns) if found[row, column][1]]
            for step, column in enumerate(visited, 1):
                cell(ax, row, column, str(step), CLASSES[found[row, column][0]][1], 0.5)
            for column in range(columns):
                if column not in visited:
                    cell(ax, row, column, "·", INK, 0.08)
            for column in visited[:-1]:
                ax.annotate("", (column + 0.72, row), (column + 0.28, row), arrowprops={"arrowstyle": "->", "color": INK})
        ax.set_ylabel("query tile: a block")
        ax.set_aspect("auto")
    for name, colour in CLASSES.values():
        panels[1].plot([], [], marker="s", linestyle="none", markersize=10, alpha=0.5, color=colour, label=name)
    panels[1].set_xlabel("key tile; the number says when the block comes to it")
    panels[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.32), ncol=3, fontsize=11)
    return fig


PICTURES = {
    picture.__name__: picture
    for picture in (online_output, mma_fragments, swizzle, tile_classes, tile_walk)
}
