// Step 07: tensor cores fed by a cp.async pipeline through swizzled shared memory.
#pragma once

#include <cstddef>

#include "common/attention.hpp"

namespace flash::step07 {

// O and L of the whole contract (common/attention.hpp) for T = fp16 or bf16; pointers are device pointers,
// 16-byte aligned, strides multiples of 8 elements. Head dimensions are multiples of 8 up to 128. Extra
// memory: none beyond L. Throws std::invalid_argument on a bad argument before anything is written,
// std::runtime_error on a CUDA error. Sources: Dao, "FlashAttention-2" (2023), algorithm 1; PTX ISA,
// cp.async.
template <class T> void attention_forward(const ForwardArgs<T>& args);

// What one instance of the kernel is built for.
struct TileShape {
    int head_dim, block_q, block_kv, warps, stages;

    // The budget: one Q tile and `stages` pairs of K and V tiles, 2 bytes an element.
    constexpr std::size_t shared_bytes() const {
        return static_cast<std::size_t>(block_q + stages * 2 * block_kv) *
               static_cast<std::size_t>(head_dim) * 2;
    }
    bool operator==(const TileShape&) const = default;
};

// The tile shape for a head dimension on a device that offers a block `shared_available` bytes of shared
// memory: the first of the table that fits. Throws std::invalid_argument with both sizes when none does, and
// for a head dimension that the step does not take.
TileShape chosen_tile_shape(int head_dim, std::size_t shared_available);

}  // namespace flash::step07
