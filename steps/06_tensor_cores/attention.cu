#include "attention.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/argument_checks.hpp"
#include "common/gpu/gpu.hpp"
#include "common/types.hpp"

namespace flash::step06 {
namespace {

constexpr Limits kLimits{"step 06", 128, 8, true};

constexpr int WARPS = 4;

// Copies rows first_row .. first_row + ROWS - 1 of one head into shared memory, 16 bytes a thread at a time.
// Rows at or beyond `len` and columns at or beyond `head_dim` become zero: a phantom key then has score 0 and
// a phantom value adds nothing.
template <int ROWS, int HEAD_DIM, class T>
__device__ void load_tile(T* tile_smem /* (ROWS, HEAD_DIM), 16-byte aligned */, const T* head_gmem,
                          std::int64_t stride_row, int first_row, int len, int head_dim) {
    for (int i = static_cast<int>(threadIdx.x) * 8; i < ROWS * HEAD_DIM; i += WARPS * 32 * 8) {
        const int row = i / HEAD_DIM;
        const int d = i % HEAD_DIM;
        const bool exists = first_row + row < len && d < head_dim;
        *reinterpret_cast<uint4*>(tile_smem + i) =
            exists ? *reinterpret_cast<const uint4*>(head_gmem + (first_row + row) * stride_row + d)
                   : uint4{};
    }
}

// Maximum and sum over the 4 lanes that share a row of an accumulator, so no shared memory and no barrier.
__device__ float row_maximum(float x) {
    for (int offset = 1; offset < 4; offset *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ float row_total(float x) {
    for (int offset = 1; offset < 4; offset *= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

// One block: BLOCK_Q queries of one head. One warp: BLOCK_Q / WARPS of them, so that no row crosses a warp.
template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV>
__global__ void __launch_bounds__(WARPS * 32) attention_forward_kernel(ForwardArgs<T> args, int diagonal) {
    constexpr int WARP_ROWS = BLOCK_Q / WARPS;
    constexpr int M_TILES = WARP_ROWS / 16;
    constexpr int ROW_BYTES = HEAD_DIM * 2;
    static_assert(WARP_ROWS % 16 == 0 && BLOCK_KV % 16 == 0, "mma works on 16 rows and 16 keys");
    const Shape& shape = args.shape;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;

    const int tiles_q = (shape.len_q + BLOCK_Q - 1) / BLOCK_Q;
    const int head_index = static_cast<int>(blockIdx.x) / tiles_q;
    const int first_row = static_cast<int>(blockIdx.x) % tiles_q * BLOCK_Q;
    const int warp_first_row = first_row + warp * WARP_ROWS;
    const int b = head_index / shape.heads_q;
    const int head = head_index % shape.heads_q;
    const int head_kv = head / (shape.heads_q / shape.heads_kv);

    const int tiles = (shape.len_kv + BLOCK_KV - 1) / BLOCK_KV;

    const T* q_gmem = args.q.data + b * args.q.stride_batch + head * args.q.stride_head;
    const T* k_gmem = args.k.data + b * args.k.stride_batch + head_kv * args.k.stride_head;
    const T* v_gmem = args.v.data + b * args.v.stride_batch + head_kv * args.v.stride_head;

    T* q_tile = gpu::dynamic_smem<T>();        // BLOCK_Q x HEAD_DIM
    T* k_tile = q_tile + BLOCK_Q * HEAD_DIM;   // BLOCK_KV x HEAD_DIM
    T* v_tile = k_tile + BLOCK_KV * HEAD_DIM;  // BLOCK_KV x HEAD_DIM
    load_tile<BLOCK_Q, HEAD_DIM>(q_tile, q_gmem, args.q.stride_row, first_row, shape.len_q, shape.head_dim);

    // Where the row that this lane names to ldmatrix lies: in Q and V (A, and B transposed), and in K (B).
    const int a_offset = lane % 16 * ROW_BYTES + lane / 16 * 16;
    const int b_offset = (lane % 8 + lane / 16 * 8) * ROW_BYTES + lane / 8 % 2 * 16;
    const std::uint32_t q_warp_smem = gpu::smem_address(q_tile) + warp * WARP_ROWS * ROW_BYTES + a_offset;
    const std::uint32_t k_smem = gpu::smem_address(k_tile) + b_offset;
    const std::uint32_t v_smem = gpu::smem_address(v_tile) + a_offset;

    // This lane's rows in each 16-row tile m are g and g + 8 (g = lane / 4): index h = 0 and 1 below.
    float acc[M_TILES][HEAD_DIM / 8][4] = {};  // unnormalised O
    float row_sum[M_TILES][2] = {};
    float row_max[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) row_max[m][0] = row_max[m][1] = -INFINITY;

    for (int tile = 0; tile < tiles; ++tile) {
        load_tile<BLOCK_KV, HEAD_DIM>(k_tile, k_gmem, args.k.stride_row, tile * BLOCK_KV, shape.len_kv,
                                      shape.head_dim);
        load_tile<BLOCK_KV, HEAD_DIM>(v_tile, v_gmem, args.v.stride_row, tile * BLOCK_KV, shape.len_kv,
                                      shape.head_dim);
        __syncthreads();  // the tiles are complete

        // 1. S = Q K^T
        float s[M_TILES][BLOCK_KV / 8][4] = {};
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; ++d) {
            std::uint32_t q_frag[M_TILES][4];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
                gpu::ldmatrix_x4(q_frag[m], q_warp_smem + m * 16 * ROW_BYTES + d * 32);
            }
#pragma unroll
            for (int n = 0; n < BLOCK_KV / 16; ++n) {
                std::uint32_t k_frag[4];
                gpu::ldmatrix_x4(k_frag, k_smem + n * 16 * ROW_BYTES + d * 32);
#pragma unroll
                for (int m = 0; m < M_TILES; ++m) {
                    gpu::mma_m16n8k16<T>(s[m][2 * n], q_frag[m], k_frag[0], k_frag[1]);
                    gpu::mma_m16n8k16<T>(s[m][2 * n + 1], q_frag[m], k_frag[2], k_frag[3]);
                }
            }
        }

        // 2. S scaled, with -inf where the mask or the end hides the key. The running maximum, and the factor
        // that brings the old state to it.
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = warp_first_row + m * 16 + lane / 4 + h * 8;
                float new_max = row_max[m][h];
#pragma unroll
                for (int n = 0; n < BLOCK_KV / 8; ++n) {
#pragma unroll
                    for (int i = 2 * h; i < 2 * h + 2; ++i) {
                        const int key = tile * BLOCK_KV + n * 8 + lane % 4 * 2 + i % 2;
                        s[m][n][i] =
                            key > row + diagonal || key >= shape.len_kv ? -INFINITY : args.scale * s[m][n][i];
                        new_max = fmaxf(new_max, s[m][n][i]);
                    }
                }
                new_max = row_maximum(new_max);
                const float shift = new_max == -INFINITY ? 0.0f : new_max;  // a row that has seen nothing yet
                const float rescale = __expf(row_max[m][h] - shift);
                row_max[m][h] = new_max;

                // 3. P = exp(S - row_max), not yet divided by anything, and its sum.
                float tile_sum = 0.0f;
#pragma unroll
                for (int n = 0; n < BLOCK_KV / 8; ++n) {
#pragma unroll
                    for (int i = 2 * h; i < 2 * h + 2; ++i) {
                        s[m][n][i] = __expf(s[m][n][i] - shift);
                        tile_sum += s[m][n][i];
                    }
                }
                row_sum[m][h] = row_sum[m][h] * rescale + row_total(tile_sum);
#pragma unroll
                for (int n = 0; n < HEAD_DIM / 8; ++n) {
                    acc[m][n][2 * h] *= rescale;
                    acc[m][n][2 * h + 1] *= rescale;
                }
            }
        }

        // 4. acc += P V
#pragma unroll
        for (int k = 0; k < BLOCK_KV / 16; ++k) {
            std::uint32_t p_frag[M_TILES][4];  // A: two neighbouring accumulators of S, rounded
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float(&pair)[4] = s[m][2 * k + i / 2];
                    p_frag[m][i] = gpu::pack2<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
                }
            }
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 16; ++n) {
                std::uint32_t v_frag[4];
                gpu::ldmatrix_x4_trans(v_frag, v_smem + k * 16 * ROW_BYTES + n * 32);
#pragma unroll
                for (int m = 0; m < M_TILES; ++m) {
                    gpu::mma_m16n8k16<T>(acc[m][2 * n], p_frag[m], v_frag[0], v_frag[1]);
                    gpu::mma_m16n8k16<T>(acc[m][2 * n + 1], p_frag[m], v_frag[2], v_frag[3]);
                }
            }
        }
        __syncthreads();  // everyone is done with the tiles
    }

    // 5. One division at the end. A row that saw no key has row_sum = 0: O = 0 and L = -inf + ln 0 = -inf.
    T* o_gmem = args.o.data + b * args.o.stride_batch + head * args.o.stride_head;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = warp_first_row + m * 16 + lane / 4 + h * 8;
            if (row >= shape.len_q) continue;
            const float inverse = row_sum[m][h] == 0.0f ? 0.0f : 1.0f / row_sum[m][h];
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; ++n) {
                const int d = n * 8 + lane % 4 * 2;
                if (d < shape.head_dim) {
                    *reinterpret_cast<std::uint32_t*>(o_gmem + row * args.o.stride_row + d) =
                        gpu::pack2<T>(acc[m][n][2 * h] * inverse, acc[m][n][2 * h + 1] * inverse);
                }
            }
            if (lane % 4 == 0) {
                args.lse[static_cast<std::int64_t>(head_index) * shape.len_q + row] =
                    row_max[m][h] + logf(row_sum[m][h]);
            }
        }
    }
}

template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV> void launch_forward(const ForwardArgs<T>& args) {
    const Shape& shape = args.shape;
    const std::int64_t tiles_q = (static_cast<std::int64_t>(shape.len_q) + BLOCK_Q - 1) / BLOCK_Q;
    const std::int64_t blocks = static_cast<std::int64_t>(shape.batch) * shape.heads_q * tiles_q;
    if (blocks == 0) return;
    constexpr std::size_t kSharedBytes = (BLOCK_Q + 2 * BLOCK_KV) * HEAD_DIM * sizeof(T);
    const auto kernel = attention_forward_kernel<T, HEAD_DIM, BLOCK_Q, BLOCK_KV>;
    gpu::launch(kernel, dim3(checked_grid(blocks, kLimits)), dim3(WARPS * 32), kSharedBytes, args.stream,
                without_idle_strides(args), args.mask.kernel_diagonal(shape));
}

}  // namespace

template <class T> void attention_forward(const ForwardArgs<T>& args) {
    check_arguments(args, kLimits);
    if (args.shape.head_dim <= 64) return launch_forward<T, 64, 64, 64>(args);
    return launch_forward<T, 128, 64, 64>(args);
}

template void attention_forward(const ForwardArgs<fp16>&);
template void attention_forward(const ForwardArgs<bf16>&);

}  // namespace flash::step06
