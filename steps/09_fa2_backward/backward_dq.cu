#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backward_parts.hpp"
#include "backward_tiles.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/gpu.hpp"
#include "common/gpu/tile.hpp"

namespace flash::step09 {
namespace {

// dQ without atomics: the forward's walk. One block: BLOCK_Q queries of one head, against every key tile they
// see. S, dP and dS are computed once more, with queries as rows, so that dS goes from accumulators straight
// into dQ += dS K. Nothing has rounded P here.
template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES, int BLOCKS_PER_SM>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    dq_kernel(BackwardArgs<T> args, RowData rows, int diagonal, int heads_per_group) {
    constexpr int WARP_ROWS = BLOCK_Q / WARPS;
    constexpr int M_TILES = WARP_ROWS / 16;
    constexpr int ROW_BYTES = HEAD_DIM * 2;
    constexpr int Q_TILE_BYTES = BLOCK_Q * ROW_BYTES;
    constexpr int KV_TILE_BYTES = BLOCK_KV * ROW_BYTES;
    static_assert(WARP_ROWS % 16 == 0 && BLOCK_KV % 16 == 0);
    const Shape& shape = args.shape;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;

    // Which tile of which head, as in the forward: in a group of heads the longest tiles start first.
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

    // Key tiles [0, tiles_full) need no mask; [tiles_full, tiles) straddle the diagonal or the end.
    const int keys_seen = max(0, min(shape.len_kv, min(first_row + BLOCK_Q, shape.len_q) + diagonal));
    const int keys_full = max(0, min(shape.len_kv, first_row + 1 + diagonal));
    const int tiles = (keys_seen + BLOCK_KV - 1) / BLOCK_KV;
    const int tiles_full = keys_full / BLOCK_KV;

    const std::uint32_t q_smem = gpu::smem_address(gpu::dynamic_smem<T>());  // Q, dO: BLOCK_Q x HEAD_DIM
    const std::uint32_t kv_smem = q_smem + 2 * Q_TILE_BYTES;  // STAGES x (K, V), each BLOCK_KV x HEAD_DIM

    const auto copy_queries = [&](std::uint32_t dst_smem, const TensorView<const T>& view) {
        copy_tile<HEAD_DIM, BLOCK_Q, WARPS * 32>(dst_smem, view, b, head, first_row, shape.len_q,
                                                 shape.head_dim);
    };
    copy_queries(q_smem, args.q);
    copy_queries(q_smem + Q_TILE_BYTES, args.d_o);
    const auto copy_keys = [&](int tile) {
        if (tile < tiles) {
            const std::uint32_t dst_smem = kv_smem + tile % STAGES * (2 * KV_TILE_BYTES);
            copy_tile<HEAD_DIM, BLOCK_KV, WARPS * 32>(dst_smem, args.k, b, head_kv, tile * BLOCK_KV,
                                                      shape.len_kv, shape.head_dim);
            copy_tile<HEAD_DIM, BLOCK_KV, WARPS * 32>(dst_smem + KV_TILE_BYTES, args.v, b, head_kv,
                                                      tile * BLOCK_KV, shape.len_kv, shape.head_dim);
        }
        gpu::cp_async_commit();
    };
    for (int tile = 0; tile < STAGES - 1; ++tile) copy_keys(tile);

    const std::uint32_t q_warp_smem = q_smem + warp * WARP_ROWS * ROW_BYTES + a_offset<HEAD_DIM>(lane);

    float row_shift[M_TILES][2];
    float delta[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = warp_first_row + m * 16 + lane / 4 + h * 8;
            const bool exists = row < shape.len_q;
            row_shift[m][h] = exists ? rows.row_shift[rows.index(shape, b, head, row)] : -INFINITY;
            delta[m][h] = exists ? rows.delta[rows.index(shape, b, head, row)] : 0.0f;
        }
    }
    const float scale_log2 = args.scale * kLog2E;
    float dq[M_TILES][HEAD_DIM / 8][4] = {};

    const auto walk_tile = [&](int tile, auto masked) {
        const std::uint32_t k_smem = kv_smem + tile % STAGES * (2 * KV_TILE_BYTES);
        float s[M_TILES][BLOCK_KV / 8][4] = {};
        multiply_rows<T, HEAD_DIM>(s, q_warp_smem, k_smem + b_offset<HEAD_DIM>(lane));
        float dp[M_TILES][BLOCK_KV / 8][4] = {};
        multiply_rows<T, HEAD_DIM>(dp, q_warp_smem + Q_TILE_BYTES,
                                   k_smem + KV_TILE_BYTES + b_offset<HEAD_DIM>(lane));
        std::uint32_t ds_frag[M_TILES][BLOCK_KV / 16][4];
#pragma unroll
        for (int k = 0; k < BLOCK_KV / 16; ++k) {
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float ds[2];
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const int n = 2 * k + i / 2, c = i % 2 * 2 + j;
                        const int row = warp_first_row + m * 16 + lane / 4 + i % 2 * 8;
                        const int key = tile * BLOCK_KV + n * 8 + lane % 4 * 2 + j;
                        float score = s[m][n][c];
                        if (masked.value && (key > row + diagonal || key >= shape.len_kv)) score = -INFINITY;
                        const float p = gpu::exp2_approx(fmaf(score, scale_log2, row_shift[m][i % 2]));
                        ds[j] = p * (dp[m][n][c] - delta[m][i % 2]);
                    }
                    ds_frag[m][k][i] = gpu::pack2<T>(ds[0], ds[1]);
                }
            }
        }
        add_product<T, HEAD_DIM>(dq, ds_frag, k_smem + a_offset<HEAD_DIM>(lane));
    };

    for (int tile = 0; tile < tiles; ++tile) {
        gpu::cp_async_wait<STAGES - 2>();
        __syncthreads();
        copy_keys(tile + STAGES - 1);
        if (tile < tiles_full) {
            walk_tile(tile, std::false_type{});
        } else if (tile * BLOCK_KV < warp_first_row + WARP_ROWS + diagonal && warp_first_row < shape.len_q) {
            walk_tile(tile, std::true_type{});
        }
    }
    gpu::cp_async_wait<0>();
    __syncthreads();

    std::byte* const own_smem = gpu::dynamic_smem<std::byte>() + warp * WARP_ROWS * ROW_BYTES;
    store_rows<T, HEAD_DIM>(dq, args.scale, own_smem, args.dq, b, head, warp_first_row, shape.len_q,
                            shape.head_dim);
}

template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES, int BLOCKS_PER_SM>
void launch(const BackwardArgs<T>& args, const RowData& rows) {
    const Shape& shape = args.shape;
    const std::int64_t tiles_q = (static_cast<std::int64_t>(shape.len_q) + BLOCK_Q - 1) / BLOCK_Q;
    const std::int64_t heads = static_cast<std::int64_t>(shape.batch) * shape.heads_q;
    if (heads == 0 || tiles_q == 0) return;
    const std::int64_t head_bytes = std::int64_t{4} * shape.len_kv * shape.head_dim;  // K and V
    constexpr std::size_t kSharedBytes = (BLOCK_Q + STAGES * BLOCK_KV) * 2 * HEAD_DIM * sizeof(T);
    gpu::launch(dq_kernel<T, HEAD_DIM, BLOCK_Q, BLOCK_KV, WARPS, STAGES, BLOCKS_PER_SM>,
                dim3(checked_grid(heads * tiles_q, kLimits)), dim3(WARPS * 32), kSharedBytes, args.stream,
                args, rows, args.mask.kernel_diagonal(shape), heads_per_group(args.mask, head_bytes, heads));
}

}  // namespace

template <class T> void launch_dq(const BackwardArgs<T>& args, const RowData& rows) {
    const int head_dim = args.shape.head_dim;
    if constexpr (is_built(32)) {
        if (head_dim <= 32) return launch<T, 32, 128, 32, 4, 3, 2>(args, rows);
    }
    if constexpr (is_built(64)) {
        if (head_dim <= 64) return launch<T, 64, 128, 64, 4, 2, 2>(args, rows);
    }
    if constexpr (is_built(96)) {
        if (head_dim <= 96) return launch<T, 96, 96, 32, 3, 2, 2>(args, rows);
    }
    if constexpr (is_built(128)) {
        if (head_dim <= 128) return launch<T, 128, 128, 32, 4, 2, 2>(args, rows);
    }
    if constexpr (is_built(256)) return launch<T, 256, 64, 32, 4, 2, 1>(args, rows);
}

template void launch_dq(const BackwardArgs<fp16>&, const RowData&);
template void launch_dq(const BackwardArgs<bf16>&, const RowData&);

}  // namespace flash::step09
