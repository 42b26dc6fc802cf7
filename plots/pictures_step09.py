"""Drawings of step 09: its five products, its warps between two barriers, the way of its blocks. Tile shapes are read
from the step's own launches, visited tiles from plots/diagrams.csv."""

import re

import results
from drawing import INK, ON_COLOUR, STYLES, Skip, plt
from pictures_lessons import CLASSES, EMPTY, bare, cells, patch_legend, walks

SOURCE = results.ROOT / "steps" / "09_fa2_backward" / "backward.cu"
COLOURS = [look["color"] for look in STYLES]
LAUNCH = re.compile(
    r"if \(head_dim <= (\d+)\)\s+return launch_backward<T, \1, (\d+), (\d+), (\d+), (\d+), (\d+), (true|false)>"
)


def launches():
    """{D: (queries, keys, warps, stages, paired)} of the tiles that the step launches where there is room for them."""
    if not SOURCE.is_file():
        raise Skip(f"{SOURCE} is missing")
    found = LAUNCH.findall(SOURCE.read_text(encoding="utf-8"))
    tiles = {int(d): (int(q), int(kv), int(warps), int(stages), paired == "true") for d, q, kv, warps, stages, _, paired in found}
    if not {64, 128} <= tiles.keys():
        raise Skip(f"{SOURCE.name} launches no tiles for D = 64 and D = 128 that this drawing knows")
    return tiles


# Left to right: operand, operand, product, and whether the product is a sum that stays.
PRODUCTS = (
    ("K", "Qᵀ", "Sᵀ", False),
    ("Pᵀ", "dO", "dV", True),
    ("V", "dOᵀ", "dPᵀ", False),
    ("dSᵀ", "Q", "dK", True),
    ("dS", "K", "dQ", True),
)
# name -> (rows, columns) in words of the tile
SHAPES = {
    "K": "kd", "V": "kd", "dV": "kd", "dK": "kd", "Q": "qd", "dO": "qd", "dQ": "qd", "Qᵀ": "dq", "dOᵀ": "dq",
    "Sᵀ": "kq", "Pᵀ": "kq", "dPᵀ": "kq", "dSᵀ": "kq", "dS": "qk",
}  # fmt: skip
# Where a matrix lies while it is multiplied.
SHARED, REGISTERS, MEMORY = ("shared", COLOURS[1]), ("registers", COLOURS[0]), ("global", COLOURS[2])
PLACES = {name: SHARED for name in ("K", "V", "Q", "dO", "Qᵀ", "dOᵀ", "dS")} | {"dQ": MEMORY}


def backward_products(_rows):
    queries, keys, *_ = launches()[64]
    size = {"k": keys / 64, "q": queries / 64, "d": 64 / 64}
    fig, ax = plt.subplots(figsize=(7.6, 8.2))
    bare(ax)

    def draw(name, x, y):
        rows, columns = (size[letter] for letter in SHAPES[name])
        place, colour = PLACES.get(name, REGISTERS)
        ax.add_patch(plt.Rectangle((x, y - rows / 2), columns, rows, facecolor=colour))
        inside = {"ha": "center", "va": "center", "color": ON_COLOUR}
        ax.text(x + columns / 2, y - 0.1, name, fontsize=13, **inside)
        ax.text(x + columns / 2, y + 0.2, place, fontsize=9, **inside)

    y = 0.0
    middles = []
    for left, right, product, stays in PRODUCTS:
        height = max(size[SHAPES[name][0]] for name in (left, right, product))
        y += height / 2
        draw(left, 2 - size[SHAPES[left][1]], y)
        ax.text(2.3, y, "×", ha="center", va="center", fontsize=14)
        draw(right, 2.6, y)
        ax.text(4.35, y, "added to" if stays else "=", ha="center", va="center", fontsize=11)
        draw(product, 5.1, y)
        middles.append(y)
        y += height / 2 + 0.35
    words = (
        (middles[0], "Pᵀ = 2^(Sᵀ scale log₂e + row_shift):\nrounded, it is the operand below"),
        (middles[2], "dSᵀ = Pᵀ o (dPᵀ - delta):\nrounded, it is the operand below,\nand is stored to shared memory"),
        (middles[4], "one tile late, transposed\nby ldmatrix; over the keys\nof all warps"),
    )
    for place, text in words:
        ax.text(6.4, place, text, va="center", fontsize=10)
    ax.set_xlim(-0.1, 10.4)
    ax.set_ylim(y, -0.1)
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([])
    words = ((SHARED, "shared memory"), (REGISTERS, "registers"), (MEMORY, "atomic additions to global memory"))
    patch_legend(ax, {name: {"facecolor": colour} for (_, colour), name in words}, 0, 3, 10)
    ax.set_title(f"a tile of {queries} queries and {keys} keys, D = 64", fontsize=11)
    return fig


ARRIVES = ("", 0)  # where a warp tells the others that its part of the tile is done


def timeline(head_dim, queries, keys, warps, stages, paired):
    """For every warp the (name, mma instructions) of one tile, in the order of the kernel's loop."""
    groups = warps // 2 if paired else warps
    product = (keys // groups) * queries * head_dim // (16 * 8 * 16)
    dq = ("dQ", queries * keys * head_dim // (16 * 8 * 16) // warps)
    lines = []
    for warp in range(warps):
        first, second = [("Sᵀ", product), ("exp", 0), ("dV", product)], [("dPᵀ", product), ("dSᵀ", 0), ("dK", product)]
        parts = first + second if not paired else first if warp < groups else second
        # With a third stage the last product comes after the arrival.
        end = len(parts) - 1 if stages > 2 else len(parts)
        if warp < warps // 2:
            lines.append([*parts[:end], dq, ARRIVES, *parts[end:]])
        else:
            lines.append([dq, *parts[:end], ARRIVES, *parts[end:]])
    return lines


def backward_warps(_rows):
    colours = {"Sᵀ": COLOURS[1], "dV": COLOURS[1], "dPᵀ": COLOURS[3], "dK": COLOURS[3], "dQ": COLOURS[2]}
    tiles = launches()
    fig, panels = plt.subplots(2, 1, figsize=(7.6, 6.4), gridspec_kw={"height_ratios": (tiles[64][2], tiles[128][2])})
    element_wise = 24  # how wide what is no product is drawn; its time is not known from here
    for ax, head_dim in zip(panels, (64, 128)):
        queries, keys, warps, stages, paired = tiles[head_dim]
        bare(ax)
        for warp, parts in enumerate(timeline(head_dim, *tiles[head_dim])):
            x = 0
            for name, mma in parts:
                if (name, mma) == ARRIVES:
                    ax.plot([x, x], [warp - 0.48, warp + 0.48], color=INK, linewidth=4, solid_capstyle="butt")
                    continue
                width = mma or element_wise
                look = {"facecolor": colours[name], "edgecolor": ON_COLOUR, "linewidth": 0.6} if mma else EMPTY
                ax.barh(warp, width, left=x, height=0.8, **look)
                text, colour = (f"{name} {mma}", ON_COLOUR) if mma else (name, INK)
                ax.text(x + width / 2, warp, text, ha="center", va="center", fontsize=9, color=colour)
                x += width
        ax.set_yticks(range(warps), [f"warp {warp}" for warp in range(warps)])
        ax.invert_yaxis()
        ax.set_xticks([])
        pairs = ", in pairs that share 32 keys" if paired else ", each with 32 keys of its own"
        ax.set_title(f"D = {head_dim}: {queries} queries x {keys} keys, {warps} warps{pairs}", fontsize=11)
    panels[1].set_xlabel(
        "one tile; numbers are mma instructions; dQ is that of the tile before;\n"
        "bar: the warp arrives, and will wait for the others at the right end"
    )
    return fig


def backward_walk(_rows):
    found = cells("walk_09")
    fig, ax = plt.subplots(figsize=(7.6, 4.6))
    walked = sum(1 for _, loaded in found.values() if loaded)
    walks(ax, found, f"walked: {walked} of {len(found)}")
    ax.set_xlabel("query tile; the number says when the block comes to it, a dot: never")
    ax.set_ylabel("key tile: a block")
    patch_legend(ax, dict(CLASSES.values()), 0.16, 3, 11)
    return fig


PICTURES = {picture.__name__: picture for picture in (backward_products, backward_warps, backward_walk)}
