// What the two kernels of the backward do with tiles in shared memory: copy rows in, multiply, copy rows out.
// Tiles lie swizzled (common/gpu/tile.hpp); fragment layouts are drawn in common/gpu/ptx_cuda.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backward_parts.hpp"
#include "common/attention.hpp"
#include "common/gpu/gpu.hpp"
#include "common/gpu/tile.hpp"

namespace flash::step09 {

// Where the row that this lane names to ldmatrix lies in a tile: for an A operand, and a B operand read
// transposed; and for a B operand, and an A operand read transposed.
template <int HEAD_DIM> __device__ __forceinline__ int a_offset(int lane) {
    return gpu::swizzled<HEAD_DIM>(lane % 16, lane / 16);
}
template <int HEAD_DIM> __device__ __forceinline__ int b_offset(int lane) {
    return gpu::swizzled<HEAD_DIM>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// Starts copying ROWS rows of `head` from `first` on, 16 bytes a thread at a time. Rows from `end` on and
// columns past the true head dimension become zero.
template <int HEAD_DIM, int ROWS, int THREADS, class T>
__device__ __forceinline__ void copy_tile(std::uint32_t dst_smem, const TensorView<const T>& view, int b,
                                          int head, int first, int end, int head_dim) {
    constexpr int CHUNKS = HEAD_DIM / 8;
    constexpr int ROWS_PER_SLICE = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0 && ROWS % ROWS_PER_SLICE == 0);
    static_assert(ROWS_PER_SLICE % 8 == 0 || HEAD_DIM % 64 == 0, "a slice must start where the swizzle does");
    const int row = static_cast<int>(threadIdx.x) / CHUNKS;
    const int chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    const int offset = gpu::swizzled<HEAD_DIM>(row, chunk);
    const T* src_gmem = view.data + b * view.stride_batch + head * view.stride_head +
                        (first + row) * view.stride_row + chunk * 8;
    const int rows_left = chunk * 8 < head_dim ? end - first - row : 0;
#pragma unroll
    for (int slice = 0; slice < ROWS; slice += ROWS_PER_SLICE) {
        gpu::cp_async_16(dst_smem + (offset ^ (slice % 8 * 16)) + slice * HEAD_DIM * 2, src_gmem,
                         slice < rows_left ? 16 : 0);
        src_gmem += ROWS_PER_SLICE * view.stride_row;
    }
}

// Starts copying row_shift and delta of ROWS query rows, from padded row `row` on, one after the other.
template <int ROWS>
__device__ __forceinline__ void copy_row_data(std::uint32_t dst_smem, const RowData& rows, std::int64_t row) {
    const int chunk = static_cast<int>(threadIdx.x);  // of 4 rows
    if (chunk >= ROWS / 2) return;
    const float* const values = chunk < ROWS / 4 ? rows.row_shift : rows.delta;
    gpu::cp_async_16(dst_smem + chunk * 16, values + row + chunk % (ROWS / 4) * 4, 16);
}

// x += A B^T: the dot products of 16 * M rows of one tile with 8 * N rows of another.
template <class T, int HEAD_DIM, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&x)[M][N][4], std::uint32_t a_smem,
                                              std::uint32_t b_smem) {
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        std::uint32_t a_frag[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
            gpu::ldmatrix_x4(a_frag[m], gpu::along_row<HEAD_DIM>(a_smem, 2 * d) + m * 16 * HEAD_DIM * 2);
        }
#pragma unroll
        for (int n = 0; n < N / 2; ++n) {
            std::uint32_t b_frag[4];
            gpu::ldmatrix_x4(b_frag, gpu::along_row<HEAD_DIM>(b_smem, 2 * d) + n * 16 * HEAD_DIM * 2);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                gpu::mma_m16n8k16<T>(x[m][2 * n], a_frag[m], b_frag[0], b_frag[1]);
                gpu::mma_m16n8k16<T>(x[m][2 * n + 1], a_frag[m], b_frag[2], b_frag[3]);
            }
        }
    }
}

// acc += X B: X in A fragments, B the 16 * K rows of a tile.
template <class T, int HEAD_DIM, int M, int K>
__device__ __forceinline__ void add_product(float (&acc)[M][HEAD_DIM / 8][4],
                                            const std::uint32_t (&x_frag)[M][K][4], std::uint32_t b_smem) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 16; ++n) {
            std::uint32_t b_frag[4];
            gpu::ldmatrix_x4_trans(b_frag, gpu::along_row<HEAD_DIM>(b_smem, 2 * n) + k * 16 * HEAD_DIM * 2);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                gpu::mma_m16n8k16<T>(acc[m][2 * n], x_frag[m][k], b_frag[0], b_frag[1]);
                gpu::mma_m16n8k16<T>(acc[m][2 * n + 1], x_frag[m][k], b_frag[2], b_frag[3]);
            }
        }
    }
}

// Writes 16 * M rows of accumulators, times factor, to `head` from row `first` on, through shared memory of
// the warp's own so that stores are 16 bytes wide. Rows from `end` on do not exist.
template <class T, int HEAD_DIM, int M>
__device__ __forceinline__ void store_rows(const float (&acc)[M][HEAD_DIM / 8][4], float factor,
                                           std::byte* smem, const TensorView<T>& view, int b, int head,
                                           int first, int end, int head_dim) {
    constexpr int CHUNKS = HEAD_DIM / 8;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                *reinterpret_cast<std::uint32_t*>(
                    smem + gpu::swizzled<HEAD_DIM>(m * 16 + lane / 4 + h * 8, n) + lane % 4 * 4) =
                    gpu::pack2<T>(acc[m][n][2 * h] * factor, acc[m][n][2 * h + 1] * factor);
            }
        }
    }
    __syncwarp();
    T* const gmem = view.data + b * view.stride_batch + head * view.stride_head;
#pragma unroll
    for (int i = lane; i < M * 16 * CHUNKS; i += 32) {
        const int row = i / CHUNKS;
        const int chunk = i % CHUNKS;
        if (first + row < end && chunk * 8 < head_dim) {
            *reinterpret_cast<uint4*>(gmem + (first + row) * view.stride_row + chunk * 8) =
                *reinterpret_cast<const uint4*>(smem + gpu::swizzled<HEAD_DIM>(row, chunk));
        }
    }
}

}  // namespace flash::step09
