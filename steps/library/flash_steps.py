"""Attention of every step for PyTorch, with gradients, through the C interface in flash_steps.h.

    from flash_steps import flash_attention
    o = flash_attention(q, k, v, causal=True)                                  # (B, H, N, D), step 09
    o, lse = flash_attention(q, k, v, causal="bottom_right", step=6, return_lse=True)

A library built for CUDA takes CUDA tensors and works on the current stream. One built for the emulator takes CPU tensors:
GPU steps then run on copies in the emulator's device memory, slowly, with the same results and refusals.
"""

import ctypes
import functools
import math
import numbers
import operator
import os
import pathlib

import torch
from torch.autograd import forward_ad

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # FLASH_FP32, FLASH_FP16, FLASH_BF16
DTYPE_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
MASK_NONE, MASK_CAUSAL, MASK_TOP_LEFT, MASK_BOTTOM_RIGHT, MASK_DIAGONAL = range(5)
OK, BAD_ARGUMENT, UNSUPPORTED, DEVICE_ERROR = range(4)
BACKWARD_STEP = 9  # takes what any step's forward leaves


class FlashStepsError(RuntimeError):
    """The library could not do what it was asked: no such step, a failed kernel, no library."""


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]


class _Forward(ctypes.Structure):
    _fields_ = [
        *((name, _Tensor) for name in ("q", "k", "v", "o")),
        ("lse", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("mask", ctypes.c_int),
        ("diagonal", ctypes.c_int64),
        ("scale", ctypes.c_float),
    ]


class _Backward(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        *((name, _Tensor) for name in ("q", "k", "v", "o")),
        ("lse", ctypes.c_void_p),
        *((name, _Tensor) for name in ("d_o", "dq", "dk", "dv")),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("dtype", ctypes.c_int),
        ("mask", ctypes.c_int),
        ("diagonal", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("deterministic", ctypes.c_int),
    ]


class _Info(ctypes.Structure):
    _fields_ = [
        ("step", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("on_device", ctypes.c_int),
        ("accepts_dtype", ctypes.c_int * 3),
        ("has_backward", ctypes.c_int),
    ]


class Step:
    """One step that has a forward."""

    def __init__(self, info):
        self.number = info.step
        self.name = info.name.decode()
        self.on_device = bool(info.on_device)
        self.has_backward = bool(info.has_backward)
        self.dtypes = [dtype for dtype, index in DTYPES.items() if info.accepts_dtype[index]]


def find_library():
    """$FLASH_STEPS_LIBRARY, else the newest library in build/*/ of this source tree."""
    named = os.environ.get("FLASH_STEPS_LIBRARY")
    if named:
        return pathlib.Path(named)
    # A library with AddressSanitizer in it cannot be loaded by an interpreter without.
    built = [path for path in ROOT.glob("build/*/steps/library/libflash_steps.*") if "sanitize" not in path.parts]
    built = [path for path in built if path.suffix in (".so", ".dylib")]
    if not built:
        raise FlashStepsError(
            f"no libflash_steps.so under {ROOT / 'build'}; build it (cmake --workflow --preset test) or name it in "
            "FLASH_STEPS_LIBRARY"
        )
    return max(built, key=lambda path: path.stat().st_mtime)


def _declare(c):
    for name in ("flash_steps_last_error", "flash_steps_backend"):
        getattr(c, name).restype = ctypes.c_char_p
    c.flash_steps_forward.argtypes = [ctypes.c_int, ctypes.POINTER(_Forward), ctypes.c_void_p]
    c.flash_steps_backward.argtypes = [ctypes.c_int, ctypes.POINTER(_Backward), ctypes.c_void_p]
    workspace_bytes = c.flash_steps_backward_workspace_bytes
    workspace_bytes.argtypes, workspace_bytes.restype = [ctypes.c_int, ctypes.POINTER(_Backward)], ctypes.c_int64
    c.flash_steps_device_alloc.argtypes, c.flash_steps_device_alloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    c.flash_steps_device_free.argtypes = [ctypes.c_void_p]
    for copy in (c.flash_steps_copy_to_device, c.flash_steps_copy_to_host):
        copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Library:
    """libflash_steps.so, loaded."""

    def __init__(self, path=None):
        self.path = find_library() if path is None else pathlib.Path(path)
        try:
            self._c = c = ctypes.CDLL(str(self.path.resolve()))
            _declare(c)
        except (OSError, AttributeError) as error:  # no library, or another one
            raise FlashStepsError(f"{self.path} cannot be loaded: {error}") from None
        self.backend = c.flash_steps_backend().decode()
        self.steps = {}
        for index in range(c.flash_steps_count()):
            info = _Info()
            self._check(c.flash_steps_info(index, ctypes.byref(info)))
            self.steps[info.step] = Step(info)

    def _error(self, code):
        sentence = self._c.flash_steps_last_error().decode()
        return ValueError(sentence) if code == BAD_ARGUMENT else FlashStepsError(sentence)

    def _check(self, code):
        if code != OK:
            raise self._error(code)

    def step(self, number):
        if number not in self.steps:
            raise FlashStepsError(
                f"step {number} has no forward in {self.path.name}; the steps that have one are "
                + ", ".join(str(known) for known in self.steps)
            )
        return self.steps[number]

    def bind(self, step, q, k, v, o, lse, causal=False, scale=None):
        """A function without arguments that runs one forward into o and lse, on the stream that is current when it is
        called. What can be refused without a launch by this wrapper is refused here."""
        step = self.step(step)
        _check_tensors(self, step, q=q, k=k, v=v, o=o)
        _check_lse(lse, q)
        of_scores = _mask_and_scale(causal, scale, q, k)

        def call(pointers):
            views = map(_described, pointers, (q, k, v, o))
            return _Forward(*views, pointers[4], DTYPES[q.dtype], *of_scores)

        return self._bound(self._c.flash_steps_forward, step, call, (q, k, v, o, lse), outputs=(3, 4))

    def workspace_bytes(self, q, k, deterministic=False, step=BACKWARD_STEP):
        """Bytes that bind_backward's workspace needs; the shapes alone count."""
        _check_dimensions(q=q, k=k)
        call = _Backward(ctypes.sizeof(_Backward), _described(None, q), _described(None, k))
        call.deterministic = deterministic
        size = self._c.flash_steps_backward_workspace_bytes(step, ctypes.byref(call))
        if size < 0:
            raise self._error(BAD_ARGUMENT)
        return size

    def bind_backward(
        self, q, k, v, o, lse, d_o, dq, dk, dv, workspace, causal=False, scale=None, deterministic=False, step=BACKWARD_STEP
    ):
        """The same for one backward: from a forward's inputs, o and lse, and d_o, into dq, dk and dv. `workspace` is a
        one-dimensional uint8 tensor of workspace_bytes."""
        step = self.step(step)
        _check_tensors(self, step, q=q, k=k, v=v, o=o, d_o=d_o, dq=dq, dk=dk, dv=dv)
        _check_lse(lse, q)
        if not _is_dense(workspace, torch.uint8, q.device) or workspace.dim() != 1:
            raise ValueError("workspace must be a contiguous one-dimensional uint8 tensor on the device of q")
        of_scores = _mask_and_scale(causal, scale, q, k)

        def call(at):
            q_k_v_o = map(_described, at[:4], (q, k, v, o))
            others = map(_described, at[5:9], (d_o, dq, dk, dv))
            options = at[9], workspace.numel(), DTYPES[q.dtype], *of_scores, bool(deterministic)
            return _Backward(ctypes.sizeof(_Backward), *q_k_v_o, at[4], *others, *options)

        tensors = q, k, v, o, lse, d_o, dq, dk, dv, workspace
        return self._bound(self._c.flash_steps_backward, step, call, tensors, outputs=(6, 7, 8))

    def _bound(self, function, step, make_call, tensors, outputs):
        """A function without arguments that calls a C function with what make_call makes of the tensors' pointers. It keeps
        the tensors alive."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise ValueError("a bound call tracks no gradient; use flash_attention, torch.no_grad() or detach()")

        def run(call, stream=None):
            self._check(function(step.number, ctypes.byref(call), stream))

        if self.backend == "emulator" and step.on_device:
            return lambda: self._on_copies(lambda pointers: run(make_call(pointers)), tensors, outputs)
        call = make_call([t.data_ptr() or None for t in tensors])

        def bound():
            device = tensors[0].device  # of tensors that live as long as this function does
            if device.type != "cuda":
                return run(call)
            with torch.cuda.device(device):
                run(call, torch.cuda.current_stream().cuda_stream)

        return bound

    def _on_copies(self, run_on, tensors, outputs):
        """CPU tensors to the emulator's device memory, strides and alignment kept, and the outputs back."""
        spans = [_span(t) for t in tensors]
        for index in outputs:
            for other, (begin, end) in enumerate(spans):
                if other != index and begin < spans[index][1] and spans[index][0] < end:
                    raise ValueError("an output overlaps another tensor of the call; outputs need memory of their own")
        copies = []
        try:
            copies.extend(_Copy(self, t) for t in tensors)
            run_on([copy.pointer for copy in copies])
            for index in outputs:
                copies[index].back()
        finally:
            for copy in copies:
                copy.free()


def _span(tensor):
    """The addresses of a tensor's first byte and of the one past its last."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    begin = tensor.data_ptr()
    return begin, begin + ((reach + 1) * tensor.element_size() if tensor.numel() else 0)


class _Copy:
    """The memory that a tensor spans, gaps between its rows included, at the same address modulo 16."""

    def __init__(self, library, tensor):
        self.loaded, self.c = library, library._c
        self.host, end = _span(tensor)
        self.bytes = end - self.host
        self.base = self.pointer = None
        if self.bytes:
            offset = self.host % 16
            self.base = self.c.flash_steps_device_alloc(offset + self.bytes)
            if self.base is None:
                library._check(DEVICE_ERROR)
            self.pointer = self.base + offset
            library._check(self.c.flash_steps_copy_to_device(self.pointer, self.host, self.bytes))

    def back(self):
        if self.bytes:
            self.loaded._check(self.c.flash_steps_copy_to_host(self.host, self.pointer, self.bytes))

    def free(self):
        self.c.flash_steps_device_free(self.base)


@functools.lru_cache(maxsize=None)
def load(path=None):
    """The library at a path, or the one that find_library finds. Loaded once."""
    return Library(path)


def _check_dimensions(**tensors):
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch.Tensor")
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; it must be (batch, heads, tokens, head_dim)")


def _check_tensors(library, step, **tensors):
    """Refuses what only Python can know; the library checks shapes, strides, alignment and dtypes by itself."""
    _check_dimensions(**tensors)
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_neg():
            raise ValueError(f"{name} is not a plain strided tensor; pass one that is (to_dense, resolve_neg)")
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise ValueError(f"{name} carries a tangent and there is no forward-mode derivative; pass its primal")
        if tensor.dtype not in step.dtypes:
            known = ", ".join(DTYPE_NAMES[dtype] for dtype in step.dtypes)
            raise ValueError(f"{name} is {str(tensor.dtype)[6:]}; step {step.number:02} takes {known}")
    q = tensors["q"]
    for name, tensor in tensors.items():
        for what in ("dtype", "device"):
            if getattr(tensor, what) != getattr(q, what):
                raise ValueError(
                    f"{name} has {what} {getattr(tensor, what)} and q has {getattr(q, what)}; they must be equal"
                )
    wanted = "cuda" if step.on_device and library.backend == "cuda" else "cpu"
    if q.device.type != wanted:
        raise ValueError(
            f"the tensors are on {q.device}; step {step.number:02} of a library built for {library.backend} takes "
            f"{wanted} tensors"
        )
    for name, tensor in tensors.items():
        if not _has_data(tensor):
            raise ValueError(f"{name} has no data of its own; fake tensors, vmap and torch.func are not supported")


def _has_data(tensor):
    """Fake and functional tensors are at address 0, those of vmap and of other transforms at none."""
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


def _is_dense(tensor, dtype, device):
    is_strided = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
    return is_strided and tensor.is_contiguous() and tensor.dtype == dtype and tensor.device == device


def _check_lse(lse, q):
    if not _is_dense(lse, torch.float32, q.device) or lse.shape != q.shape[:3]:
        raise ValueError("lse must be a contiguous float32 tensor (B, H, Nq) on the device of q")


def _described(pointer, tensor):
    return _Tensor(pointer, (ctypes.c_int64 * 4)(*tensor.shape), (ctypes.c_int64 * 4)(*tensor.stride()))


def _mask_and_scale(causal, scale, q, k):
    """(mask, diagonal, scale) of the C interface. D = 0 has no scale of its own, and any will do."""
    scale = 1 / math.sqrt(max(q.shape[3], 1)) if scale is None else _number(scale)
    return *_mask(causal, q.shape[2], k.shape[2]), scale


def _number(scale):
    """A scale that is given, as a float. The library refuses those that are not finite and > 0."""
    value = scale
    if torch.is_tensor(scale):
        if scale.requires_grad or forward_ad.unpack_dual(scale).tangent is not None:
            raise ValueError("scale requires a gradient and has none; pass a number or scale.detach()")
        if scale.numel() == 1 and _has_data(scale):
            value = scale.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"scale is {scale!r}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("scale is too large for a float; it must be finite and > 0") from None


def _mask(causal, len_q, len_kv):
    """(mask, diagonal) of the C interface."""
    names = {"top_left": MASK_TOP_LEFT, "bottom_right": MASK_BOTTOM_RIGHT}
    if causal is False:
        return MASK_NONE, 0
    if causal is True:
        if len_q != len_kv:
            raise ValueError(
                f"causal=True is ambiguous for {len_q} queries and {len_kv} keys: say 'top_left' (the first query "
                "sees the first key only), 'bottom_right' (the last query sees every key) or a diagonal as an int"
            )
        return MASK_CAUSAL, 0
    if isinstance(causal, str) and causal in names:
        return names[causal], 0
    try:
        diagonal = None if torch.is_tensor(causal) else operator.index(causal)
    except TypeError:
        diagonal = None
    if diagonal is None or not -(2**63) <= diagonal < 2**63:
        raise ValueError(
            f"causal is {causal!r}; it must be False, True, 'top_left', 'bottom_right' or an int, the diagonal d of "
            "'key j is visible to query i when j <= i + d'"
        )
    return MASK_DIAGONAL, diagonal


def _output_like(q):
    """Dense, in the order of q's storage: (B, H, N, D), or (B, N, H, D) when q is a transposed view of that."""
    batch, heads, tokens, dim = q.shape
    if heads > 1 and tokens > 1 and 0 < q.stride(1) < q.stride(2):
        return q.new_empty((batch, tokens, heads, dim)).transpose(1, 2)
    return q.new_empty((batch, heads, tokens, dim))


def _forward(library, step, q, k, v, causal, scale):
    o = _output_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    library.bind(step, q, k, v, o, lse, causal, scale)()
    return o, lse


def _taken_by_backward(t):
    """The tensor itself, or a copy where the backward does not take its strides or its address."""
    t = t.resolve_neg()
    strides = [stride for size, stride in zip(t.shape[:3], t.stride()) if size > 1]
    takes = t.stride(3) == 1 and t.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in strides)
    return t if takes else t.clone(memory_format=torch.contiguous_format)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, library, step, causal, scale, deterministic):
        o, lse = _forward(library, step, q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = library, causal, scale, deterministic
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, d_o, _):
        if d_o is None:
            return (None,) * 8
        return *_Gradients.apply(*ctx.saved_tensors, d_o, *ctx.options), *(None,) * 5


class _Gradients(torch.autograd.Function):
    """A node of its own in the graph of the gradients (create_graph=True), where a second derivative is refused."""

    @staticmethod
    def forward(ctx, q, k, v, o, lse, d_o, library, causal, scale, deterministic):
        if deterministic is None:
            deterministic = torch.are_deterministic_algorithms_enabled()
        q, k, v, o, d_o = map(_taken_by_backward, (q, k, v, o, d_o))
        gradients = [_output_like(t) for t in (q, k, v)]
        size = library.workspace_bytes(q, k, deterministic)
        workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
        library.bind_backward(q, k, v, o, lse, d_o, *gradients, workspace, causal, scale, deterministic)()
        return tuple(gradients)

    @staticmethod
    def backward(ctx, *_):
        raise FlashStepsError("flash_attention has no second derivative; its gradients cannot be differentiated")


def _check_differentiable(library, q, k):
    """Refuses, before the forward runs, what the backward would refuse after it."""
    step = library.step(BACKWARD_STEP)
    if q.dtype not in step.dtypes:
        raise ValueError(
            f"q, k or v requires a gradient; the backward, step {step.number:02}, takes "
            f"{', '.join(DTYPE_NAMES[dtype] for dtype in step.dtypes)} and q is {DTYPE_NAMES[q.dtype]}: cast, call under "
            "torch.no_grad() or detach() them"
        )
    library.workspace_bytes(q, k)


def flash_attention(q, k, v, causal=False, scale=None, step=9, return_lse=False, deterministic=None, library=None):
    """softmax(scale * q k^T + mask) v, computed by one step of the ladder.

    q              (B, Hq, Nq, D); k, v (B, Hkv, Nk, D) with Hkv dividing Hq. Any strides that the step takes, so a
                   transposed (B, N, H, D) needs no copy; the last must be 1.
    causal         False; True, which needs Nq == Nk; 'top_left'; 'bottom_right'; or an int d: query i sees keys j <= i + d.
    scale          finite and > 0; default 1 / sqrt(D).
    step           3 to 9. Steps 06 to 09 take fp16 and bf16, 04 and 05 fp32 too, 03 fp32 on the CPU.
    return_lse     also return the natural logarithm of the sum of exp(scaled scores), (B, Hq, Nq) in fp32. A query that
                   sees no key has -inf there, and zeros in the output. It has no gradient.
    deterministic  whether gradients are bitwise equal from run to run; if not, they are faster and dq may differ by the
                   rounding of fp32 sums. Default: what torch.use_deterministic_algorithms was given. The output is
                   always bitwise equal.
    library        a Library, or its path; default: find_library().

    Gradients with respect to q, k and v are step 09's, whichever step ran forward: fp16 and bf16, head dimensions that are
    multiples of 8. Saved for it are q, k, v, the output and lse. There is no second derivative, which raises when it is
    taken, no forward-mode derivative, no vmap or torch.func, no dropout, and no additive or boolean mask. Raises ValueError
    or TypeError for a call that breaks these rules and FlashStepsError for what the library cannot do, each with a sentence
    that names the argument."""
    if not isinstance(library, Library):
        if not isinstance(library, (str, os.PathLike, type(None))):
            raise TypeError(f"library is {library!r}; it must be a Library or its path")
        library = load(library)
    _check_tensors(library, library.step(step), q=q, k=k, v=v)
    if not (deterministic is None or isinstance(deterministic, bool)):
        raise ValueError(f"deterministic is {deterministic!r}; it must be None, True or False")
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        _check_differentiable(library, q, k)
        o, lse = _Attention.apply(q, k, v, library, step, causal, scale, deterministic)
    else:
        o, lse = _forward(library, step, q, k, v, causal, scale)
    return (o, lse) if return_lse else o
