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

from drawing import FAINT, INK, ON_COLOUR, STYLES, Skip, plt

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


EMPTY = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.6}


def cell(ax, row, column, text, look, size=9):
    """A cell with the look of a patch: filled, with dark text on it, or empty."""
    ax.add_patch(plt.Rectangle((column - 0.45, row - 0.45), 0.9, 0.9, **look))
    colour = INK if look["facecolor"] == "none" else ON_COLOUR
    ax.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


def patch_legend(ax, looks, below, ncol, fontsize):
    """What areas of some looks, {name: look}, stand for."""
    handles = [plt.Rectangle((0, 0), 1, 1, label=name, **look) for name, look in looks.items()]
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -below)}
    ax.legend(handles=handles, ncol=ncol, fontsize=fontsize, handlelength=1.2, handleheight=1.2, **place)


def online_output(_rows):
    found = cells("state")
    count = 1 + max(row for row, _ in found)
    places = range(1, count + 1)
    fig, panels = plt.subplots(3, 1, sharex=True, figsize=(7.2, 5.6))
    scores, values = zip(*(found[i, 0] for i in range(count)))
    maxima, sums = zip(*(found[i, 1] for i in range(count)))
    _, outputs = zip(*(found[i, 2] for i in range(count)))
    panels[0].bar(places, scores, **FAINT, width=0.5, label="score that arrives")
    panels[0].step(places, maxima, where="mid", **STYLES[0], label="m, the running maximum")
    panels[0].set_ylim(0, 7.4)
    panels[1].plot(places, sums, **STYLES[1], label="l, the running sum")
    panels[1].set_ylim(0.75, 1.75)
    panels[2].bar(places, values, **FAINT, width=0.5, label="value of that score")
    panels[2].plot(places, outputs, **STYLES[2], label="o = acc / l, the output so far")
    panels[2].set_ylim(0, 62)
    for ax, numbers in zip(panels, (maxima, sums, outputs)):
        for place, number, after in zip(places, numbers, [*numbers[1:], 0]):
            aside = (0, -17 if ax is panels[1] and after > number else 7)  # on the side that the line does not take
            ax.annotate(f"{number:.4g}", (place, number), aside, textcoords="offset points", ha="center", fontsize=10)
        ax.legend(loc="upper left", fontsize=10, ncol=2)
    panels[2].set_xticks(list(places), [f"score {s:g}, value {v:g}" for s, v in zip(scores, values)])
    return fig


def matrix(ax, found, rows, columns, title, registers):
    """A matrix whose cells say which lane holds the element; the colour says in which register."""
    board(ax, rows, columns, title)
    for (row, column), (lane, place) in found.items():
        register = int(place) // registers
        cell(ax, row, column, f"{lane:.0f}", {"facecolor": COLOURS[register % 4]}, size=8)
    ax.set_xticks(range(0, columns, 4))
    ax.set_yticks(range(0, rows, 4))
    ax.tick_params(labelsize=9)


def registers_legend(ax, names, order=(0, 1, 2, 3)):
    """Of a matrix in four quarters, the names arranged as the quarters are; the order is down, then up again and down."""
    patch_legend(ax, {names[i]: {"facecolor": COLOURS[i]} for i in order}, 0.07, 2, 9)


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
    registers_legend(bottom[0], ["b0, keys 0 to 7", "b1, keys 0 to 7", "b0, keys 8 to 15", "b1, keys 8 to 15"], (0, 2, 1, 3))
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
            cell(ax, row, groups[which], str(chunk), {"facecolor": COLOURS[0]} if asked else EMPTY)
        ax.set_xlabel("group of four banks")
    panels[0].set_ylabel("row of the tile")
    return fig


CLASSES = {
    2: ("full", {"facecolor": COLOURS[2]}),
    1: ("boundary", {"facecolor": COLOURS[0], "edgecolor": ON_COLOUR, "linewidth": 1.5, "linestyle": "--"}),
    0: ("beyond", EMPTY),
}


def tile_classes(_rows):
    found = cells("tiles_08")
    rows, columns = (1 + max(place[i] for place in found) for i in (0, 1))
    fig, ax = plt.subplots(figsize=(7.6, 4.9))
    board(ax, rows, columns)
    for (row, column), (kind, loaded) in found.items():
        cell(ax, row, column, "" if loaded else "·", CLASSES[kind][1])
    count = {kind: sum(1 for held in found.values() if held[0] == kind) for kind in CLASSES}
    loaded = sum(1 for held in found.values() if held[1])
    patch_legend(ax, {f"{name}: {count[kind]}": look for kind, (name, look) in CLASSES.items()}, 0.14, 3, 11)
    ax.set_xlabel("key tile")
    ax.set_ylabel("query tile")
    ax.set_title(f"loaded: {loaded} of {len(found)}", fontsize=11)
    return fig


def walks(ax, found, title):
    """A board whose numbers say when the block of a row comes to a tile; a dot, that it never does."""
    rows, columns = (1 + max(place[i] for place in found) for i in (0, 1))
    board(ax, rows, columns, title)
    ax.set_aspect("auto")
    for row in range(rows):
        turn = 0
        for column in range(columns):
            kind, visited = found[row, column]
            turn += visited
            cell(ax, row, column, f"{turn:.0f}" if visited else "·", CLASSES[kind][1])


def tile_walk(_rows):
    fig, panels = plt.subplots(2, 1, figsize=(7.2, 6.6), gridspec_kw={"height_ratios": (5, 3)})
    words = ("walk_05", "step 05: 64 x 64, every tile"), ("walk_08", "step 08: 128 x 64, up to the diagonal")
    for ax, (name, title) in zip(panels, words):
        walks(ax, cells(name), title)
        ax.set_ylabel("query tile: a block")
    panels[1].set_xlabel("key tile; the number says when the block comes to it, a dot: never")
    patch_legend(panels[1], dict(CLASSES.values()), 0.32, 3, 11)
    return fig


PICTURES = {
    picture.__name__: picture
    for picture in (online_output, mma_fragments, swizzle, tile_classes, tile_walk)
}
