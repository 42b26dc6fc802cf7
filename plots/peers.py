"""This project's steps against PyTorch's attention on one GPU, in one process.

    peers.py [--check] [--time] [--memory] [--large] [--gradients] [--backward] [--csv FILE]

--check      every step's forward against double precision and PyTorch's flash backend, over named shapes and a random sweep
--time       steps and PyTorch's backends taken in turn; writes rows to FILE and prints a table
--memory     what each takes beyond Q, K, V and O, over N
--large      long sequences, many heads, offsets beyond 32 bits
--gradients  the same checks of step 09's gradients, long sequences included; rows of their errors
--backward   step 09's backward and PyTorch's taken in turn, alone and with the forward; rows of times and memory
Without any of these: all of them. Rows carry $FLASH_STEPS_MACHINE and $FLASH_STEPS_COMMIT where they are set. Ends with 1
when a step is wrong, with 77 where there is no GPU or no PyTorch.
"""

import argparse
import csv
import datetime
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "steps" / "library"), str(ROOT / "plots")]

from command_line import whole_numbers  # noqa: E402
from results import COLUMNS, ResultsError  # noqa: E402

SKIPPED = 77


def said(command):
    """The first line that a program prints; empty when it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().split("\n")[0] if done.returncode == 0 else ""


def gpu_state():
    """Clocks, power, temperature and what holds the clock back, as the driver says."""
    query = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,clocks_event_reasons.active"
    return said(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=0"]) or "nvidia-smi says nothing"


def commit():
    named = os.environ.get("FLASH_STEPS_COMMIT") or said(["git", "rev-parse", "--short=10", "HEAD"])
    if not named:
        return "unknown"
    changed = not os.environ.get("FLASH_STEPS_COMMIT") and said(["git", "status", "--porcelain", "--untracked-files=no"])
    return named + ("+changes" if changed else "")


class Results:
    """Rows in the project's columns. Nothing is written without a file."""

    def __init__(self, path, environment):
        self.path, self.environment = path, environment
        if not path:
            return
        if not path.exists() or path.stat().st_size == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(COLUMNS)
            return
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.partition("\n")[0] != ",".join(COLUMNS):
            raise ResultsError(f"'{path}' is no results file: its first line is not the header of one")
        if not text.endswith("\n"):
            raise ResultsError(f"'{path}' ends within a line; complete or remove that line first")

    def _append(self, fields):
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(fields)

    @staticmethod
    def say(line):
        print(line, flush=True)

    def add(self, variant, op, case, metric, unit, summary):
        """`summary`: median, p10, p90 and the number of samples."""
        if not self.path:
            return
        sizes = case.batch, case.heads, case.heads_kv, case.len_q, case.len_kv, case.dim
        mask = ("none", "") if case.causal is False else ("causal", case.diagonal)
        numbers = [f"{value:.6g}" for value in summary[:3]]
        what = variant.step, variant.name, "cuda", op, case.dtype_name
        self._append([*what, *sizes, *mask, metric, unit, *numbers, summary[3], *self.environment])


def machine_name(device):
    """$FLASH_STEPS_MACHINE, or the device, as results files name it."""
    return re.sub(r"[^a-z0-9]+", "-", (os.environ.get("FLASH_STEPS_MACHINE") or device).lower()).strip("-")


def today():
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def environment_of(torch):
    """machine, device, compiler, flags, commit, date."""
    device = torch.cuda.get_device_name(0)
    driver = said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"])
    compiler = f"PyTorch {torch.__version__}"
    flags = f"CUDA {torch.version.cuda}; cuDNN {torch.backends.cudnn.version()}; driver {driver or 'unknown'}"
    return machine_name(device), device, compiler, flags, commit(), today()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("check", "time", "memory", "large", "gradients", "backward"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--csv", type=pathlib.Path, help="append result rows to this file")
    parser.add_argument("--library", dest="loaded", metavar="FILE", type=pathlib.Path,
                        help="libflash_steps.so; default: the newest under build/")
    numbers = {"type": whole_numbers, "metavar": "N,N,..."}
    parser.add_argument("--steps", **numbers, help="default: 4 to 8; the forward of 09 is that of 08")
    parser.add_argument("--dims", **numbers, default=[64, 128, 256], help="head dimensions to time")
    parser.add_argument("--lengths", **numbers, help="sequence lengths to time")
    parser.add_argument("--cases", type=int, default=80, help="of the random sweep")
    parser.add_argument("--seed", type=int, default=None, help="of the random sweep; default: from the clock")
    return parser.parse_args(arguments)


def skip(why):
    print(f"SKIP: {why}")
    return SKIPPED


def check_gradients(peer_gradients, checker, results, seed, count):
    import torch

    peer_gradients.check(checker, results, seed, count)
    torch.cuda.empty_cache()
    peer_gradients.check_large(checker, free_bytes=torch.cuda.mem_get_info()[0])


def main(arguments=None):
    options = parse(arguments)
    try:
        import torch
    except ImportError:
        return skip("PyTorch is not installed for this Python (pip install torch)")
    if not torch.cuda.is_available():
        return skip("PyTorch finds no GPU")
    import flash_steps
    import peer_backward
    import peer_checks
    import peer_gradients
    import peer_timing

    try:
        library = flash_steps.Library((options.loaded))
    except flash_steps.FlashStepsError as error:
        sys.exit(f"peers.py: {error}")
    if library.backend != "cuda":
        return skip(f"{library.path} is built for the {library.backend}; build for CUDA: cmake --workflow --preset cuda")

    torch.set_float32_matmul_precision("highest")  # no TF32 in references
    torch.set_grad_enabled(False)
    environment = environment_of(torch)
    try:
        results = Results(options.csv, environment)
    except (ResultsError, OSError) as error:
        sys.exit(f"peers.py: {error}")
    steps = [s for s in library.steps if (s in options.steps if options.steps else 4 <= s <= 8)]
    checker = peer_checks.Checker(library, steps, "cuda", results.say)
    chosen = options.check, options.time, options.memory, options.large, options.gradients, options.backward
    check, timed, memory, large, gradients, backward = chosen if any(chosen) else (True,) * len(chosen)
    results.say(", ".join(environment))
    results.say(f"{library.path}: steps {', '.join(f'{step:02}' for step in steps)}; GPU: {gpu_state()}")

    def part(name, is_wanted, work):
        if is_wanted:
            began = time.monotonic()
            work()
            torch.cuda.empty_cache()
            results.say(f"--- {name}: {time.monotonic() - began:.0f} s")

    lengths = options.lengths or peer_timing.LENGTHS
    seed = options.seed if options.seed is not None else int(time.time())
    part("time", timed, lambda: peer_timing.Timing(checker, results).run(options.dims, lengths))
    part("memory", memory, lambda: peer_timing.memory(checker, results, lengths=lengths))
    part("backward", backward, lambda: peer_backward.BackwardTiming(checker, results).run(options.dims, lengths))
    part("check", check, lambda: peer_checks.check(checker, seed, options.cases))
    part("large", large, lambda: peer_checks.check_large(checker, free_bytes=torch.cuda.mem_get_info()[0]))
    part("gradients", gradients, lambda: check_gradients(peer_gradients, checker, results, seed, options.cases))
    results.say(f"GPU: {gpu_state()}")
    for failure in checker.failures:
        results.say(f"FAILED   {failure}")
    results.say(f"{checker.checks - len(checker.failures)} checks passed, {len(checker.failures)} failed")
    return 1 if checker.failures else 0


if __name__ == "__main__":
    sys.exit(main())
