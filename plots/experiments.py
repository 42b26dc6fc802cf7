"""Tables of plots/data/experiments: what a step's author tried, what each try gave, and whether it stayed.

A file has one line a try, in the order tried: head_dim, change (in words), geomean and min (of the ratio to the peer
over the problems; min may be empty), taken (yes or no), machine, date.
"""

import csv

import results

FILES = results.DATA / "experiments"
COLUMNS = ("head_dim", "change", "geomean", "min", "taken", "machine", "date")


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise results.ResultsError(f"{path} must begin with the line {','.join(COLUMNS)}")
        rows = list(reader)
    for line, row in enumerate(rows, 2):
        try:
            numbers = [float(row[name]) for name in ("geomean", "min") if row[name]]
        except (TypeError, ValueError):
            numbers = []
        if not row["geomean"] or not numbers or not all(0 < x < 100 for x in numbers) or row["taken"] not in ("yes", "no"):
            raise results.ResultsError(f"{path}, line {line}: geomean and min are ratios, taken is yes or no")
    return rows


def table(rows):
    """(header, lines): a try a line, with what it gave beside what was there before."""
    lines = []
    before = {}  # D -> the latest ratio of what was kept
    for row in rows:
        head_dim, ratio = row["head_dim"], float(row["geomean"])
        gain = f"{100 * (ratio / before[head_dim] - 1):+.0f} %" if head_dim in before and row["taken"] == "yes" else ""
        if row["taken"] == "yes":
            before[head_dim] = ratio
        name = row["change"] if row["taken"] == "yes" else f"*{row['change']}*"
        worst = f"{float(row['min']):.2f}" if row["min"] else ""
        lines.append([head_dim, name, f"{ratio:.2f}", worst, gain, "" if row["taken"] == "yes" else "left out"])
    return ["D", "change", "ratio", "lowest", "gain", ""], lines


def measured_on(rows):
    return f"Measured on {rows[0]['machine']}, {rows[0]['date']}."
