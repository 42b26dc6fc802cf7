"""The comparison with PyTorch judges right: it passes the steps and notices planted mistakes. `test_peers.py LIBRARY`."""

import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from with_torch import DEVICE, LIBRARY, ROOT, torch  # first: without PyTorch it ends the program
import peer_checks
import peer_timing
import peers
import results
from peer_checks import BF16, FP16, FP32, Case, Checker, Reference

STEPS = [number for number, step in LIBRARY.steps.items() if step.on_device]


class Mistaken:
    """A library whose results are changed before anybody sees them."""

    def __init__(self, mistake):
        self.mistake, self.steps = mistake, LIBRARY.steps

    def bind(self, step, q, k, v, o, lse, causal, scale):
        right = LIBRARY.bind(step, q, k, v, o, lse, causal, scale)

        def wrong():
            right()
            if o.shape[2] > 1:  # one row: the checker asks what the step takes
                self.mistake(o, lse)

        return wrong


class Checks(unittest.TestCase):
    def checker(self, library=LIBRARY, steps=STEPS):
        self.lines = []
        return Checker(library, steps, DEVICE, self.lines.append)

    def failures(self, case, mistake):
        checker = self.checker(Mistaken(mistake), [8])
        checker.case(case)
        return checker.failures

    def assert_noticed(self, case, mistake, *words):
        failures = self.failures(case, mistake)
        self.assertEqual(len(failures), 1, failures)
        for word in words:
            self.assertIn(word, failures[0])

    def test_every_step_passes_named_and_random_cases(self):
        checker = self.checker()
        cases = [
            Case(2, 2, 1, 33, 40, 64, BF16, "bottom_right"),
            Case(1, 2, 2, 65, 65, 24, FP16, True, "bnhd"),
            Case(1, 1, 1, 20, 20, 40, FP32, 1),
            Case(1, 2, 2, 21, 21, 16, BF16, True, pattern="NaN, +inf, -inf"),
        ]
        choose = random.Random(7)
        for case in [*cases, *(peer_checks.random_case(choose, 40) for _ in range(12))]:
            checker.case(case)
        checker.repeated(Case(1, 2, 1, 40, 40, 64, BF16, True), times=3)
        self.assertEqual(checker.failures, [])
        self.assertGreater(checker.checks, 50)
        self.assertIn("05", self.lines[0])

    def test_the_large_cases_in_small(self):
        checker = self.checker(steps=[8])
        peer_checks.check_large(checker, longest=150, heads=64, elements=2**17)
        self.assertEqual(checker.failures, [])
        self.assertEqual(checker.checks, 6)

    def test_tensors_that_do_not_fit_are_said_to_be_skipped(self):
        checker = self.checker(steps=[8])
        peer_checks.check_large(checker, longest=70, heads=16, elements=2**32, free_bytes=2**30)
        self.assertIn("SKIP     tensors of 2^31 elements: 1 GiB", self.lines[-1])

    def test_an_untouched_step_has_no_failure(self):
        self.assertEqual(self.failures(Case(1, 1, 1, 48, 48, 32, BF16, True), lambda o, lse: None), [])

    def test_an_error_in_a_late_row_is_not_hidden_by_large_early_rows(self):
        case = Case(1, 1, 1, 256, 256, 32, BF16, True)
        self.assert_noticed(case, lambda o, lse: o[0, 0, 250, 3].add_(0.05), "O[0, 0, 250, 3]", "1 of 8192")

    def test_nan_and_infinity_are_compared_by_kind_and_place(self):
        case = Case(1, 1, 1, 20, 20, 16, BF16, True)
        self.assert_noticed(case, lambda o, lse: o[0, 0, 7, 3].fill_(math.nan), "O[0, 0, 7, 3] is nan")
        self.assert_noticed(case, lambda o, lse: lse[0, 0, 4].fill_(-math.inf), "L[0, 0, 4, 0] is -inf")
        empty = Case(1, 1, 1, 20, 9, 16, BF16, "bottom_right")
        self.assert_noticed(empty, lambda o, lse: lse[0, 0, 2].fill_(math.inf), "L[0, 0, 2, 0] is inf, want -inf")
        self.assert_noticed(empty, lambda o, lse: lse[0, 0, 2].fill_(-3e38), "want -inf")
        poisoned = Case(1, 1, 1, 20, 20, 16, BF16, False, pattern="NaN, +inf, -inf")
        self.assert_noticed(poisoned, lambda o, lse: o.nan_to_num_(0), "is 0, want nan")

    def test_a_logarithm_to_base_two_is_noticed(self):
        self.assert_noticed(Case(1, 1, 1, 20, 20, 16), lambda o, lse: lse.div_(math.log(2)), "L[")

    def test_a_diagonal_that_is_one_off_is_noticed(self):
        case = Case(1, 2, 2, 20, 20, 16, BF16, True)
        q, k, v = case.tensors(DEVICE)
        o, lse = self.checker().run(8, q, k, v, 1, case.true_scale)
        self.assertIn("O[", Reference(q, k, v, case.true_scale, 0).judge(o, lse).failure)

    def test_runs_that_differ_are_noticed(self):
        runs = []

        def drift(o, lse):
            runs.append(0)
            lse[0, 0, 0] += len(runs) * 1e-3

        checker = self.checker(Mistaken(drift), [8])
        checker.repeated(Case(1, 1, 1, 20, 20, 16), times=3)
        self.assertIn("3 runs differ", checker.failures[0])

    def test_a_broken_twin_does_not_widen_the_gate(self):
        case = Case(1, 1, 1, 30, 30, 16)
        right = peer_checks.plain_forward

        def broken(q, k, v, scale, hidden, real, rounded):
            o, lse, largest = right(q, k, v, scale, hidden, real, rounded)
            return (o + (0.3 if real == FP32 else 0), lse, largest)

        peer_checks.plain_forward = broken
        try:
            self.assertIn("the twin's O is off by", self.failures(case, lambda o, lse: o.add_(0.2))[0])
        finally:
            peer_checks.plain_forward = right

    def test_steps_are_asked_only_for_what_they_take(self):
        checker = self.checker()
        takes = [step for step in STEPS if checker.accepts(step, BF16, 256)]
        self.assertIn(8, takes)
        self.assertNotIn(6, takes)
        self.assertEqual([s for s in STEPS if checker.accepts(s, FP32, 63)], [4, 5])

    def test_reference_and_pytorch_agree(self):
        case = Case(2, 4, 2, 30, 50, 24, FP32, "top_left", "bnhd")
        q, k, v = case.tensors(DEVICE)
        reference = Reference(q, k, v, case.true_scale, case.diagonal)
        mask = torch.ones(30, 50, dtype=torch.bool, device=q.device).tril()
        q, k, v = q.double(), k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=case.true_scale)
        self.assertLess((reference.o - want).abs().max().item(), 1e-12)

    def test_sampled_rows_are_the_rows_of_the_whole(self):
        case = Case(2, 2, 2, 50, 50, 16, BF16, True)
        q, k, v = case.tensors(DEVICE)
        rows = torch.tensor([0, 3, 49])
        some, whole = (Reference(q, k, v, case.true_scale, 0, r) for r in (rows, None))
        self.assertLess((some.o - whole.o[:, :, rows.to(q.device)]).abs().max().item(), 1e-12)


UNIT = 2.0**-24  # of docs/numerics.md: the unit roundoff of fp32
SPACING = {BF16: 2.0**-7, FP16: 2.0**-10, FP32: 2.0**-23}  # from 1 to the next number


def largest(t):
    return t.double().abs().max().item()


def spacing(dtype, size):
    return SPACING[dtype] * 2.0 ** math.floor(math.log2(size))


class Tolerances(unittest.TestCase):
    """Of each term that widens the gate, counted anew here: half as much again is noticed, half as much is not. There
    are nine rows, so that each is near to each."""

    def reference(self, dtype, pattern="normal", len_q=9):
        """A reference whose twin is exact, the largest score and the largest V."""
        q, k, v = Case(1, 1, 1, len_q, 9, 16, dtype, pattern=pattern).tensors(DEVICE)
        reference = Reference(q, k, v, 0.25)
        reference.twin_o, reference.twin_lse = reference.o, reference.lse
        return reference, largest(q.double() @ k.double().mT * 0.25), largest(v)

    def assert_bounds(self, reference, dtype, of_o, of_lse, room=0.0):
        of_o += 3 * spacing(dtype, largest(reference.o))
        of_lse += 3 * spacing(FP32, largest(reference.lse))
        for o, lse, name in ((of_o, 0, "O[0, 0, 0, 0]"), (0, of_lse, "L[0, 0, 0, 0]")):
            for factor, noticed in ((0.5, ""), (1.5, name)):
                answer_o, answer_lse = reference.o.clone(), reference.lse.clone()
                answer_o[0, 0, 0, 0] += factor * o
                answer_lse[0, 0, 0] += factor * lse
                failure = reference.judge(answer_o.to(dtype), answer_lse, room).failure
                with self.subTest(dtype=dtype, name=name, factor=factor):
                    self.assertEqual(failure[: len(name)], noticed, failure)

    def test_roundings_of_the_result(self):
        for dtype in SPACING:
            reference, *_ = self.reference(dtype)
            reference.floor_o = reference.floor_lse = 0
            self.assert_bounds(reference, dtype, 0, 0)

    def test_the_twins_error(self):
        for dtype in SPACING:
            reference, scores, values = self.reference(dtype)
            reference.twin_o, reference.twin_lse = reference.o + 0.25, reference.lse - 0.125
            self.assert_bounds(reference, dtype, 2 * 0.25 + 4 * UNIT * scores * values, 2 * 0.125 + 4 * UNIT * scores)

    def test_the_roundings_of_scores(self):
        for dtype in SPACING:
            for pattern in ("normal", "times 10"):
                reference, scores, values = self.reference(dtype, pattern)
                self.assert_bounds(reference, dtype, 4 * UNIT * scores * values, 4 * UNIT * scores)

    def test_a_rounding_of_P_where_there_are_few_elements(self):
        for dtype in SPACING:
            reference, scores, values = self.reference(dtype, len_q=3)
            few = SPACING[dtype] / 2 * values
            self.assert_bounds(reference, dtype, 4 * UNIT * scores * values + few, 4 * UNIT * scores)

    def test_the_room_of_peers_that_round_scores(self):
        for dtype in SPACING:
            reference, scores, values = self.reference(dtype)
            rounded = 2 * SPACING[dtype] * scores * values
            of_o, of_lse = 4 * UNIT * scores * values + rounded, 4 * UNIT * scores
            self.assert_bounds(reference, dtype, of_o, of_lse, reference.rounded_scores)

    def test_what_theory_allows_the_twin(self):
        right = peer_checks.plain_forward

        def broken(of_o, of_lse):
            def forward(q, k, v, scale, hidden, real, rounded):
                o, lse, score = right(q, k, v, scale, hidden, real, rounded)
                return (o + of_o, lse + of_lse, score) if real == FP32 else (o, lse, score)

            with mock.patch.object(peer_checks, "plain_forward", forward):
                return self.reference(FP32)[0].broken

        q, k, v = Case(1, 1, 1, 9, 9, 16, FP32).tensors(DEVICE)
        norms = [t.double().norm(dim=-1).max().item() for t in (q, k)]
        score = UNIT * (4 * math.sqrt(17) * 0.25 * norms[0] * norms[1] + 4 * largest(q.double() @ k.double().mT * 0.25))
        sums = 4 * UNIT * (math.sqrt(10) + 1)
        of_o = 2 * (UNIT + score + sums) * largest(v) + SPACING[FP32] * largest(self.reference(FP32)[0].o)
        of_lse = score + sums
        self.assertEqual([broken(of_o / 2, 0), broken(0, of_lse / 2)], ["", ""])
        self.assertIn("the twin's O is off by", broken(1.5 * of_o, 0))
        self.assertIn("the twin's L is off by", broken(0, 1.5 * of_lse))


class Rows(unittest.TestCase):
    def test_percentiles_interpolate(self):
        self.assertEqual(peer_timing.summarize([4.0, 1.0, 3.0, 2.0]), (2.5, 1.3, 3.7, 4))
        self.assertEqual(peer_timing.summarize([2.0]), (2.0, 2.0, 2.0, 1))

    def test_flops_count_the_pairs_that_a_mask_leaves(self):
        for causal in (False, True):
            case = Case(3, 2, 2, 7, 7, 8, BF16, causal)
            pairs = sum(1 for i in range(7) for j in range(7) if j <= i or not causal)
            self.assertEqual(peer_timing.flops(case), 4 * 3 * 2 * 8 * pairs)

    def test_rows_can_be_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "new" / "rows.csv"
            for step, name in (("08", "beside peers"), ("", "SDPA flash")):  # a second run appends
                rows = peers.Results(path, ("a-machine", "a device", "PyTorch", "CUDA; cuDNN", "abc", "2026-01-02"))
                variant = peer_timing.Variant(name, step, None)
                rows.add(variant, "forward", peer_timing.problem(512, 64, True), "time", "ms", (1.5, 1.25, 2.0, 20))
            read = results.read(path)
        self.assertEqual([row["step"] for row in read], ["08", ""])
        self.assertEqual(read[1]["variant"], "SDPA flash")
        self.assertEqual([read[0][name] for name in ("B", "Hq", "Nk", "D", "mask", "diagonal")], [32, 32, 512, 64, "causal", "0"])
        self.assertEqual([read[0][name] for name in ("median", "p10", "p90", "reps")], [1.5, 1.25, 2.0, 20])

    def test_kernel_names_lose_their_types(self):
        name = "void (anonymous namespace)::kernel<float, 64>(Args<float>)"
        self.assertEqual(peer_timing.short(name), "kernel")

    def test_an_unfused_attention_is_attention(self):
        case = Case(1, 2, 2, 40, 40, 16, BF16, True)
        q, k, v = case.tensors(DEVICE)
        variant = peer_timing.peer_variant(peer_timing.UNFUSED, q, k, v, True, case.true_scale)
        reference = Reference(q, k, v, case.true_scale, 0)
        o, _ = variant.call()
        self.assertEqual(reference.judge(o, room=reference.rounded_scores).failure, "")
        o[0, 1, 39].zero_()
        self.assertNotEqual(reference.judge(o, room=reference.rounded_scores / 100).failure, "")


class Program(unittest.TestCase):
    def run_it(self, **environment):
        command = [sys.executable, str(ROOT / "plots" / "peers.py"), "--check"]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})

    def assert_skipped(self, done, *words):
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 1)
        for word in ("SKIP: ", *words):
            self.assertIn(word, done.stdout)

    def test_without_a_gpu_it_says_so(self):
        self.assert_skipped(self.run_it(CUDA_VISIBLE_DEVICES=""), "no GPU")

    def test_without_pytorch_it_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "torch.py").write_text("raise ImportError('none here')\n")
            self.assert_skipped(self.run_it(PYTHONPATH=folder), "PyTorch is not installed")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    unittest.main()
