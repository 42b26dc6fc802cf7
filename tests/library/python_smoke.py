"""The C interface from Python with nothing but the standard library: `python_smoke.py LIBRARY`."""

import array
import ctypes
import math
import struct
import sys
import unittest

LIBRARY = sys.argv.pop() if len(sys.argv) > 1 else ""
OK, BAD_ARGUMENT = 0, 1
FP32, FP16, MASK_NONE, MASK_CAUSAL_BOTTOM_RIGHT = 0, 1, 0, 3


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]


class Forward(ctypes.Structure):
    _fields_ = [
        *((name, Tensor) for name in ("q", "k", "v", "o")),
        ("lse", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("mask", ctypes.c_int),
        ("diagonal", ctypes.c_int64),
        ("scale", ctypes.c_float),
    ]


class Backward(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        *((name, Tensor) for name in ("q", "k", "v", "o")),
        ("lse", ctypes.c_void_p),
        *((name, Tensor) for name in ("d_o", "dq", "dk", "dv")),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("dtype", ctypes.c_int),
        ("mask", ctypes.c_int),
        ("diagonal", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("deterministic", ctypes.c_int),
    ]


class Info(ctypes.Structure):
    _fields_ = [
        ("step", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("on_device", ctypes.c_int),
        ("accepts_dtype", ctypes.c_int * 3),
        ("has_backward", ctypes.c_int),
    ]


def load():
    library = ctypes.CDLL(LIBRARY)
    library.flash_steps_last_error.restype = ctypes.c_char_p
    library.flash_steps_device_alloc.restype = ctypes.c_void_p
    library.flash_steps_device_alloc.argtypes = [ctypes.c_size_t]
    library.flash_steps_device_free.argtypes = [ctypes.c_void_p]
    for copy in (library.flash_steps_copy_to_device, library.flash_steps_copy_to_host):
        copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.flash_steps_forward.argtypes = [ctypes.c_int, ctypes.POINTER(Forward), ctypes.c_void_p]
    library.flash_steps_backward.argtypes = [ctypes.c_int, ctypes.POINTER(Backward), ctypes.c_void_p]
    library.flash_steps_backward_workspace_bytes.argtypes = [ctypes.c_int, ctypes.POINTER(Backward)]
    library.flash_steps_backward_workspace_bytes.restype = ctypes.c_int64
    return library


def bnhd(data, heads, length, dim):
    """One batch entry in the order (N, H, D), as the logical (1, H, N, D)."""
    sizes, strides = (1, heads, length, dim), (length * heads * dim, dim, heads * dim, 1)
    return Tensor(data, (ctypes.c_int64 * 4)(*sizes), (ctypes.c_int64 * 4)(*strides))


def expected(q, k, v, heads, len_q, len_kv, dim, scale):
    """O in (N, H, D) order and L, bottom-right causal, one key head."""
    o, lse = [0.0] * len(q), []
    for h in range(heads):
        for i in range(len_q):
            row = q[(i * heads + h) * dim : (i * heads + h + 1) * dim]
            visible = range(min(len_kv, i + len_kv - len_q + 1))
            scores = [scale * sum(a * b for a, b in zip(row, k[j * dim : (j + 1) * dim])) for j in visible]
            total = math.fsum(math.exp(s) for s in scores)
            lse.append(math.log(total))
            for d in range(dim):
                weighted = math.fsum(math.exp(s) * v[j * dim + d] for j, s in enumerate(scores))
                o[(i * heads + h) * dim + d] = weighted / total
    return o, lse


class CInterface(unittest.TestCase):
    def setUp(self):
        self.loaded = load()

    def steps(self):
        for index in range(self.loaded.flash_steps_count()):
            info = Info()
            self.assertEqual(self.loaded.flash_steps_info(index, ctypes.byref(info)), OK)
            if info.accepts_dtype[FP32]:
                yield info

    def move(self, values, on_device):
        """A pointer that the step takes, and how to get the values back."""
        size = values.itemsize * len(values)
        host = (ctypes.c_float * len(values)).from_buffer(values)
        if not on_device:
            return ctypes.addressof(host), lambda: None
        device = self.loaded.flash_steps_device_alloc(size)
        if device is None:
            self.skipTest(self.loaded.flash_steps_last_error().decode())
        self.addCleanup(self.loaded.flash_steps_device_free, device)
        self.assertEqual(self.loaded.flash_steps_copy_to_device(device, host, size), OK)
        return device, lambda: self.loaded.flash_steps_copy_to_host(host, device, size)

    def halves(self, values):
        """The same for fp16, which array does not know."""
        packed = struct.pack(f"{len(values)}e", *values)
        memory = array.array("f", packed)
        pointer, back = self.move(memory, True)

        def numbers():
            back()
            return struct.unpack(f"{len(values)}e", memory.tobytes())

        return pointer, numbers

    def test_every_fp32_step_agrees_with_plain_python(self):
        heads, len_q, len_kv, dim = 2, 3, 5, 8
        number = lambda n: array.array("f", (math.sin(1.7 * i) for i in range(n)))
        q, k, v = number(len_q * heads * dim), number(len_kv * dim), number(len_kv * dim)
        want_o, want_lse = expected(q, k, v, heads, len_q, len_kv, dim, 0.25)
        steps = list(self.steps())
        self.assertGreater(len(steps), 0)
        for info in steps:
            with self.subTest(step=info.name.decode()):
                o = array.array("f", [math.nan] * len(q))
                lse = array.array("f", [math.nan] * (heads * len_q))
                pointers = [self.move(values, info.on_device) for values in (q, k, v, o, lse)]
                data = [pointer for pointer, _ in pointers]
                call = Forward(
                    bnhd(data[0], heads, len_q, dim),
                    bnhd(data[1], 1, len_kv, dim),
                    bnhd(data[2], 1, len_kv, dim),
                    bnhd(data[3], heads, len_q, dim),
                    data[4], FP32, MASK_CAUSAL_BOTTOM_RIGHT, 0, 0.25,
                )
                code = self.loaded.flash_steps_forward(info.step, ctypes.byref(call), None)
                self.assertEqual(code, OK, self.loaded.flash_steps_last_error())
                for _, back in pointers[3:]:
                    back()
                for got, want in zip([*o, *lse], [*want_o, *want_lse], strict=True):
                    self.assertLessEqual(abs(got - want), 1e-6)

    def test_the_gradients_of_one_query_and_two_keys(self):
        """q = (1, 0, ...), k0 = 0 and k1 = (1, 0, ...), v0 = 0 and v1 = 1, dO = 1: with w the weight of the second key,
        O = w, dV = (1 - w, w) and dS = (-D w (1 - w), D w (1 - w)) with D ones in a row of dO."""
        dim = 8
        row = lambda *first: [*first, *(dim - len(first)) * [0.0]]
        w = 1 / (1 + math.exp(-0.5))
        given = [row(1.0), [*row(), *row(1.0)], [*row(), *dim * [1.0]], dim * [w], dim * [1.0]]
        pointers = [self.halves(values) for values in given]
        (dq, dq_back), (dk, dk_back), (dv, dv_back) = (self.halves(n * [math.nan]) for n in (dim, 2 * dim, 2 * dim))
        lse, _ = self.move(array.array("f", [math.log(1 + math.exp(0.5))]), True)
        one, two = (lambda data: bnhd(data, 1, 1, dim)), (lambda data: bnhd(data, 1, 2, dim))
        q, k, v, o, d_o = (of(pointer) for of, (pointer, _) in zip((one, two, two, one, one), pointers))
        call = Backward(ctypes.sizeof(Backward), q, k, v, o, lse, d_o, one(dq), two(dk), two(dv))
        call.dtype, call.scale = FP16, 0.5
        call.workspace_bytes = self.loaded.flash_steps_backward_workspace_bytes(9, ctypes.byref(call))
        call.workspace, _ = self.move(array.array("f", call.workspace_bytes // 4 * [math.nan]), True)
        code = self.loaded.flash_steps_backward(9, ctypes.byref(call), None)
        self.assertEqual(code, OK, self.loaded.flash_steps_last_error())
        ds = 0.5 * dim * w * (1 - w)
        for got, want in (
            (dq_back(), row(ds)),
            (dk_back(), [*row(-ds), *row(ds)]),
            (dv_back(), [*dim * [1 - w], *dim * [w]]),
        ):
            for a, b in zip(got, want, strict=True):
                self.assertLessEqual(abs(a - b), 2e-3)

    def test_a_refused_call_gives_a_code_and_a_sentence(self):
        code = self.loaded.flash_steps_forward(3, ctypes.byref(Forward()), None)
        self.assertEqual(code, BAD_ARGUMENT)
        self.assertIn(b"scale is 0", self.loaded.flash_steps_last_error())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
