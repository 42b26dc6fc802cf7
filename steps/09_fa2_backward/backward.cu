#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention.hpp"
#include "backward_parts.hpp"
#include "backward_tiles.hpp"

namespace flash::step09 {
namespace {

using gpu::along_row;
using gpu::swizzled;

// One block: BLOCK_KV keys of one key head, against every query that sees one of them, a tile of BLOCK_Q at a
// time. Every product has keys as rows, so that P^T and dS^T go from accumulators straight into the next
// product; only dQ, which sums over the keys of all warps, needs dS in shared memory.
//
// PAIRED: dK and dV of 32 keys and 128 columns are more than the registers of one warp, so two warps share
// the keys: the first rebuilds P and sums dV, the second makes dS and sums dK.
template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES, int BLOCKS_PER_SM,
          bool PAIRED, bool ADD_DQ>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    backward_kernel(BackwardArgs<T> args, RowData rows, int diagonal, int heads_per_group) {
    constexpr int GROUPS = PAIRED ? WARPS / 2 : WARPS;  // of warps that share keys
    constexpr int WARP_KEYS = BLOCK_KV / GROUPS;
    constexpr int M_TILES = WARP_KEYS / 16;
    constexpr int ROW_BYTES = HEAD_DIM * 2;
    constexpr int KV_TILE_BYTES = BLOCK_KV * ROW_BYTES;
    constexpr int Q_TILE_BYTES = BLOCK_Q * ROW_BYTES;
    constexpr int STAGE_BYTES = 2 * Q_TILE_BYTES + BLOCK_Q * 8;  // Q, dO, row_shift, delta
    constexpr int DS_BYTES = BLOCK_KV * BLOCK_Q * 2;
    constexpr int DQ_COLUMNS = HEAD_DIM * BLOCK_Q / 32 / WARPS;  // a warp's share of dQ is 32 rows of these
    static_assert(WARP_KEYS % 16 == 0 && BLOCK_Q % 32 == 0 && DQ_COLUMNS % 16 == 0);
    const Shape& shape = args.shape;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // From lane 0, so that the compiler knows that it is the same for the whole warp.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    const int group = warp % GROUPS;

    // Which tile of which key head. The first keys are seen by the most queries: they start first.
    const int tiles_kv = (shape.len_kv + BLOCK_KV - 1) / BLOCK_KV;
    const int block = static_cast<int>(blockIdx.x);
    const int first_head = block / (tiles_kv * heads_per_group) * heads_per_group;
    const int group_heads = min(heads_per_group, shape.batch * shape.heads_kv - first_head);
    const int head_index = first_head + (block - first_head * tiles_kv) % group_heads;
    const int first_key = (block - first_head * tiles_kv) / group_heads * BLOCK_KV;
    const int b = head_index / shape.heads_kv;
    const int head_kv = head_index % shape.heads_kv;

    // Query tiles [0, first_tile) see none of these keys; [first_tile, first_full) straddle the diagonal and
    // need the mask, as do all when the keys end inside the tile, and the last when the queries end inside
    // it: a zero query times an infinite key is NaN. Every query head of the group is walked.
    const int queries_per_kv = shape.heads_q / shape.heads_kv;
    const int tiles_q = (shape.len_q + BLOCK_Q - 1) / BLOCK_Q;
    const int first_tile = min(tiles_q, max(0, first_key - diagonal) / BLOCK_Q);
    const int first_full = first_key + BLOCK_KV > shape.len_kv
                               ? tiles_q
                               : (max(0, first_key + BLOCK_KV - 1 - diagonal) + BLOCK_Q - 1) / BLOCK_Q;
    const int whole_tiles_q = shape.len_q / BLOCK_Q;
    const int iterations = (tiles_q - first_tile) * queries_per_kv;

    const std::uint32_t k_smem = gpu::smem_address(gpu::dynamic_smem<T>());  // BLOCK_KV x HEAD_DIM
    const std::uint32_t v_smem = k_smem + KV_TILE_BYTES;                     // BLOCK_KV x HEAD_DIM
    // STAGES x (Q, dO: BLOCK_Q x HEAD_DIM; row shift, delta: BLOCK_Q)
    const std::uint32_t stages_smem = v_smem + KV_TILE_BYTES;
    const std::uint32_t ds_smem = stages_smem + STAGES * STAGE_BYTES;  // 2 x BLOCK_KV x BLOCK_Q
    std::byte* const smem = gpu::dynamic_smem<std::byte>();            // the same memory, for plain accesses
    const std::uint32_t p_smem = ds_smem + (ADD_DQ ? 2 * DS_BYTES : 0);  // BLOCK_KV x BLOCK_Q
    std::byte* const p_exchange = smem + (p_smem - k_smem) + group * (WARP_KEYS * BLOCK_Q * 2) + lane * 16;
    // What a warp of a pair, or the block, waits for: P of this tile; all that a tile needs of the one
    // before.
    const std::uint32_t tile_mbarrier = p_smem + (PAIRED ? DS_BYTES : 0);
    const std::uint32_t p_mbarrier = tile_mbarrier + 8 + group * 8;
    if (threadIdx.x == 0) gpu::mbarrier_init(tile_mbarrier, WARPS * 32);
    if (PAIRED && warp < GROUPS && lane == 0) gpu::mbarrier_init(p_mbarrier, 32);
    copy_tile<HEAD_DIM, BLOCK_KV, WARPS * 32>(k_smem, args.k, b, head_kv, first_key, shape.len_kv,
                                              shape.head_dim);
    copy_tile<HEAD_DIM, BLOCK_KV, WARPS * 32>(v_smem, args.v, b, head_kv, first_key, shape.len_kv,
                                              shape.head_dim);

    // The next query tile to copy.
    int copied = 0;
    int copy_head = head_kv * queries_per_kv;
    int copy_tile_q = first_tile;
    const auto copy_next_queries = [&] {
        if (copy_head < (head_kv + 1) * queries_per_kv && copy_tile_q < tiles_q) {
            const std::uint32_t stage_smem = stages_smem + copied++ % STAGES * STAGE_BYTES;
            const int first_row = copy_tile_q * BLOCK_Q;
            copy_tile<HEAD_DIM, BLOCK_Q, WARPS * 32>(stage_smem, args.q, b, copy_head, first_row, shape.len_q,
                                                     shape.head_dim);
            copy_tile<HEAD_DIM, BLOCK_Q, WARPS * 32>(stage_smem + Q_TILE_BYTES, args.d_o, b, copy_head,
                                                     first_row, shape.len_q, shape.head_dim);
            copy_row_data<BLOCK_Q>(stage_smem + 2 * Q_TILE_BYTES, rows,
                                   rows.index(shape, b, copy_head, first_row));
            if (++copy_tile_q == tiles_q) {
                copy_tile_q = first_tile;
                ++copy_head;
            }
        }
        gpu::cp_async_commit();
    };
    copy_next_queries();

    // dQ += dS K for 32 queries and DQ_COLUMNS columns of the tile that begins at `row`, whose dS every warp
    // has written. The sums lie in fragment order: a warp's accumulators side by side, 16 bytes a lane.
    const int dq_row = warp % (BLOCK_Q / 32) * 32;
    const int dq_chunk = warp / (BLOCK_Q / 32) * (DQ_COLUMNS / 8);
    const std::uint32_t dq_ds_smem = along_row<BLOCK_Q>(ds_smem + b_offset<BLOCK_Q>(lane), dq_row / 8);
    const std::uint32_t dq_k_smem = along_row<HEAD_DIM>(k_smem + a_offset<HEAD_DIM>(lane), dq_chunk);
    const auto add_dq = [&](int iteration, std::int64_t row) {
        float dq[2][DQ_COLUMNS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < BLOCK_KV / 16; ++k) {
            std::uint32_t ds_frag[2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                gpu::ldmatrix_x4_trans(ds_frag[m], along_row<BLOCK_Q>(dq_ds_smem, 2 * m) +
                                                       iteration % 2 * DS_BYTES + k * 16 * BLOCK_Q * 2);
            }
#pragma unroll
            for (int n = 0; n < DQ_COLUMNS / 16; ++n) {
                std::uint32_t k_frag[4];
                gpu::ldmatrix_x4_trans(k_frag, along_row<HEAD_DIM>(dq_k_smem, 2 * n) + k * 16 * ROW_BYTES);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    gpu::mma_m16n8k16<T>(dq[m][2 * n], ds_frag[m], k_frag[0], k_frag[1]);
                    gpu::mma_m16n8k16<T>(dq[m][2 * n + 1], ds_frag[m], k_frag[2], k_frag[3]);
                }
            }
        }
        float* const dq_gmem = rows.dq + (row + dq_row) * HEAD_DIM + (dq_chunk * 32 + lane) * 4;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < DQ_COLUMNS / 8; ++n) {
                gpu::atomic_add_x4(dq_gmem + m * 16 * HEAD_DIM + n * 128, dq[m][n]);
            }
        }
    };

    // The end of a tile is split: a warp arrives when dS and P of this tile are written and what it copies of
    // the next has landed, and waits when it begins the next. Between the two lies the last product: it reads
    // only the stage of this tile, and with a third stage nobody writes there before all have come to the
    // next arrival. Half of the warps add dQ of the tile before at the start of a tile, the other half at its
    // end: the products of one half run beside the exponentials of the other, and of a pair the warp that
    // needs P finds it there.
    int tile = first_tile;
    std::int64_t row = rows.index(shape, b, head_kv * queries_per_kv, first_tile * BLOCK_Q);
    std::int64_t previous_row = row;
    const bool dq_first = warp >= WARPS / 2;
    const auto finish_tile = [&](int iteration) {
        if (ADD_DQ && !dq_first && iteration > 0) add_dq(iteration - 1, previous_row);
        gpu::cp_async_wait<0>();
        gpu::mbarrier_arrive(tile_mbarrier);
    };

    float acc[PAIRED ? 1 : 2][M_TILES][HEAD_DIM / 8][4] = {};  // dV; dK without the scale
    const std::uint32_t own_keys = group * WARP_KEYS * ROW_BYTES + a_offset<HEAD_DIM>(lane);
    const std::uint32_t own_ds =
        ds_smem - k_smem + group * WARP_KEYS * BLOCK_Q * 2 + swizzled<BLOCK_Q>(lane / 4, 0) + lane % 4 * 4;
    const float scale_log2 = args.scale * kLog2E;
    const auto walk_tile = [&](int iteration, auto masked) {
        const std::uint32_t q_smem = stages_smem + iteration % STAGES * STAGE_BYTES;
        const std::uint32_t do_smem = q_smem + Q_TILE_BYTES;
        const auto* const row_shift =
            reinterpret_cast<const float2*>(smem + (q_smem - k_smem) + 2 * Q_TILE_BYTES) + lane % 4;
        const auto* const delta = row_shift + BLOCK_Q / 2;
        alignas(16) std::uint32_t frag[M_TILES][BLOCK_Q / 16][4];  // P^T, then dS^T, rounded: an A operand
        const auto exchange = [&](int m, int n) {
            return reinterpret_cast<uint4*>(p_exchange + (m * (BLOCK_Q / 16) + n) * 512);
        };

        // P^T = 2^(S^T scale log2(e) - L log2(e)) with S^T = K Q^T, and dV += P^T dO; or
        // dS^T = P^T o (dP^T - delta) with dP^T = V dO^T, and dK += dS^T Q.
        const auto add_keys = [&](bool to_dk, float(&sum)[M_TILES][HEAD_DIM / 8][4]) {
            float x[M_TILES][BLOCK_Q / 8][4] = {};
            multiply_rows<T, HEAD_DIM>(x, (to_dk ? v_smem : k_smem) + own_keys,
                                       (to_dk ? do_smem : q_smem) + b_offset<HEAD_DIM>(lane));
            if (!to_dk) {
#pragma unroll
                for (int n = 0; n < BLOCK_Q / 8; ++n) {
                    const float2 shift = row_shift[n * 4];
#pragma unroll
                    for (int m = 0; m < M_TILES; ++m) {
                        if constexpr (masked.value) {
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                const int key = first_key + group * WARP_KEYS + m * 16 + lane / 4 + i / 2 * 8;
                                const int query = tile * BLOCK_Q + n * 8 + lane % 4 * 2 + i % 2;
                                const bool exists = key < shape.len_kv && query < shape.len_q;
                                if (!exists || key > query + diagonal) x[m][n][i] = -INFINITY;
                            }
                        }
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            frag[m][n / 2][n % 2 * 2 + h] = gpu::pack2<T>(
                                gpu::exp2_approx(fmaf(x[m][n][2 * h], scale_log2, shift.x)),
                                gpu::exp2_approx(fmaf(x[m][n][2 * h + 1], scale_log2, shift.y)));
                        }
                    }
                }
                if constexpr (PAIRED) {
#pragma unroll
                    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
                        for (int n = 0; n < BLOCK_Q / 16; ++n) {
                            *exchange(m, n) = *reinterpret_cast<const uint4*>(frag[m][n]);
                        }
                    }
                    gpu::mbarrier_arrive(p_mbarrier);
                }
            } else {
                if constexpr (PAIRED) gpu::mbarrier_wait(p_mbarrier, iteration % 2);
#pragma unroll
                for (int n = 0; n < BLOCK_Q / 16; ++n) {
                    // Read before the stores below, which might change it for all the compiler knows.
                    const float2 deltas[2] = {delta[2 * n * 4], delta[(2 * n + 1) * 4]};
#pragma unroll
                    for (int m = 0; m < M_TILES; ++m) {
                        if constexpr (PAIRED) *reinterpret_cast<uint4*>(frag[m][n]) = *exchange(m, n);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const float(&dp)[4] = x[m][2 * n + i / 2];
                            const float2 p = gpu::unpack2<T>(frag[m][n][i]);
                            frag[m][n][i] = gpu::pack2<T>(p.x * (dp[i % 2 * 2] - deltas[i / 2].x),
                                                          p.y * (dp[i % 2 * 2 + 1] - deltas[i / 2].y));
                            if constexpr (ADD_DQ) {
                                *reinterpret_cast<std::uint32_t*>(
                                    smem +
                                    along_row<BLOCK_Q>(own_ds + iteration % 2 * DS_BYTES, 2 * n + i / 2) +
                                    (m * 16 + i % 2 * 8) * BLOCK_Q * 2) = frag[m][n][i];
                            }
                        }
                    }
                }
            }
            if (STAGES > 2 && (PAIRED || to_dk)) finish_tile(iteration);
            add_product<T, HEAD_DIM>(sum, frag, (to_dk ? q_smem : do_smem) + a_offset<HEAD_DIM>(lane));
        };
        add_keys(PAIRED && warp >= GROUPS, acc[0]);
        if constexpr (!PAIRED) add_keys(true, acc[1]);
    };

    gpu::cp_async_wait<0>();
    __syncthreads();
    for (int iteration = 0; iteration < iterations; ++iteration) {
        if (iteration > 0) gpu::mbarrier_wait(tile_mbarrier, (iteration - 1) % 2);
        copy_next_queries();
        if (ADD_DQ && dq_first && iteration > 0) add_dq(iteration - 1, previous_row);
        const bool masked = tile < first_full || tile >= whole_tiles_q;
        if (masked) walk_tile(iteration, std::true_type{});
        if (!masked) walk_tile(iteration, std::false_type{});
        if (STAGES == 2) finish_tile(iteration);
        previous_row = row;
        row += BLOCK_Q;
        if (++tile == tiles_q) {  // on to the next query head
            tile = first_tile;
            row += rows.rows_per_head - static_cast<std::int64_t>(tiles_q - first_tile) * BLOCK_Q;
        }
    }
    if (iterations > 0) gpu::mbarrier_wait(tile_mbarrier, (iterations - 1) % 2);
    if (ADD_DQ && iterations > 0) add_dq(iterations - 1, previous_row);
    __syncthreads();

    // Through the memory of K and V, which nobody reads any more.
    const int own_rows = group * WARP_KEYS;
    const auto store = [&](bool is_dk, const float(&sum)[M_TILES][HEAD_DIM / 8][4]) {
        store_rows<T, HEAD_DIM>(
            sum, is_dk ? args.scale : 1.0f, smem + (is_dk ? KV_TILE_BYTES : 0) + own_rows * ROW_BYTES,
            is_dk ? args.dk : args.dv, b, head_kv, first_key + own_rows, shape.len_kv, shape.head_dim);
    };
    store(PAIRED && warp >= GROUPS, acc[0]);
    if constexpr (!PAIRED) store(true, acc[1]);
}

template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES, int BLOCKS_PER_SM,
          bool PAIRED, bool ADD_DQ>
void launch_tiles(const BackwardArgs<T>& args, const RowData& rows) {
    const Shape& shape = args.shape;
    const std::int64_t tiles_kv = (static_cast<std::int64_t>(shape.len_kv) + BLOCK_KV - 1) / BLOCK_KV;
    const std::int64_t heads = static_cast<std::int64_t>(shape.batch) * shape.heads_kv;
    if (heads == 0 || tiles_kv == 0) return;
    // Q, dO and dQ of the query heads that share a key head.
    const std::int64_t head_bytes =
        std::int64_t{8} * shape.len_q * shape.head_dim * (shape.heads_q / shape.heads_kv);
    constexpr std::size_t kSharedBytes =
        2 * BLOCK_KV * HEAD_DIM * 2 + STAGES * (2 * BLOCK_Q * HEAD_DIM * 2 + BLOCK_Q * 8) +
        ((ADD_DQ ? 2 : 0) + (PAIRED ? 1 : 0)) * BLOCK_KV * BLOCK_Q * 2 + 8 + (PAIRED ? WARPS / 2 : 0) * 8;
    gpu::launch(backward_kernel<T, HEAD_DIM, BLOCK_Q, BLOCK_KV, WARPS, STAGES, BLOCKS_PER_SM, PAIRED, ADD_DQ>,
                dim3(checked_grid(heads * tiles_kv, kLimits)), dim3(WARPS * 32), kSharedBytes, args.stream,
                args, rows, args.mask.kernel_diagonal(shape), heads_per_group(args.mask, head_bytes, heads));
}

template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV, int WARPS, int STAGES, int BLOCKS_PER_SM,
          bool PAIRED>
void launch_backward(const BackwardArgs<T>& args) {
    check_key_blocks(args.shape, BLOCK_KV);  // before anything is written
    const RowData rows = row_data(args);
    prepare_rows(args, rows, HEAD_DIM);
    if (args.deterministic) {
        launch_tiles<T, HEAD_DIM, BLOCK_Q, BLOCK_KV, WARPS, STAGES, BLOCKS_PER_SM, PAIRED, false>(args, rows);
        launch_dq(args, rows);
    } else {
        launch_tiles<T, HEAD_DIM, BLOCK_Q, BLOCK_KV, WARPS, STAGES, BLOCKS_PER_SM, PAIRED, true>(args, rows);
        convert_dq(args, rows, HEAD_DIM);
    }
}

}  // namespace

std::int64_t backward_workspace_bytes(const Shape& shape, bool deterministic) {
    return workspace_bytes(shape, deterministic);
}

// The tile shapes that were fastest for this kernel on an H200; 32 and 96 are not tuned. 128 and 256 have
// smaller ones for devices with less shared memory for a block.
template <class T> void attention_backward(const BackwardArgs<T>& caller_args) {
    check_arguments(caller_args, kLimits,
                    backward_workspace_bytes(caller_args.shape, caller_args.deterministic));
    const BackwardArgs<T> args = without_idle_strides(caller_args);
    const int head_dim = args.shape.head_dim;
    if constexpr (is_built(32)) {
        if (head_dim <= 32) return launch_backward<T, 32, 64, 128, 4, 2, 2, false>(args);
    }
    if constexpr (is_built(64)) {
        if (head_dim <= 64) return launch_backward<T, 64, 64, 128, 4, 2, 2, false>(args);
    }
    if constexpr (is_built(96)) {
        if (head_dim <= 96) return launch_backward<T, 96, 32, 96, 6, 3, 1, true>(args);
    }
    const std::size_t shared_bytes = gpu::device_info().shared_per_block_optin;
    if constexpr (is_built(128)) {
        if (head_dim <= 128 && shared_bytes < 210 * 1024)
            return launch_backward<T, 128, 32, 64, 4, 3, 2, true>(args);
        if (head_dim <= 128) return launch_backward<T, 128, 64, 128, 8, 3, 1, true>(args);
    }
    if constexpr (is_built(256)) {
        if (shared_bytes < 218 * 1024) return launch_backward<T, 256, 32, 64, 8, 2, 1, true>(args);
        return launch_backward<T, 256, 64, 64, 8, 2, 1, true>(args);
    }
}

template void attention_backward(const BackwardArgs<fp16>&);
template void attention_backward(const BackwardArgs<bf16>&);

}  // namespace flash::step09
