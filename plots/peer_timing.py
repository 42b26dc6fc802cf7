"""Steps and PyTorch's attention timed side by side in one process, and the memory that each takes beyond its tensors."""

import contextlib
import dataclasses
import math
import statistics
import threading
import time
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from peer_checks import BF16, LARGE_WORK_LIMITS, Case, Reference

DEVICE = "cuda"
TOKENS, WIDTH = 16384, 2048  # B * N and H * D of every timed problem
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
DIMS = (64, 128, 256)
SLOW_LENGTHS = (1024, 4096)  # of what takes much longer than the rest
SLOW_STEPS = (3, 4, 5)
FLASH, CUDNN = "SDPA flash", "SDPA cuDNN"
PEERS = {  # variant -> backend
    FLASH: SDPBackend.FLASH_ATTENTION,
    CUDNN: SDPBackend.CUDNN_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
    "SDPA math": SDPBackend.MATH,
}
UNFUSED = "unfused cuBLAS"
SLOW_PEERS = ("SDPA math", UNFUSED)
REPS, SLOW_REPS, SECONDS = 20, 3, 0.3  # at most, at least for the slow, and how long beyond that for one variant
POSSIBLE = 1.15  # times the matrix product's rate: above it the clock missed something


def summarize(samples):
    """(median, 10th percentile, 90th percentile, number), by linear interpolation."""
    ordered = sorted(samples)

    def at(share):
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    return at(0.5), at(0.1), at(0.9), len(ordered)


@dataclasses.dataclass
class Variant:
    name: str
    step: str  # "08", or empty for a peer
    call: object  # returns O, and L or None
    context: object = contextlib.nullcontext  # entered outside the timed part
    is_slow: bool = False
    rounds_scores: bool = False


def unfused(q, k, v, hidden, scale):
    """Attention in five kernels or more, its products by cuBLAS, S and P in global memory."""
    s = torch.matmul(q, k.mT)
    s.mul_(scale)
    if hidden is not None:
        s.masked_fill_(hidden, -math.inf)
    return torch.matmul(torch.softmax(s, -1), v)


def step_variant(checker, step, q, k, v, causal, scale):
    o = torch.full_like(q, math.nan)
    lse = torch.full(q.shape[:3], math.nan, device=q.device)
    call = checker.loaded.bind(step, q, k, v, o, lse, causal, scale)

    def run():
        call()
        return o, lse

    return Variant("beside peers", f"{step:02}", run, is_slow=step in SLOW_STEPS)


def peer_variant(name, q, k, v, causal, scale):
    if name == UNFUSED:
        tokens = q.shape[2]
        hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu_(1) if causal else None
        return Variant(name, "", lambda: (unfused(q, k, v, hidden, scale), None), is_slow=True, rounds_scores=True)

    def run():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale), None

    is_slow = name in SLOW_PEERS
    # With one backend enabled PyTorch runs that one or raises.
    return Variant(name, "", run, lambda: sdpa_kernel(PEERS[name]), is_slow, rounds_scores=is_slow)


def variants_of(checker, case, q, k, v, with_slow):
    """Every step that takes a case, and every peer."""
    scale = case.true_scale
    steps = [step for step in checker.able(case, {}) if with_slow or step not in SLOW_STEPS]
    peers = [name for name in (*PEERS, UNFUSED) if with_slow or name not in SLOW_PEERS]
    return [step_variant(checker, step, q, k, v, case.causal, scale) for step in steps] + [
        peer_variant(name, q, k, v, case.causal, scale) for name in peers
    ]


def problem(tokens, dim, causal):
    heads = WIDTH // dim
    return Case(TOKENS // tokens, heads, heads, tokens, tokens, dim, BF16, causal)


def flops(case):
    """Two products, 2 D each per pair of a query and a key that it sees."""
    pairs = case.len_q * (case.len_q + 1) / 2 if case.causal else case.len_q * case.len_kv
    return 4 * case.batch * case.heads * pairs * case.dim


class Timer:
    """CUDA events around each call; before it, caches are overwritten, which also gives the host time to launch."""

    def __init__(self):
        l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
        self.eviction = torch.empty(max(4 * l2, 256 << 20), dtype=torch.uint8, device="cuda")

    def start(self, variant):
        """Launches one run. The result is for milliseconds, to be called after a synchronisation."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with variant.context():
            self.eviction.zero_()
            begin.record()
            variant.call()
            end.record()
        return lambda: begin.elapsed_time(end)

    def once(self, variant):
        milliseconds = self.start(variant)
        torch.cuda.synchronize()
        return milliseconds()

    def interleaved(self, variants):
        """Milliseconds of every run, by variant. Variants take turns, in both directions, so that a clock that falls slows
        all of them."""
        reps = {}
        for variant in variants:
            self.once(variant)
            least = SLOW_REPS if variant.is_slow else 5
            reps[id(variant)] = max(least, min(REPS, int(SECONDS * 1e3 / self.once(variant))))
        samples = {id(variant): [] for variant in variants}
        for turn in range(max(reps.values())):
            order = [v for v in variants if turn < reps[id(v)]]
            begun = [(id(v), self.start(v)) for v in (order if turn % 2 == 0 else reversed(order))]
            torch.cuda.synchronize()
            for key, milliseconds in begun:
                samples[key].append(milliseconds())
        return [samples[id(variant)] for variant in variants]


def ceilings(timer, results):
    """What the machine reaches at most: a bf16 matrix product and a copy. Returns the product's FLOP/s."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=BF16) for _ in range(2))
    c = torch.empty_like(a)
    source = torch.randn(2**30, device="cuda", dtype=BF16)
    target = torch.empty_like(source)
    product = Variant("cuBLAS", "", lambda: torch.matmul(a, b, out=c))
    copy = Variant("device copy", "", lambda: target.copy_(source))
    rates = []
    for variant, op, size, metric, unit, amount in (
        (product, "matmul", n, "rate", "GFLOP/s", 2 * n**3),
        (copy, "copy", 1, "bandwidth", "GB/s", 2 * source.numel() * 2),
    ):
        [milliseconds] = timer.interleaved([variant])
        case = Case(1, 1, 1, size, size, size)
        results.add(variant, op, case, "time", "ms", summarize(milliseconds))
        rates.append(summarize([amount / ms / 1e6 for ms in milliseconds]))
        results.add(variant, op, case, metric, unit, rates[-1])
    results.say(f"ceilings: bf16 matrix product {rates[0][0] / 1e3:.0f} TFLOP/s, device copy {rates[1][0]:.0f} GB/s")
    return rates[0][0] * 1e9


def clock_mhz():
    """The clock of the multiprocessors, from a kernel that spins for a number of cycles."""
    cycles = 20_000_000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    torch.cuda.synchronize()
    return cycles / begin.elapsed_time(end) / 1e3


def first_line(error):
    return str(error).strip().split("\n")[0]


class Timing:
    def __init__(self, checker, results):
        self.checker, self.results = checker, results
        self.say = results.say
        self.timer = Timer()
        self.peak = 0.0
        self.table = {}  # (dim, causal, tokens) -> {column: (median TFLOP/s, ratio to SDPA flash)}
        self.unavailable = set()

    def run(self, dims=DIMS, lengths=LENGTHS):
        self.clock("clock")
        self.peak = ceilings(self.timer, self.results)
        for dim in dims:
            for causal in (False, True):
                for tokens in lengths:
                    self.cell(problem(tokens, dim, causal))
        self.clock("clock_after")
        self.which_kernels(dims[0])
        self.summary()

    def clock(self, name):
        mhz = clock_mhz()
        self.results.add(Variant("device", "", None), "peak", Case(1, 1, 1, 1, 1, 1), name, "MHz", summarize([mhz]))
        self.say(f"clock of the multiprocessors: {mhz:.0f} MHz")

    def cell(self, case):
        q, k, v = case.tensors(DEVICE)
        chosen = torch.randperm(case.len_q, generator=torch.Generator().manual_seed(case.len_q))[:62]
        rows = torch.cat([chosen, torch.tensor([0, case.len_q - 1])]).unique()
        reference = Reference(q, k, v, case.true_scale, case.diagonal, rows)
        usable = []
        for variant in variants_of(self.checker, case, q, k, v, case.len_q in SLOW_LENGTHS):
            if self.is_right(variant, reference, case):
                usable.append(variant)
        times = self.timer.interleaved(usable)
        flash = next((t for v, t in zip(usable, times) if v.name == FLASH), None)
        line = self.table.setdefault((case.dim, case.causal, case.len_q), {})
        for variant, milliseconds in zip(usable, times):
            rates = [flops(case) / ms / 1e6 for ms in milliseconds]
            column = f"step {variant.step}" if variant.step else variant.name
            rate = summarize(rates)
            if rate[0] * 1e9 > POSSIBLE * self.peak:
                self.say(f"MEASURING ERROR  {column}, {case}: {rate[0] / 1e3:.0f} TFLOP/s is more than the machine's peak")
                continue
            self.results.add(variant, "forward", case, "time", "ms", summarize(milliseconds))
            self.results.add(variant, "forward", case, "rate", "GFLOP/s", rate)
            ratio = math.nan
            if flash:
                ratios = summarize([f / ms for f, ms in zip(flash, milliseconds)])
                ratio = ratios[0]
                self.results.add(variant, "forward", case, "ratio_to_sdpa_flash", "", ratios)
            line[column] = rate[0] / 1e3, ratio
        self.say(f"measure  {case}: " + ", ".join(f"{c} {rate:.4g} ({ratio:.2f})" for c, (rate, ratio) in line.items()))

    def is_right(self, variant, reference, case):
        """Runs it once. A step that is wrong has failed. A peer is left out when it does not take the case or is far off; one
        that misses the steps' tolerance by less than a factor of ten is named and timed."""
        what = f"step {variant.step}" if variant.step else variant.name
        try:
            with variant.context(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch's reasons against each disabled backend
                o, lse = variant.call()
            torch.cuda.synchronize()
        except RuntimeError as error:
            if variant.step:
                raise
            if (what, case.dim) not in self.unavailable:
                self.unavailable.add((what, case.dim))
                self.say(f"no {what} for {case}: {first_line(error)}")
            return False
        verdict = reference.judge(o, lse, reference.rounded_scores if variant.rounds_scores else 0.0)
        if not verdict.failure and not bool(o.isfinite().all()):
            verdict.failure = "O is not finite in a row that was not sampled"
        if variant.step:
            self.checker.note(verdict, f"{what}, {case}")
        elif verdict.failure:
            self.say(f"WRONG    {what}, {case}: {verdict.failure}")
            return verdict.share < 10
        return not verdict.failure

    def which_kernels(self, dim):
        """Names what each variant launched, by the profiler, after all timing."""
        case = problem(1024, dim, False)
        q, k, v = case.tensors(DEVICE)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        for variant in variants_of(self.checker, case, q, k, v, True):
            what = f"step {variant.step}" if variant.step else variant.name
            try:
                with variant.context(), torch.profiler.profile(activities=activities) as seen:
                    variant.call()
                    torch.cuda.synchronize()
            except (RuntimeError, AssertionError) as error:
                self.say(f"ran      {what}: not known ({first_line(error)})")
                continue
            names = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            self.say(f"ran      {what}: " + (", ".join(short(n) for n in names) or "the profiler saw no kernel"))

    def summary(self):
        columns = list(dict.fromkeys(column for line in self.table.values() for column in line))
        self.say("\nTFLOP/s, and in brackets the ratio to SDPA flash; medians")
        width = max([14, *(len(c) for c in columns)]) + 2
        self.say("  D  mask        N" + "".join(c.rjust(width) for c in columns))
        for (dim, causal, tokens), line in self.table.items():
            cells = [f"{line[c][0]:.4g} ({line[c][1]:.2f})" if c in line else "" for c in columns]
            text = "".join(cell.rjust(width) for cell in cells)
            self.say(f"{dim:3}  {'causal' if causal else 'none':6} {tokens:6}{text}")
        for column in columns:
            if column.startswith("step") or column == CUDNN:
                self.against_flash(column)
        self.causal_share(columns)
        self.climb(sorted(c for c in columns if c.startswith("step")))

    def against_flash(self, column):
        dims = sorted({key[0] for key in self.table})
        for some in [*([dim] for dim in dims), [64, 128]]:
            cells = {k: v[column][1] for k, v in self.table.items() if k[0] in some and column in v}
            cells = {k: ratio for k, ratio in cells.items() if not math.isnan(ratio)}
            if not cells or (len(some) > 1 and len({k[0] for k in cells}) < 2):
                continue
            worst = min(cells, key=cells.get)
            self.say(
                f"{column} against {FLASH}, D = {' and '.join(map(str, some))}: geometric mean "
                f"{statistics.geometric_mean(cells.values()):.3f}, minimum {cells[worst]:.3f} (D = {worst[0]}, "
                f"{'causal' if worst[1] else 'no mask'}, N = {worst[2]}), {len(cells)} cells"
            )

    def causal_share(self, columns):
        for dim in sorted({key[0] for key in self.table}):
            n = max(key[2] for key in self.table)
            plain, causal = (self.table.get((dim, c, n), {}) for c in (False, True))
            shares = [
                f"{c} {flops(problem(n, dim, True)) / flops(problem(n, dim, False)) * plain[c][0] / causal[c][0]:.3f}"
                for c in columns
                if c in plain and c in causal
            ]
            self.say(f"causal time / time without a mask, D = {dim}, N = {n}: {', '.join(shares)}")

    def climb(self, steps):
        for (dim, causal, tokens), line in self.table.items():
            if tokens == 4096:
                rates = [f"{c[5:]} {line[c][0]:.4g}" for c in steps if c in line]
                self.say(f"the climb, D = {dim}, {'causal' if causal else 'no mask'}, N = 4096: " + " < ".join(rates))


def short(name):
    """A kernel's name without its types and arguments."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return name.split("<")[0].split("(")[0]


class LowestFree(threading.Thread):
    """Watches how little device memory is free while a call runs: steps allocate for themselves, and free again before
    they return. CUDA hands memory out in pieces of 2 MiB."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before = self.lowest = torch.cuda.mem_get_info()[0]
        self.done = threading.Event()

    def run(self):
        while not self.done.is_set():
            self.lowest = min(self.lowest, torch.cuda.mem_get_info()[0])

    def taken(self):
        self.done.set()
        self.join()
        return self.before - self.lowest


def extra_memory(variant, case):
    """Bytes beyond Q, K, V and O that one call takes: L, the peers' temporaries and the steps' workspaces."""
    with variant.context():
        variant.call()  # what is allocated once and kept, such as cuBLAS's workspace, does not count
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        watch = LowestFree()
        if variant.step:
            watch.start()
            time.sleep(0.01)
        kept = variant.call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        if variant.step:
            return watch.taken() + 4 * case.batch * case.heads * case.len_q
        o = kept[0]
        return peak - o.numel() * o.element_size()


def memory(checker, results, dims=(64, 128), lengths=LENGTHS):
    """Rows of extra memory over N. The same number of tokens throughout: what grows here grows with N * N / N."""
    for dim in dims:
        for tokens in lengths:
            case = problem(tokens, dim, False)
            q, k, v = case.tensors(DEVICE)
            parts = []
            for variant in variants_of(checker, case, q, k, v, True):
                if variant.step and case.work > LARGE_WORK_LIMITS.get(int(variant.step), math.inf):
                    continue
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        extra = extra_memory(variant, case)
                except torch.cuda.OutOfMemoryError:
                    results.say(f"no {variant.name} for {case}: more than the device's memory")
                    continue
                except RuntimeError as error:
                    if variant.step:
                        raise
                    results.say(f"no {variant.name} for {case}: {first_line(error)}")
                    continue
                finally:
                    torch.cuda.empty_cache()
                results.add(variant, "forward", case, "extra_memory", "bytes", summarize([extra]))
                parts.append(f"{'step ' + variant.step if variant.step else variant.name} {extra / 2**20:.4g} MiB")
            results.say(f"memory   {case}: {', '.join(parts)}")
