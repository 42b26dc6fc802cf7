"""A results file with a row for everything that tables and pictures show. The numbers are made up: nothing but tests
reads it."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLOTS = ROOT / "plots"
sys.path.insert(0, str(PLOTS))
sys.dont_write_bytecode = True

import results  # noqa: E402

ENVIRONMENT = "a-machine,a device,GNU 12,-O2,abc,2026-01-02"


def row(step, variant, op, n, metric, unit, value, dtype="fp32", head_dim=64, mask="none", backend="cpu", len_q=None):
    diagonal = "0" if mask == "causal" else ""
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


def text():
    return "\n".join([",".join(results.COLUMNS), *rows()]) + "\n"


# Name -> (contents, what the error says about it).
BROKEN = {
    "zero-byte": ("", "is empty"),
    "header-only": (",".join(results.COLUMNS) + "\n", "has a header but no results"),
    "missing-column": (text().replace(",median,", ",middle,", 1), "lacks the column median"),
    "comma-decimal": (text().replace(",1.5,", ',"1,5",', 1), "median is '1,5', not a number with '.'"),
    "short-row": (text() + "03,tiled,cpu\n", "not as many fields as the header"),
}
