"""Reads results files: long-form CSV, one row per measured number, '.' as the decimal mark."""

import csv
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT / "plots" / "data"
LOCAL = DATA / "local"

COLUMNS = (
    "step variant backend op dtype B Hq Hkv Nq Nk D mask diagonal metric unit median p10 p90 reps "
    "machine device compiler flags commit date"
).split()
SIZES = ("B", "Hq", "Hkv", "Nq", "Nk", "D", "reps")
NUMBERS = ("median", "p10", "p90")

# The columns that say what was run; rows that agree in them are numbers of one case.
CASE = COLUMNS[: COLUMNS.index("metric")]


class ResultsError(Exception):
    """A results file that cannot be used; the text is one sentence that names it."""


def _convert(row, path, line):
    for names, kind, words in ((SIZES, int, "a whole number"), (NUMBERS, float, "a number with '.' as the decimal mark")):
        for name in names:
            try:
                row[name] = kind(row[name])
            except (TypeError, ValueError):
                raise ResultsError(f"{path}, line {line}: {name} is {row[name]!r}, not {words}") from None
    return row


def read(path):
    """The rows of one results file as dictionaries, sizes and numbers converted."""
    path = pathlib.Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path} is not a text file in UTF-8") from None
    if not text.strip():
        raise ResultsError(f"{path} is empty; a results file begins with the line {','.join(COLUMNS)}")
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in COLUMNS if name not in reader.fieldnames]
    if missing:
        raise ResultsError(f"{path} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    rows = []
    for row in reader:
        if None in row or None in row.values():
            raise ResultsError(f"{path}, line {reader.line_num}: it has not as many fields as the header")
        rows.append(_convert(row, path, reader.line_num))
    if not rows:
        raise ResultsError(f"{path} has a header but no results")
    return rows


def committed():
    """Results files that belong to the repository, one per machine."""
    return sorted(DATA.glob("*.csv"))


def local():
    """Results files that runs on this machine left."""
    return sorted(LOCAL.glob("*.csv"))


def cases(rows):
    """Groups rows into cases, in order: a list of ({case columns and environment}, {metric: row})."""
    groups = {}
    for row in rows:
        key = tuple(row[name] for name in CASE) + (row["machine"], row["device"])
        groups.setdefault(key, (row, {}))[1][row["metric"]] = row
    return list(groups.values())


def is_square(row):
    return row["Nq"] == row["Nk"]


def series(rows, metric, **wanted):
    """Rows of one metric whose columns have the wanted values, sorted by Nk."""
    found = [row for row in rows if row["metric"] == metric and all(row[k] == v for k, v in wanted.items())]
    return sorted(found, key=lambda row: row["Nk"])
