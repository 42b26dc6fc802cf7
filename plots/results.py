"""Reads results files: long-form CSV, one row per measured number, '.' as the decimal mark."""

import csv
import io
import math
import pathlib
import re
import tempfile
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT / "plots" / "data"
LOCAL = DATA / "local"

COLUMNS = (
    "step variant backend op dtype B Hq Hkv Nq Nk D mask diagonal metric unit median p10 p90 reps "
    "machine device compiler flags commit date"
).split()
SIZES = ("B", "Hq", "Hkv", "Nq", "Nk", "D", "reps")
NUMBERS = ("median", "p10", "p90")
NEVER_ZERO = ("time", "rate", "bandwidth", "ratio_to_sdpa_flash")  # metrics

# The columns that say what was run; rows that agree in them are numbers of one case.
CASE = COLUMNS[: COLUMNS.index("metric")]


class ResultsError(Exception):
    """A results file that cannot be used; the text is one sentence that names it."""


def writable_directory(path):
    """Makes sure that files can be made in a directory; OSError says why not."""
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
        pass


def _size(text):
    size = int(text)
    if not 0 <= size < 2**31:
        raise ValueError
    return size


def _measured(text):
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError
    return number


def _convert(row, path, line):
    for names, kind, words in (
        (SIZES, _size, "a whole number from 0 to 2147483647"),
        (NUMBERS, _measured, "a finite number >= 0 with '.' as the decimal mark"),
    ):
        for name in names:
            try:
                row[name] = kind(row[name])
            except ValueError:
                raise ResultsError(f"{path}, line {line}: {name} is {row[name]!r:.60}, not {words}") from None
    if row["metric"] in NEVER_ZERO and row["median"] == 0:
        raise ResultsError(f"{path}, line {line}: median is 0, which no {row['metric']} is")
    for name in COLUMNS:
        if any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in str(row[name])):
            raise ResultsError(f"{path}, line {line}: {name} holds a control character")
    if row["mask"] not in ("none", "causal"):
        raise ResultsError(f"{path}, line {line}: mask is {row['mask']!r:.60}, not none or causal")
    if row["mask"] == "causal" and not re.fullmatch(r"[+-]?[0-9]{1,19}", row["diagonal"]):
        raise ResultsError(f"{path}, line {line}: diagonal is {row['diagonal']!r:.60}, not a whole number")
    return row


def _rows(reader, path):
    missing = [name for name in COLUMNS if name not in reader.fieldnames]
    if missing:
        raise ResultsError(f"{path} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    for name in COLUMNS:
        if reader.fieldnames.count(name) > 1:
            raise ResultsError(f"{path} has the column {name} twice")
    for row in reader:
        if None in row or None in row.values():
            raise ResultsError(f"{path}, line {reader.line_num}: it has not as many fields as the header")
        yield _convert(row, path, reader.line_num)


def read(path):
    """The rows of one results file as dictionaries, sizes and numbers converted."""
    path = pathlib.Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path} is not a text file in UTF-8") from None
    if not text.strip():
        raise ResultsError(f"{path} is empty; a results file begins with the line {','.join(COLUMNS)}")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = list(_rows(reader, path))
    except csv.Error as error:
        raise ResultsError(f"{path}, line {reader.line_num}: {error}") from None
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
