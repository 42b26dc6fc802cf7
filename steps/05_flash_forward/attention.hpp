// Step 05: one fused kernel, FlashAttention's forward with fp32 arithmetic on the CUDA cores.
#pragma once

#include "common/attention.hpp"

namespace flash::step05 {

// O and L of the whole contract (common/attention.hpp) for T = float, fp16 or bf16; pointers are device
// pointers. Head dimensions up to 256, any strides. Extra memory: none beyond L. Throws std::invalid_argument
// on a bad argument before anything is written, std::runtime_error on a CUDA error. Source: Dao,
// "FlashAttention-2" (2023), algorithm 1.
template <class T> void attention_forward(const ForwardArgs<T>& args);

// The same kernel with tiles of 16 x 16: one score a thread, the size everyone draws first.
template <class T> void attention_forward_small_tiles(const ForwardArgs<T>& args);

}  // namespace flash::step05
