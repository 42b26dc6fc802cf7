// Step 08: the FlashAttention-2 forward on tensor cores.
#pragma once

#include "common/attention.hpp"

namespace flash::step08 {

// O and L of the whole contract (common/attention.hpp) for T = fp16 or bf16; pointers are device pointers.
// Head dimensions are multiples of 8 up to 256, padded with zeros on the chip to the next one built
// (64, 128 and 256; the build's option FLASH_STEPS_HEAD_DIMS may say others); pointers
// are 16-byte aligned and strides multiples of 8 elements. State (row maximum, row sum, accumulator) is fp32.
// Extra memory: none beyond L. Runs from sm_80 on; bitwise equal from run to run.
// Scaled scores must stay below 2^24 in size: the exponent is one multiply-add from a rounded maximum, and
// beyond that its rounding no longer fits into P, so O and L are unspecified (steps 03 to 07 subtract first
// and have no such limit). scale itself must stay below 2.358e38, so that scale log2(e) is finite. Throws
// std::invalid_argument on a bad argument before anything is written, std::runtime_error on a CUDA error.
// Source: Dao, "FlashAttention-2" (2023), algorithm 1.
template <class T> void attention_forward(const ForwardArgs<T>& args);

}  // namespace flash::step08
