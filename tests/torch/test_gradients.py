"""Gradients of flash_attention against float64 autograd, and what autograd is refused: `test_gradients.py LIBRARY`."""

import math
import unittest
import weakref
from unittest import mock

from with_torch import DEVICE, LIBRARY, torch  # first: without PyTorch it ends the program
import flash_steps
from flash_steps import FlashStepsError, flash_attention
from torch.utils.checkpoint import checkpoint

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def tensors(batch=1, heads=2, len_q=9, len_kv=9, dim=16, heads_kv=None, dtype=BF16, seed=0):
    make = torch.Generator().manual_seed(seed)
    sizes = [(batch, heads, len_q, dim)] + 2 * [(batch, heads_kv or heads, len_kv, dim)]
    return [torch.randn(size, generator=make).to(dtype).to(DEVICE).requires_grad_() for size in sizes]


def attention(q, k, v, **options):
    return flash_attention(q, k, v, library=LIBRARY, **options)


def plain(q, k, v, diagonal, scale, real):
    """The formulas, differentiated by autograd; rows that see no key are zero."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.to(real), k.to(real).repeat_interleave(group, 1), v.to(real).repeat_interleave(group, 1)
    s = (q @ k.mT) * scale
    if diagonal is not None:
        seen = torch.ones(s.shape[2:], dtype=torch.bool, device=s.device).tril(diagonal)
        s = s.masked_fill(~seen, -math.inf).masked_fill(~seen.any(-1, keepdim=True), 0)
        return (torch.softmax(s, -1) * seen.any(-1, keepdim=True)).to(real) @ v
    return torch.softmax(s, -1) @ v


def expected(q, k, v, d_o, diagonal=None, scale=None, real=torch.float64):
    leaves = [t.detach().to(real).requires_grad_() for t in (q, k, v)]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return torch.autograd.grad(plain(*leaves, diagonal, scale, real), leaves, d_o.to(real))


class Agreement(unittest.TestCase):
    def assert_close(self, got, want, dtype):
        """Two roundings of the type at the size of the largest number of each gradient."""
        for name, a, b in zip(("dq", "dk", "dv"), got, want, strict=True):
            self.assertEqual((a.shape, a.dtype), (b.shape, dtype))
            self.assertGreater(a.numel(), 0)
            error = (a.double() - b).abs().max().item()
            self.assertLessEqual(error, 2 * torch.finfo(dtype).eps * max(b.abs().max().item(), 0.5), name)

    def check(self, q, k, v, diagonal=None, scale=None, **options):
        for deterministic in (False, True):
            with self.subTest(deterministic=deterministic):
                o = attention(q, k, v, scale=scale, deterministic=deterministic, **options)
                d_o = torch.randn_like(o)
                got = torch.autograd.grad(o, (q, k, v), d_o)
                self.assert_close(got, expected(q, k, v, d_o, diagonal, scale), q.dtype)

    def test_both_types_and_masks(self):
        for dtype in (BF16, FP16):
            for causal, diagonal in ((False, None), (True, 0)):
                with self.subTest(dtype=dtype, causal=causal):
                    self.check(*tensors(len_q=19, len_kv=19, dtype=dtype), diagonal, causal=causal)

    def test_D4_grouped_heads_other_lengths_and_every_way_to_name_the_diagonal(self):
        for causal, diagonal in ((False, None), ("top_left", 0), ("bottom_right", 14), (-3, -3)):
            with self.subTest(causal=causal):
                self.check(*tensors(2, heads=4, heads_kv=2, len_q=7, len_kv=21), diagonal, causal=causal)

    def test_D7_queries_that_see_no_key_have_zero_gradients_and_harm_nobody(self):
        q, k, v = tensors(len_q=20, len_kv=9)
        self.check(q, k, v, -11, causal="bottom_right")
        attention(q, k, v, causal="bottom_right").float().sum().backward()
        self.assertTrue(bool((q.grad[:, :, :11] == 0).all()))
        self.assertTrue(bool(q.grad[:, :, 11:].any()))

    def test_a_scale_and_a_head_dimension_that_is_padded(self):
        self.check(*tensors(dim=72), scale=0.3)
        self.check(*tensors(dim=72))

    def test_the_output_of_any_step_is_differentiated(self):
        q, k, v = tensors()
        for step in (number for number, step in LIBRARY.steps.items() if BF16 in step.dtypes):
            with self.subTest(step=step):
                self.check(q, k, v, step=step)

    def test_transposed_storage_needs_no_copy_and_gives_gradients_in_the_same_order(self):
        q, k, v = (t.detach() for t in tensors(2, heads=3, len_q=5, len_kv=11))
        d_o = torch.randn_like(q)
        leaves = [t.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in (q, k, v)]
        d_o_moved = d_o.transpose(1, 2).contiguous().transpose(1, 2)
        moved = torch.autograd.grad(attention(*leaves, deterministic=True), leaves, d_o_moved)
        leaves = [t.requires_grad_() for t in (q, k, v)]
        straight = torch.autograd.grad(attention(*leaves, deterministic=True), leaves, d_o)
        for a, b in zip(moved, straight):
            self.assertTrue(torch.equal(a, b))
            self.assertTrue(a.transpose(1, 2).is_contiguous())

    def test_shared_heads_get_the_sum_of_their_gradients(self):
        q, k, v = (t.detach() for t in tensors(heads=4))
        k, v = (t[:, :1].clone().requires_grad_() for t in (k, v))
        leaves = q.requires_grad_(), k, v
        o = attention(q, k.expand(-1, 4, -1, -1), v.expand(-1, 4, -1, -1))
        d_o = torch.randn_like(o)
        self.assert_close(torch.autograd.grad(o, leaves, d_o), expected(*leaves, d_o), BF16)

    def test_empty_problems(self):
        q, k, v = tensors(len_kv=0)
        attention(q, k, v).sum().backward()
        self.assertTrue(bool((q.grad == 0).all()))
        self.assertEqual(k.grad.shape, (1, 2, 0, 16))
        q, k, v = tensors(len_q=0)
        attention(q, k, v).sum().backward()
        self.assertTrue(bool((k.grad == 0).all()) and bool((v.grad == 0).all()))


class GradientsOfTheOutput(unittest.TestCase):
    """dO as autograd may hand it over."""

    def copies(self, d_o):
        """How the call's dO lies in memory: as given, or a copy. The gradients must be those of a dense dO."""
        q, k, v = tensors()
        seen = []
        right = flash_steps.Library.bind_backward

        def watch(library, q, k, v, o, lse, d_o, *others):
            seen.append(d_o)
            return right(library, q, k, v, o, lse, d_o, *others)

        with mock.patch.object(flash_steps.Library, "bind_backward", watch):
            got = torch.autograd.grad(attention(q, k, v, deterministic=True), (q, k, v), d_o)
        want = torch.autograd.grad(attention(q, k, v, deterministic=True), (q, k, v), d_o.clone().contiguous())
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, want)))
        self.assertEqual(len(seen), 1)
        return seen[0].data_ptr() != d_o.data_ptr()

    def numbers(self, *sizes):
        return torch.randn(sizes, generator=torch.Generator().manual_seed(5)).to(BF16).to(DEVICE)

    def test_strides_and_shared_rows_go_through(self):
        self.assertFalse(self.copies(self.numbers(1, 2, 9, 16)))
        self.assertFalse(self.copies(self.numbers(1, 9, 2, 16).transpose(1, 2)))
        self.assertFalse(self.copies(self.numbers(1, 2, 9, 24)[..., 8:]))
        self.assertFalse(self.copies(self.numbers(1, 2, 1, 16).expand(1, 2, 9, 16)))
        self.assertFalse(self.copies(self.numbers(1, 2, 9, 16).as_strided((1, 2, 9, 16), (7, 144, 16, 1))))  # one batch

    def test_a_last_dimension_that_is_not_contiguous_is_copied(self):
        self.assertTrue(self.copies(self.numbers(1, 2, 16, 9).transpose(2, 3)))
        self.assertTrue(self.copies(self.numbers(1, 1, 1, 1).expand(1, 2, 9, 16)))  # the gradient of a sum

    def test_what_is_not_aligned_is_copied(self):
        self.assertTrue(self.copies(self.numbers(1 * 2 * 9 * 16 + 1)[1:].view(1, 2, 9, 16)))
        self.assertTrue(self.copies(self.numbers(1, 2, 9, 20)[..., :16]))


class Modes(unittest.TestCase):
    def mode(self, **options):
        """What the library is asked for."""
        q, k, v = tensors()
        asked = []
        right = flash_steps.Library.bind_backward

        def watch(library, *given):
            asked.append(given[-1])
            return right(library, *given)

        with mock.patch.object(flash_steps.Library, "bind_backward", watch):
            attention(q, k, v, **options).sum().backward()
        return asked

    def test_the_argument_decides_and_without_it_pytorchs_setting(self):
        self.assertEqual(self.mode(), [False])
        self.assertEqual(self.mode(deterministic=True), [True])
        torch.use_deterministic_algorithms(True)
        try:
            self.assertEqual(self.mode(), [True])
            self.assertEqual(self.mode(deterministic=False), [False])
        finally:
            torch.use_deterministic_algorithms(False)

    def test_C7_deterministic_runs_give_the_same_bits(self):
        q, k, v = tensors(len_q=140, len_kv=140, dim=64)
        d_o = torch.randn_like(q)
        first, *others = (
            torch.autograd.grad(attention(q, k, v, causal=True, deterministic=True), (q, k, v), d_o) for _ in range(3)
        )
        for other in others:
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(first, other)))

    def test_without_inputs_that_need_a_gradient_nothing_is_saved(self):
        q, k, v = tensors()
        with mock.patch.object(flash_steps._Attention, "apply", side_effect=AssertionError):
            with torch.no_grad():
                self.assertFalse(attention(q, k, v).requires_grad)
            self.assertFalse(attention(*(t.detach() for t in (q, k, v))).requires_grad)

    def test_only_the_gradients_that_are_needed_are_returned(self):
        q, k, v = tensors()
        attention(q.detach(), k, v.detach()).sum().backward()
        self.assertIsNone(q.grad)
        self.assertIsNotNone(k.grad)

    def test_lse_is_returned_and_has_no_gradient(self):
        q, k, v = tensors()
        o, lse = attention(q, k, v, return_lse=True)
        self.assertTrue(o.requires_grad)
        self.assertFalse(lse.requires_grad)

    def test_a_loss_that_does_not_use_the_output_gives_no_gradient(self):
        q, k, v = tensors()
        o = attention(q, k, v)
        (gradient,) = torch.autograd.grad(torch.zeros((), device=DEVICE, requires_grad=True) + 0, q, allow_unused=True)
        self.assertIsNone(gradient)
        self.assertTrue(o.requires_grad)

    def test_an_output_that_gets_no_gradient_gives_none(self):
        class Cut(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return None

        q, k, v = tensors()
        Cut.apply(attention(q, k, v)).sum().backward()
        self.assertIsNone(q.grad)


class Refusals(unittest.TestCase):
    def refused(self, kind, *words, tensors_, **options):
        with self.assertRaises(kind) as raised:
            attention(*tensors_, **options)
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_types_without_a_backward_before_the_forward_runs(self):
        step = 4  # takes fp32
        with mock.patch.object(flash_steps.Library, "bind", side_effect=AssertionError):
            said = "requires a gradient", "step 09, takes fp16, bf16", "q is fp32"
            self.refused(ValueError, *said, tensors_=tensors(dtype=FP32), step=step)
            self.refused(ValueError, "head_dim is 12", tensors_=tensors(dim=12), step=step)

    def test_shapes_that_do_not_match(self):
        q, k, v = tensors()
        self.refused(ValueError, "k.shape[3] is 8", tensors_=(q, k[..., :8], v[..., :8]))
        self.refused(ValueError, "heads_kv is 2", tensors_=tensors(heads=3, heads_kv=2))

    def test_second_derivatives(self):
        """Of a loss whose gradient depends on the output and of one whose gradient does not, as a part of a sum."""
        for is_linear in (True, False):
            q, k, v = tensors()
            o = attention(q, k, v)
            (dq,) = torch.autograd.grad((o if is_linear else o.square()).float().sum(), q, create_graph=True)
            loss = dq.float().square().sum() + o.float().sum()
            with self.subTest(is_linear=is_linear), self.assertRaisesRegex(FlashStepsError, "no second derivative"):
                loss.backward()

    def test_the_graph_of_a_gradient_that_is_not_differentiated_harms_nobody(self):
        q, k, v = tensors()
        d_o = torch.randn_like(q)
        want = torch.autograd.grad(attention(q, k, v, deterministic=True), (q, k, v), d_o)
        o = attention(q, k, v, deterministic=True)
        first = torch.autograd.grad(o, (q, k, v), d_o, create_graph=True)
        again = torch.autograd.grad(o, (q, k, v), d_o)
        for a, b, c in zip(want, first, again):
            self.assertTrue(torch.equal(a, b) and torch.equal(a, c))
            self.assertFalse(a.requires_grad or c.requires_grad)

    def test_checkpoints(self):
        q, k, v = tensors()
        want = torch.autograd.grad(attention(q, k, v, deterministic=True).sum(), (q, k, v))
        for reentrant in (False, True):
            o = checkpoint(lambda *t: attention(*t, deterministic=True), q, k, v, use_reentrant=reentrant)
            for t in (q, k, v):
                t.grad = None
            o.sum().backward()
            self.assertTrue(all(torch.equal(t.grad, g) for t, g in zip((q, k, v), want)))

    def test_forward_mode_derivatives(self):
        q, k, v = (t.detach() for t in tensors())
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(k, torch.ones_like(k))
            self.refused(ValueError, "k carries a tangent", tensors_=(q, dual, v))

    def test_inputs_changed_between_forward_and_backward(self):
        for index in (0, 1, 2):
            given = tensors()
            o = attention(*given)
            with torch.no_grad():
                given[index].mul_(2)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                o.sum().backward()

    def test_bound_calls_track_no_gradient_and_say_so(self):
        q, k, v = tensors()
        with self.assertRaisesRegex(ValueError, "tracks no gradient"):
            LIBRARY.bind(9, q, k, v, torch.empty_like(q), torch.empty(q.shape[:3], device=DEVICE))

    def test_a_bound_call_keeps_its_tensors_alive(self):
        for step in LIBRARY.steps:
            on = DEVICE if LIBRARY.steps[step].on_device else "cpu"
            dtype = LIBRARY.steps[step].dtypes[-1]
            q, k, v = (t.detach().to(dtype).to(on) for t in tensors())
            lse = torch.empty(q.shape[:3], device=on)
            seen = weakref.ref(lse)
            bound = LIBRARY.bind(step, q, k, v, torch.empty_like(q), lse)
            del lse
            self.assertIsNotNone(seen())
            bound()

    def test_a_workspace_that_is_too_small_or_of_another_kind(self):
        q, k, v = (t.detach() for t in tensors())
        o, lse = attention(q, k, v, return_lse=True)
        gradients = [torch.full_like(t, math.nan) for t in (q, k, v)]
        size = LIBRARY.workspace_bytes(q, k)
        short = torch.empty(size - 1, dtype=torch.uint8, device=DEVICE)
        with self.assertRaisesRegex(ValueError, f"workspace_bytes is {size - 1}; step 09 needs {size}"):
            LIBRARY.bind_backward(q, k, v, o, lse, o, *gradients, short)()
        self.assertTrue(all(bool(t.isnan().all()) for t in gradients))
        enough = torch.empty(1, size, dtype=torch.uint8, device=DEVICE)
        for other in (None, enough, enough[0].to("meta"), enough[0].float()):
            with self.assertRaisesRegex(ValueError, "workspace must be"):
                LIBRARY.bind_backward(q, k, v, o, lse, o, *gradients, other)
        with self.assertRaisesRegex(ValueError, "lse must be"):
            LIBRARY.bind_backward(q, k, v, o, None, o, *gradients, short)

    def test_the_workspace_of_what_is_no_pair_of_tensors(self):
        q, k, v = tensors()
        with self.assertRaisesRegex(TypeError, "q is a NoneType"):
            LIBRARY.workspace_bytes(None, k)
        with self.assertRaisesRegex(ValueError, "k has 3 dimensions"):
            LIBRARY.workspace_bytes(q, k[0])


if __name__ == "__main__":
    unittest.main()
