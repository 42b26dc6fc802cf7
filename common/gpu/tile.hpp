// What steps after 07 share about tiles in shared memory (step 07 derives it), and what steps after 06 share
// about the lanes that hold one row of an accumulator (step 06 derives it).
#pragma once

#include <cstdint>

#include "common/gpu/gpu.hpp"

namespace flash::gpu {

// Maximum and sum over the 4 lanes that share a row of an accumulator.
__device__ __forceinline__ float row_maximum(float x) {
    for (int offset = 1; offset < 4; offset *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ __forceinline__ float row_total(float x) {
    for (int offset = 1; offset < 4; offset *= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

// Tiles lie in shared memory as ROWS x HEAD_DIM 16-bit elements, in 16-byte chunks; chunk c of a row lies at
// chunk c ^ key(row). The eight rows of an 8 x 8 matrix then fall into eight different groups of four banks.
// Returns bytes from the tile's start.
template <int HEAD_DIM> __device__ __forceinline__ int swizzled(int row, int chunk) {
    constexpr int PERIOD = HEAD_DIM % 64 == 0 ? 8 : 4;  // chunks that the xor moves among: 128 or 64 bytes
    return row * HEAD_DIM * 2 + (chunk ^ (row / (8 / PERIOD) % PERIOD)) * 16;
}

// The place `chunks` further along the same row, if adding them to the chunk of `address` carries nothing
// (from chunk 0 or 1: any even number): an xor inside the period, an addition beyond it.
template <int HEAD_DIM>
__device__ __forceinline__ std::uint32_t along_row(std::uint32_t address, int chunks) {
    constexpr int PERIOD = HEAD_DIM % 64 == 0 ? 8 : 4;
    return (address ^ static_cast<std::uint32_t>(chunks % PERIOD * 16)) +
           static_cast<std::uint32_t>(chunks / PERIOD * PERIOD * 16);
}

}  // namespace flash::gpu
