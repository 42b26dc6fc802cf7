// What backward.cu is put together from: the values per query row that it works with, and the kernels before
// and after it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/argument_checks.hpp"
#include "common/attention.hpp"
#include "common/gpu/gpu.hpp"
#include "head_dims.hpp"

namespace flash::step09 {

inline constexpr Limits kLimits{"step 09", largest_head_dim(), 8, true};
inline constexpr float kLog2E = 1.4426950408889634f;

// The workspace: for every query row, fp32 and padded to rows_per_head rows a head.
//   row_shift: minus L log2(e), so that P = 2^(score scale log2(e) + row_shift). Minus infinity, so that P
//     is 0, for rows past the end and for rows that see no key
//   delta: rowsum(dO o O)
//   dq: rows_per_head x HEAD_DIM sums of dS K, not yet scaled, in the order of mma accumulators: 16 rows and
//     8 columns are 32 lanes x 4 values. Null in the deterministic mode.
struct RowData {
    float* row_shift;
    float* delta;
    float* dq;
    std::int64_t rows_per_head;

    // Where row `row` of query head `head` lies, in rows.
    __device__ std::int64_t index(const Shape& shape, int b, int head, int row) const {
        return (static_cast<std::int64_t>(b) * shape.heads_q + head) * rows_per_head + row;
    }
};

inline constexpr std::int64_t kRowPadding = 128;

inline std::int64_t padded_rows(const Shape& shape) {
    return (static_cast<std::int64_t>(shape.len_q) + kRowPadding - 1) / kRowPadding * kRowPadding;
}

// dq is laid out for the built head dimension that D is padded to.
inline int built_head_dim(int head_dim) {
    int built = 32;
    while (built < head_dim || !is_built(built)) built += 32;
    return built;
}

inline std::int64_t workspace_bytes(const Shape& shape, bool deterministic) {
    detail::check_shape(shape, kLimits);
    const int dq_floats = deterministic ? 0 : built_head_dim(shape.head_dim);
    return checked_bytes({shape.batch, shape.heads_q, padded_rows(shape), 2 + dq_floats, 4});
}

template <class T> RowData row_data(const BackwardArgs<T>& args) {
    const std::int64_t per_head = padded_rows(args.shape);
    const std::int64_t rows = static_cast<std::int64_t>(args.shape.batch) * args.shape.heads_q * per_head;
    float* const workspace = static_cast<float*>(args.workspace);
    return {workspace, workspace + rows, args.deterministic ? nullptr : workspace + 2 * rows, per_head};
}

// Refuses a shape with more key tiles than one launch has blocks.
inline void check_key_blocks(const Shape& shape, int block_kv) {
    const std::int64_t tiles_kv = (static_cast<std::int64_t>(shape.len_kv) + block_kv - 1) / block_kv;
    checked_grid(tiles_kv * shape.batch * shape.heads_kv, kLimits);
}

// Blocks come in groups of heads whose tensors, head_bytes each, fit in L2; in a group the longest blocks
// start first. Without a mask all blocks are equally long and each head is its own group.
inline int heads_per_group(const Mask& mask, std::int64_t head_bytes, std::int64_t heads) {
    constexpr std::int64_t kL2Share = 32 << 20;  // bytes that may count on staying in L2
    if (!mask.is_causal) return 1;
    return static_cast<int>(
        std::clamp<std::int64_t>(kL2Share / std::max<std::int64_t>(1, head_bytes), 1, heads));
}

// Fills row_shift and delta, and dq with zeros. head_dim: the built one, which dq is laid out for.
template <class T> void prepare_rows(const BackwardArgs<T>& args, const RowData& rows, int head_dim);

// dQ = scale * dq, rounded.
template <class T> void convert_dq(const BackwardArgs<T>& args, const RowData& rows, int head_dim);

// dQ by a pass of its own over the keys, without atomics.
template <class T> void launch_dq(const BackwardArgs<T>& args, const RowData& rows);

}  // namespace flash::step09
