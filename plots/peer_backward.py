"""The backward and PyTorch's timed side by side in one process, each as its own operator, without autograd; and the memory
that each takes beyond its tensors."""

import math
import statistics
import warnings

import torch

from peer_gradients import MODES, STEP, Reference, gradient_of_output, step_variant
from peer_timing import (
    CUDNN,
    DEVICE,
    DIMS,
    FLASH,
    LENGTHS,
    POSSIBLE,
    LowestFree,
    Timer,
    Variant,
    ceilings,
    clock_mhz,
    first_line,
    flops,
    problem,
    short,
    summarize,
)

# Products of two N x D or N x N matrices: two in the forward, five in the backward.
SHARES = {"backward": 2.5, "forward_backward": 3.5}
FAST, DETERMINISTIC = (f"{mode} beside peers" for mode in MODES.values())


class Ours:
    """Step 09 on one problem, in memory that is there before."""

    def __init__(self, library, given, d_o, causal, scale):
        q, k, v = given
        o = torch.full_like(q, math.nan)
        lse = torch.full(q.shape[:3], math.nan, device=q.device)
        self.forward = library.bind(STEP, q, k, v, o, lse, causal, scale)
        self.gradients = [torch.full_like(t, math.nan) for t in given]
        self.bytes, self.backward = {}, {}
        for deterministic, mode in MODES.items():
            self.bytes[mode] = library.workspace_bytes(q, k, deterministic)
            workspace = torch.full((self.bytes[mode],), 255, dtype=torch.uint8, device=q.device)
            tensors = *given, o, lse, d_o, *self.gradients, workspace
            self.backward[mode] = library.bind_backward(*tensors, causal, scale, deterministic)
        self.forward()

    def variants(self, op):
        for mode, backward in self.backward.items():
            yield step_variant(mode, self._run(backward, with_forward=op == "forward_backward"))

    def _run(self, backward, with_forward):
        def run():
            if with_forward:
                self.forward()
            backward()
            return self.gradients

        return run


def flash_operators(q, k, v, d_o, causal, scale):
    """PyTorch's flash backend as (forward, backward): backward takes what forward gives."""
    ops = torch.ops.aten

    def forward():
        return ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)

    def backward(saved):
        o, lse, of_q, of_k, max_q, max_k, seed, offset = saved[:8]
        return ops._scaled_dot_product_flash_attention_backward(
            d_o, q, k, v, o, lse, of_q, of_k, max_q, max_k, 0.0, causal, seed, offset, scale=scale
        )

    return forward, backward


def cudnn_operators(q, k, v, d_o, causal, scale):
    ops = torch.ops.aten

    def forward():
        return ops._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)

    def backward(saved):
        o, lse, of_q, of_k, max_q, max_k, seed, offset = saved[:8]
        return ops._scaled_dot_product_cudnn_attention_backward(
            d_o, q, k, v, o, lse, seed, offset, None, of_q, of_k, max_q, max_k, 0.0, causal, scale=scale
        )

    return forward, backward


PEERS = {FLASH: flash_operators, CUDNN: cudnn_operators}


def peer_variants(name, given, d_o, causal, scale):
    """{op: variant} of a peer."""
    forward, backward = PEERS[name](*given, d_o, causal, scale)
    saved = forward()
    return {
        "backward": Variant(name, "", lambda: backward(saved)),
        "forward_backward": Variant(name, "", lambda: backward(forward())),
    }


class BackwardTiming:
    def __init__(self, checker, results):
        self.checker, self.results, self.say = checker, results, results.say
        self.timer = Timer()
        self.peak = 0.0
        self.table = {op: {} for op in SHARES}  # (dim, causal, tokens) -> {name: (median TFLOP/s, ratio to SDPA flash)}

    def run(self, dims=DIMS, lengths=LENGTHS):
        self.say(f"clock of the multiprocessors: {clock_mhz():.0f} MHz")
        self.peak = ceilings(self.timer, self.results)
        for dim in dims:
            for causal in (False, True):
                for tokens in lengths:
                    self.cell(problem(tokens, dim, causal))
                    torch.cuda.empty_cache()
        self.say(f"clock of the multiprocessors: {clock_mhz():.0f} MHz")
        self.which_kernels(dims[0])
        for op in SHARES:
            self.summary(op)

    def variants(self, case):
        """{op: variants}, of those that take the case."""
        given = case.tensors(DEVICE)
        d_o = gradient_of_output(case, given[0])
        ours = Ours(self.checker.loaded, given, d_o, case.causal, case.true_scale)
        found = {op: list(ours.variants(op)) for op in SHARES}
        for name in PEERS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PyTorch's reasons against a backend
                    of_peer = peer_variants(name, given, d_o, case.causal, case.true_scale)
                    of_peer["forward_backward"].call()
                    torch.cuda.synchronize()
            except (RuntimeError, NotImplementedError) as error:
                self.say(f"no {name} for {case}: {first_line(error)}")
                continue
            for op, variant in of_peer.items():
                found[op].append(variant)
        return given, d_o, ours, found

    def cell(self, case):
        given, d_o, ours, found = self.variants(case)
        is_right = self.judge(case, given, d_o, found)
        for op, variants in found.items():
            usable = [variant for variant in variants if is_right[variant.name]]
            times = self.timer.interleaved(usable)
            flash = next((t for v, t in zip(usable, times) if v.name == FLASH), None)
            line = self.table[op].setdefault((case.dim, case.causal, case.len_q), {})
            for variant, milliseconds in zip(usable, times):
                self.add(op, case, variant, milliseconds, flash, line)
        self.memory(case, ours, [variant for variant in found["backward"] if is_right[variant.name]])
        for op, table in self.table.items():
            line = table[case.dim, case.causal, case.len_q]
            cells = (f"{name} {rate:.4g} ({ratio:.2f})" for name, (rate, ratio) in line.items())
            self.say(f"measure  {op.replace('_', ' and ')}, {case}: {', '.join(cells)}")

    def add(self, op, case, variant, milliseconds, flash, line):
        rate = summarize([SHARES[op] * flops(case) / ms / 1e6 for ms in milliseconds])
        if rate[0] * 1e9 > POSSIBLE * self.peak:
            self.say(f"MEASURING ERROR  {variant.name}, {op}, {case}: {rate[0] / 1e3:.0f} TFLOP/s is more than the machine's peak")
            return
        self.results.add(variant, op, case, "time", "ms", summarize(milliseconds))
        self.results.add(variant, op, case, "rate", "GFLOP/s", rate)
        ratio = math.nan
        if flash:
            ratios = summarize([f / ms for f, ms in zip(flash, milliseconds)])
            ratio = ratios[0]
            self.results.add(variant, op, case, "ratio_to_sdpa_flash", "", ratios)
        line[variant.name] = rate[0] / 1e3, ratio

    def judge(self, case, given, d_o, found):
        """{name: whether its gradients are right}, by the first and the last head of the first and the last batch entry. A
        step that is wrong has failed; a peer that misses by less than a factor of ten is named and timed."""
        batches, heads = (sorted({0, size - 1}) for size in (case.batch, case.heads))

        def pick(t):
            return t[batches][:, heads]

        reference = Reference(*map(pick, (*given, d_o)), case.true_scale, case.diagonal)
        is_right = {}
        for variant in found["forward_backward"]:
            gradients = variant.call()
            torch.cuda.synchronize()
            verdict = reference.judge([pick(t) for t in gradients])
            if not verdict.failure and not all(bool(t.isfinite().all()) for t in gradients):
                verdict.failure = "a gradient is not finite in a head that was not sampled"
            is_right[variant.name] = not verdict.failure
            if variant.step:
                self.checker.note(verdict, f"step {STEP:02} backward, {variant.name}, {case}")
                for t in gradients:
                    t.fill_(math.nan)
            elif verdict.failure:
                self.say(f"WRONG    {variant.name}, {case}: {verdict.failure}")
                is_right[variant.name] = verdict.share < 10
        return is_right

    def memory(self, case, ours, variants):
        """Rows of the bytes beyond the tensors that one backward takes: workspaces and temporaries."""
        parts = []
        for variant in variants:
            variant.call()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            if variant.step:
                watch = LowestFree()
                watch.start()
                variant.call()
                torch.cuda.synchronize()
                extra = watch.taken() + ours.bytes[variant.name.split()[0]]
            else:
                gradients = variant.call()
                torch.cuda.synchronize()
                extra = torch.cuda.max_memory_allocated() - before - sum(t.numel() * t.element_size() for t in gradients)
            self.results.add(variant, "backward", case, "extra_memory", "bytes", summarize([max(extra, 0)]))
            parts.append(f"{variant.name} {extra / 2**20:.4g} MiB")
        self.say(f"memory   {case}, backward: {', '.join(parts)}")

    def which_kernels(self, dim):
        """Names what each launched, by the profiler, after all timing."""
        _, _, _, found = self.variants(problem(1024, dim, False))
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        for variant in found["backward"]:
            try:
                with torch.profiler.profile(activities=activities) as seen:
                    variant.call()
                    torch.cuda.synchronize()
            except (RuntimeError, AssertionError) as error:
                self.say(f"ran      {variant.name}: not known ({first_line(error)})")
                continue
            names = [short(e.name) for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            self.say(f"ran      {variant.name}: " + (", ".join(names) or "the profiler saw no kernel"))

    def summary(self, op):
        table = self.table[op]
        columns = list(dict.fromkeys(column for line in table.values() for column in line))
        self.say(f"\n{op.replace('_', ' and ')}: TFLOP/s, and in brackets the ratio to SDPA flash; medians")
        width = max([14, *(len(c) for c in columns)]) + 2
        self.say("  D  mask        N" + "".join(c.rjust(width) for c in columns))
        for (dim, causal, tokens), line in table.items():
            cells = [f"{line[c][0]:.4g} ({line[c][1]:.2f})" if c in line else "" for c in columns]
            text = "".join(cell.rjust(width) for cell in cells)
            self.say(f"{dim:3}  {'causal' if causal else 'none':6} {tokens:6}{text}")
        for column in columns:
            if column != FLASH:
                self.against(op, column, FLASH)
        self.against(op, DETERMINISTIC, FAST)

    def against(self, op, column, other):
        """Ratios of medians over the cells, and the worst one."""
        dims = sorted({key[0] for key in self.table[op]})
        for some in [*([dim] for dim in dims), [64, 128]]:
            cells = {
                key: line[column][0] / line[other][0]
                for key, line in self.table[op].items()
                if key[0] in some and column in line and other in line
            }
            if not cells or (len(some) > 1 and len({key[0] for key in cells}) < 2):
                continue
            worst = min(cells, key=cells.get)
            self.say(
                f"{op}: {column} against {other}, D = {' and '.join(map(str, some))}: geometric mean "
                f"{statistics.geometric_mean(cells.values()):.3f}, minimum {cells[worst]:.3f} (D = {worst[0]}, "
                f"{'causal' if worst[1] else 'no mask'}, N = {worst[2]}), {len(cells)} cells"
            )
