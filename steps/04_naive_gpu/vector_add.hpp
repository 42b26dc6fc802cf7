// The first kernel: out = a + b on the GPU, one thread per element.
#pragma once

#include <cstdint>

#include "common/attention.hpp"

namespace flash::step04 {

// Blocks that n elements need when each block has block_threads threads: ceil(n / block_threads).
// Throws std::invalid_argument for n < 0 and for block_threads outside 1 .. 1024.
std::int64_t blocks_for(std::int64_t n, int block_threads);

// out[i] = a[i] + b[i] for i < n. Device pointers; out may be a or b, but may not overlap them otherwise.
// Throws std::invalid_argument for what blocks_for refuses, more blocks than a grid holds (2^31 - 1), a null
// or misaligned pointer with n > 0, and a partial overlap of out with a or b.
void vector_add(const float* a, const float* b, float* out, std::int64_t n, int block_threads = 128,
                Stream stream = nullptr);

// The same launch, but every thread that the mask lets through adds 1 to live[its block]. live (device
// memory, one int per block) starts at zero. Throws as vector_add does.
void count_live_threads(int* live, std::int64_t n, int block_threads = 128, Stream stream = nullptr);

}  // namespace flash::step04
