"""Tables of the GPU steps: beside PyTorch, the sweep of tile shapes, the ablation, the profile."""

import statistics

import ladder
import results

BESIDE_PEERS = "beside peers"  # a variant, and the end of those of the backward
FAST, DETERMINISTIC = (f"{mode} {BESIDE_PEERS}" for mode in ("fast", "deterministic"))
FLASH, CUDNN = "SDPA flash", "SDPA cuDNN"
SUMMARIES = (  # ops that have tables of their own
    "sweep",
    "ablation",
    "profile",
    "forward_backward",
    "gradient_error",
    "gradient_spread",
    "lie",
)


def of_op(rows, op):
    return [c for c in results.cases(rows) if c[0]["op"] == op]


def tera(metrics):
    """TFLOP/s; empty where no rate was measured."""
    return ladder.digits(metrics["rate"]["median"] / 1e3) if "rate" in metrics else ""


def rate_and_ratio(metrics):
    """'400 (1.60)': TFLOP/s and the ratio to SDPA flash."""
    return f"{tera(metrics)} ({metrics['ratio_to_sdpa_flash']['median']:.2f})".strip()


def name_of(case):
    return f"step {case['step']}" if case["step"] else case["variant"]


def peers(rows):
    """TFLOP/s and the ratio to SDPA flash, problems down, steps and peers across."""
    beside = [c for c in of_op(rows, "forward") if "ratio_to_sdpa_flash" in c[1]]
    columns = sorted({name_of(case) for case, _ in beside if case["step"]})
    columns += [name for name in dict.fromkeys(case["variant"] for case, _ in beside if not case["step"])]
    table = {}
    for case, metrics in sorted(beside, key=lambda c: (c[0]["D"], c[0]["mask"] == "causal", c[0]["Nk"])):
        key = str(case["D"]), case["mask"], str(case["Nk"])
        table.setdefault(key, {})[name_of(case)] = rate_and_ratio(metrics)
    return ["D", "mask", "N", *columns], [[*key, *(line.get(c, "") for c in columns)] for key, line in table.items()]


def by_problem(case):
    return case[0]["D"], case[0]["mask"] == "causal", case[0]["Nk"]


def backward(rows, op="backward"):
    """TFLOP/s and the ratio to SDPA flash's backward, problems down, both modes and the peers across."""
    beside = [c for c in of_op(rows, op) if "ratio_to_sdpa_flash" in c[1]]
    columns = list(dict.fromkeys(ladder.version(case) for case, _ in beside))
    table = {}
    for case, metrics in sorted(beside, key=by_problem):
        key = str(case["D"]), case["mask"], str(case["Nk"])
        table.setdefault(key, {})[ladder.version(case)] = rate_and_ratio(metrics)
    return ["D", "mask", "N", *columns], [[*key, *(line.get(c, "") for c in columns)] for key, line in table.items()]


def forward_backward(rows):
    return backward(rows, "forward_backward")


def backward_modes(rows):
    """Both modes beside each other: time, speed of the deterministic one as a share of the fast one's, memory."""
    table = {}
    for case, metrics in sorted(of_op(rows, "backward"), key=by_problem):
        if ladder.is_beside_peers(case) and "time" in metrics:
            table.setdefault((case["D"], case["mask"], case["Nk"]), {})[case["variant"]] = metrics
    lines = []
    for key, modes in table.items():
        if {FAST, DETERMINISTIC} <= modes.keys():
            both = modes[FAST], modes[DETERMINISTIC]
            share = 100 * both[0]["time"]["median"] / both[1]["time"]["median"]
            times, extra = ([ladder.shown(metrics, name) for metrics in both] for name in ("time", "extra_memory"))
            lines.append([*map(str, key), *times, f"{share:.0f} %", *extra])
    header = ["D", "mask", "N", "fast", "deterministic", "its speed", "extra memory, fast", "deterministic"]
    return header, lines


def times_beside(rows, op):
    """{(step, variant): {(D, mask, N): median time}} of what ran in one process with PyTorch's attention."""
    times = {}
    for case, metrics in of_op(rows, op):
        if "time" in metrics and (ladder.is_beside_peers(case) or not case["step"]):
            of_version = times.setdefault((case["step"], case["variant"]), {})
            of_version[case["D"], case["mask"], case["Nk"]] = metrics["time"]["median"]
    return times


DIMS = ([64], [128], [64, 128], [256])  # head dimensions that a summary takes together


def speeds(ours, other, dims):
    """How many times as fast one version is as another, for each problem that both ran."""
    return [other[problem] / ours[problem] for problem in ours.keys() & other.keys() if problem[0] in dims]


def words_of(dims):
    return " and ".join(map(str, dims))


def backward_summary(rows):
    """Geometric mean and lowest of the ratios over lengths and masks, by head dimension: the fast mode to SDPA flash, and the
    deterministic to the fast mode."""
    times = times_beside(rows, "backward")
    fast, deterministic, flash = (times.get(key, {}) for key in (("09", FAST), ("09", DETERMINISTIC), ("", FLASH)))
    lines = []
    for words, ours, other in (("fast / SDPA flash", fast, flash), ("deterministic / fast", deterministic, fast)):
        for dims in DIMS:
            if speed := speeds(ours, other, dims):
                numbers = f"{statistics.geometric_mean(speed):.3f}", f"{min(speed):.3f}"
                lines.append([words, words_of(dims), str(len(speed)), *numbers])
    return ["ratio of speeds", "D", "problems", "geometric mean", "lowest"], lines


def against_flash(rows):
    """Speed of the last forward, of the backward and of both, and cuDNN's, as ratios to SDPA flash: geometric mean and lowest
    over lengths and masks, by head dimension."""
    lines = []
    for op in ("forward", "backward", "forward_backward"):
        times = times_beside(rows, op)
        for (step, variant), ours in times.items():
            if step in ("08", "09") or variant == CUDNN:
                mode = variant.removesuffix(BESIDE_PEERS).strip()
                who = ", ".join(word for word in (f"step {step}", mode) if word) if step else variant
                found = [speeds(ours, times.get(("", FLASH), {}), dims) for dims in DIMS]
                cells = [f"{statistics.geometric_mean(some):.2f} ({min(some):.2f})" if some else "" for some in found]
                if any(cells):
                    lines.append([f"{op.replace('_', ' and ')}: {who}", *cells])
    return ["speed / SDPA flash", *(f"D = {words_of(dims)}" for dims in DIMS)], lines


def scientific(value):
    """Two digits and a power of ten."""
    return f"{value:.1e}".replace("e-0", "e-") if value else "0"


def gradient_error(rows):
    """Relative errors of dQ, dK and dV against double precision, by type and length."""
    found = [c for c in of_op(rows, "gradient_error") if {"error_dq", "error_dk", "error_dv"} <= c[1].keys()]
    columns = list(dict.fromkeys(ladder.version(case) for case, _ in found))
    table = {}
    for case, metrics in sorted(found, key=lambda c: (c[0]["dtype"], by_problem(c))):
        key = case["dtype"], str(case["D"]), case["mask"], str(case["Nk"])
        cells = (scientific(metrics[f"error_{name}"]["median"]) for name in ("dq", "dk", "dv"))
        table.setdefault(key, {})[ladder.version(case)] = ", ".join(cells)
    header = ["type", "D", "mask", "N", *(f"{column}: dQ, dK, dV" for column in columns)]
    return header, [[*key, *(line.get(c, "") for c in columns)] for key, line in table.items()]


def gradient_spread(rows):
    """How far repeated runs differ in dQ, as a share of its largest number."""
    found = [c for c in of_op(rows, "gradient_spread") if "spread_dq" in c[1]]
    lines = [
        [f"{ladder.problem(case)}, {case['dtype']}", ladder.version(case), str(row["reps"]), scientific(row["median"])]
        for case, row in ((case, metrics["spread_dq"]) for case, metrics in sorted(found, key=by_problem))
    ]
    return ["problem", "mode", "runs", "largest difference in dQ / largest dQ"], lines


def sweep(rows):
    """Tile shapes down, head dimensions across."""
    found = of_op(rows, "sweep")
    dims = sorted({case["D"] for case, _ in found})
    header = ["tile, warps, stages"]
    for head_dim in dims:
        header += [f"D = {head_dim}: shared memory", "TFLOP/s"]
    shapes = {}
    for case, metrics in found:
        shapes.setdefault(case["variant"], {})[case["D"]] = ladder.shown(metrics, "shared_memory"), tera(metrics)
    return header, [
        [shape, *(cell for head_dim in dims for cell in by_dim.get(head_dim, ("", "")))] for shape, by_dim in shapes.items()
    ]


def ablation(rows):
    """The step first, then each version with one idea undone and what that changes, at every problem."""
    found = [c for c in of_op(rows, "ablation") if "rate" in c[1]]
    problems = list(dict.fromkeys((case["D"], case["mask"], case["Nk"]) for case, _ in found))
    rates = {}
    for case, metrics in found:
        rates.setdefault(case["variant"], {})[case["D"], case["mask"], case["Nk"]] = metrics
    whole = rates.get("forward", {})
    header = ["one idea undone", *(f"D = {d}, {'causal, ' if mask == 'causal' else ''}N = {n}" for d, mask, n in problems)]
    lines = []
    for variant, of_variant in rates.items():
        cells = []
        for key in problems:
            if key not in of_variant or key not in whole:
                cells.append("")
            elif variant == "forward":
                cells.append(f"{tera(of_variant[key])} TFLOP/s")
            else:
                speed, of_whole = (some[key]["rate"]["median"] for some in (of_variant, whole))
                change = round(100 * (speed / of_whole - 1))
                cells.append(f"{change:+d} %" if change else "0 %")
        lines.append(["none: the step itself" if variant == "forward" else variant.replace("_", " "), *cells])
    return header, lines


def least_bytes(case):
    """Every tensor once, L included; 2-byte elements."""
    rows_q, rows_kv = (case["B"] * case[h] * case[n] for h, n in (("Hq", "Nq"), ("Hkv", "Nk")))
    return 2.0 * (2 * rows_q + 2 * rows_kv) * case["D"] + 4.0 * rows_q


PROFILE_COLUMNS = {
    "time": "time",
    "dram_bytes": "device memory",
    "l2_bytes": "L2",
    "sm_busy": "SM busy",
    "issue_active": "issue slots",
    "tensor_active": "tensor pipe",
    "long_scoreboard": "long scoreboard",
    "local_accesses": "local accesses",
    "conflicts_ldmatrix": "conflicts, ldmatrix",
    "conflicts_cp_async": "conflicts, cp.async",
    "conflicts_shared": "conflicts, all shared",
    "registers": "registers",
    "occupancy": "occupancy",
}


def profile(rows):
    found = of_op(rows, "profile")
    kept = {name: title for name, title in PROFILE_COLUMNS.items() if any(name in metrics for _, metrics in found)}
    lines = []
    for case, metrics in sorted(found, key=lambda c: c[0]["step"]):
        what = "the call" if case["variant"] == "forward" else case["variant"]
        cells = [ladder.shown(metrics, name) for name in kept]
        if case["variant"] == "forward" and "dram_bytes" in metrics:
            ratio = metrics["dram_bytes"]["median"] / least_bytes(case)
            cells[list(kept).index("dram_bytes")] += f" ({ladder.digits(ratio, 2)} x least)"
        lines.append([case["step"], what, *cells])
    return ["step", "kernel", *kept.values()], lines


def lies(rows):
    """Wrong ways to time a kernel: what each claims, what is right, and the factor between them."""
    lines = []
    for case, metrics in of_op(rows, "lie"):
        if {"claimed", "right", "factor"} <= metrics.keys():
            size = f"{case['Nq']} rows of {case['Nk']}" if case["D"] == 1 else ladder.problem(case)
            numbers = [ladder.quantity(metrics[name]) for name in ("claimed", "right")]
            lines.append([case["variant"], f"{size}, {case['dtype']}", *numbers, ladder.digits(metrics["factor"]["median"])])
    return ["lie", "problem", "claimed", "right", "claimed / right"], lines


BLOCK_Q = {"05": 64, "06": 64, "07": 128, "08": 128}  # at D = 128


def counts(case):
    """What the emulator counts for a case, by the lessons' formulas, which tests hold it to exactly: (words, number, unit,
    the profiler's metric). The problems that are profiled would take the emulator hours."""
    heads, n, nk, dim = case["B"] * case["Hq"], case["Nq"], case["Nk"], case["D"]
    if case["step"] == "04":
        of_kernel = {
            "scores_kernel": 2 * (n + nk) * dim + 4 * n * nk,
            "softmax_kernel": (4 + 2) * n * nk + 4 * n,
            "output_kernel": 2 * n * nk + 2 * (n + nk) * dim,
        }
        if case["variant"] not in of_kernel:
            return []
        words = f"{case['variant']}: bytes distinct per launch; device memory"
        return [(words, heads * of_kernel[case["variant"]], "bytes", "dram_bytes")]
    block_q = BLOCK_Q.get(case["step"])
    if not block_q or case["mask"] != "none" or dim != 128:
        return []
    tiles_q, tiles_64 = -(-n // block_q), -(-n // 64) * -(-nk // 64)
    found = [
        ("bytes distinct per launch; device memory", least_bytes(case), "bytes", "dram_bytes"),
        (
            "bytes distinct per block; L2",
            heads * (2 * (2 * n * dim + tiles_q * 2 * nk * dim) + 4 * n),
            "bytes",
            "l2_bytes",
        ),
    ]
    if case["step"] == "05":
        found.append(("bank conflicts, all of them from storing P", heads * tiles_64 * 64 * 64 // 32, "", "conflicts_shared"))
    else:
        # Step 06: 32 passes instead of 4 for each of 9 ldmatrix a warp, 16 channels and tile of keys.
        extra = heads * tiles_64 * 4 * (dim // 16) * 9 * 28 if case["step"] == "06" else 0
        found.append(("bank conflicts of ldmatrix", extra, "", "conflicts_ldmatrix"))
    return found


def compared(rows):
    """Counts beside the profiler's figures."""
    lines = []
    for case, metrics in sorted(of_op(rows, "profile"), key=lambda c: c[0]["step"]):
        for words, number, unit, name in counts(case):
            if name not in metrics:
                continue
            measured = metrics[name]["median"]
            ratio = ladder.digits(measured / number) if number else ("equal" if measured == 0 else "")
            counted = ladder.quantity({"median": number, "unit": unit})
            lines.append([case["step"], words, counted, ladder.quantity(metrics[name]), ratio])
    return ["step", "counted; profiled", "count", "profiler", "profiler / count"], lines


# What step 08 is held to: metric -> (words, whether a value passes).
TARGETS = {
    "sm_busy": ("SM busy at least 70 %", lambda x: x >= 70),
    "tensor_active": ("tensor pipe active at least 50 %", lambda x: x >= 50),
    "local_accesses": ("no local loads or stores", lambda x: x == 0),
    "conflicts_ldmatrix": ("no bank conflicts from ldmatrix", lambda x: x == 0),
    "conflicts_cp_async": ("no bank conflicts from cp.async", lambda x: x == 0),
    "long_scoreboard": ("long-scoreboard stalls below 20 %", lambda x: x < 20),
}


def targets(rows, step="08"):
    """One line per target and profiled problem of a step."""
    lines = []
    for case, metrics in of_op(rows, "profile"):
        if case["step"] != step or case["variant"] != "forward":
            continue
        for name, (words, passes) in TARGETS.items():
            if name in metrics:
                verdict = "yes" if passes(metrics[name]["median"]) else "**no**"
                lines.append([words, ladder.problem(case), ladder.quantity(metrics[name]), verdict])
    return ["target", "problem", "measured", "met"], lines
