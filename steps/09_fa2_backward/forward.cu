#include "attention.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/argument_checks.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/gpu.hpp"
#include "common/gpu/tile.hpp"
#include "common/types.hpp"
#include "head_dims.hpp"

namespace flash::step09 {
namespace {

using gpu::along_row;
using gpu::swizzled;

constexpr Limits kLimits{"step 09", largest_head_dim(), 8, true};
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
// A row is rescaled only when its maximum has grown by more than a factor of 2^8 in P. Until then P stays at
// or below 2^8 (for scores below 2^24 in size), far inside fp16, and O and L are the same: only the number
// that both are divided by differs.
constexpr float kRescaleThreshold = 8.0f;

// One block: BLOCK_Q queries of one head. One warp: BLOCK_Q / WARPS of them, so that no row crosses a warp.
template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES, int BLOCKS_PER_SM>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    attention_forward_kernel(ForwardArgs<T> args, int diagonal, int heads_per_group) {
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
    static_assert(ROWS_PER_SLICE % 8 == 0 || HEAD_DIM % 64 == 0, "slice_offset wants the 128-byte swizzle");
    const Shape& shape = args.shape;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;

    // Which tile of which head. Heads come in groups whose K and V fit in L2; in a group the longest tiles
    // start first.
    const int tiles_q = (shape.len_q + BLOCK_Q - 1) / BLOCK_Q;
    const int block = static_cast<int>(blockIdx.x);
    const int first_head = block / (tiles_q * heads_per_group) * heads_per_group;
    const int group_heads = min(heads_per_group, shape.batch * shape.heads_q - first_head);
    const int head_index = first_head + (block - first_head * tiles_q) % group_heads;
    const int rank = (block - first_head * tiles_q) / group_heads;
    const int first_row = (args.mask.is_causal ? tiles_q - 1 - rank : rank) * BLOCK_Q;
    const int warp_first_row = first_row + warp * WARP_ROWS;
    const int b = head_index / shape.heads_q;
    const int head = head_index % shape.heads_q;
    const int head_kv = head / (shape.heads_q / shape.heads_kv);

    // Key tiles [0, tiles_full) are visible to every row of the block; [tiles_full, tiles) straddle the
    // diagonal or the end and need the mask; nothing beyond is read.
    const int keys_seen = max(0, min(shape.len_kv, min(first_row + BLOCK_Q, shape.len_q) + diagonal));
    const int keys_full = max(0, min(shape.len_kv, first_row + 1 + diagonal));
    const int tiles = (keys_seen + BLOCK_KV - 1) / BLOCK_KV;
    const int tiles_full = keys_full / BLOCK_KV;

    const std::uint32_t q_smem = gpu::smem_address(gpu::dynamic_smem<T>());  // BLOCK_Q x HEAD_DIM
    const std::uint32_t kv_smem = q_smem + BLOCK_Q * ROW_BYTES;  // STAGES x (K, V), each BLOCK_KV x HEAD_DIM

    // Tiles are copied in slices of ROWS_PER_SLICE rows, 16 bytes a thread. Rows past the end and columns
    // past the true head dimension become zero.
    const int copy_row = static_cast<int>(threadIdx.x) / CHUNKS;
    const int copy_chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    const int copy_offset = swizzled<HEAD_DIM>(copy_row, copy_chunk);
    const bool copy_column_exists = copy_chunk * 8 < shape.head_dim;
    const auto slice_offset = [&](int slice) {  // bytes from the tile's start
        return (copy_offset ^ (slice * ROWS_PER_SLICE % 8 * 16)) + slice * ROWS_PER_SLICE * ROW_BYTES;
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
    int rows_left = copy_column_exists ? min(shape.len_kv, tiles * BLOCK_KV) - copy_row : 0;
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
    float row_sum[M_TILES][2] = {};            // this lane's share of the sum of P
    // P = 2^(score * scale_log2 + row_shift): minus the running maximum, in powers of two. A row that has
    // seen nothing has FLT_MAX: any finite score then asks for a rescale, which multiplies its zeros by
    // 2^-FLT_MAX = 0.
    float row_shift[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) row_shift[m][0] = row_shift[m][1] = FLT_MAX;
    const float scale_log2 = args.scale * kLog2E;

    const auto attend = [&](int tile, auto masked) {
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

        // 2. -inf where the mask or the end hides the key. The scale waits for part 3.
        if constexpr (masked.value) {
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
                for (int n = 0; n < BLOCK_KV / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int row = warp_first_row + m * 16 + lane / 4 + i / 2 * 8;
                        const int key = tile * BLOCK_KV + n * 8 + lane % 4 * 2 + i % 2;
                        if (key > row + diagonal || key >= shape.len_kv) s[m][n][i] = -INFINITY;
                    }
                }
            }
        }

        // The maximum matters only if some row of the warp has outgrown its shift; the vote comes before the
        // shuffles.
        float lane_max[M_TILES][2];
        bool outgrown = false;
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                lane_max[m][h] = -INFINITY;
#pragma unroll
                for (int n = 0; n < BLOCK_KV / 8; ++n) {
                    lane_max[m][h] = fmaxf(lane_max[m][h], fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
                }
                outgrown |= fmaf(lane_max[m][h], scale_log2, row_shift[m][h]) > kRescaleThreshold;
            }
        }
        if (__any_sync(0xffffffffu, outgrown)) {
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float row_max = gpu::row_maximum(lane_max[m][h]);
                    if (fmaf(row_max, scale_log2, row_shift[m][h]) > kRescaleThreshold) {
                        const float shift = -row_max * scale_log2;
                        const float rescale = gpu::exp2_approx(shift - row_shift[m][h]);
                        row_shift[m][h] = shift;
                        row_sum[m][h] *= rescale;
#pragma unroll
                        for (int n = 0; n < HEAD_DIM / 8; ++n) {
                            acc[m][n][2 * h] *= rescale;
                            acc[m][n][2 * h + 1] *= rescale;
                        }
                    }
                }
            }
        }

        // 3. P, one multiply-add and one exp2 a score. The sum stays per lane until the end.
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
            for (int n = 0; n < BLOCK_KV / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s[m][n][i] = gpu::exp2_approx(fmaf(s[m][n][i], scale_log2, row_shift[m][i / 2]));
                    row_sum[m][i / 2] += s[m][n][i];
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
    };

    // One barrier a tile: behind it this tile is there for every thread, and no thread still reads the oldest
    // stage.
    int tile = 0;
    for (; tile < tiles_full; ++tile) {
        gpu::cp_async_wait<STAGES - 2>();
        __syncthreads();
        attend(tile, std::false_type{});
    }
    for (; tile < tiles; ++tile) {
        gpu::cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (tile * BLOCK_KV < warp_first_row + WARP_ROWS + diagonal && warp_first_row < shape.len_q) {
            attend(tile, std::true_type{});
        } else {  // hidden from every row of this warp, which still copies its share for the others
            copy_kv_slices(tile + STAGES - 1, 0, SLICES);
            gpu::cp_async_commit();
        }
    }
    gpu::cp_async_wait<0>();
    __syncthreads();

    // 5. One division at the end, and O through the warp's own rows of the Q tile so that stores are 16 bytes
    // wide.
    std::byte* o_smem = gpu::dynamic_smem<std::byte>() + warp * WARP_ROWS * ROW_BYTES;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = m * 16 + lane / 4 + h * 8;
            const float sum = gpu::row_total(row_sum[m][h]);
            const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // a row that sees no key is zero
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; ++n) {
                *reinterpret_cast<std::uint32_t*>(o_smem + swizzled<HEAD_DIM>(row, n) + lane % 4 * 4) =
                    gpu::pack2<T>(acc[m][n][2 * h] * inverse, acc[m][n][2 * h + 1] * inverse);
            }
            if (lane % 4 == 0 && warp_first_row + row < shape.len_q) {
                args.lse[static_cast<std::int64_t>(head_index) * shape.len_q + warp_first_row + row] =
                    sum == 0.0f ? -INFINITY : logf(sum) - row_shift[m][h] * kLn2;
            }
        }
    }
    __syncwarp();
    T* o_gmem = args.o.data + b * args.o.stride_batch + head * args.o.stride_head;
#pragma unroll
    for (int i = lane; i < WARP_ROWS * CHUNKS; i += 32) {
        const int row = i / CHUNKS;
        const int chunk = i % CHUNKS;
        if (warp_first_row + row < shape.len_q && chunk * 8 < shape.head_dim) {
            *reinterpret_cast<uint4*>(o_gmem + (warp_first_row + row) * args.o.stride_row + chunk * 8) =
                *reinterpret_cast<const uint4*>(o_smem + swizzled<HEAD_DIM>(row, chunk));
        }
    }
}

template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES, int BLOCKS_PER_SM>
void launch_forward(const ForwardArgs<T>& args) {
    const Shape& shape = args.shape;
    const std::int64_t tiles_q = (static_cast<std::int64_t>(shape.len_q) + BLOCK_Q - 1) / BLOCK_Q;
    const std::int64_t blocks = static_cast<std::int64_t>(shape.batch) * shape.heads_q * tiles_q;
    if (blocks == 0) return;
    constexpr std::int64_t kL2Share = 32 << 20;  // bytes of K and V that may count on staying in L2
    const std::int64_t head_bytes =
        std::max<std::int64_t>(1, std::int64_t{4} * shape.len_kv * shape.head_dim);
    const std::int64_t per_group =
        args.mask.is_causal ? std::clamp<std::int64_t>(kL2Share / head_bytes, 1, blocks / tiles_q) : 1;
    constexpr std::size_t kSharedBytes = (BLOCK_Q + STAGES * 2 * BLOCK_KV) * HEAD_DIM * sizeof(T);
    const auto kernel =
        attention_forward_kernel<T, HEAD_DIM, BLOCK_Q, BLOCK_KV, WARPS, STAGES, BLOCKS_PER_SM>;
    gpu::launch(kernel, dim3(checked_grid(blocks, kLimits)), dim3(WARPS * 32), kSharedBytes, args.stream,
                without_idle_strides(args), args.mask.kernel_diagonal(shape), static_cast<int>(per_group));
}

}  // namespace

// The tile shapes that were fastest for this kernel on an H200; 32 and 96 are not tuned. D = 256 has a
// smaller one for devices with less than 192 KB of shared memory for a block.
template <class T> void attention_forward(const ForwardArgs<T>& args) {
    check_arguments(args, kLimits);
    const int head_dim = args.shape.head_dim;
    if constexpr (is_built(32)) {
        if (head_dim <= 32) return launch_forward<T, 32, 128, 64, 4, 3, 3>(args);
    }
    if constexpr (is_built(64)) {
        if (head_dim <= 64) return launch_forward<T, 64, 128, 32, 4, 3, 3>(args);
    }
    if constexpr (is_built(96)) {
        if (head_dim <= 96) return launch_forward<T, 96, 96, 64, 3, 2, 2>(args);
    }
    if constexpr (is_built(128)) {
        if (head_dim <= 128) return launch_forward<T, 128, 128, 64, 4, 2, 2>(args);
    }
    if constexpr (is_built(256)) {
        if (gpu::device_info().shared_per_block_optin < 192 * 1024) {
            return launch_forward<T, 256, 64, 32, 4, 2, 2>(args);
        }
        return launch_forward<T, 256, 128, 64, 8, 2, 1>(args);
    }
}

template void attention_forward(const ForwardArgs<fp16>&);
template void attention_forward(const ForwardArgs<bf16>&);

}  // namespace flash::step09
