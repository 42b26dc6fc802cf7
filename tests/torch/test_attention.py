"""flash_attention against PyTorch's own attention, and what it refuses: `test_attention.py LIBRARY`."""

import fractions
import math
import os
import pathlib
import tempfile
import unittest
from unittest import mock

from with_torch import DEVICE, LIBRARY, torch  # first: without PyTorch it ends the program
import flash_steps
from flash_steps import FlashStepsError, flash_attention
from torch._subclasses.fake_tensor import FakeTensorMode

GPU_STEPS = [number for number, step in LIBRARY.steps.items() if step.on_device]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# The unit in the last place of a number in [1, 2): outputs are averages of values below 4.
ULP = {BF16: 2**-7, FP16: 2**-10, FP32: 2**-23}


def where(step):
    return DEVICE if LIBRARY.steps[step].on_device else "cpu"


def tensors(step, batch=1, heads=2, len_q=9, len_kv=9, dim=16, heads_kv=None, dtype=BF16, seed=0):
    make = torch.Generator().manual_seed(seed)
    sizes = [(batch, heads, len_q, dim)] + 2 * [(batch, heads_kv or heads, len_kv, dim)]
    return [torch.randn(size, generator=make).to(dtype).to(where(step)) for size in sizes]


def visible(len_q, len_kv, diagonal):
    return torch.ones(len_q, len_kv, dtype=torch.bool).tril(diagonal)


def expected(q, k, v, diagonal=None, scale=None):
    """O and L in double precision. PyTorch's attention gives O; rows that see no key are 0 and -inf."""
    q, k, v = (t.cpu().double() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    mask = visible(q.shape[2], k.shape[2], k.shape[2] if diagonal is None else diagonal)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    lse = (q @ k.mT * scale).masked_fill(~mask, -math.inf).logsumexp(-1)
    return o.masked_fill(~mask.any(-1)[:, None], 0), lse


def call(step, q, k, v, **options):
    return flash_attention(q, k, v, step=step, return_lse=True, library=LIBRARY, **options)


class Agreement(unittest.TestCase):
    def assert_close(self, got, want, dtype):
        o, lse = (t.cpu().double() for t in got)
        self.assertEqual(o.shape, want[0].shape)
        self.assertEqual(got[0].dtype, dtype)
        self.assertEqual(got[1].dtype, FP32)
        self.assertGreater(o.numel(), 0)
        error = (o - want[0]).abs().max().item()
        self.assertLessEqual(error, 2 * ULP[dtype] + 1e-6)
        unseen = want[1].isneginf()
        self.assertTrue(torch.equal(lse.isneginf(), unseen))
        self.assertLessEqual((lse - want[1])[~unseen].abs().max().item(), 1e-5)

    def test_every_step_and_dtype_agrees_with_pytorch(self):
        for number, step in LIBRARY.steps.items():
            for dtype in step.dtypes:
                for causal, diagonal in ((False, None), (True, 0)):
                    with self.subTest(step=number, dtype=dtype, causal=causal):
                        q, k, v = tensors(number, len_q=19, len_kv=19, dtype=dtype)
                        self.assert_close(call(number, q, k, v, causal=causal), expected(q, k, v, diagonal), dtype)

    def test_grouped_heads_other_lengths_and_every_way_to_name_the_diagonal(self):
        for step in GPU_STEPS:
            for causal, diagonal in ((False, None), ("top_left", 0), ("bottom_right", 14), (-3, -3), (1, 1), (0, 0)):
                with self.subTest(step=step, causal=causal):
                    q, k, v = tensors(step, batch=2, heads=4, heads_kv=2, len_q=7, len_kv=21)
                    self.assert_close(call(step, q, k, v, causal=causal), expected(q, k, v, diagonal), BF16)

    def test_a_scale_is_used_as_given(self):
        q, k, v = tensors(8)
        for scale in (0.7, fractions.Fraction(7, 10), torch.tensor(0.7), torch.tensor([0.7], dtype=torch.float64)):
            self.assert_close(call(8, q, k, v, scale=scale), expected(q, k, v, scale=0.7), BF16)

    def test_the_default_scale_is_of_the_true_head_dimension(self):
        q, k, v = tensors(8, dim=72)
        self.assert_close(call(8, q, k, v), expected(q, k, v), BF16)

    def test_transposed_storage_gives_the_same_bits_and_an_output_in_the_same_order(self):
        for step in GPU_STEPS:
            with self.subTest(step=step):
                q, k, v = tensors(step, batch=2, heads=3, len_q=5, len_kv=11)
                o, lse = call(step, q, k, v)
                moved = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
                self.assertFalse(moved[0].is_contiguous())
                o_moved, lse_moved = call(step, *moved)
                self.assertTrue(torch.equal(o, o_moved))
                self.assertTrue(torch.equal(lse, lse_moved))
                self.assertTrue(o_moved.transpose(1, 2).is_contiguous())

    def test_slices_of_a_packed_tensor_and_shared_heads_need_no_copy(self):
        for step in GPU_STEPS:
            with self.subTest(step=step):
                heads = tensors(step, heads=6, len_q=9, len_kv=9)[0]
                packed = heads.transpose(1, 2).contiguous()  # (B, N, Q K V of 2 heads each, D)
                q, k, v = packed.transpose(1, 2).split(2, dim=1)
                o, lse = call(step, q, k, v, causal=True)
                again = call(step, q.contiguous(), k.contiguous(), v.contiguous(), causal=True)
                self.assertTrue(torch.equal(o, again[0]) and torch.equal(lse, again[1]))
                k, v = (t[:, :1].expand(-1, 2, -1, -1) for t in (k, v))
                self.assertEqual(k.stride(1), 0)
                self.assert_close(call(step, q, k, v), expected(q, k, v), BF16)

    def test_empty_problems(self):
        for step in GPU_STEPS:
            with self.subTest(step=step):
                q, k, v = tensors(step, len_kv=0)
                o, lse = call(step, q, k, v)
                self.assertTrue(bool((o == 0).all()) and bool(lse.isneginf().all()))
                q, k, v = tensors(step, len_q=0)
                self.assertEqual(call(step, q, k, v)[1].shape, (1, 2, 0))

    def test_without_lse_only_the_output_is_returned(self):
        q, k, v = tensors(9)
        o = flash_attention(q, k, v, library=LIBRARY)
        self.assertIsInstance(o, torch.Tensor)
        self.assertTrue(torch.equal(o, call(9, q, k, v)[0]))

    def test_inputs_that_require_a_gradient_are_taken_when_gradients_are_off(self):
        q, k, v = tensors(8)
        want = call(8, q, k, v)[0]
        with torch.no_grad():
            got = call(8, q.clone().requires_grad_(), k, v)[0]
        self.assertTrue(torch.equal(got, want))
        self.assertFalse(got.requires_grad)


class Refusals(unittest.TestCase):
    def refused(self, kind, *sentence, step=8, tensors_=None, **options):
        q, k, v = tensors_ or tensors(step)
        with self.assertRaises(kind) as raised:
            call(step, q, k, v, **options)
        for part in sentence:
            self.assertIn(part, str(raised.exception))

    def test_causal_without_a_diagonal_when_the_lengths_differ(self):
        self.refused(ValueError, "'top_left'", "'bottom_right'", tensors_=tensors(8, len_kv=5), causal=True)

    def test_other_words_for_causal(self):
        self.refused(ValueError, "causal is 'lower'", "top_left", causal="lower")
        self.refused(ValueError, "causal is None", causal=None)
        self.refused(ValueError, "causal is 1.5", causal=1.5)
        self.refused(ValueError, "causal is", causal=2**63)

    def test_dropout_and_masks_are_not_parameters(self):
        for name in ("dropout_p", "attn_mask"):
            self.refused(TypeError, name, **{name: 0})

    def test_dtypes(self):
        self.refused(ValueError, "q is float64", "step 08 takes fp16, bf16", tensors_=tensors(8, dtype=torch.float64))
        self.refused(ValueError, "q is float32", "step 08 takes", tensors_=tensors(8, dtype=FP32))
        q, k, v = tensors(8)
        self.refused(ValueError, "v has dtype torch.float16", "bfloat16", tensors_=(q, k, v.half()))

    def test_devices(self):
        q, k, v = tensors(8)
        self.refused(ValueError, "k has device meta", tensors_=(q, k.to("meta"), v))
        self.refused(ValueError, "the tensors are on meta", "step 08", tensors_=[t.to("meta") for t in (q, k, v)])
        if DEVICE == "cuda":
            self.refused(ValueError, "the tensors are on cpu", "cuda", tensors_=[t.cpu() for t in (q, k, v)])

    def test_shapes_are_refused_by_the_librarys_sentence(self):
        self.refused(ValueError, "shape.head_dim is 12", "multiples of 8", tensors_=tensors(8, dim=12))
        self.refused(ValueError, "shape.head_dim is 264", "256", tensors_=tensors(8, dim=264))
        self.refused(ValueError, "shape.heads_kv is 2", tensors_=tensors(8, heads=3, heads_kv=2))
        q, k, v = tensors(8)
        self.refused(ValueError, "v.shape[2] is 4", tensors_=(q, k, v[:, :, :4]))
        self.refused(ValueError, "q has 3 dimensions", tensors_=(q[0], k, v))

    def test_a_last_dimension_that_is_not_contiguous(self):
        q, k, v = tensors(8, len_q=16, len_kv=16, dim=16)
        self.refused(ValueError, "k.stride[3] is 16", "contiguous", tensors_=(q, k.transpose(2, 3), v))

    def test_memory_that_is_not_aligned(self):
        """On the emulator too, whose steps work on copies."""
        q, k, v = tensors(8)
        shifted = torch.empty(k.numel() + 1, dtype=k.dtype, device=k.device)[1:].view_as(k).copy_(k)
        self.refused(ValueError, "k.data is not aligned", tensors_=(q, shifted, v))

    def test_scales(self):
        for scale in (0.0, -1.0, math.nan, math.inf):
            self.refused(ValueError, "scale is", scale=scale)
        self.refused(ValueError, "scale is too large", scale=10**400)
        for scale in ("0.5", b"1", True, 1j, [0.5], torch.ones(2), torch.tensor(True), torch.ones(1, device="meta")):
            self.refused(TypeError, "scale is", "it must be a number", scale=scale)

    def test_scales_that_are_differentiated(self):
        half = torch.tensor(0.5)
        self.refused(ValueError, "scale requires a gradient", scale=half.clone().requires_grad_())
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(half, half)
            self.refused(ValueError, "scale requires a gradient", scale=dual)

    def test_what_is_no_tensor_or_no_plain_one(self):
        q, k, v = tensors(8)
        self.refused(TypeError, "k is a list", tensors_=(q, [1.0], v))
        self.refused(ValueError, "v is not a plain strided tensor", tensors_=(q, k, v.to_sparse()))
        q, k, v = tensors(4, dtype=FP32)
        negative = torch.complex(q, k).conj().imag
        self.assertTrue(negative.is_neg())
        self.refused(ValueError, "k is not a plain strided tensor", "resolve_neg", step=4, tensors_=(q, negative, v))

    def test_tensors_without_data(self):
        q, k, v = tensors(8)
        transforms = {
            "functionalize": lambda: torch.func.functionalize(lambda k: call(8, q, k, v)[0])(k),
            "vmap": lambda: torch.vmap(lambda k: call(8, q, k, v)[0])(k[None]),
            "grad": lambda: torch.func.grad(lambda k: call(8, q, k, v)[0].sum())(k),
        }
        for name, transformed in transforms.items():
            with self.subTest(name), self.assertRaisesRegex(ValueError, "k has no data of its own.*torch.func"):
                transformed()
        with FakeTensorMode():
            fake = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            self.refused(ValueError, "q has no data of its own", "fake tensors", tensors_=(fake, fake, fake))

    def test_unknown_steps(self):
        q, k, v = tensors(8)
        with self.assertRaisesRegex(FlashStepsError, "step 1 has no forward .* 3, 4.*9"):
            call(1, q, k, v)

    def test_a_refused_call_writes_nothing(self):
        q, k, v = tensors(8)
        o, lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan, device=q.device)
        with self.assertRaisesRegex(ValueError, "scale is 0"):
            LIBRARY.bind(8, q, k, v, o, lse, scale=0.0)()
        self.assertTrue(bool(o.isnan().all()) and bool(lse.isnan().all()))

    def test_an_output_that_shares_memory_with_an_input(self):
        q, k, v = tensors(8)
        said = "o overlaps q" if DEVICE == "cuda" else "an output overlaps another tensor"
        with self.assertRaisesRegex(ValueError, said):
            LIBRARY.bind(8, q, k, v, q, torch.empty(q.shape[:3], device=q.device))()

    def test_an_lse_of_another_kind(self):
        q, k, v = tensors(8)
        sizes = q.shape[:3]
        for name, lse in {
            "none": None,
            "dtype": torch.empty(sizes, dtype=torch.float64, device=q.device),
            "shape": torch.empty(sizes[:2], device=q.device),
            "order": torch.empty(sizes[::-1], device=q.device).permute(2, 1, 0),
            "device": torch.empty(sizes, device="meta"),
            "layout": torch.zeros(sizes, device=q.device).to_sparse_csr(),
        }.items():
            with self.subTest(name), self.assertRaisesRegex(ValueError, "lse must be a contiguous float32 tensor"):
                LIBRARY.bind(8, q, k, v, torch.empty_like(q), lse)

    def test_what_is_no_library(self):
        q, k, v = tensors(8)
        for library in (0, False, b"x", [1]):
            with self.subTest(library), self.assertRaisesRegex(TypeError, "library is .*; it must be a Library or its path"):
                flash_attention(q, k, v, library=library)
        with self.assertRaisesRegex(FlashStepsError, "cannot be loaded"):
            flash_attention(q, k, v, library="")


@unittest.skipIf(DEVICE == "cuda", "works on the caller's memory")
class CopiesForTheEmulator(unittest.TestCase):
    def held(self, run):
        """How many allocations `run` makes, and those of them that it does not free."""
        made, alloc, free = [], LIBRARY._c.flash_steps_device_alloc, LIBRARY._c.flash_steps_device_free

        def watched_alloc(size):
            made.append(alloc(size))
            return made[-1]

        with mock.patch.object(LIBRARY._c, "flash_steps_device_alloc", watched_alloc):
            with mock.patch.object(LIBRARY._c, "flash_steps_device_free", side_effect=free) as watched_free:
                run()
        return len(made), set(made) - {pointer for (pointer,), _ in watched_free.call_args_list}

    def test_are_freed(self):
        q, k, v = tensors(8)
        self.assertEqual(self.held(lambda: call(8, q, k, v)), (5, set()))

    def test_are_freed_after_a_refusal(self):
        q, k, v = tensors(8)

        def refused():
            with self.assertRaisesRegex(ValueError, "scale is 0"):
                call(8, q, k, v, scale=0)

        self.assertEqual(self.held(refused), (5, set()))


class FindingTheLibrary(unittest.TestCase):
    def test_the_environment_names_it(self):
        with mock.patch.dict(os.environ, {"FLASH_STEPS_LIBRARY": str(LIBRARY.path)}):
            self.assertEqual(flash_steps.find_library(), LIBRARY.path)
            q, k, v = tensors(8)
            self.assertEqual(flash_attention(q, k, v).shape, q.shape)

    def test_a_tree_without_one_says_how_to_build_it(self):
        with mock.patch.dict(os.environ), mock.patch.object(flash_steps, "ROOT", LIBRARY.path / "nowhere"):
            os.environ.pop("FLASH_STEPS_LIBRARY", None)
            with self.assertRaisesRegex(FlashStepsError, "cmake --workflow .* FLASH_STEPS_LIBRARY"):
                flash_steps.find_library()

    def test_the_newest_that_this_interpreter_can_load_is_taken(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ):
            os.environ.pop("FLASH_STEPS_LIBRARY", None)
            names = "old/steps/library/libflash_steps.so", "new/steps/library/libflash_steps.so"
            others = "sanitize/steps/library/libflash_steps.so", "new/steps/library/libflash_steps.map"
            for age, name in enumerate((*names, *others)):
                path = pathlib.Path(folder) / "build" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                os.utime(path, (age, age))
            with mock.patch.object(flash_steps, "ROOT", pathlib.Path(folder)):
                self.assertEqual(flash_steps.find_library(), pathlib.Path(folder) / "build" / names[1])

    def test_a_file_that_is_no_library(self):
        with self.assertRaisesRegex(FlashStepsError, "test_attention.py cannot be loaded"):
            flash_steps.Library(__file__)
        with self.assertRaisesRegex(FlashStepsError, "cannot be loaded.*flash_steps"):
            flash_steps.Library(torch._C.__file__)


if __name__ == "__main__":
    unittest.main()
