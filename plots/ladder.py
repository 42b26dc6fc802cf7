"""Tables out of results: the ladder with one line per version of every step, and a step's own measurements."""

import gpu_tables
import results

IDEAS = {
    "01": "safe softmax",
    "02": "online softmax",
    "03": "tiled attention",
    "04": "naive GPU attention",
    "05": "fused flash forward",
    "06": "tensor cores",
    "07": "asynchronous pipeline",
    "08": "FlashAttention-2 forward",
    "09": "FlashAttention-2 backward",
}


def digits(value, significant=3):
    """Significant digits without an exponent, and no more decimals than they need."""
    if value == 0:
        return "0"
    magnitude = len(f"{abs(value):.0f}") if abs(value) >= 1 else 0
    text = f"{value:.{max(0, significant - magnitude)}f}"
    if text.strip("-0.") == "":  # too small for that many decimals
        text = f"{value:.{significant}g}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(row):
    """A measured number with its unit, scaled for reading."""
    value, unit = row["median"], row["unit"]
    if unit == "bytes":
        for prefix in ("bytes", "KiB", "MiB", "GiB", "TiB"):
            if abs(value) < 1024 or prefix == "TiB":
                return f"{digits(value)} {prefix}"
            value /= 1024
    if unit == "GFLOP/s" and value >= 1000:
        value, unit = value / 1000, "TFLOP/s"
    if unit == "ms" and value >= 1000:
        value, unit = value / 1000, "s"
    elif unit == "ms" and value < 0.1:
        value, unit = value * 1000, "us"
    return f"{digits(value)} {unit}".strip()


def shown(metrics, name, text=quantity):
    """A cell of a table: empty for what was not measured."""
    return text(metrics[name]) if name in metrics else ""


def percent(row):
    return f"{100 * row['median']:.0f} %"


def problem(row):
    """The case in words: 'B1 H8/2 N1024x4096 D64 causal+3072'."""
    if row["op"] == "softmax":
        return f"{row['Nq']} x {row['Nk']} numbers"

    def pair(a, b, between):
        return f"{a}" if a == b else f"{a}{between}{b}"

    text = f"N = {pair(row['Nq'], row['Nk'], ' x ')}, D = {row['D']}"
    if row["Hq"] > 1 or row["Hkv"] > 1:
        text = f"H = {pair(row['Hq'], row['Hkv'], '/')}, " + text
    if row["B"] > 1:
        text = f"B = {row['B']}, " + text
    if row["mask"] == "causal":
        text += ", causal" + (f" {int(row['diagonal']):+d}" if int(row["diagonal"]) else "")
    return text


def _work(case):
    return case["B"] * case["Hq"] * case["Nq"] * case["Nk"]


def _same_problem(case):
    return tuple(case[name] for name in results.CASE if name != "variant")


def is_beside_peers(case):
    return case["variant"].endswith(gpu_tables.BESIDE_PEERS)


def version(case):
    """A version's name, the same beside peers: 'fast' of 'fast beside peers'."""
    return case["variant"].removesuffix(gpu_tables.BESIDE_PEERS).strip() or "forward"


def headline(step_cases):
    """The cases that stand for a step: one unmasked problem, in bf16 where there is one, that most versions ran; the
    largest of those. Of a step that has a backward it is the backward."""
    usable = [c for c in step_cases if c[0]["op"] != "peak" and {"time", "traffic_per_launch"} & c[1].keys()]
    own = [c for c in usable if not is_beside_peers(c[0])]
    # Beside its peers a step makes the same call again: it stands for the step where the bench's own row is missing.
    if any(c[0]["op"] in ("forward", "backward") for c in own):
        usable = own
    for op in ("backward", "forward", "softmax"):
        of_op = [c for c in usable if c[0]["op"] == op and c[0]["mask"] == "none"]
        if not of_op:
            continue
        groups = {}
        for case in of_op:
            groups.setdefault(_same_problem(case[0]), []).append(case)

        def rank(group):
            first = group[0][0]
            # On a GPU every step but the first is timed at longer lengths too; the ladder compares at one.
            is_common = first["backend"] == "cuda" and first["Nk"] == 4096
            wide = 128 if is_common else 64
            return first["dtype"] == "bf16", is_common, len(group), first["D"] == wide, _work(first)

        return max(groups.values(), key=rank)
    return []


def _counted(metrics, level):
    """Counted traffic, with its formula behind it where that says something else."""
    text = shown(metrics, f"traffic_{level}")
    model = metrics.get(f"model_{level}")
    if text and model:
        text += " = formula" if model["median"] == metrics[f"traffic_{level}"]["median"] else f" (formula: {quantity(model)})"
    return text


def _rate(metrics):
    return shown(metrics, "rate") or shown(metrics, "bandwidth")


def _bank_conflicts(metrics):
    """Of a kernel that uses shared memory."""
    if not metrics.get("shared_bytes", {"median": 0})["median"]:
        return ""
    return _number(metrics, "shared_bank_conflicts")


LADDER_COLUMNS = {
    "step": lambda case, metrics: case["step"],
    "idea": lambda case, metrics: IDEAS.get(case["step"], ""),
    "version": lambda case, metrics: version(case),
    "problem": lambda case, metrics: f"{problem(case)}, {case['dtype']}",
    "time": lambda case, metrics: shown(metrics, "time"),
    "rate": lambda case, metrics: _rate(metrics),
    "of SDPA flash": lambda case, metrics: shown(metrics, "ratio_to_sdpa_flash", percent),
    "of the peak": lambda case, metrics: shown(metrics, "share_of_peak"),
    "extra memory": lambda case, metrics: shown(metrics, "extra_memory"),
    "traffic per block": lambda case, metrics: _counted(metrics, "per_block"),
    "traffic per launch": lambda case, metrics: _counted(metrics, "per_launch"),
    "bank conflicts": lambda case, metrics: _bank_conflicts(metrics),
}


def _without_empty_columns(header, lines):
    kept = [i for i in range(len(header)) if any(line[i] for line in lines)]
    return [header[i] for i in kept], [[line[i] for i in kept] for line in lines]


def ladder(rows):
    """(header, lines) of the ladder's table."""
    all_cases = results.cases(rows)
    lines = []
    for step in sorted({case["step"] for case, _ in all_cases if case["step"]}):
        mine = [c for c in all_cases if c[0]["step"] == step]
        # The ratio to a peer was measured in one process with it, so it stands in a row of its own.
        beside = {(version(c), *_same_problem(c)): m for c, m in mine if is_beside_peers(c)}
        for case, metrics in headline(mine):
            name = "forward" if case["variant"] == "three kernels" else version(case)
            ratio = beside.get((name, *_same_problem(case)), {}).get("ratio_to_sdpa_flash")
            if ratio:
                metrics = {**metrics, "ratio_to_sdpa_flash": ratio}
            lines.append([column(case, metrics) for column in LADDER_COLUMNS.values()])
    return _without_empty_columns(list(LADDER_COLUMNS), lines)


TIMED_COLUMNS = ("step", "version", "problem", "time", "rate", "of SDPA flash", "of the peak", "extra memory")

EMULATOR_COLUMNS = {
    "step": lambda case, metrics: case["step"] + ("b" if case["op"] == "backward" else ""),
    "mask": lambda case, metrics: case["mask"],
    "issued": lambda case, metrics: shown(metrics, "traffic_issued"),
    "per block": lambda case, metrics: _with_sign(metrics, "per_block"),
    "per launch": lambda case, metrics: _with_sign(metrics, "per_launch"),
    "sectors": lambda case, metrics: _number(metrics, "sectors"),
    "shared": lambda case, metrics: shown(metrics, "shared_bytes"),
    "conflicts": lambda case, metrics: _number(metrics, "shared_bank_conflicts"),
    "mma": lambda case, metrics: _number(metrics, "mma"),
    "exp": lambda case, metrics: _number(metrics, "exp2"),
    "barriers": lambda case, metrics: _number(metrics, "barriers"),
}

EMULATOR_WORDS = """\
09b          the backward
issued       bytes that all loads and stores of device memory ask for
per block    each byte once for every block that touches it; = is equal to the lesson's formula
per launch   each byte once for every kernel: what a perfect cache would leave for the memory
sectors      pieces of 32 bytes that the warps' requests need: issued / 32 when all are used whole
shared       bytes that loads and stores of shared memory ask for
conflicts    passes over shared memory that are repeated because lanes meet in a bank
mma, exp     instructions of the tensor cores; exponentials
barriers     __syncthreads, added up over the blocks"""


def _number(metrics, name):
    return f"{metrics[name]['median']:.0f}" if name in metrics else "0"


def _with_sign(metrics, level):
    text = shown(metrics, f"traffic_{level}")
    model = metrics.get(f"model_{level}")
    return text + (" =" if text and model and model["median"] == metrics[f"traffic_{level}"]["median"] else "")


def emulator(rows):
    """(problem, header, lines): what the emulator counted for the first version of every GPU step on one problem, with
    and without a causal mask. The lines are empty where nothing was counted."""
    ops = ("forward", "backward")
    found = [c for c in results.cases(rows) if c[0]["op"] in ops and {"traffic_issued", "sectors"} <= c[1].keys()]
    found = [c for c in found if (c[0]["dtype"], c[0]["D"]) == ("bf16", 64)]
    lengths = {case["Nk"] for case, _ in found if case["mask"] == "causal"}
    if not lengths:
        return "", list(EMULATOR_COLUMNS), []
    first = {(case["step"], case["op"]): case["variant"] for case, _ in reversed(found)}
    chosen = [c for c in found if c[0]["Nk"] == max(lengths) and c[0]["variant"] == first[c[0]["step"], c[0]["op"]]]
    chosen.sort(key=lambda c: (c[0]["step"], ops.index(c[0]["op"]), c[0]["mask"] == "causal"))
    lines = [[column(case, metrics) for column in EMULATOR_COLUMNS.values()] for case, metrics in chosen]
    return f"one head, N = {max(lengths)}, D = 64, bf16", list(EMULATOR_COLUMNS), lines


def terminal(rows):
    """The ladder for a terminal of 100 columns: a list of (title, header, lines, words below)."""
    header, lines = ladder(rows)
    kept = [header.index(name) for name in TIMED_COLUMNS if name in header]
    timed = [[line[i] for i in kept] for line in lines if "time" in header and line[header.index("time")]]
    tables = [("The ladder, timed", [header[i] for i in kept], timed, "")] if timed else []
    problem_, header, lines = emulator(rows)
    if lines:
        tables.append((f"The ladder, counted by the emulator: {problem_}", header, lines, EMULATOR_WORDS))
    return tables


def _types_merged(header, lines):
    """Lines whose problems, 'words, bf16' and 'words, fp16', differ in the type alone become one: 'words, bf16 and fp16'."""
    column, merged = header.index("problem"), {}
    for line in lines:
        words, _, dtype = line[column].rpartition(", ")
        merged.setdefault((*line[:column], words, *line[column + 1 :]), []).append(dtype)
    return header, [
        [*line[:column], f"{line[column]}, {' and '.join(types)}", *line[column + 1 :]] for line, types in merged.items()
    ]


def _pivot(cases_, cell):
    """Problems down, versions across."""
    versions = list(dict.fromkeys(case["variant"] for case, _ in cases_))
    table = {}
    for case, metrics in cases_:
        table.setdefault(f"{problem(case)}, {case['dtype']}", {})[case["variant"]] = cell(metrics)
    return ["problem", *versions], [[name, *(line.get(v, "") for v in versions)] for name, line in table.items()]


def _time_and_rate(metrics):
    parts = shown(metrics, "time"), _rate(metrics), shown(metrics, "share_of_peak")
    return ", ".join(part for part in parts if part)


COUNTED = {
    "traffic_issued": "issued",
    "traffic_per_block": "distinct per block",
    "model_per_block": "formula per block",
    "traffic_per_launch": "distinct per launch",
    "model_per_launch": "formula per launch",
    "traffic": "elements moved",
    "key_value_loads": "K and V loaded",
    "output_loads": "O loaded",
    "output_stores": "O stored",
    "divisions": "divisions",
    "sectors": "sectors of 32 bytes",
    "shared_bytes": "shared memory",
    "shared_bank_conflicts": "bank conflicts",
    "mma": "mma",
    "exp2": "exponentials",
    "barriers": "barriers",
    "mbarrier_phases": "mbarrier phases",
    "atomics": "atomic additions",
}


def _counts(cases_):
    names = [name for name in COUNTED if any(name in metrics for _, metrics in cases_)]
    lines = [
        [case["variant"], f"{problem(case)}, {case['dtype']}"]
        + [shown(metrics, name) for name in names]
        for case, metrics in cases_
    ]
    return ["version", "problem", *(COUNTED[name] for name in names)], lines


def step_tables(rows, step):
    """A step's measurements as a list of (title, header, lines)."""
    mine = [c for c in results.cases(rows) if c[0]["step"] == step]
    mine = [c for c in mine if c[0]["op"] not in ("peak", *gpu_tables.SUMMARIES)]
    mine = [c for c in mine if not is_beside_peers(c[0])]
    tables = []
    overflow = [c for c in mine if "overflow_at" in c[1]]
    if overflow:
        lines = [[case["dtype"], digits(metrics["overflow_at"]["median"], 5)] for case, metrics in overflow]
        tables.append(("Where the naive softmax overflows", ["type", "x"], lines))
    for op in dict.fromkeys(case["op"] for case, _ in mine):
        timed = [c for c in mine if c[0]["op"] == op and "time" in c[1]]
        if timed:
            tables.append((f"Time and rate ({op})", *_pivot(timed, _time_and_rate)))
    memory = [c for c in mine if c[1].get("extra_memory", {"median": 0})["median"] > 0 and c[0]["mask"] == "none"]
    if memory:
        tables.append(("Extra memory", *_types_merged(*_pivot(memory, lambda metrics: quantity(metrics["extra_memory"])))))
    beside = [row for row in rows if row["step"] == step and row["variant"] == gpu_tables.BESIDE_PEERS]
    for title, table, some in (
        ("Beside PyTorch in one process: TFLOP/s, and in brackets the ratio to SDPA flash", gpu_tables.peers, beside),
        ("Tile shapes", gpu_tables.sweep, [row for row in rows if row["step"] == step and row["op"] == "sweep"]),
    ):
        header, lines = table(some)
        if lines:
            tables.append((title, header, lines))
    counted = [c for c in mine if {"traffic", "traffic_issued"} & c[1].keys()]
    if counted:
        tables.append(("Counted", *_types_merged(*_counts(counted))))
    return tables


def measured_on(rows):
    """One line that names machine, compiler, commit and date of some rows."""
    first = rows[0]
    devices, commits = (list(dict.fromkeys(row[name] for row in rows)) for name in ("device", "commit"))
    commits = [commit.replace("+changes", " with changes") for commit in commits]
    return (
        f"Measured on {first['machine']} ({', '.join(devices)}), {first['compiler']}, {first['flags']}, "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}, {first['date']}; medians."
    )


def markdown(header, lines):
    def line(cells):
        return "| " + " | ".join(cells) + " |"

    return "\n".join([line(header), line(["---"] * len(header)), *(line(cells) for cells in lines)])


def plain(header, lines):
    """The same for a terminal: columns aligned, two blanks apart."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in [header, *lines]
    )
