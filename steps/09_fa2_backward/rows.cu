#include <cmath>
#include <cstdint>

#include "backward_parts.hpp"
#include "common/gpu/gpu.hpp"

namespace flash::step09 {
namespace {

constexpr int kRows = 32;  // of a block
constexpr int kThreads = 256;
constexpr int kLanesPerRow = kThreads / kRows;

template <class T>
__global__ void prepare_rows_kernel(BackwardArgs<T> args, RowData rows, int built_head_dim) {
    const Shape& shape = args.shape;
    const std::int64_t first = std::int64_t{blockIdx.x} * kRows;
    if (rows.dq != nullptr) {
        auto* const dq = reinterpret_cast<float4*>(rows.dq + first * built_head_dim);
        for (int i = static_cast<int>(threadIdx.x); i < kRows * built_head_dim / 4; i += kThreads) {
            dq[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    const int lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
    const int head_index = static_cast<int>(first / rows.rows_per_head);
    const int b = head_index / shape.heads_q;
    const int head = head_index % shape.heads_q;
    const int row =
        static_cast<int>(first % rows.rows_per_head) + static_cast<int>(threadIdx.x) / kLanesPerRow;
    const bool exists = row < shape.len_q;
    float delta = 0.0f;
    if (exists) {
        const T* const o =
            args.o.data + b * args.o.stride_batch + head * args.o.stride_head + row * args.o.stride_row;
        const T* const d_o = args.d_o.data + b * args.d_o.stride_batch + head * args.d_o.stride_head +
                             row * args.d_o.stride_row;
        for (int d = lane * 8; d < shape.head_dim; d += kLanesPerRow * 8) {
            const uint4 x = *reinterpret_cast<const uint4*>(o + d);
            const uint4 y = *reinterpret_cast<const uint4*>(d_o + d);
            const std::uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 u = gpu::unpack2<T>(xs[i]), v = gpu::unpack2<T>(ys[i]);
                delta = fmaf(u.x, v.x, fmaf(u.y, v.y, delta));
            }
        }
    }
#pragma unroll
    for (int lanes = kLanesPerRow / 2; lanes > 0; lanes /= 2)
        delta += __shfl_xor_sync(0xffffffffu, delta, lanes);
    if (lane == 0) {
        const float lse =
            exists ? args.lse[static_cast<std::int64_t>(head_index) * shape.len_q + row] : -INFINITY;
        const std::int64_t at = static_cast<std::int64_t>(head_index) * rows.rows_per_head + row;
        rows.row_shift[at] = lse == -INFINITY ? -INFINITY : -lse * kLog2E;
        rows.delta[at] = delta;
    }
}

// A thread takes 4 lanes' accumulators, which are 8 columns of row g and of row g + 8.
template <class T> __global__ void convert_dq_kernel(BackwardArgs<T> args, RowData rows, int built_head_dim) {
    const Shape& shape = args.shape;
    const std::int64_t first = std::int64_t{blockIdx.x} * kRows;
    const int head_index = static_cast<int>(first / rows.rows_per_head);
    const int b = head_index / shape.heads_q;
    const int head = head_index % shape.heads_q;
    const int first_row = static_cast<int>(first % rows.rows_per_head);
    const int chunks = built_head_dim / 8;
    T* const dq_gmem = args.dq.data + b * args.dq.stride_batch + head * args.dq.stride_head;
    for (int i = static_cast<int>(threadIdx.x); i < kRows / 2 * chunks; i += kThreads) {
        const int chunk = i % chunks;
        const int m = i / chunks / 8;
        const int g = i / chunks % 8;
        if (chunk * 8 >= shape.head_dim) continue;
        const auto* const sums = reinterpret_cast<const float4*>(rows.dq + first * built_head_dim) +
                                 (m * chunks + chunk) * 32 + g * 4;
        std::uint32_t packed[2][4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const float4 sum = sums[t];
            packed[0][t] = gpu::pack2<T>(sum.x * args.scale, sum.y * args.scale);
            packed[1][t] = gpu::pack2<T>(sum.z * args.scale, sum.w * args.scale);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = first_row + m * 16 + g + h * 8;
            if (row >= shape.len_q) continue;
            *reinterpret_cast<uint4*>(dq_gmem + row * args.dq.stride_row + chunk * 8) =
                make_uint4(packed[h][0], packed[h][1], packed[h][2], packed[h][3]);
        }
    }
}

template <class T> unsigned blocks_of_rows(const BackwardArgs<T>& args, const RowData& rows) {
    return checked_grid(rows.rows_per_head / kRows * args.shape.batch * args.shape.heads_q, kLimits);
}

}  // namespace

template <class T> void prepare_rows(const BackwardArgs<T>& args, const RowData& rows, int head_dim) {
    const unsigned blocks = blocks_of_rows(args, rows);
    if (blocks == 0) return;
    gpu::launch(prepare_rows_kernel<T>, dim3(blocks), dim3(kThreads), 0, args.stream, args, rows, head_dim);
}

template <class T> void convert_dq(const BackwardArgs<T>& args, const RowData& rows, int head_dim) {
    const unsigned blocks = blocks_of_rows(args, rows);
    if (blocks == 0) return;
    gpu::launch(convert_dq_kernel<T>, dim3(blocks), dim3(kThreads), 0, args.stream, args, rows, head_dim);
}

template void prepare_rows(const BackwardArgs<fp16>&, const RowData&, int);
template void prepare_rows(const BackwardArgs<bf16>&, const RowData&, int);
template void convert_dq(const BackwardArgs<fp16>&, const RowData&, int);
template void convert_dq(const BackwardArgs<bf16>&, const RowData&, int);

}  // namespace flash::step09
