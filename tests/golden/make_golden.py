"""Writes golden.hpp: attention and its gradients by an implementation that shares nothing with the C++ reference.

Forward in NumPy, double precision, whole matrices at a time; gradients by PyTorch's automatic differentiation in
double precision of a forward written again in PyTorch operations. The two forwards must agree before anything is
written. Inputs are multiples of 1/64, so that every number in the file is exact in fp32 and bf16 alike.

    pip install numpy torch
    python tests/golden/make_golden.py
"""

import sys
from pathlib import Path

if __name__ == "__main__" and {"-h", "--help"} & set(sys.argv[1:]):  # before imports that may be missing
    print(__doc__.strip())
    sys.exit()

import numpy as np  # noqa: E402
import torch  # noqa: E402

# name, (B, Hq, Hkv, Nq, Nk, D), diagonal (None: no mask), scale (None: 1/sqrt(D))
CASES = [
    ("square", (1, 1, 1, 4, 4, 8), None, None),
    ("causal", (1, 1, 1, 5, 5, 4), 0, None),
    ("ragged", (2, 2, 2, 3, 7, 5), None, None),
    ("ragged, causal top-left", (1, 2, 2, 3, 7, 5), 0, None),
    ("ragged, causal bottom-right", (1, 2, 2, 3, 7, 5), 4, None),
    ("more queries than keys, bottom-right: rows without a key", (1, 1, 1, 6, 3, 4), -3, None),
    ("grouped heads", (1, 4, 2, 3, 4, 3), 1, None),
    ("one key head for all, a given scale", (2, 3, 1, 2, 5, 4), None, 0.75),
]


def softmax_numpy(q, k, v, visible, scale):
    scores = np.where(visible, scale * (q @ k.swapaxes(-1, -2)), -np.inf)
    with np.errstate(divide="ignore"):
        lse = np.logaddexp.reduce(scores, axis=-1)
    weights = np.exp(scores - np.where(np.isinf(lse), 0, lse)[..., None])
    return weights @ v, lse


def gradients_torch(q, k, v, d_o, visible, scale, group):
    q, k, v = (torch.tensor(x, requires_grad=True) for x in (q, k, v))
    keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (scale * torch.einsum("bhid,bhjd->bhij", q, keys)).masked_fill(~torch.tensor(visible), -torch.inf)
    seen = torch.tensor(visible.any(axis=-1))[None, None, :, None]
    # Rows without a key are taken out before the softmax, whose derivative they would make NaN.
    weights = torch.softmax(torch.where(seen, scores, torch.zeros_like(scores)), dim=-1)
    o = torch.where(seen, weights, torch.zeros_like(weights)) @ values
    o.backward(torch.tensor(d_o))
    return o.detach().numpy(), q.grad.numpy(), k.grad.numpy(), v.grad.numpy()


def numbers(values, as_float=False):
    def one(x):
        if np.isinf(x):
            return "-kInf" if x < 0 else "kInf"
        return f"{float(x)!r}{'f' if as_float else ''}"

    return "{" + ", ".join(one(x) for x in np.asarray(values).ravel()) + "}"


def main() -> None:
    rng = np.random.default_rng(20240607)
    cases = []
    for name, (B, Hq, Hkv, Nq, Nk, D), diagonal, scale in CASES:
        scale = np.float64(np.float32(1 / np.sqrt(D) if scale is None else scale))  # the contract's scale is fp32
        q, k, v, d_o = (
            np.round(rng.standard_normal(shape) * 64).clip(-127, 127) / 64
            for shape in ((B, Hq, Nq, D), (B, Hkv, Nk, D), (B, Hkv, Nk, D), (B, Hq, Nq, D))
        )
        i, j = np.indices((Nq, Nk))
        visible = np.ones((Nq, Nk), bool) if diagonal is None else j <= i + diagonal
        group = Hq // Hkv
        o, lse = softmax_numpy(q, k.repeat(group, axis=1), v.repeat(group, axis=1), visible, scale)
        o_torch, dq, dk, dv = gradients_torch(q, k, v, d_o, visible, scale, group)
        assert np.allclose(o, o_torch, rtol=0, atol=1e-13)
        mask = "Mask::none()" if diagonal is None else f"Mask::causal({diagonal})"
        fields = [f'"{name}"', f"{{{B}, {Hq}, {Hkv}, {Nq}, {Nk}, {D}}}", mask, f"{float(scale)!r}f"]
        fields += [numbers(x, as_float=True) for x in (q, k, v, d_o)]
        fields += [numbers(x) for x in (o, lse, dq, dk, dv)]
        cases.append("    {" + ",\n     ".join(fields) + "},\n")

    text = f"""// Written by make_golden.py with NumPy {np.__version__} and PyTorch {torch.__version__.split("+")[0]}.
#pragma once

#include <limits>
#include <vector>

#include "common/attention.hpp"

// clang-format off
namespace flash::golden {{

struct Case {{
    const char* name;
    Shape shape;
    Mask mask;
    float scale;
    std::vector<float> q, k, v, d_o;
    std::vector<double> o, lse, dq, dk, dv;
}};

inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline const std::vector<Case> kCases = {{
{"".join(cases)}}};

}}  // namespace flash::golden
"""
    path = Path(__file__).parent / "golden.hpp"
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {len(CASES)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
