// Step 09: the full FlashAttention-2, forward and backward, on tensor cores.
#pragma once

#include <cstdint>

#include "common/attention.hpp"

namespace flash::step09 {

// O and L of the whole contract (common/attention.hpp) for T = fp16 or bf16; pointers are device pointers.
// Head dimensions are multiples of 8 up to 256, padded with zeros on the chip to the next one built
// (64, 128 and 256; the build's option FLASH_STEPS_HEAD_DIMS may say others); pointers
// are 16-byte aligned and strides multiples of 8 elements. State (row maximum, row sum, accumulator) is fp32.
// Extra memory: none beyond L. Runs from sm_80 on; bitwise equal from run to run.
// Scaled scores must stay below 2^24 in size: the exponent is one multiply-add from a rounded maximum, and
// beyond that its rounding no longer fits into P, so O and L are unspecified (steps 03 to 07 subtract first
// and have no such limit). scale itself must stay below 2.358e38, so that scale log2(e) is finite. Throws
// std::invalid_argument on a bad argument before anything is written, std::runtime_error on a CUDA error.
// Source: Dao, "FlashAttention-2" (2023), algorithm 1. The kernel is that of step 08.
template <class T> void attention_forward(const ForwardArgs<T>& args);

// Bytes that BackwardArgs::workspace needs for a shape. Linear in B Hq Nq D, whatever Nk is: numbers for each
// query row, and in the fast mode an fp32 dQ. The call initialises them itself. Throws std::invalid_argument
// for a shape that is refused.
std::int64_t backward_workspace_bytes(const Shape& shape, bool deterministic);

// dQ, dK and dV of the whole contract, from q, k, v, d_o and the forward's o and lse, for the same types,
// head dimensions, alignments and devices. dK and dV sum over the query heads of a group; sums are fp32, P
// and dS are rounded to T before the products that consume them, and dS is formed from the rounded P but for
// the dQ of the deterministic mode; in fp16 dS, before the scale, must stay below 65,520. deterministic =
// true: bitwise equal from run to run. deterministic = false, the fast mode: dQ is added up in whatever order
// blocks finish, so that runs differ by the rounding of fp32 sums; dK and dV do not differ. P is rebuilt from
// L: where scaled scores are so large that neighbouring fp32 numbers are d apart, P and all gradients carry a
// relative error of the order of d (docs/numerics.md, A12). Under a causal mask the gradients of a key head
// that has a NaN or an infinity among its rows of q, k, v or d_o are unspecified, beyond those that must be
// NaN. Throws std::invalid_argument on a bad argument, a workspace that is too small included, before
// anything is written, std::runtime_error on a CUDA error. Source: Dao, "FlashAttention-2" (2023), algorithm
// 2.
template <class T> void attention_backward(const BackwardArgs<T>& args);

}  // namespace flash::step09
