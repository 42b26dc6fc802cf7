"""A small model learns with this attention as with PyTorch's, and not with a wrong gradient: `test_train.py LIBRARY`."""

import contextlib
import dataclasses
import io
import pathlib
import tempfile
import unittest
from unittest import mock

from with_torch import DEVICE, LIBRARY, torch  # first: without PyTorch it ends the program
import train
import training_results

SHORT = dataclasses.replace(train.ON_EMULATOR, steps=12)


def pytorchs(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def with_a_wrong_gradient_of_k(q, k, v):
    return pytorchs(q, 2 * k.detach() - k, v)


class Losses(unittest.TestCase):
    def test_both_attentions_give_the_same_losses(self):
        losses = {}
        for name, attention, context in train.attentions(LIBRARY, DEVICE == "cuda"):
            with context():
                losses[name] = train.train(SHORT, attention, DEVICE)
        ours, theirs = losses.values()
        self.assertEqual(len(ours), 12)
        for a, b in zip(ours, theirs):
            self.assertLessEqual(abs(a - b), train.APART)
        self.assertLess(min(ours), ours[0])

    def test_a_gradient_of_the_wrong_sign_is_noticed(self):
        right, wrong = (train.train(train.ON_EMULATOR, a, "cpu") for a in (pytorchs, with_a_wrong_gradient_of_k))
        self.assertEqual(train.what_is_wrong({"a": right, "b": list(right)}), "")
        self.assertRegex(train.what_is_wrong({"a": right, "b": wrong}), "the loss with b went from 2.* to|apart at training step")

    def test_losses_that_part_or_do_not_fall_are_said(self):
        fallen = [3.0] + [1.0] * 9
        self.assertEqual(train.what_is_wrong({"a": fallen, "b": [3.01, *fallen[1:]]}), "")
        self.assertIn("1.000 apart at training step 2", train.what_is_wrong({"a": fallen, "b": [3.0, 2.0, *fallen[2:]]}))
        self.assertIn("the loss with b went from 3.000 to 2.900", train.what_is_wrong({"a": fallen, "b": [3.0] + [2.9] * 9}))
        self.assertIn("with a went from", train.what_is_wrong({"a": [3.0, float("nan")], "b": fallen}))

    def test_a_sequence_repeats_its_first_half_and_uses_its_own_letters(self):
        problem = train.ON_EMULATOR
        tokens = train.sequences(problem, torch.Generator().manual_seed(3))
        self.assertEqual(tokens.shape, (problem.batch, problem.tokens))
        first, second = tokens.chunk(2, 1)
        self.assertTrue(torch.equal(first, second))
        for row in tokens:
            self.assertLessEqual(len(set(row.tolist())), problem.own_letters)

    def test_the_program_writes_a_file_that_can_be_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "new" / "losses.csv"
            said = io.StringIO()
            with contextlib.redirect_stdout(said), mock.patch.object(train, "what_is_wrong", lambda losses: ""):
                status = train.main(["--library", str(LIBRARY.path), "--steps", "2", "--csv", str(path)])
            self.assertEqual(status, 0)
            found = training_results.read(path)
        self.assertEqual([len(losses) for losses in found.losses.values()], [2, 2])
        self.assertEqual(list(found.losses)[0], "flash_attention, step 09")
        self.assertEqual(found.backend, LIBRARY.backend)
        self.assertIn("largest difference of the two losses: ", said.getvalue())


if __name__ == "__main__":
    unittest.main()
