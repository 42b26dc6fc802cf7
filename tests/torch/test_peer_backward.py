"""The comparison of gradients with PyTorch judges right, and its timings become rows: `test_peer_backward.py LIBRARY`."""

import contextlib
import math
import pathlib
import random
import tempfile
import unittest
from unittest import mock

from with_torch import DEVICE, LIBRARY, torch  # first: without PyTorch it ends the program
import gpu_tables
import peer_backward
import peer_checks
import peer_gradients
import peers
import results
from peer_checks import BF16, FP16, FP32, Case, Checker
from peer_gradients import FLASH, GradientChecker, Reference, gradient_of_output


def right_gradients(case):
    """q, k, v, dO and the step's gradients."""
    given = case.tensors(DEVICE)
    d_o = gradient_of_output(case, given[0])
    checker = Checker(LIBRARY, [9], DEVICE)
    o, lse = checker.run(9, *given, case.causal, case.true_scale)
    return given, d_o, GradientChecker(checker).run(given, lse, d_o, o, case.causal, case.true_scale, True)


class Mistaken:
    """A library whose gradients are changed before anybody sees them."""

    def __init__(self, mistake):
        self.mistake, self.steps = mistake, LIBRARY.steps
        self.bind, self.workspace_bytes = LIBRARY.bind, LIBRARY.workspace_bytes

    def bind_backward(self, *given):
        right, gradients = LIBRARY.bind_backward(*given), given[6:9]

        def wrong():
            right()
            self.mistake(*gradients)

        return wrong


class Checks(unittest.TestCase):
    def checker(self, library=LIBRARY):
        self.lines = []
        return GradientChecker(Checker(library, [9], DEVICE, self.lines.append))

    def failures(self, case, mistake):
        gradients = self.checker(Mistaken(mistake))
        gradients.case(case)
        return gradients.checker.failures

    def assert_noticed(self, case, mistake, *words):
        failures = self.failures(case, mistake)
        self.assertEqual(len(failures), 2, failures)  # both modes
        for word in words:
            self.assertIn(word, failures[0])

    def test_the_step_passes_named_and_random_cases(self):
        gradients = self.checker()
        cases = [
            Case(2, 2, 1, 33, 40, 64, BF16, "bottom_right"),
            Case(1, 2, 2, 65, 65, 24, FP16, True, "bnhd"),
            Case(1, 1, 1, 20, 20, 40, BF16, 1),
            Case(1, 2, 1, 40, 3, 32, BF16, "bottom_right"),
            Case(1, 2, 2, 21, 21, 16, BF16, True, pattern="NaN, +inf, -inf"),
            Case(1, 1, 1, 1, 128, 64, FP16, pattern="very negative scores"),
        ]
        choose = random.Random(11)
        for case in [*cases, *(peer_checks.random_case(choose, 40) for _ in range(10))]:
            gradients.case(case)
        gradients.repeated(Case(1, 2, 1, 40, 40, 64, BF16, True), times=3)
        self.assertEqual(gradients.checker.failures, [])
        self.assertGreater(gradients.checker.checks, 20)
        self.assertIn("3 runs differ by 0", self.lines[-1])

    def test_types_without_a_backward_are_left_out(self):
        gradients = self.checker()
        gradients.case(Case(1, 1, 1, 5, 5, 64, FP32))
        gradients.case(Case(1, 1, 1, 5, 5, 12, BF16))
        self.assertEqual(gradients.checker.checks, 0)

    def test_the_large_cases_in_small(self):
        gradients = self.checker()
        peer_gradients.check_large(gradients.checker, longest=150, heads=64, elements=2**17)
        self.assertEqual(gradients.checker.failures, [])
        self.assertEqual(gradients.checker.checks, 12)

    def test_tensors_that_do_not_fit_are_said_to_be_skipped(self):
        gradients = self.checker()
        peer_gradients.check_large(gradients.checker, longest=70, heads=16, free_bytes=2**30)
        self.assertIn("SKIP     gradients of 2^31 elements: 1 GiB", self.lines[-1])

    def test_a_wrong_element_of_each_gradient_is_named(self):
        case = Case(1, 1, 1, 200, 200, 32, BF16, True)
        self.assertEqual(self.failures(case, lambda dq, dk, dv: None), [])
        self.assert_noticed(case, lambda dq, dk, dv: dq[0, 0, 190, 3].add_(0.1), "dq[0, 0, 190, 3]", "1 of 6400")
        self.assert_noticed(case, lambda dq, dk, dv: dk[0, 0, 190, 3].add_(0.1), "dk[0, 0, 190, 3]")
        self.assert_noticed(case, lambda dq, dk, dv: dv[0, 0, 190, 3].add_(0.1), "dv[0, 0, 190, 3]")
        self.assert_noticed(case, lambda dq, dk, dv: dv[0, 0, 0, 0].fill_(math.nan), "dv[0, 0, 0, 0] is nan")

    def test_a_forgotten_scale_and_a_head_that_is_not_summed_are_noticed(self):
        case = Case(1, 2, 1, 40, 40, 64)
        self.assert_noticed(case, lambda dq, dk, dv: dk.mul_(8), "dk[")
        self.assert_noticed(case, lambda dq, dk, dv: dv.div_(2), "dv[")

    def test_D7_rows_without_a_pair_must_be_exactly_zero(self):
        empty = Case(1, 1, 1, 20, 9, 16, BF16, "bottom_right")
        self.assert_noticed(empty, lambda dq, dk, dv: dq[0, 0, 10, 0].fill_(1e-30), "dq[0, 0, 10, 0] is 9.98402e-31, want 0 +- 0")
        unseen = Case(1, 1, 1, 9, 20, 16, BF16, "top_left")
        self.assert_noticed(unseen, lambda dq, dk, dv: dv[0, 0, 9, 0].fill_(1e-30), "dv[0, 0, 9, 0]")
        self.assertEqual(self.failures(unseen, lambda dq, dk, dv: None), [])

    def test_silent_zeros_for_a_nan_are_noticed(self):
        poisoned = Case(1, 1, 1, 20, 20, 16, BF16, False, pattern="NaN, +inf, -inf")
        self.assert_noticed(poisoned, lambda dq, dk, dv: dq.nan_to_num_(0), "dq", "is 0, want nan")

    def test_runs_that_differ_are_noticed(self):
        runs = []

        def drift(dq, dk, dv):
            runs.append(0)
            dk[0, 0, 0] += len(runs) * 1e-2

        gradients = self.checker(Mistaken(drift))
        gradients.repeated(Case(1, 1, 1, 20, 20, 16), times=3)
        self.assertEqual(len(gradients.checker.failures), 2)
        self.assertIn("3 runs differ by 0, ", gradients.checker.failures[0])

    def test_an_error_beyond_three_times_the_peers_is_noticed(self):
        case = Case(1, 2, 2, 40, 40, 64)
        given, d_o, gradients = right_gradients(case)
        reference = Reference(*given, d_o, case.true_scale)
        self.assertEqual(peer_gradients.against_peer(reference, gradients, reference.twin), "")
        gradients[1][0, 0, 3, 5] += 0.2
        self.assertRegex(peer_gradients.against_peer(reference, gradients, reference.twin), "dk is off by 0.[12].*SDPA flash by 0.0")

    def test_a_broken_twin_does_not_widen_the_gate(self):
        right = peer_gradients.differentiate

        def broken(q, k, v, d_o, scale, diagonal, real, rounded, magnitudes=False):
            found = right(q, k, v, d_o, scale, diagonal, real, rounded, magnitudes)
            if not magnitudes:
                found[2] += 0.3
            return found

        with mock.patch.object(peer_gradients, "differentiate", broken):
            failures = self.failures(Case(1, 1, 1, 30, 30, 16), lambda dq, dk, dv: dv.add_(0.2))
        self.assertIn("the twin's dv is off by", failures[0])


UNIT = 2.0**-24  # of docs/numerics.md: the unit roundoff of fp32
SPACING = {BF16: 2.0**-7, FP16: 2.0**-10, FP32: 2.0**-23}  # from 1 to the next number


class Tolerances(unittest.TestCase):
    """Of each term that widens the gate, counted anew here: half as much again is noticed, half as much is not. There
    are nine rows, so that each is near to each."""

    def problem(self, dtype, pattern="normal", len_q=9):
        case = Case(1, 1, 1, len_q, 9, 16, dtype, pattern=pattern)
        q, k, v = case.tensors(DEVICE)
        return q, k, v, gradient_of_output(case, q), 0.25

    def exact_twin(self, given):
        reference = Reference(*given)
        reference.twin = reference.exact
        return reference

    def room(self, given):
        """Of an fp32 score and L, as a share of the sums of absolute terms."""
        scores = given[0].double() @ given[1].double().mT * given[4]
        return 4 * UNIT * (max(scores.abs().max().item(), scores.logsumexp(-1).abs().max().item()) + 1)

    def assert_bounds(self, reference, dtype, more):
        """`more`: of each gradient, beyond three roundings of the result."""
        for index, name in enumerate(("dq", "dk", "dv")):
            size = reference.exact[index].abs().max().item()
            allowed = more[index] + 3 * SPACING[dtype] * 2.0 ** math.floor(math.log2(size))
            for factor, noticed in ((0.5, ""), (1.5, f"{name}[0, 0, 0, 0]")):
                answers = [t.clone() for t in reference.exact]
                answers[index][0, 0, 0, 0] += factor * allowed
                failure = reference.judge([t.to(dtype) for t in answers]).failure
                with self.subTest(dtype=dtype, name=name, factor=factor):
                    self.assertEqual(failure[:14], noticed, failure)

    def test_roundings_of_the_result(self):
        for dtype in SPACING:
            reference = self.exact_twin(self.problem(dtype))
            reference.room = 0
            self.assert_bounds(reference, dtype, [0, 0, 0])

    def test_the_twins_error(self):
        for dtype in SPACING:
            reference = self.exact_twin(self.problem(dtype))
            reference.room, reference.twin = 0, [t + 0.5 for t in reference.exact]
            self.assert_bounds(reference, dtype, 3 * [3 * 0.5])

    def test_the_roundings_of_scores_and_of_P_where_there_are_few_pairs(self):
        for dtype in SPACING:
            for pattern, len_q in (("normal", 9), ("times 10", 9), ("normal", 3)):
                given = self.problem(dtype, pattern, len_q)
                reference = self.exact_twin(given)
                share = self.room(given) + (SPACING[dtype] / 2 if len_q == 3 else 0)
                self.assert_bounds(reference, dtype, [share * t.max().item() for t in reference.magnitudes])

    def test_what_theory_allows_the_twin(self):
        right = peer_gradients.differentiate
        given = self.problem(FP32)
        q, k, *_, scale = given
        whole = Reference(*given)
        norms = [t.double().norm(dim=-1).max().item() for t in (q, k)]
        score = UNIT * 4 * math.sqrt(17) * scale * norms[0] * norms[1] + self.room(given) - 4 * UNIT
        of_p = math.expm1(2 * score + 8 * UNIT * math.sqrt(10))
        sums = 16 * UNIT * (math.sqrt(10) + math.sqrt(17))
        for index, name in enumerate(("dq", "dk", "dv")):
            bound = (3 * of_p + 2 * SPACING[FP32] + sums) * whole.magnitudes[index].max().item()
            bound += SPACING[FP32] * whole.exact[index].abs().max().item()
            for factor, words in ((0.5, ""), (1.5, f"the twin's {name} is off by")):

                def broken(*arguments, index=index, error=factor * bound):
                    found = right(*arguments)
                    if arguments[6] == FP32:
                        found[index] += error
                    return found

                with mock.patch.object(peer_gradients, "differentiate", broken):
                    self.assertEqual(Reference(*given).broken[: len(words) or None], words)


class References(unittest.TestCase):
    def test_the_formulas_agree_with_float64_autograd(self):
        for causal, layout in (("top_left", "bnhd"), ("bottom_right", "one key head for all"), (False, "bhnd")):
            case = Case(2, 4, 2, 30, 50, 24, FP16, causal, layout)
            q, k, v = case.tensors(DEVICE)
            d_o = gradient_of_output(case, q)
            reference = Reference(q, k, v, d_o, case.true_scale, case.diagonal)
            mask = None if causal is False else torch.ones(30, 50, dtype=torch.bool, device=q.device).tril(case.diagonal)
            with torch.enable_grad():
                leaves = [t.double().requires_grad_() for t in (q, k, v)]
                repeated = [t.repeat_interleave(2, 1) for t in leaves[1:]]
                attention = torch.nn.functional.scaled_dot_product_attention
                o = attention(leaves[0], *repeated, attn_mask=mask, scale=case.true_scale)
                want = torch.autograd.grad(o, leaves, d_o.double())
            for exact, gradient in zip(reference.exact, want):
                self.assertLess((exact - gradient).abs().max().item(), 1e-12)

    def test_parts_of_a_problem_add_up_to_the_whole(self):
        case = Case(2, 4, 2, 30, 50, 24, BF16, "bottom_right")
        q, k, v = case.tensors(DEVICE)
        given = q, k, v, gradient_of_output(case, q), case.true_scale, case.diagonal
        whole = Reference(*given)
        with mock.patch.object(peer_gradients, "SCORES_AT_ONCE", 350):
            parts = Reference(*given)
        for a, b in zip(whole.exact + whole.magnitudes, parts.exact + parts.magnitudes):
            self.assertLess((a - b).abs().max().item(), 1e-12)

    def test_errors_are_relative(self):
        case = Case(1, 1, 1, 30, 30, 16)
        q, k, v = case.tensors(DEVICE)
        reference = Reference(q, k, v, gradient_of_output(case, q), case.true_scale)
        found = reference.errors([t * 1.25 for t in reference.exact])
        for error in found:
            self.assertAlmostEqual(error, 0.25)


def plain_operators(q, k, v, d_o, causal, scale):
    """Stands in for PyTorch's flash operators, which take no CPU tensors."""
    diagonal = 0 if causal else None
    return lambda: (None,) * 9, lambda saved: peer_gradients.differentiate(q, k, v, d_o, scale, diagonal, FP32, q.dtype)


def no_operators(*_):
    def refuse():
        raise NotImplementedError("not on this device")

    return refuse, None


class StubTimer:
    """Calls every variant and says that the fast mode takes 1 ms, the next 2 ms and so on."""

    def interleaved(self, variants):
        for variant in variants:
            variant.call()
        return [[float(i)] * 3 for i in range(1, len(variants) + 1)]


class Timings(unittest.TestCase):
    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        for module, name, stub in (
            (peer_backward, "Timer", StubTimer),
            (peer_backward, "DEVICE", DEVICE),
            (peer_backward, "ceilings", lambda timer, results: 1e18),
            (peer_backward, "clock_mhz", lambda: 1500.0),
            (peer_backward, "LowestFree", mock.MagicMock()),
            (peer_backward, "problem", lambda n, dim, causal: Case(2, 2, 2, n, n, dim, BF16, causal)),
            (peer_backward, "PEERS", {FLASH: plain_operators, "SDPA cuDNN": no_operators}),
            (peer_backward.BackwardTiming, "which_kernels", lambda self, dim: None),
            *((torch.cuda, name, lambda: 0) for name in ("synchronize", "empty_cache", "reset_peak_memory_stats")),
            *((torch.cuda, name, lambda: 10**6) for name in ("memory_allocated", "max_memory_allocated")),
        ):
            stack.enter_context(mock.patch.object(module, name, stub))
        peer_backward.LowestFree().taken.return_value = 0

    def run_it(self, library=LIBRARY):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.csv"
            rows = peers.Results(path, ("a-machine", "a device", "PyTorch", "CUDA; cuDNN", "abc", "2026-01-02"))
            self.lines = []
            rows.say = self.lines.append
            checker = Checker(library, [9], DEVICE, rows.say)
            peer_backward.BackwardTiming(checker, rows).run([64], [24, 40])
            return checker, results.read(path)

    def test_rows_of_both_modes_and_of_a_peer_can_be_read_back(self):
        checker, rows = self.run_it()
        self.assertEqual(checker.failures, [])
        self.assertEqual(checker.checks, 8)
        found = {(r["step"], r["variant"], r["op"], r["mask"], r["Nk"], r["metric"]): r["median"] for r in rows}
        self.assertEqual(len(found), len(rows))
        case = Case(2, 2, 2, 40, 40, 64)
        fast = "09", "fast beside peers"
        self.assertEqual(found[*fast, "backward", "none", 40, "time"], 1)
        forward = 4 * 2 * 2 * 40 * 40 * 64
        self.assertAlmostEqual(found[*fast, "backward", "none", 40, "rate"], 2.5 * forward / 1e6, places=2)
        self.assertAlmostEqual(found[*fast, "forward_backward", "none", 40, "rate"], 3.5 * forward / 1e6, places=2)
        self.assertEqual(found[*fast, "backward", "causal", 40, "ratio_to_sdpa_flash"], 3)
        self.assertEqual(found["09", "deterministic beside peers", "backward", "none", 24, "ratio_to_sdpa_flash"], 1.5)
        self.assertEqual(found["", FLASH, "backward", "none", 24, "ratio_to_sdpa_flash"], 1)
        q, k, _ = case.tensors(DEVICE)
        self.assertEqual(found[*fast, "backward", "none", 40, "extra_memory"], LIBRARY.workspace_bytes(q, k))
        self.assertIn("no SDPA cuDNN for", "\n".join(self.lines))
        self.assertIn(
            "backward: fast beside peers against SDPA flash, D = 64: geometric mean 3.000, minimum 3.000", "\n".join(self.lines)
        )
        header, lines = gpu_tables.backward(rows)
        self.assertEqual(header[:3], ["D", "mask", "N"])
        self.assertEqual(len(lines), 4)

    def test_a_wrong_gradient_is_a_failure_and_is_not_timed(self):
        checker, rows = self.run_it(Mistaken(lambda dq, dk, dv: dv[0, 0, 0, 0].add_(1)))
        self.assertEqual(len(checker.failures), 8)
        self.assertEqual({row["variant"] for row in rows}, {FLASH})


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    unittest.main()
