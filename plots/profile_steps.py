"""Profiles the forward of each GPU step by Nsight Compute (ncu) and writes what limits it as results rows.

    profile_steps.py [--csv FILE] [--steps 4,5,6,7,8] [--dim 128] [--tokens 4096] [--causal]

One call of every step, bf16, 16384 tokens and 2048 numbers a token, standard normal inputs; about a minute. Needs a CUDA
build of the shared library, PyTorch, ncu and the right to read the GPU's counters. docs/profiling.md explains the numbers.
Rows carry $FLASH_STEPS_MACHINE and $FLASH_STEPS_COMMIT where they are set. Ends with 77 where something that it needs is
not there.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types

import peers
from command_line import whole_numbers

TOKENS, WIDTH = 16384, 2048
ENVIRONMENT = "environment "  # how the line begins in which the profiled process says where it runs

# Our metric -> (unit, the names by which versions of Nsight Compute and chips know it, best first). A sum stands for
# itself, a quotient for a share in percent.
METRICS = {
    "time": ("ms", ["gpu__time_duration.sum"]),
    "dram_bytes": ("bytes", ["dram__bytes.sum", "dram__bytes_read.sum + dram__bytes_write.sum"]),
    "l2_bytes": ("bytes", ["lts__t_bytes.sum"]),
    "sm_busy": ("%", ["sm__instruction_throughput.avg.pct_of_peak_sustained_active"]),
    "issue_active": ("%", ["sm__inst_issued.avg.pct_of_peak_sustained_active"]),
    "tensor_active": (
        "%",
        [
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        ],
    ),
    "long_scoreboard": (
        "%",
        [
            "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct",
            "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
            " / smsp__average_warp_latency_per_inst_issued.ratio",
        ],
    ),
    "local_accesses": (
        "",
        [
            "smsp__sass_inst_executed_op_local_ld.sum + smsp__sass_inst_executed_op_local_st.sum",
            "smsp__inst_executed_op_local_ld.sum + smsp__inst_executed_op_local_st.sum",
        ],
    ),
    "conflicts_ldmatrix": (
        "",
        [
            "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum",
            "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum",
        ],
    ),
    "conflicts_cp_async": (
        "",
        [
            "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
            "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
        ],
    ),
    "conflicts_shared": ("", ["l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"]),
    "occupancy": ("%", ["sm__warps_active.avg.pct_of_peak_sustained_active"]),
    "registers": ("", ["launch__registers_per_thread"]),
}
SUMMED = ("time", "dram_bytes", "l2_bytes")  # over the kernels of a step
# To our units; with --print-units base the tool prints nanoseconds and bytes.
FACTORS = {("ms", "ns"): 1e-6, ("ms", "nsecond"): 1e-6, ("ms", "us"): 1e-3, ("ms", "usecond"): 1e-3}
FACTORS |= {("bytes", "Kbyte"): 1e3, ("bytes", "Mbyte"): 1e6, ("bytes", "Gbyte"): 1e9}


class ProfileError(Exception):
    """The profile cannot be taken or read; the text is one sentence."""


def parts_of(spelling):
    return re.split(r" [+/] ", spelling)


def choose(known):
    """For each of our metrics the first spelling of which `known` has every part; with nothing known, the first. Launch
    attributes are not listed and always there."""

    def is_known(spelling):
        return all(part.split(".")[0] in known or part.startswith("launch__") for part in parts_of(spelling))

    chosen = {}
    for name, (_, spellings) in METRICS.items():
        spelling = next((s for s in spellings if is_known(s)), None) if known else spellings[0]
        if spelling:
            chosen[name] = spelling
    return chosen


def query(ncu):
    """The base names of the metrics that this ncu knows for this GPU; empty when it does not say."""
    done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True)
    return set(re.findall(r"^([a-z0-9]+__\w+)", done.stdout, flags=re.MULTILINE)) if done.returncode == 0 else set()


def kernel_of(name):
    """(step, kernel) of a kernel's name, or None: mangled '_ZN5flash6step08...24attention_forward_kernelI...', which
    ncu passes on whole, or demangled 'void flash::step08::<unnamed>::kernel<...>(...)'."""
    mangled = re.match(r"_ZN5flash6step(\d\d)", name)
    if mangled:
        kernel = re.search(r"\d([a-z][a-z_]*_kernel)", name)
        return (mangled[1], kernel[1]) if kernel else None
    plain = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    found = re.search(r"flash::step(\d\d)::(\w+)", plain)
    return found.groups() if found else None


def parse(text):
    """[(step, kernel, {Nsight Compute's metric: (value, unit)})], one per launch, from the CSV of ncu's details page."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        said = [line for line in lines if "ERROR" in line or "ERR_" in line]
        if any("ERR_NVGPUCTRPERM" in line for line in said):
            raise ProfileError("the GPU's counters are closed to this user; ask the administrator for access (ERR_NVGPUCTRPERM)")
        raise ProfileError(f"ncu wrote no results: {said[0] if said else 'it named no reason'}")
    launches = {}
    for row in csv.DictReader(lines[begin:]):
        kernel = kernel_of(row["Kernel Name"] or "")
        if not kernel or not row.get("Metric Name"):
            continue
        text_value = (row["Metric Value"] or "").replace(",", "")
        try:
            value = float(text_value)
        except ValueError:
            continue  # n/a: this chip does not count it
        launches.setdefault(row["ID"], (*kernel, {}))[2][row["Metric Name"]] = value, row["Metric Unit"]
    return list(launches.values())


def translate(measured, chosen):
    """{our metric: value in our unit} of one launch."""
    values = {}
    for name, spelling in chosen.items():
        found = [measured.get(part) for part in parts_of(spelling)]
        if None in found:
            continue
        unit = METRICS[name][0]
        numbers = [value * FACTORS.get((unit, of), 1) for value, of in found]
        if " / " not in spelling:
            values[name] = sum(numbers)
        elif numbers[1]:
            values[name] = 100 * numbers[0] / numbers[1]
    return values


def per_step(launches, chosen, case):
    """[(step, variant, {metric: value})]: 'forward' is the whole call, with the details of its kernel when it is one;
    several kernels follow by their names."""
    steps = {}
    for step, kernel, measured in launches:
        steps.setdefault(step, []).append((kernel, translate(measured, chosen)))
    found = []
    for step, kernels in sorted(steps.items()):
        whole = dict(kernels[0][1]) if len(kernels) == 1 else {}
        for name in SUMMED:
            if all(name in values for _, values in kernels):
                whole[name] = sum(values[name] for _, values in kernels)
        if whole.get("time"):
            whole["rate"] = flops(case) / whole["time"] / 1e6
        found.append((step, "forward", whole))
        if len(kernels) > 1:
            found += [(step, kernel, values) for kernel, values in kernels]
    return found


def flops(case):
    """Two products, 2 D each per pair of a query and a key that it sees."""
    n = case.len_q
    pairs = n * (n + 1) / 2 if case.causal else n * n
    return 4 * case.batch * case.heads * pairs * case.dim


def problem(options):
    heads = WIDTH // options.dim
    sizes = {"dtype_name": "bf16", "batch": TOKENS // options.tokens, "heads": heads, "heads_kv": heads, "dim": options.dim}
    return types.SimpleNamespace(
        **sizes, len_q=options.tokens, len_kv=options.tokens, causal=options.causal, diagonal=0 if options.causal else None
    )


def launch(options):
    """The process that ncu watches: every step once to warm up, then once between the profiler's marks."""
    import torch

    import flash_steps

    library = flash_steps.Library((options.loaded))
    case = problem(options)
    torch.manual_seed(1)
    shape = case.batch, case.heads, case.len_q, case.dim
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o, lse = torch.empty_like(q), torch.empty(shape[:3], device="cuda")
    calls = []
    for step in options.steps:
        if step in library.steps:
            calls.append(library.bind(step, q, k, v, o, lse, causal=case.causal))
    for call in calls:
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for call in calls:
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    print(ENVIRONMENT + json.dumps(peers.environment_of(torch)), flush=True)


def find_ncu(named):
    candidates = [named] if named else ["ncu", f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin/ncu"]
    return next((path for path in map(shutil.which, candidates) if path), None)


def profile(ncu, chosen, arguments):
    """(CSV text, environment) of this script run under ncu as the launching process."""
    names = ",".join(part for spelling in chosen.values() for part in parts_of(spelling))
    with tempfile.TemporaryDirectory() as directory:
        log = pathlib.Path(directory) / "ncu.csv"
        command = [ncu, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "details"]
        command += ["--print-units", "base", "--print-kernel-base", "mangled", "--metrics", names, "--log-file", log]
        command += [sys.executable, pathlib.Path(__file__).resolve(), "--launch", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    said = [line for line in done.stdout.splitlines() if line.startswith(ENVIRONMENT)]
    if not said:
        last = (done.stderr or text or done.stdout).strip().splitlines()[-1:]
        raise ProfileError(f"the profiled process failed: {' '.join(last) or 'it said nothing'}")
    return text, json.loads(said[0].removeprefix(ENVIRONMENT))


def report(found, case, environment, path):
    out = peers.Results(path, environment)
    for step, variant, values in found:
        who = types.SimpleNamespace(step=step, name=variant)
        for name, value in values.items():
            unit = "GFLOP/s" if name == "rate" else METRICS[name][0]
            out.add(who, "profile", case, name, unit, (value, value, value, 1))
        words = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
        out.say(f"measure  step {step}, {variant}: {words}")


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=pathlib.Path, help="append result rows to this file")
    parser.add_argument("--steps", type=whole_numbers, metavar="N,N,...", default=[4, 5, 6, 7, 8])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=4096, help="a sequence's length")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--library", dest="loaded", metavar="FILE", type=pathlib.Path,
                        help="libflash_steps.so; default: the newest under build/")
    parser.add_argument("--ncu", help="the ncu to run")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)  # what ncu runs
    return parser.parse_args(arguments)


def main(arguments):
    options = options_of(arguments)
    if options.launch:
        launch(options)
        return 0
    ncu = find_ncu(options.ncu)
    if not ncu:
        return peers.skip("Nsight Compute is not here: ncu is neither on the PATH nor in /usr/local/cuda/bin")
    if not peers.said(["nvidia-smi", "-L"]):
        return peers.skip("nvidia-smi finds no GPU")
    chosen = choose(query(ncu))
    text, environment = profile(ncu, chosen, arguments)
    found = per_step(parse(text), chosen, problem(options))
    if not found:
        names = sorted(set(re.findall(r'^"\d+",(?:"[^"]*",){3}"([^"]*)"', text, flags=re.MULTILINE)))
        raise ProfileError(f"ncu saw no kernel of a step, only: {'; '.join(names) or 'nothing'}")
    report(found, problem(options), environment, options.csv)
    counted = set().union(*(values for _, _, values in found))
    missing = [name for name in METRICS if name not in counted]
    if missing:
        print(f"this ncu does not count here: {', '.join(missing)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ProfileError, peers.ResultsError, OSError) as error:
        sys.exit(f"profile_steps.py: {error}")
