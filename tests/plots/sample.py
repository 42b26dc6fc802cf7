"""A results file with a row for everything that tables and pictures show. The numbers are made up: nothing but tests
reads it."""

import pathlib
import random
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLOTS = ROOT / "plots"
sys.path.insert(0, str(PLOTS))
sys.dont_write_bytecode = True

import results  # noqa: E402

ENVIRONMENT = "a-machine,a device,GNU 12,-O2,abc,2026-01-02"


def row(step, variant, op, n, metric, unit, value, dtype="fp32", head_dim=64, mask="none", backend="cpu", len_q=None):
    diagonal = "0" if mask == "causal" else ""
    variant = f'"{variant}"' if "," in variant else variant
    shape = f"1,1,1,{len_q or n},{n},{head_dim}"
    return (
        f"{step},{variant},{backend},{op},{dtype},{shape},{mask},{diagonal},{metric},{unit},{value},"
        f"{value * 0.9},{value * 1.1},5,{ENVIRONMENT}"
    )


def rows():
    yield row("01", "naive", "softmax", 2, "overflow_at", "", 11.0898, "fp16", 1, len_q=1)
    yield row("01", "naive", "softmax", 2, "overflow_at", "", 88.7229, "fp32", 1, len_q=1)
    for variant in ("naive", "safe"):
        yield row("01", variant, "softmax", 1024, "time", "ms", 1.5, head_dim=1, len_q=1)
        yield row("01", variant, "softmax", 1024, "bandwidth", "GB/s", 2.5, head_dim=1, len_q=1)
    yield row("03", "fma loop", "peak", 0, "rate", "GFLOP/s", 200.0)
    for n in (256, 512, 1024):
        for mask in ("none", "causal"):
            for variant, speed in (("full", 2.0), ("tiled", 2.5), ("simd", 150.0)):
                yield row("03", variant, "forward", n, "time", "ms", n * n * 256 / speed / 1e6, mask=mask)
                yield row("03", variant, "forward", n, "rate", "GFLOP/s", speed, mask=mask)
                yield row("03", variant, "forward", n, "share_of_peak", "%", speed / 2, mask=mask)
                memory = 4 * n * n if variant == "full" else 33280
                yield row("03", variant, "forward", n, "extra_memory", "bytes", memory, mask=mask)
    yield row("03", "full", "forward", 65536, "extra_memory_computed", "bytes", 4 * 65536**2)
    yield row("03", "tiled", "forward", 65536, "extra_memory", "bytes", 33280, len_q=64)
    for order, whole in (("FA1 order", 900000), ("FA2 order", 600000)):
        for metric, value in (("traffic", whole), ("key_value_loads", 65536), ("output_loads", 262144)):
            yield row("03", order, "forward", 512, metric, "elements", value)
        yield row("03", order, "forward", 512, "output_stores", "elements", 32768)
    for n in (64, 128, 256):
        for metric in ("traffic_issued", "traffic_per_launch", "model_per_launch"):
            yield row("04", "three kernels", "forward", n, metric, "bytes", 16.0 * n * n, "bf16", backend="emulator")


def gpu_rows():
    def gpu(step, variant, op, n, metric, unit, value, **more):
        return row(step, variant, op, n, metric, unit, value, **{"dtype": "bf16", "backend": "cuda", **more})

    speeds = {"04": 2e4, "05": 1e4, "06": 1e5, "07": 2e5, "08": 4e5}
    yield gpu("08", "peak", "peak", 0, "rate", "GFLOP/s", 635e3)
    yield gpu("05", "peak", "peak", 0, "rate", "GFLOP/s", 60e3, dtype="fp32")
    yield gpu("08", "peak", "peak", 0, "bandwidth", "GB/s", 4200)
    yield gpu("", "cuBLAS", "matmul", 8192, "rate", "GFLOP/s", 794e3)
    for head_dim in (64, 128):
        for mask in ("none", "causal"):
            case = {"head_dim": head_dim, "mask": mask}
            for n in (1024, 4096):
                for step, speed in speeds.items():
                    own = "three kernels" if step == "04" else "forward"
                    for variant in (own, "beside peers"):
                        yield gpu(step, variant, "forward", n, "time", "ms", n * n / speed, **case)
                        yield gpu(step, variant, "forward", n, "rate", "GFLOP/s", speed, **case)
                        memory = (6 * n * n if step == "04" else 0) + (4 * n if variant == "beside peers" else 0)
                        yield gpu(step, variant, "forward", n, "extra_memory", "bytes", memory, **case)
                    yield gpu(step, "beside peers", "forward", n, "ratio_to_sdpa_flash", "", speed / 3e5, **case)
                yield gpu("", "SDPA flash", "forward", n, "rate", "GFLOP/s", 3e5, **case)
                yield gpu("", "SDPA flash", "forward", n, "ratio_to_sdpa_flash", "", 1, **case)
                yield gpu("", "SDPA flash", "forward", n, "extra_memory", "bytes", 4 * n, **case)
            for version, speed in (("forward", 4e5), ("no_swizzle", 1e5), ("exp_not_folded", 4.0004e5)):
                yield gpu("08", version, "ablation", 4096, "rate", "GFLOP/s", speed, **case)
        for shape, speed in (("64x32, 4 warps, 2 stages", 1e5), ("128x64, 4 warps, 3 stages", 2e5)):
            yield gpu("07", shape, "sweep", 4096, "shared_memory", "bytes", 65536, head_dim=head_dim)
            yield gpu("07", shape, "sweep", 4096, "rate", "GFLOP/s", speed, head_dim=head_dim)
    for step, speed in speeds.items():
        for metric, unit, value in (
            ("time", "ms", 4 * 4096**2 * 128 / speed / 1e6),
            ("dram_bytes", "bytes", 8421376 if step == "04" else 4210688),
            ("rate", "GFLOP/s", speed),
            ("tensor_active", "%", 45),
            ("local_accesses", "", 0),
        ):
            yield gpu(step, "forward", "profile", 4096, metric, unit, value, head_dim=128)
    yield from backward_rows(gpu)
    yield gpu("04", "scores_kernel", "profile", 4096, "tensor_active", "%", 0, head_dim=128)


def backward_rows(gpu):
    """Times of both modes and two peers, errors by type, and how far runs differ. Causal ones are half as fast."""
    speeds = {("09", "fast beside peers"): 400, ("09", "deterministic beside peers"): 300, ("", "SDPA flash"): 250}
    speeds["", "SDPA cuDNN"] = 500
    for head_dim in (64, 128):
        for mask in ("none", "causal"):
            case = {"head_dim": head_dim, "mask": mask}
            for n in (1024, 4096):
                for (step, variant), speed in speeds.items():
                    for op in ("backward", "forward_backward"):
                        rate = 1e3 * speed / (2 if mask == "causal" else 1)
                        yield gpu(step, variant, op, n, "time", "ms", n * n / rate, **case)
                        yield gpu(step, variant, op, n, "rate", "GFLOP/s", rate, **case)
                        yield gpu(step, variant, op, n, "ratio_to_sdpa_flash", "", speed / 250, **case)
                    memory = 8 * n + (0 if variant == "deterministic beside peers" else 4 * n * head_dim)
                    yield gpu(step, variant, "backward", n, "extra_memory", "bytes", memory, **case)
                    if head_dim == 128 and variant != "SDPA cuDNN":
                        for dtype, error in (("bf16", 2.5e-3), ("fp16", 3.2e-4)):
                            for name in ("dq", "dk", "dv"):
                                yield gpu(step, variant, "gradient_error", n, f"error_{name}", "", error, dtype=dtype, **case)
            for mode, spread in (("fast", 1.5e-3), ("deterministic", 0)):
                yield gpu("09", f"{mode} beside peers", "gradient_spread", 4096, "spread_dq", "", spread, **case)


def counted_rows():
    """What the emulator counts for more steps than there are colours, each different."""
    bytes_of = [f"{kind}_{level}" for kind in ("traffic", "model") for level in ("per_block", "per_launch")]
    forward = [(step, "forward", "forward") for step in ("05", "06", "07", "08")]
    for place, version in enumerate([*forward, ("09", "fast", "backward"), ("09", "slow", "backward")]):
        for mask in ("none", "causal"):
            for n in (64, 128, 256):
                case = *version, n
                for metric in ("traffic_issued", *bytes_of):
                    yield row(*case, metric, "bytes", (5.0 + place) * n * n, "bf16", mask=mask, backend="emulator")
                for metric in ("sectors", "shared_bytes", "shared_bank_conflicts", "mma"):
                    yield row(*case, metric, "", 8.0 * n, "bf16", mask=mask, backend="emulator")


def text(*more):
    return "\n".join([",".join(results.COLUMNS), *rows(), *more]) + "\n"


class Row(dict):
    """A row that knows whether a number of it was looked at."""

    was_read = False

    def __getitem__(self, name):
        self.was_read |= name in results.NUMBERS
        return super().__getitem__(name)


def whole():
    """Rows of everything: of this file, and the committed study."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.csv"
        path.write_text(text(*gpu_rows(), *counted_rows()))
        return results.read(path) + results.read(results.DATA / "study.csv")


def incomplete(show):
    """(what is missing, rows) of what lacks some of the rows that a picture or table shows: each in turn, all that have a
    value in common, all that have not, and some at random."""
    rows = [Row(one) for one in whole()]
    show(rows)
    shown = [index for index, one in enumerate(rows) if one.was_read]
    for index in shown:
        yield f"row {index}", rows[:index] + rows[index + 1 :]
    for column in (*results.CASE, "metric"):
        for value in sorted({rows[index][column] for index in shown}):
            yield f"{column} {value}", [one for one in rows if one[column] != value]
            yield f"all but {column} {value}", [one for one in rows if one[column] == value]
    for seed in range(5):
        yield f"random {seed}", random.Random(seed).sample(rows, len(rows) // 3)


# Name -> (contents, what the error says about it).
BROKEN = {
    "zero-byte": ("", "is empty"),
    "header-only": (",".join(results.COLUMNS) + "\n", "has a header but no results"),
    "missing-column": (text().replace(",median,", ",middle,", 1), "lacks the column median"),
    "comma-decimal": (text().replace(",1.5,", ',"1,5",', 1), "median is '1,5', not a finite number >= 0 with '.'"),
    "nan": (text().replace(",1.5,", ",nan,", 1), "median is 'nan', not a finite number >= 0"),
    "inf": (text().replace(",1.5,", ",1e999,", 1), "median is '1e999', not a finite number >= 0"),
    "negative": (text().replace(",1.5,", ",-1.5,", 1), "median is '-1.5', not a finite number >= 0"),
    "no-time": (text().replace(",ms,1.5,", ",ms,0,", 1), "median is 0, which no time is"),
    "huge-size": (text().replace(",1024,1,none", f",{10**30},1,none", 1), "Nk is '1000000000000000000000000000000', not a"),
    "negative-size": (text().replace(",1024,1,none", ",-1024,1,none", 1), "Nk is '-1024', not a whole number from 0 to"),
    "diagonal": (text().replace(",causal,0,", ",causal,x,", 1), "diagonal is 'x', not a whole number"),
    "no-diagonal": (text().replace(",causal,0,", ",causal,,", 1), "diagonal is '', not a whole number"),
    "mask": (text().replace(",causal,0,", ",casual,0,", 1), "mask is 'casual', not none or causal"),
    "twice": (text().replace(",date\n", ",date,median\n", 1), "has the column median twice"),
    "long-field": (text().replace("a-machine", "m" * 140000, 1), "field larger than field limit"),
    "line-break": (text().replace("a-machine", '"a\nmachine"', 1), "machine holds a control character"),
    "escape": (text().replace("a-machine", "\033[2Jm", 1), "machine holds a control character"),
    "separator": (text().replace("a-machine", "a\x1cm", 1), "machine holds a control character"),
    "nul": (text().replace("a-machine", "a\0m", 1), ""),
    "control-in-a-number": (text().replace(",1.5,", ',"1\x1b5",', 1), "median is '1\\x1b5', not a"),
    "short-row": (text() + "03,tiled,cpu\n", "not as many fields as the header"),
}
