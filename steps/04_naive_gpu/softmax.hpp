// Row softmax as a kernel, fused and unfused: y[r][c] = exp(x[r][c] - max_r) / sum_r over a (rows, cols)
// matrix, row-major and dense, T = float, fp16 or bf16, with row_max and row_sum in fp32.
//
// Policy: NaN or +inf in a row makes the whole row NaN; -inf is an ordinary masked entry with weight 0; a row
// of nothing but -inf is all zeros. Device pointers. Every row is one warp's or one block's work, so few but
// very long rows leave most of the GPU idle.
//
// Errors: std::invalid_argument, before anything is launched, for negative sizes, cols beyond 2^30, more rows
// than a grid has blocks for (at least 2^31 - 1), null or misaligned pointers of a non-empty matrix, and
// input, output and workspace that overlap.
#pragma once

#include <cstdint>

#include "common/attention.hpp"

namespace flash::step04 {

// A row of up to this many bytes stays in shared memory between the two passes of the fused kernel, so that
// HBM sees one read and one write. A longer row is read twice.
inline constexpr std::int64_t kOnChipRowBytes = 64 * 1024;

// One kernel.
template <class T>
void softmax_fused(const T* x, T* y, std::int64_t rows, std::int64_t cols, Stream stream = nullptr);

// Four kernels: row maximum; exp(x - max), rounded to T; row sum; division. row_max and row_sum are
// workspace, one float per row each.
template <class T>
void softmax_unfused(const T* x, T* y, float* row_max, float* row_sum, std::int64_t rows, std::int64_t cols,
                     Stream stream = nullptr);

}  // namespace flash::step04
