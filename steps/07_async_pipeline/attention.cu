#include "attention.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/argument_checks.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/gpu.hpp"
#include "common/gpu/tile.hpp"
#include "common/types.hpp"
#include "tile_shapes.hpp"

namespace flash::step07 {
namespace {

using gpu::row_maximum;
using gpu::row_total;

constexpr Limits kLimits{"step 07", 128, 8, true};

// Tiles lie in shared memory as ROWS x HEAD_DIM, in 16-byte chunks; chunk c of row r lies at chunk c ^ (r %
// 8). The eight rows of an 8 x 8 matrix then fall into eight different groups of four banks. Bytes from the
// tile's start.
template <int HEAD_DIM> __device__ __forceinline__ int swizzled(int row, int chunk) {
    static_assert(HEAD_DIM % 64 == 0, "the xor moves a chunk within 128 bytes, and a row is made of those");
    return row * HEAD_DIM * 2 + (chunk ^ (row % 8)) * 16;
}

// The place `chunks` (an even number) further along the same row: an xor inside 128 bytes, an addition beyond
// them.
template <int HEAD_DIM>
__device__ __forceinline__ std::uint32_t along_row(std::uint32_t address, int chunks) {
    static_assert(HEAD_DIM % 64 == 0, "as in swizzled");
    return (address ^ static_cast<std::uint32_t>(chunks % 8 * 16)) +
           static_cast<std::uint32_t>(chunks / 8 * 128);
}

// One block: BLOCK_Q queries of one head. One warp: BLOCK_Q / WARPS of them, so that no row crosses a warp.
template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32) attention_forward_kernel(ForwardArgs<T> args, int diagonal) {
    constexpr int WARP_ROWS = BLOCK_Q / WARPS;
    constexpr int M_TILES = WARP_ROWS / 16;
    constexpr int ROW_BYTES = HEAD_DIM * 2;
    constexpr int KV_TILE_BYTES = BLOCK_KV * ROW_BYTES;
    constexpr int CHUNKS = HEAD_DIM / 8;
    constexpr int ROWS_PER_SLICE = WARPS * 32 / CHUNKS;  // rows that all threads copy with 16 bytes each
    constexpr int SLICES = BLOCK_KV / ROWS_PER_SLICE;
    static_assert(WARP_ROWS % 16 == 0 && BLOCK_KV % 16 == 0, "mma works on 16 rows and 16 keys");
    static_assert(WARPS * 32 % CHUNKS == 0 && BLOCK_KV % ROWS_PER_SLICE == 0 &&
                  BLOCK_Q % ROWS_PER_SLICE == 0);
    static_assert(ROWS_PER_SLICE % 8 == 0, "a slice must start where the swizzle does");
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

    const std::uint32_t q_smem = gpu::smem_address(gpu::dynamic_smem<T>());  // BLOCK_Q x HEAD_DIM
    const std::uint32_t kv_smem = q_smem + BLOCK_Q * ROW_BYTES;  // STAGES x (K, V), each BLOCK_KV x HEAD_DIM

    // Tiles are copied in slices of ROWS_PER_SLICE rows, 16 bytes a thread. Rows past the end and columns
    // past the true head dimension become zero.
    const int copy_row = static_cast<int>(threadIdx.x) / CHUNKS;
    const int copy_chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    const int copy_offset = swizzled<HEAD_DIM>(copy_row, copy_chunk);
    const bool copy_column_exists = copy_chunk * 8 < shape.head_dim;
    const auto slice_offset = [&](int slice) {  // bytes from the tile's start
        return copy_offset + slice * ROWS_PER_SLICE * ROW_BYTES;
    };
    const T* q_gmem = args.q.data + b * args.q.stride_batch + head * args.q.stride_head;
    q_gmem += (first_row + copy_row) * args.q.stride_row + copy_chunk * 8;
#pragma unroll
    for (int slice = 0; slice < BLOCK_Q / ROWS_PER_SLICE; ++slice) {
        const bool exists = copy_column_exists && first_row + copy_row + slice * ROWS_PER_SLICE < shape.len_q;
        gpu::cp_async_16(q_smem + slice_offset(slice), q_gmem, exists ? 16 : 0);
        q_gmem += ROWS_PER_SLICE * args.q.stride_row;
    }
    const T* k_gmem = args.k.data + b * args.k.stride_batch + head_kv * args.k.stride_head;
    const T* v_gmem = args.v.data + b * args.v.stride_batch + head_kv * args.v.stride_head;
    k_gmem += copy_row * args.k.stride_row + copy_chunk * 8;
    v_gmem += copy_row * args.v.stride_row + copy_chunk * 8;
    int rows_left = copy_column_exists ? shape.len_kv - copy_row : 0;
    const auto copy_kv_slices = [&](int tile, int first, int last) {
#pragma unroll
        for (int slice = first; slice < last; ++slice) {
            const std::uint32_t dst_smem =
                kv_smem + tile % STAGES * (2 * KV_TILE_BYTES) + slice_offset(slice);
            gpu::cp_async_16(dst_smem, k_gmem, rows_left > 0 ? 16 : 0);
            gpu::cp_async_16(dst_smem + KV_TILE_BYTES, v_gmem, rows_left > 0 ? 16 : 0);
            k_gmem += ROWS_PER_SLICE * args.k.stride_row;
            v_gmem += ROWS_PER_SLICE * args.v.stride_row;
            rows_left -= ROWS_PER_SLICE;
        }
    };
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        copy_kv_slices(tile, 0, SLICES);
        gpu::cp_async_commit();
    }

    // Where the row that this lane names to ldmatrix lies: in Q and V (A, and B transposed), and in K (B).
    const int a_offset = swizzled<HEAD_DIM>(lane % 16, lane / 16);
    const int b_offset = swizzled<HEAD_DIM>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const std::uint32_t q_warp_smem = q_smem + warp * WARP_ROWS * ROW_BYTES + a_offset;

    // This lane's rows in each 16-row tile m are g and g + 8 (g = lane / 4): index h = 0 and 1 below.
    float acc[M_TILES][HEAD_DIM / 8][4] = {};  // unnormalised O
    float row_sum[M_TILES][2] = {};
    float row_max[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) row_max[m][0] = row_max[m][1] = -INFINITY;

    for (int tile = 0; tile < tiles; ++tile) {
        // One barrier a tile: behind it this tile is there for every thread, and no thread still reads the
        // oldest stage.
        gpu::cp_async_wait<STAGES - 2>();
        __syncthreads();
        const std::uint32_t k_smem = kv_smem + tile % STAGES * (2 * KV_TILE_BYTES) + b_offset;
        const std::uint32_t v_smem = kv_smem + tile % STAGES * (2 * KV_TILE_BYTES) + KV_TILE_BYTES + a_offset;

        // 1. S = Q K^T
        float s[M_TILES][BLOCK_KV / 8][4] = {};
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; ++d) {
            std::uint32_t q_frag[M_TILES][4];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
                gpu::ldmatrix_x4(q_frag[m], along_row<HEAD_DIM>(q_warp_smem, 2 * d) + m * 16 * ROW_BYTES);
            }
#pragma unroll
            for (int n = 0; n < BLOCK_KV / 16; ++n) {
                std::uint32_t k_frag[4];
                gpu::ldmatrix_x4(k_frag, along_row<HEAD_DIM>(k_smem, 2 * d) + n * 16 * ROW_BYTES);
#pragma unroll
                for (int m = 0; m < M_TILES; ++m) {
                    gpu::mma_m16n8k16<T>(s[m][2 * n], q_frag[m], k_frag[0], k_frag[1]);
                    gpu::mma_m16n8k16<T>(s[m][2 * n + 1], q_frag[m], k_frag[2], k_frag[3]);
                }
            }
            // The copies of the tile that refills the oldest stage hide between the matrix instructions.
            copy_kv_slices(tile + STAGES - 1, d * SLICES / (HEAD_DIM / 16),
                           (d + 1) * SLICES / (HEAD_DIM / 16));
        }
        gpu::cp_async_commit();

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
                gpu::ldmatrix_x4_trans(v_frag, along_row<HEAD_DIM>(v_smem, 2 * n) + k * 16 * ROW_BYTES);
#pragma unroll
                for (int m = 0; m < M_TILES; ++m) {
                    gpu::mma_m16n8k16<T>(acc[m][2 * n], p_frag[m], v_frag[0], v_frag[1]);
                    gpu::mma_m16n8k16<T>(acc[m][2 * n + 1], p_frag[m], v_frag[2], v_frag[3]);
                }
            }
        }
    }
    gpu::cp_async_wait<0>();

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

template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES>
void launch_forward(const ForwardArgs<T>& args) {
    const Shape& shape = args.shape;
    const std::int64_t tiles_q = (static_cast<std::int64_t>(shape.len_q) + BLOCK_Q - 1) / BLOCK_Q;
    const std::int64_t blocks = static_cast<std::int64_t>(shape.batch) * shape.heads_q * tiles_q;
    if (blocks == 0) return;
    constexpr std::size_t kSharedBytes = (BLOCK_Q + STAGES * 2 * BLOCK_KV) * HEAD_DIM * sizeof(T);
    const auto kernel = attention_forward_kernel<T, HEAD_DIM, BLOCK_Q, BLOCK_KV, WARPS, STAGES>;
    gpu::launch(kernel, dim3(checked_grid(blocks, kLimits)), dim3(WARPS * 32), kSharedBytes, args.stream,
                without_idle_strides(args), args.mask.kernel_diagonal(shape));
}

}  // namespace

template <class T> void attention_forward(const ForwardArgs<T>& args) {
    check_arguments(args, kLimits);
    const TileShape chosen =
        chosen_tile_shape(args.shape.head_dim, gpu::device_info().shared_per_block_optin);
    with_tile_shape(chosen, [&]<TileShape SHAPE> {
        launch_forward<T, SHAPE.head_dim, SHAPE.block_q, SHAPE.block_kv, SHAPE.warps, SHAPE.stages>(args);
    });
}

template void attention_forward(const ForwardArgs<fp16>&);
template void attention_forward(const ForwardArgs<bf16>&);

}  // namespace flash::step07
