"""Steps against double precision and against PyTorch's attention, by the rule of docs/numerics.md: an answer may be as far
from the exact one as twice the error of a plain computation in the same precision (the twin), plus a few roundings."""

import ctypes
import dataclasses
import math
import random

import torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
SCORES_AT_ONCE = 2**27  # one GiB of doubles
FP32_ROUNDOFF = 2**-24
INF = math.inf


# (batch, Nq, Nk, D) with one head each, then (B, H, N, D).
RAGGED = [(4, 128, 128, 64), (2, 1024, 1024, 64), (2, 100, 100, 64), (1, 37, 53, 32), (1, 200, 96, 128)]
SQUARE = [(1, 8, 512, 64), (1, 8, 2048, 64), (4, 32, 4096, 128), (1, 8, 8192, 128)]
# Steps on CUDA cores and on global memory are slow: none of these cases takes them more than about a second.
WORK_LIMITS = {3: 1e7, 4: 1e11, 5: 4e11}
LARGE_WORK_LIMITS = {3: 1e7, 4: 6e11, 5: 2e12}


@dataclasses.dataclass(frozen=True)
class Case:
    """One call. `causal` as flash_attention takes it."""

    batch: int
    heads: int
    heads_kv: int
    len_q: int
    len_kv: int
    dim: int
    dtype: torch.dtype = BF16
    causal: object = False
    layout: str = "bhnd"  # or bnhd, padded rows, one key head for all (stride 0)
    pattern: str = "normal"
    scale: float = 0.0  # 0: 1 / sqrt(D)
    seed: int = 0

    def __str__(self):
        def pair(a, b, between):
            return f"{a}" if a == b else f"{a}{between}{b}"

        text = f"{NAMES[self.dtype]} B{self.batch} H{pair(self.heads, self.heads_kv, '/')}"
        text += f" N{pair(self.len_q, self.len_kv, 'x')} D{self.dim}"
        if self.causal is not False:
            text += " causal" if self.causal is True else f" causal {self.causal}"
        for value, usual in ((self.layout, "bhnd"), (self.pattern, "normal")):
            text += "" if value == usual else f", {value}"
        text += f", scale {self.scale:.4g}" if self.scale else ""
        return text + (f", seed {self.seed}" if self.seed else "")

    @property
    def true_scale(self):
        """What the C interface receives: rounded to fp32."""
        return ctypes.c_float(self.scale or self.dim**-0.5).value

    @property
    def diagonal(self):
        if self.causal is False:
            return None
        if self.causal is True or self.causal == "top_left":
            return 0
        return self.len_kv - self.len_q if self.causal == "bottom_right" else self.causal

    @property
    def dtype_name(self):
        return NAMES[self.dtype]

    @property
    def work(self):
        return self.batch * self.heads * self.len_q * self.len_kv * self.dim

    def tensors(self, device):
        make = torch.Generator(device).manual_seed(self.seed)
        q = self._stored(self.heads, self.len_q, make)
        is_shared = self.layout == "one key head for all"
        k, v = (self._stored(1 if is_shared else self.heads_kv, self.len_kv, make) for _ in range(2))
        last = k[:, :, -1:]
        if self.pattern == "times 10":
            for t in (q, k, v):
                t.mul_(10)
        elif self.pattern == "all equal":
            for t in (q, k, v):
                t.fill_(0.5)
        elif self.pattern == "largest score last":
            q.abs_()
            last.fill_(3)
        elif self.pattern == "very negative scores":
            q.abs_().add_(1)
            k.abs_().neg_().sub_(2)
        elif self.pattern == "NaN, +inf, -inf":
            q[0, 0, -1] = math.nan  # one row
            q[:, :, :, 0].abs_().add_(1)  # so that the sign of a score is the sign of its key
            k[0, 0, 0] = 0
            k[0, 0, 0, 0] = -INF  # an ordinary masked key
            last[-1, -1, 0, 0] = INF  # every row that sees it
        if is_shared:
            k, v = (t.expand(-1, self.heads_kv, -1, -1) for t in (k, v))
        return q, k, v

    def _stored(self, heads, tokens, make):
        def normal(*sizes):
            return torch.randn(sizes, generator=make, device=make.device, dtype=FP32).to(self.dtype)

        if self.layout == "bnhd":
            return normal(self.batch, tokens, heads, self.dim).transpose(1, 2)
        if self.layout == "padded rows":
            return normal(self.batch, heads, tokens + 1, self.dim + 8)[:, :, :tokens, : self.dim]
        return normal(self.batch, heads, tokens, self.dim)


def plain_forward(q, k, v, scale, hidden, real, rounded):
    """O and L of (heads, N, D) tensors, computed in `real`, with P and O rounded to `rounded`. `hidden` is true where a query
    does not see a key. Also the largest finite score."""
    s = (q.to(real) @ k.to(real).mT).mul_(scale)
    if hidden is not None:
        s.masked_fill_(hidden, -INF)
    largest = torch.where(s.isfinite(), s, 0).abs_().amax()
    row_max = s.amax(-1, keepdim=True)
    row_max.masked_fill_(row_max == -INF, 0)
    p = s.sub_(row_max).exp_()
    row_sum = p.sum(-1, keepdim=True)
    lse = row_max.add_(row_sum.log())
    p = p.div_(torch.where(row_sum == 0, 1, row_sum)).to(rounded).to(real)
    return (p @ v.to(real)).to(rounded), lse.squeeze(-1), largest


def hidden_keys(rows, len_kv, diagonal, device):
    if diagonal is None:
        return None
    keys = torch.arange(len_kv, device=device)
    return keys > rows.to(device)[:, None] + max(-(2**31), min(diagonal, 2**31))


def ulp(dtype, size):
    """Spacing of the numbers of a type near some sizes."""
    info = torch.finfo(dtype)
    return info.eps * size.clamp(min=info.tiny).log2().floor().exp2()


def largest_finite(t):
    return torch.where(t.isfinite(), t, 0).abs().max().item() if t.numel() else 0.0


@dataclasses.dataclass
class Verdict:
    share: float = 0.0  # the largest error divided by what is allowed there
    failure: str = ""


class Reference:
    """O and L in double precision, the twin's, and how far an answer may be off. With `rows`, of these query rows only."""

    def __init__(self, q, k, v, scale, diagonal=None, rows=None):
        dtype, self.rows = q.dtype, rows
        heads_kv, len_kv, dim = k.shape[1:]
        group = q.shape[1] // heads_kv
        rows = torch.arange(q.shape[2]) if rows is None else rows
        self.index = rows.to(q.device)
        hidden = hidden_keys(rows, len_kv, diagonal, q.device)
        q_ = self.select(q).flatten(0, 1)
        heads = torch.arange(len(q_), device=q.device)
        k_, v_ = k.flatten(0, 1), v.flatten(0, 1)
        at_once = max(1, SCORES_AT_ONCE // (len(rows) * len_kv))
        parts, self.max_score = [], 0.0
        for some in heads.split(at_once):
            # Query heads are counted through all batch entries here, and so are the key heads that they read.
            key_heads = some // group
            given = q_[some], k_[key_heads], v_[key_heads], scale, hidden
            exact = plain_forward(*given, torch.float64, torch.float64)
            parts.append((*exact[:2], *plain_forward(*given, FP32, dtype)[:2]))
            self.max_score = max(self.max_score, exact[2].item())
        shape = (q.shape[0], q.shape[1], len(rows))
        self.o, self.lse, self.twin_o, self.twin_lse = (
            torch.cat(tensors).view(*shape, *tensors[0].shape[2:]) for tensors in zip(*parts)
        )
        max_v = largest_finite(v)
        info = torch.finfo(dtype)
        self.floor_o = 4 * FP32_ROUNDOFF * self.max_score * max_v
        self.floor_lse = 4 * FP32_ROUNDOFF * self.max_score
        if self.o.numel() < 64:  # too few to show the twin's typical error: one rounding of P besides
            self.floor_o += info.eps / 2 * max_v
        self.rounded_scores = 2 * info.eps * self.max_score * max_v  # room for peers that round S
        # What the twin's own error may be, so that a broken twin cannot widen the gate.
        norms = [torch.where(t.isfinite(), t, 0).double().norm(dim=-1).max().item() for t in (q_, k_)]
        score_error = FP32_ROUNDOFF * (4 * math.sqrt(dim + 1) * scale * norms[0] * norms[1] + 4 * self.max_score)
        sums = 4 * FP32_ROUNDOFF * (math.sqrt(len_kv + 1) + 1)
        p_error = 2 * (info.eps / 2 + score_error + sums) + len_kv * info.tiny * info.eps / 2
        self.broken = ""
        self.twin_error = largest_finite(self.twin_o.double() - self.o)
        largest_lse = self.lse.new_tensor(largest_finite(self.lse))
        for name, error, bound in (
            ("O", self.twin_error, info.eps * largest_finite(self.o) + min(2.0, p_error) * max_v),
            ("L", largest_finite(self.twin_lse.double() - self.lse), score_error + 2 * ulp(FP32, largest_lse).item() + sums),
        ):
            if not error <= bound:
                self.broken = f"the twin's {name} is off by {error:.3g}, beyond the {bound:.3g} of theory"

    def select(self, t):
        return t if self.rows is None else t.index_select(2, self.index)

    def judge(self, o, lse=None, room=0.0):
        """The verdict on an answer's O, and L where it has one. `room` is added to what O may be off."""
        if self.broken:
            return Verdict(failure=self.broken)
        verdict = _compare("O", self.select(o), self.o, self.twin_o, o.dtype, self.floor_o + room)
        if lse is None or verdict.failure:
            return verdict
        lse, exact, twin = (t[..., None] for t in (self.select(lse), self.lse, self.twin_lse))
        of_lse = _compare("L", lse, exact, twin, FP32, self.floor_lse)
        return of_lse if of_lse.failure or of_lse.share > verdict.share else verdict


def largest_nearby(t):
    """(B, H, N, 1): the largest number in a row of (B, H, N, D) or in the eight rows on either side. An early row of a
    causal mask, whose numbers are large, must not hide an error in a later one."""
    of_rows = t.amax(-1).flatten(0, 1)[:, None]
    return torch.nn.functional.max_pool1d(of_rows, 17, stride=1, padding=8).view(*t.shape[:3], 1)


def _compare(name, out, exact, twin, dtype, floor):
    if out.shape != exact.shape:
        return Verdict(failure=f"{name} has the shape {tuple(out.shape)}, not {tuple(exact.shape)}")
    finite = exact.isfinite()
    out, twin = out.double(), twin.double()
    twin_error = torch.where(finite, (twin - exact).abs(), 0)
    size = torch.where(finite, exact.abs(), 0)
    allowed = 2 * largest_nearby(twin_error) + 3 * ulp(dtype, largest_nearby(size)) + floor
    error = torch.where(finite, (out - exact).abs(), 0)
    # NaN and infinities agree by kind and place.
    right = torch.where(finite, error <= allowed, (out == exact) | (out.isnan() & exact.isnan()))
    share = error / allowed
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


def sdpa_flash(q, k, v, causal, scale):
    """O and L of PyTorch's flash backend, or None for what it does not take."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) if group > 1 else t for t in (k, v))
    try:
        result = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, bool(causal), False, scale=scale)
    except (RuntimeError, NotImplementedError):
        return None
    return result[0], result[1]


class Checker:
    """Runs cases and keeps what failed."""

    def __init__(self, library, steps, device, say=print):
        self.loaded, self.steps, self.device, self.say = library, steps, device, say
        self.failures = []
        self.checks = 0
        self._accepted = {}

    def accepts(self, step, dtype, dim):
        """Whether a step takes this dtype and head dimension: it is asked."""
        key = step, dtype, dim
        if key not in self._accepted:
            self._accepted[key] = dtype in self.loaded.steps[step].dtypes
            if self._accepted[key]:
                q, k, v = Case(1, 1, 1, 1, 1, dim, dtype).tensors(self.device)
                try:
                    self.run(step, q, k, v, False, 1.0)
                except ValueError as refusal:
                    if "shape.head_dim" not in str(refusal):
                        raise
                    self._accepted[key] = False
        return self._accepted[key]

    def run(self, step, q, k, v, causal, scale):
        """O and L, in memory that was full of NaN."""
        o = torch.full(q.shape, math.nan, dtype=q.dtype, device=q.device)
        lse = torch.full(q.shape[:3], math.nan, device=q.device)
        self.loaded.bind(step, q, k, v, o, lse, causal, scale)()
        return o, lse

    def able(self, case, limits):
        """The steps that take a case and whose limit of work it does not exceed."""
        return [s for s in self.steps if self.accepts(s, case.dtype, case.dim) and case.work <= limits.get(s, INF)]

    def case(self, case, limits=WORK_LIMITS):
        steps = self.able(case, limits)
        if not steps:
            return
        q, k, v = case.tensors(self.device)
        scale = case.true_scale
        reference = Reference(q, k, v, scale, case.diagonal)
        peer = None
        # Which corner PyTorch's causal mask starts from when the lengths differ is its own business.
        if case.dtype != FP32 and (case.causal is False or (case.diagonal == 0 and case.len_q == case.len_kv)):
            peer = sdpa_flash(q, k, v, case.causal, scale)
        parts = []
        for step in steps:
            o, lse = self.run(step, q, k, v, case.causal, scale)
            verdict = reference.judge(o, lse)
            self.note(verdict, f"step {step:02}, {case}")
            parts.append(f"{step:02} {100 * verdict.share:.0f}%")
            if peer is not None:
                apart = torch.where(reference.o.isfinite(), (o.double() - peer[0].double()).abs(), 0).max().item()
                parts[-1] += f" ({apart:.1e})"
        if peer is not None:
            verdict = reference.judge(*peer)
            parts.append(f"SDPA flash {100 * verdict.share:.0f}%" + (" WRONG" if verdict.failure else ""))
        self.say(f"check    {case}: {', '.join(parts)}; twin {reference.twin_error:.1e}")

    def note(self, verdict, what):
        self.checks += 1
        if verdict.failure:
            self.failures.append(f"{what}: {verdict.failure}")
            self.say(f"FAILED   {self.failures[-1]}")

    def repeated(self, case, times=10):
        """Runs give the same bits."""
        q, k, v = case.tensors(self.device)
        failed = len(self.failures)
        for step in self.able(case, WORK_LIMITS):
            first = self.run(step, q, k, v, case.causal, case.true_scale)
            first = [t.view(torch.int16 if t.element_size() == 2 else torch.int32) for t in first]
            same = True
            for _ in range(times - 1):
                again = self.run(step, q, k, v, case.causal, case.true_scale)
                same &= all(torch.equal(a, b.view(a.dtype)) for a, b in zip(first, again))
            self.note(Verdict(failure="" if same else f"{times} runs differ"), f"step {step:02}, {case}")
        if len(self.failures) == failed:
            self.say(f"check    {case}: {times} runs give the same bits")


def fixed_cases():
    for dtype in (BF16, FP16, FP32):
        for batch, len_q, len_kv, dim in RAGGED:
            for causal in [False, True] if len_q == len_kv else [False, "top_left", "bottom_right"]:
                yield Case(batch, 1, 1, len_q, len_kv, dim, dtype, causal)
    for dtype in (BF16, FP16):
        for batch, heads, tokens, dim in SQUARE:
            for causal in (False, True):
                yield Case(batch, heads, heads, tokens, tokens, dim, dtype, causal)
        yield Case(2, 16, 16, 16384, 16384, 64, dtype, True)


def random_case(choose, longest=600):
    heads_kv = choose.randint(1, 3)
    len_q, len_kv = choose.randint(1, longest), choose.randint(1, longest)
    if choose.random() < 0.3:
        len_kv = len_q
    causal = choose.choice([False, False, "top_left", "bottom_right", choose.randint(-len_q, len_kv)])
    patterns = ["normal"] * 3 + ["times 10", "all equal", "largest score last", "very negative scores", "NaN, +inf, -inf"]
    return Case(
        choose.randint(1, 3),
        heads_kv * choose.choice([1, 1, 2, 4]),
        heads_kv,
        len_q,
        len_kv,
        choose.choice([8, 16, 24, 32, 40, 64, 64, 72, 80, 96, 112, 128, 128, 160, 192, 256, 63, 1]),
        choose.choice([BF16, FP16, BF16, FP16, FP32]),
        len_q == len_kv and choose.random() < 0.5 or causal,
        choose.choice(["bhnd", "bnhd", "padded rows", "one key head for all"]),
        choose.choice(patterns),
        choose.choice([0.0, 0.0, 0.05, 0.5]),
        choose.getrandbits(31),
    )


def check(checker, seed, count):
    """The named shapes, a random sweep, and repeated runs."""
    for case in fixed_cases():
        checker.case(case)
    checker.say(f"random sweep of {count} cases, seed {seed}")
    choose = random.Random(seed)
    for _ in range(count):
        checker.case(random_case(choose))
    for causal in (False, True):
        checker.repeated(Case(1, 8, 8, 2048, 2048, 64, BF16, causal))
        checker.repeated(Case(2, 4, 2, 515, 515, 128, FP16, causal))


def check_large(checker, longest=65536, heads=80000, elements=2**32, free_bytes=None):
    """Long sequences, more heads than a grid dimension holds, and offsets beyond 32 bits."""
    rows = torch.tensor(sorted({0, 1, longest - 1, *random.Random(1).sample(range(longest), 61)}))
    for dim in (64, 128):
        for causal in (False, True):
            case = Case(1, 2, 2, longest, longest, dim, BF16, causal)
            sampled(checker, case, "sampled rows", rows=rows)
    checker.case(Case(heads // 16, 16, 16, 3, 5, 16, BF16, "bottom_right"))
    tokens, dim, of_heads = 64, 128, 16
    if free_bytes is not None:  # four such tensors, and as much again for what the checks need
        while elements * 2 * 4 * 1.5 > free_bytes and elements > 2**31:
            elements //= 2
        if elements * 2 * 4 * 1.5 > free_bytes:
            checker.say(f"SKIP     tensors of 2^31 elements: {free_bytes / 2**30:.0f} GiB of device memory are free")
            return
    batch = elements // (of_heads * tokens * dim) + 2
    case = Case(batch, of_heads, of_heads, tokens, tokens, dim, BF16, True)
    some = sorted({0, 1, batch // 2 - 1, batch // 2, batch - 2, batch - 1, *random.Random(2).choices(range(batch), k=58)})
    sampled(checker, case, f"{batch * of_heads * tokens * dim} elements a tensor", batches=torch.tensor(some))


def sampled(checker, case, what, rows=None, batches=None):
    """A case whose reference is computed for some query rows, or some batch entries, only."""
    steps = checker.able(case, LARGE_WORK_LIMITS)
    sizes = [(case.batch, h, n, case.dim) for h, n in ((case.heads, case.len_q), *[(case.heads_kv, case.len_kv)] * 2)]
    make = torch.Generator(checker.device).manual_seed(case.seed)
    # In the element type at once: a tensor of this size has no room for an fp32 copy.
    q, k, v = (torch.empty(s, dtype=case.dtype, device=checker.device).normal_(generator=make) for s in sizes)

    def pick(t):
        return t if batches is None else t.index_select(0, batches.to(t.device))

    reference = Reference(pick(q), pick(k), pick(v), case.true_scale, case.diagonal, rows)
    parts = []
    for step in steps:
        o, lse = checker.run(step, q, k, v, case.causal, case.true_scale)
        verdict = reference.judge(pick(o), pick(lse))
        if not verdict.failure and not bool(torch.isfinite(lse).all()):
            verdict.failure = "L is not finite in a row that was not sampled"
        checker.note(verdict, f"step {step:02}, {case}")
        parts.append(f"{step:02} {100 * verdict.share:.0f}%")
        del o, lse
    checker.say(f"check    {case}, {what}: {', '.join(parts)}")
