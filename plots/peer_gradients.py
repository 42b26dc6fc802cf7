"""Gradients against double precision and against PyTorch's flash backward, by the rule of docs/numerics.md: three times the
error of a plain computation in the same precision (the twin), plus a few roundings."""

import dataclasses
import math
import random

import torch

from peer_checks import (
    BF16,
    FP16,
    FP32,
    FP32_ROUNDOFF,
    INF,
    RAGGED,
    SQUARE,
    Case,
    Verdict,
    hidden_keys,
    largest_finite,
    largest_nearby,
    random_case,
    ulp,
)
from peer_timing import FLASH, Variant

STEP = 9
NAMES = ("dq", "dk", "dv")
MODES = {False: "fast", True: "deterministic"}
FACTOR = 3
SCORES_AT_ONCE = 2**26  # half a GiB of doubles, of which there are several
ERROR_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def gradient_of_output(case, q):
    """dO, stored as q is."""
    return dataclasses.replace(case, seed=case.seed + 1, pattern="normal").tensors(q.device)[0]


def differentiate(q, k, v, d_o, scale, diagonal, real, rounded, magnitudes=False):
    """dQ, dK and dV from the formulas, computed in `real`, with O, P, dS and the results rounded to `rounded`. With
    `magnitudes` also the sums of the sizes of what each adds up, and the largest finite score or L."""
    len_q, len_kv = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    (q_, d_o_), (k_, v_) = ([t.flatten(0, 1) for t in pair] for pair in ((q, d_o), (k, v)))
    sizes = q_.shape, k_.shape, k_.shape
    sums = [torch.zeros(size, dtype=real, device=q.device) for size in (sizes * 2 if magnitudes else sizes)]
    largest = 0.0

    def round_(t):
        return t.to(rounded).to(real)

    rows_at_once = max(1, min(len_q, SCORES_AT_ONCE // max(len_kv, 1)))
    heads_at_once = max(1, SCORES_AT_ONCE // max(1, rows_at_once * len_kv))
    for heads in torch.arange(len(q_), device=q.device).split(heads_at_once):
        # Query heads are counted through all batch entries here, and so are the key heads that they read.
        key_heads = heads // group
        keys, values = k_[key_heads].to(real), v_[key_heads].to(real)
        for rows in torch.arange(len_q, device=q.device).split(rows_at_once):
            queries, d_out = (t[heads[:, None], rows].to(real) for t in (q_, d_o_))
            s = (queries @ keys.mT).mul_(scale)
            hidden = hidden_keys(rows, len_kv, diagonal, q.device)
            hidden_from_keys = None if hidden is None else hidden.mT
            if hidden is not None:
                s.masked_fill_(hidden, -INF)
            lse = s.logsumexp(-1, keepdim=True)
            lse.masked_fill_(lse == INF, math.nan)  # +inf among the scores makes the whole row NaN
            if magnitudes:
                largest = max(largest, largest_finite(s), largest_finite(lse))
            p = s.sub_(lse.masked_fill(lse == -INF, 0)).exp_()
            if hidden is not None:  # in a row of NaN too
                p.masked_fill_(hidden, 0)
            p_rounded = round_(p)
            delta = (d_out * round_(p_rounded @ values)).sum(-1, keepdim=True)
            ds = round_(p_rounded * (d_out @ values.mT - delta))
            if hidden is not None:  # not 0 times a NaN
                ds.masked_fill_(hidden, 0)
            parts = [
                product(ds, keys, hidden) * scale,
                product(ds.mT, queries, hidden_from_keys) * scale,
                product(p_rounded.mT, d_out, hidden_from_keys),
            ]
            if magnitudes:
                a_queries, a_keys, a_values, a_out = (t.abs() for t in (queries, keys, values, d_out))
                ds = p * (a_out @ a_values.mT + (a_out * (p @ a_values)).sum(-1, keepdim=True))
                parts += [ds @ a_keys * scale, ds.mT @ a_queries * scale, p.mT @ a_out]
            for index, part in enumerate(parts):
                if index % 3 == 0:
                    sums[index][heads[:, None], rows] = part
                else:
                    sums[index].index_add_(0, key_heads, part)
    shapes = (q.shape, k.shape, v.shape) * 2
    sums = [t.view(shape) for t, shape in zip(sums, shapes)]
    gradients = [round_(t) for t in sums[:3]]
    return (gradients, sums[3:], largest) if magnitudes else gradients


def product(weights, factors, hidden):
    """weights @ factors without the terms of hidden pairs, which would make 0 * NaN of a NaN or an infinity."""
    if hidden is None or bool(factors.isfinite().all()):
        return weights @ factors
    bad = ~factors.isfinite()
    met = (~hidden).to(factors.dtype) @ bad.to(factors.dtype) > 0
    return (weights @ factors.masked_fill(bad, 0)).masked_fill_(met, math.nan)


class Reference:
    """The gradients in double precision, the twin's, and how far an answer may be off."""

    def __init__(self, q, k, v, d_o, scale, diagonal=None):
        self.dtype = q.dtype
        given = q, k, v, d_o, scale, diagonal
        self.exact, self.magnitudes, self.largest = differentiate(*given, torch.float64, torch.float64, True)
        self.twin = differentiate(*given, FP32, q.dtype)
        info = torch.finfo(q.dtype)
        (len_q, dim), len_kv, group = q.shape[2:], k.shape[2], q.shape[1] // max(1, k.shape[1])
        # P from an fp32 score and an fp32 L, as a share of what is added up.
        self.room = 4 * FP32_ROUNDOFF * (self.largest + 1)
        if len_q * len_kv < 64:  # too few to show the twin's typical error: one rounding of P or dS besides
            self.room += info.eps / 2
        self.unspecified = self._unspecified(q, k, v, d_o, diagonal, group)
        # Rows without a pair: exactly zero.
        first = 0 if diagonal is None else min(max(-diagonal, 0), len_q)
        last = len_kv if diagonal is None else min(max(len_q + diagonal, 0), len_kv)
        self.unseen = slice(0, first if len_kv else len_q), slice(last if len_q else 0, len_kv)
        # What the twin's own error may be, so that a broken twin cannot widen the gate.
        norms = [torch.where(t.isfinite(), t, 0).double().norm(dim=-1).amax().item() if t.numel() else 0.0 for t in (q, k)]
        score_error = FP32_ROUNDOFF * (4 * math.sqrt(dim + 1) * scale * norms[0] * norms[1] + 4 * self.largest)
        p_error = math.expm1(min(700.0, 2 * score_error + 8 * FP32_ROUNDOFF * math.sqrt(len_kv + 1)))
        tiny = info.tiny * info.eps / 2
        tiny_ds = tiny * (1 + dim * largest_finite(d_o) * (len_kv * largest_finite(v) + 1))
        self.broken = ""
        for name, exact, twin, size, terms, other in zip(
            NAMES, self.exact, self.twin, self.magnitudes, (len_kv, len_q * group, len_q * group), (k, q, None)
        ):
            error = largest_finite(twin.double() - exact)
            sums = 16 * FP32_ROUNDOFF * (math.sqrt(terms + 1) + math.sqrt(dim + 1))
            small = terms * (tiny * largest_finite(d_o) if other is None else tiny_ds * scale * largest_finite(other))
            bound = (3 * p_error + 2 * info.eps + sums) * largest_finite(size) + info.eps * largest_finite(exact) + small
            if not error <= bound:
                self.broken = f"the twin's {name} is off by {error:.3g}, beyond the {bound:.3g} of theory"

    @staticmethod
    def _unspecified(q, k, v, d_o, diagonal, group):
        """(B, Hkv, 1, 1): key heads with a NaN or an infinity under a causal mask. A tile multiplies the zeros of hidden
        pairs too, and 0 times these is NaN."""
        if diagonal is None:
            return torch.zeros(*k.shape[:2], 1, 1, dtype=torch.bool, device=k.device)
        bad = [~t.isfinite().flatten(2).all(-1) for t in (k, v)]
        bad += [(~t.isfinite().flatten(2).all(-1)).view(k.shape[0], -1, group).any(-1) for t in (q, d_o)]
        return (bad[0] | bad[1] | bad[2] | bad[3])[..., None, None]

    def errors(self, gradients):
        """Relative to the exact gradients, as root mean squares."""
        found = []
        for exact, out in zip(self.exact, gradients):
            size = exact.square().mean().sqrt().item()
            found.append((out.double() - exact).square().mean().sqrt().item() / size if size else 0.0)
        return found

    def judge(self, gradients):
        verdict = Verdict(failure=self.broken)
        for index, (name, out) in enumerate(zip(NAMES, gradients)):
            if not verdict.failure:
                one = self._compare(name, index, out)
                verdict = one if one.failure or one.share > verdict.share else verdict
        return verdict

    def _compare(self, name, index, out):
        exact, twin, size = self.exact[index], self.twin[index].double(), self.magnitudes[index]
        if out.shape != exact.shape:
            return Verdict(failure=f"{name} has the shape {tuple(out.shape)}, not {tuple(exact.shape)}")
        if not out.numel():
            return Verdict()
        unspecified = self.unspecified
        if index == 0:
            unspecified = unspecified.repeat_interleave(out.shape[1] // unspecified.shape[1], 1)
        finite, out = exact.isfinite(), out.double()

        def nearby(t):
            return largest_nearby(torch.where(finite & t.isfinite(), t.abs(), 0))

        allowed = FACTOR * nearby(twin - exact) + 3 * ulp(self.dtype, nearby(exact)) + self.room * nearby(size)
        allowed[:, :, self.unseen[min(index, 1)]] = 0
        error = torch.where(finite, (out - exact).abs(), 0)
        # NaN and infinities agree by kind and place.
        right = torch.where(finite, error <= allowed, (out == exact) | (out.isnan() & exact.isnan())) | (unspecified & finite)
        share = torch.where(right & (error == 0) | unspecified, 0, error / allowed)
        verdict = Verdict(torch.where(share.isnan(), INF, share).max().item())
        if not bool(right.all()):
            at = int((~right).flatten().to(torch.uint8).argmax())
            place = [int(i) for i in torch.unravel_index(torch.tensor(at), out.shape)]
            got, want, room = (t.expand_as(out).flatten()[at].item() for t in (out, exact, allowed))
            verdict.failure = (
                f"{name}{place} is {got:.6g}, want {want:.6g} +- {room:.3g} "
                f"({int((~right).sum())} of {right.numel()} elements are wrong)"
            )
        return verdict


def sdpa_flash_gradients(q, k, v, d_o, causal, scale):
    """dQ, dK and dV of PyTorch's flash backend, or None for what it does not take."""
    group = q.shape[1] // k.shape[1]
    repeated = [t.repeat_interleave(group, 1) if group > 1 else t for t in (k, v)]
    try:
        o, lse, of_q, of_k, max_q, max_k, seed, offset, _ = torch.ops.aten._scaled_dot_product_flash_attention(
            q, *repeated, 0.0, bool(causal), False, scale=scale
        )
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            d_o, q, *repeated, o, lse, of_q, of_k, max_q, max_k, 0.0, bool(causal), seed, offset, scale=scale
        )
    except (RuntimeError, NotImplementedError):
        return None
    if group == 1:
        return gradients
    return [gradients[0], *(t.unflatten(1, (-1, group)).float().sum(2).to(t.dtype) for t in gradients[1:])]


def step_variant(mode, call=None):
    return Variant(f"{mode} beside peers", f"{STEP:02}", call)


class GradientChecker:
    """Runs the backward on cases. What fails is kept by the forward's checker."""

    def __init__(self, checker):
        self.checker, self.loaded, self.say = checker, checker.loaded, checker.say

    def run(self, given, lse, d_o, o, causal, scale, deterministic):
        """dQ, dK and dV, in memory that was full of NaN, and so was the workspace."""
        gradients = [torch.full_like(t, math.nan) for t in given]
        size = self.loaded.workspace_bytes(given[0], given[1], deterministic)
        workspace = torch.full((size,), 255, dtype=torch.uint8, device=given[0].device)
        self.loaded.bind_backward(*given, o, lse, d_o, *gradients, workspace, causal, scale, deterministic)()
        return gradients

    def accepts(self, case):
        return case.dtype != FP32 and self.checker.accepts(STEP, case.dtype, case.dim)

    def case(self, case, results=None):
        """One case in both modes. With results, rows of the errors."""
        if not self.accepts(case):
            return
        given = case.tensors(self.checker.device)
        d_o, scale = gradient_of_output(case, given[0]), case.true_scale
        o, lse = self.checker.run(STEP, *given, case.causal, scale)
        reference = Reference(*given, d_o, scale, case.diagonal)
        peer = None
        has_same_mask = case.causal is False or (case.diagonal == 0 and case.len_q == case.len_kv)
        if has_same_mask and case.pattern != "NaN, +inf, -inf":
            peer = sdpa_flash_gradients(*given, d_o, case.causal, scale)
        parts = []
        for deterministic, mode in MODES.items():
            gradients = self.run(given, lse, d_o, o, case.causal, scale, deterministic)
            verdict = reference.judge(gradients)
            if peer is not None and not verdict.failure:
                verdict.failure = against_peer(reference, gradients, peer)
            self.checker.note(verdict, f"step {STEP:02} backward, {mode}, {case}")
            parts.append(f"{mode} {100 * verdict.share:.0f}%")
            if results:
                self.add_errors(results, step_variant(mode), case, reference.errors(gradients))
        if peer is not None:
            verdict = reference.judge(peer)
            parts.append(f"SDPA flash {100 * verdict.share:.0f}%" + (" WRONG" if verdict.failure else ""))
            if results:
                self.add_errors(results, Variant(FLASH, "", None), case, reference.errors(peer))
        errors = ", ".join(f"{error:.1e}" for error in reference.errors(reference.twin))
        self.say(f"gradient {case}: {', '.join(parts)}; twin's relative errors {errors}")

    @staticmethod
    def add_errors(results, variant, case, errors):
        for name, error in zip(NAMES, errors):
            results.add(variant, "gradient_error", case, f"error_{name}", "", (error, error, error, 1))

    def repeated(self, case, times=30, results=None):
        """Deterministic runs give the same bits; of fast ones dK and dV do, and dQ differs by a rounding at most."""
        given = case.tensors(self.checker.device)
        d_o, scale = gradient_of_output(case, given[0]), case.true_scale
        o, lse = self.checker.run(STEP, *given, case.causal, scale)
        for deterministic, mode in MODES.items():
            runs = (self.run(given, lse, d_o, o, case.causal, scale, deterministic) for _ in range(times))
            first = next(runs)
            spread = [0.0, 0.0, 0.0]
            for run in runs:
                spread = [max(old, (a.float() - b.float()).abs().max().item()) for old, a, b in zip(spread, first, run)]
            size = first[0].float().abs().max()
            allowed = 0.0 if deterministic else ulp(case.dtype, size).item()
            same = spread[0] <= allowed and spread[1] == spread[2] == 0
            failure = "" if same else f"{times} runs differ by {', '.join(f'{x:.3g}' for x in spread)} in dq, dk, dv"
            self.checker.note(Verdict(failure=failure), f"step {STEP:02} backward, {mode}, {case}")
            relative = spread[0] / size.item()
            if same:
                self.say(f"gradient {case}, {mode}: {times} runs differ by {relative:.2g} of the largest dq, dk and dv by 0")
            if results:
                summary = relative, relative, relative, times
                results.add(step_variant(mode), "gradient_spread", case, "spread_dq", "", summary)


def against_peer(reference, gradients, peer):
    """What is wrong with gradients beside a peer's: the largest error, of all of dQ, dK or dV, is more than three times the
    peer's and what the rule adds."""
    for name, exact, size, out, other in zip(NAMES, reference.exact, reference.magnitudes, gradients, peer):
        mine, theirs = (largest_error(t, exact) for t in (out, other))
        room = ulp(reference.dtype, torch.tensor(largest_finite(exact))).item() + reference.room * largest_finite(size)
        if math.isfinite(theirs) and not mine <= FACTOR * theirs + room:
            return f"{name} is off by {mine:.3g}, SDPA flash by {theirs:.3g}"
    return ""


def largest_error(out, exact):
    return (out.double() - exact).abs().max().item() if out.numel() else 0.0


def fixed_cases():
    for dtype in (BF16, FP16):
        for batch, len_q, len_kv, dim in RAGGED:
            for causal in [False, True] if len_q == len_kv else [False, "top_left", "bottom_right"]:
                yield Case(batch, 1, 1, len_q, len_kv, dim, dtype, causal)
        for batch, heads, tokens, dim in SQUARE:
            for causal in (False, True):
                yield Case(batch, heads, heads, tokens, tokens, dim, dtype, causal)
        for dim in (64, 128, 256):  # grouped heads, both diagonals, ragged
            for causal in (False, "top_left", "bottom_right"):
                yield Case(2, 8, 2, 515, 700, dim, dtype, causal, "bnhd")
                yield Case(2, 6, 3, 700, 515, dim, dtype, causal, "padded rows")
        yield Case(1, 2, 1, 256, 3, 32, dtype, "bottom_right")  # most queries see no key
        yield Case(1, 1, 1, 1, 128, 64, dtype, pattern="very negative scores")


def check(checker, results, seed, count, lengths=ERROR_LENGTHS):
    """The named shapes, a random sweep, errors over N, and repeated runs."""
    gradients = GradientChecker(checker)
    for case in fixed_cases():
        gradients.case(case)
    checker.say(f"random sweep of {count} gradients, seed {seed}")
    choose = random.Random(seed)
    for _ in range(count):
        gradients.case(random_case(choose))
    for tokens in lengths:
        for dtype in (BF16, FP16):
            for causal in (False, True):
                gradients.case(Case(1, 4, 4, tokens, tokens, 128, dtype, causal), results)
    for dim in (64, 128):
        for causal in (False, True):
            gradients.repeated(Case(1, 8, 8, 4096, 4096, dim, BF16, causal), results=results)
    gradients.repeated(Case(2, 4, 2, 515, 515, 128, FP16, True))


def check_large(checker, longest=65536, heads=80000, elements=2**31, free_bytes=None):
    """Long sequences, more heads than a grid dimension holds, and offsets beyond 32 bits."""
    gradients = GradientChecker(checker)
    for dim in (64, 128):
        for causal in (False, True):
            gradients.case(Case(1, 1, 1, longest, longest, dim, BF16, causal))
    gradients.case(Case(heads // 16, 16, 16, 3, 5, 16, BF16, "bottom_right"))
    tokens, dim, of_heads = 128, 128, 16
    # Eight tensors, fp32 sums of dQ, and half as much again for what the checks need.
    if free_bytes is not None and elements * (8 * 2 + 4) * 1.5 > free_bytes:
        checker.say(f"SKIP     gradients of 2^31 elements: {free_bytes / 2**30:.0f} GiB of device memory are free")
        return
    batch = elements // (of_heads * tokens * dim) + 2
    case = Case(batch, of_heads, of_heads, tokens, tokens, dim, BF16, True)
    some = torch.tensor(sorted({0, 1, batch // 2 - 1, batch // 2, batch - 2, batch - 1}))
    make = torch.Generator(checker.device).manual_seed(1)
    size = batch, of_heads, tokens, dim
    # In the element type at once: a tensor of this size has no room for an fp32 copy.
    *given, d_o = (torch.empty(size, dtype=BF16, device=checker.device).normal_(generator=make) for _ in range(4))
    o, lse = checker.run(STEP, *given, True, case.true_scale)
    picked = [t.index_select(0, some.to(t.device)) for t in (*given, d_o)]
    reference = Reference(*picked, case.true_scale, 0)
    parts = []
    for deterministic, mode in MODES.items():
        found = gradients.run(given, lse, d_o, o, True, case.true_scale, deterministic)
        verdict = reference.judge([t.index_select(0, some.to(t.device)) for t in found])
        if not verdict.failure and not all(bool(part.isfinite().all()) for t in found for part in t.split(1024)):
            verdict.failure = "a gradient is not finite in a batch entry that was not sampled"
        checker.note(verdict, f"step {STEP:02} backward, {mode}, {case}")
        parts.append(f"{mode} {100 * verdict.share:.0f}%")
        del found
    checker.say(f"gradient {case}, {batch * of_heads * tokens * dim} elements a tensor: {', '.join(parts)}")
