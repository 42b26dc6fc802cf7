"""Fills the generated blocks of README.md, steps/*/README.md and docs/*.md from the committed results.

    readme.py            writes them
    readme.py --check    says which are out of date, and exits 1 if any is

A block stands between <!-- generated:NAME --> and <!-- /generated -->. NAME is one of

    ladder            every step on one problem
    against_flash     the last steps' speed against SDPA flash, summed up
    peers             steps and PyTorch's attention in one process
    measure-NN        the measurements of step NN
    ablation-NN       step NN with one idea undone at a time
    backward_table    step 09's backward and PyTorch's in one process
    backward_summary  its ratios summed up
    forward_backward  the same with the forward
    backward_modes    step 09's fast and deterministic mode
    gradient_error    errors of gradients against double precision, by type and length
    gradient_spread   how far repeated runs differ
    profile           what Nsight Compute says about every step
    lies              the same kernels timed wrongly and rightly
    counted-profiled  what the emulator counts beside what Nsight Compute says
    targets-NN        step NN's profile against its targets
    experiments-...   what was tried for a step, from plots/data/experiments: backward
    study-...         a table of docs/numerics.md: scale, p, mask, growth, logits, equal-keys
    picture-...       a picture of GPU results, once it is drawn: gpu_ladder, share_of_sdpa, tile_heatmap, ablation,
                      memory_gpu, roofline, backward_share, backward_modes, gradient_error; training: the losses of
                      plots/train.py
"""

import argparse
import os
import pathlib
import re
import sys

import experiments
import gpu_tables
import ladder
import results
import studies

BLOCK = re.compile(r"(<!-- generated:([\w-]+) -->\n)(.*?)(<!-- /generated -->)", re.DOTALL)
NOTHING = "No results are committed yet.\n"
IMAGES = results.ROOT / "plots" / "img"
PICTURES = {  # name -> what stands in for the picture
    "gpu_ladder": "TFLOP/s of the forward of every GPU step, beside PyTorch's and the ceilings",
    "share_of_sdpa": "Speed against SDPA flash over N, with a causal mask and without",
    "tile_heatmap": "TFLOP/s of every tile shape",
    "ablation": "What each idea gives: the change of speed without it",
    "memory_gpu": "Memory beyond Q, K, V and O, over N: that of step 04 and of unfused cuBLAS grows, that of L alone does not",
    "roofline": "Every step on the GPU's roofline, from profiled bytes",
    "backward_share": "Speed of the backward against SDPA flash's over N, with a causal mask and without",
    "backward_modes": "Speed of the deterministic mode as a share of the fast one's, over N",
    "gradient_error": "Largest relative error of the gradients against double precision, over N, beside SDPA flash's",
    "training": "Losses of a small transformer trained with this attention and with PyTorch's",
}


def table_block(all_rows, make, wanted):
    """One table per results file that has such rows, with the machine it was measured on."""
    parts = []
    for rows in all_rows:
        mine = [row for row in rows if wanted(row)]
        header, lines = make(mine) if mine else ([], [])
        if lines:
            parts.append(f"{ladder.measured_on(mine)}\n\n{ladder.markdown(header, lines)}\n")
    return "\n".join(parts) or NOTHING


def study_block(all_rows, name):
    """The study is the same on every machine."""
    rows = [row for rows in all_rows for row in rows if row["op"] == "study"]
    header, lines = studies.TABLES[name](rows)
    return f"{ladder.markdown(header, lines)}\n" if lines else NOTHING


def experiments_block(name):
    path = experiments.FILES / f"{name}.csv"
    if not path.is_file():
        return None
    rows = experiments.read(path)
    return f"{experiments.measured_on(rows)}\n\n{ladder.markdown(*experiments.table(rows))}\n" if rows else NOTHING


def linked(header, lines):
    """Step numbers as links to their directories."""
    directories = {path.name[:2]: path.name for path in (results.ROOT / "steps").glob("[0-9][0-9]_*")}
    if not lines:
        return header, lines
    column = header.index("step")

    def link(line):
        name = directories.get(line[column])
        text = f"[{line[column]}](steps/{name})" if name else line[column]
        return [*line[:column], text, *line[column + 1 :]]

    return header, [link(line) for line in lines]


def measure_block(all_rows, step):
    parts = []
    for rows in all_rows:
        mine = [row for row in rows if row["step"] == step]
        tables = ladder.step_tables(mine, step) if mine else []
        if not tables:
            continue
        parts.append(ladder.measured_on(mine) + "\n")
        parts += [f"{title}:\n\n{ladder.markdown(header, lines)}\n" for title, header, lines in tables]
    return "\n".join(parts) or NOTHING


def picture_block(name, path):
    picture = IMAGES / f"{name}.svg"
    return f"![{PICTURES[name]}]({os.path.relpath(picture, path.parent)})\n" if picture.exists() else NOTHING


def beside_or_peer(row):
    return not row["step"] or ladder.is_beside_peers(row)


def block(name, path, all_rows):
    """The contents of a block of the text at a path; None when there is no such name."""
    kind, _, rest = name.partition("-")
    if kind == "picture" and rest in PICTURES:
        return picture_block(rest, path)
    if kind == "study" and rest in studies.TABLES:
        return study_block(all_rows, rest)
    if kind == "experiments":
        return experiments_block(rest)
    if kind == "measure" and re.fullmatch(r"\d\d", rest):
        return measure_block(all_rows, rest)
    if kind in ("ablation", "targets") and re.fullmatch(r"\d\d", rest):
        op = "ablation" if kind == "ablation" else "profile"
        make = gpu_tables.ablation if kind == "ablation" else lambda rows: gpu_tables.targets(rows, rest)
        return table_block(all_rows, make, lambda row: (row["op"], row["step"]) == (op, rest))
    tables = {
        "ladder": (lambda rows: linked(*ladder.ladder(rows)), lambda row: row["step"]),
        "peers": (gpu_tables.peers, lambda row: row["op"] != "lie" and (not row["step"] or row["variant"] == gpu_tables.BESIDE_PEERS)),
        "against_flash": (gpu_tables.against_flash, lambda row: row["backend"] == "cuda" and row["dtype"] == "bf16"),
        "profile": (gpu_tables.profile, lambda row: row["op"] == "profile"),
        "backward_table": (gpu_tables.backward, lambda row: row["op"] == "backward" and beside_or_peer(row)),
        "backward_summary": (gpu_tables.backward_summary, lambda row: row["op"] == "backward" and beside_or_peer(row)),
        "backward_modes": (gpu_tables.backward_modes, lambda row: row["op"] == "backward" and beside_or_peer(row)),
        **{
            name: (getattr(gpu_tables, name), lambda row, name=name: row["op"] == name)
            for name in ("forward_backward", "gradient_error", "gradient_spread")
        },
        "lies": (gpu_tables.lies, lambda row: row["op"] == "lie"),
        "counted-profiled": (gpu_tables.compared, lambda row: row["op"] == "profile"),
    }
    return table_block(all_rows, *tables[name]) if name in tables else None


def filled(text, path, all_rows):
    """The text with its blocks made anew."""

    def replace(match):
        begin, name, _, end = match.groups()
        body = block(name, path, all_rows)
        if body is None:
            raise results.ResultsError(f"{path} has a generated block {name!r}; plots/readme.py lists those it knows")
        return f"{begin}{body}{end}"

    return BLOCK.sub(replace, text)


def readmes():
    root = results.ROOT
    return [root / "README.md", *sorted((root / "steps").glob("*/README.md")), *sorted((root / "docs").glob("*.md"))]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a block is out of date")
    options = parser.parse_args(arguments)
    all_rows = [results.read(path) for path in results.committed()]
    stale = []
    for path in readmes():
        text = path.read_text(encoding="utf-8")
        new = filled(text, path, all_rows)
        if new != text:
            stale.append(path)
            if not options.check:
                path.write_text(new, encoding="utf-8")
    for path in stale:
        verb = "is out of date (plots/readme.py writes it)" if options.check else "written"
        print(f"{pathlib.Path(path).relative_to(results.ROOT)} {verb}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except results.ResultsError as error:
        sys.exit(f"error: {error}")
