"""The rows of plots/data/study.csv (op = study), and the tables of docs/numerics.md that they make."""

import re

import ladder
import results

SCALE_METHODS = ("scale on bf16 Q", "scale log2(e) on bf16 Q", "scale on fp32 scores", "scale folded into exp2")
LOGIT_METHODS = ("rounding the inputs", "the step, scores in fp32", "the step, scores in the inputs' type")


def of(rows, metric):
    return [row for row in rows if row["op"] == "study" and row["metric"] == metric]


def method_and_case(row):
    """A study's variant is 'METHOD: CASE'; a method may have a colon in it, a case has none."""
    method, colon, case = row["variant"].rpartition(": ")
    if not colon:
        raise results.ResultsError(f"the variant of a study is {row['variant']!r:.60}, not 'METHOD: CASE'")
    return method, case


def size_of(row):
    """The logit size that a case names."""
    found = re.search(r"logit(?: size)? ([0-9][0-9.e+]*)(?:,|$)", row["variant"])
    try:
        return float(found[1])
    except (TypeError, ValueError):
        raise results.ResultsError(f"the variant of a study is {row['variant']!r:.60} and names no logit size") from None


def by_size(rows):
    """{method: {logit size: median}}."""
    table = {}
    for row in rows:
        table.setdefault(method_and_case(row)[0], {})[size_of(row)] = row["median"]
    return table


def error(value):
    """Two digits: 1.9e-3."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def number(x):
    """1, 100, 1e6."""
    return f"{x:g}" if x < 1e5 else re.sub(r"e\+?0?", "e", f"{x:g}")


def pivot(cells, first, columns=None):
    """Methods down, cases across, from {(method, case): text}, in order of appearance."""
    methods = list(dict.fromkeys(method for method, _ in cells))
    columns = columns or list(dict.fromkeys(case for _, case in cells))
    return [first, *columns], [[method, *(cells.get((method, case), "") for case in columns)] for method in methods]


def errors_by_case(rows, metric, first, column=lambda row: method_and_case(row)[1]):
    cells = {(method_and_case(row)[0], column(row)): error(row["median"]) for row in of(rows, metric)}
    return pivot(cells, first)


def scale(rows):
    return errors_by_case(rows, "scale_error", "where", lambda r: f"D = {r['D']}, logit size {size_of(r):g}")


def p(rows):
    return errors_by_case(rows, "p_error", "what is rounded")


def mask(rows):
    nan = {row["variant"]: row["median"] for row in of(rows, "nan_rows")}
    cells = {}
    for row in of(rows, "wrong_rows"):
        method, case = method_and_case(row)
        wrong = int(row["median"])
        text = "right" if wrong == 0 else f"**{wrong} of {row['Nq']} rows {'NaN' if nan.get(row['variant']) else 'wrong'}**"
        cells[method, case] = text
    return pivot(cells, "a hidden score becomes")


def growth(rows):
    return errors_by_case(
        rows, "growth_error", "O between tiles", lambda r: f"N = {r['Nk']}, {method_and_case(r)[1].split()[0]}"
    )


def logits(rows):
    cells = {
        (f"{method_and_case(row)[0]}, {row['dtype']}", f"{size_of(row):g}"): error(row["median"])
        for row in of(rows, "logit_error")
    }
    for row in of(rows, "logit_nan_rows"):
        if lost := int(row["median"]):
            key = f"{method_and_case(row)[0]}, {row['dtype']}", f"{size_of(row):g}"
            cells[key] = f"**{lost} of {row['Nq']} rows NaN**"
    sizes = sorted({case for _, case in cells}, key=float)
    header, lines = pivot(cells, "relative error of O", sizes)
    method_of = {line[0]: line[0].rsplit(", ", 1)[0] for line in lines}
    order = [*LOGIT_METHODS, *method_of.values()]
    return header, sorted(lines, key=lambda line: (order.index(method_of[line[0]]), line[0]))


def equal_keys(rows):
    spacing = {size_of(row): row["median"] for row in of(rows, "lse_spacing")}
    cells = {("spacing of fp32 at L", number(size)): ladder.digits(value, 3) for size, value in spacing.items()}
    for row in of(rows, "rebuilt_p"):
        cells[method_and_case(row)[0], number(size_of(row))] = ladder.digits(row["median"], 4)
    return pivot(cells, "scaled logit of both keys")


TABLES = {"scale": scale, "p": p, "mask": mask, "growth": growth, "logits": logits, "equal-keys": equal_keys}
