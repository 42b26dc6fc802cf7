// Step 06: both products on tensor cores, P kept in registers between them.
#pragma once

#include "common/attention.hpp"

namespace flash::step06 {

// O and L of the whole contract (common/attention.hpp) for T = fp16 or bf16; pointers are device pointers,
// 16-byte aligned, strides multiples of 8 elements. Head dimensions are multiples of 8 up to 128. Extra
// memory: none beyond L. Throws std::invalid_argument on a bad argument before anything is written,
// std::runtime_error on a CUDA error. Sources: Dao, "FlashAttention-2" (2023), algorithm 1; PTX ISA, ldmatrix
// and mma.sync.
template <class T> void attention_forward(const ForwardArgs<T>& args);

}  // namespace flash::step06
