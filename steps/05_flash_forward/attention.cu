#include "attention.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/argument_checks.hpp"
#include "common/gpu/gpu.hpp"
#include "common/types.hpp"

namespace flash::step05 {
namespace {

constexpr Limits kLimits{"step 05", 256};

// A block is SIDE x SIDE threads. Thread (ty, tx) has rows ty, ty + 16, ... of a tile, and of each of them
// columns tx, tx + 16, ...
constexpr int SIDE = 16;

// Copies rows first_row .. first_row + ROWS - 1 of one head into shared memory as fp32.
// Rows at or beyond `len` and columns at or beyond `head_dim` become zero: a phantom key then has score 0 and
// a phantom value adds nothing.
template <int ROWS, int HEAD_DIM, class T>
__device__ void load_tile(float* tile_smem /* (ROWS, HEAD_DIM + 1) */, const T* head_gmem,
                          std::int64_t stride_row, int first_row, int len, int head_dim) {
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * HEAD_DIM; i += SIDE * SIDE) {
        const int row = i / HEAD_DIM;
        const int d = i % HEAD_DIM;
        const bool exists = first_row + row < len && d < head_dim;
        tile_smem[row * (HEAD_DIM + 1) + d] =
            exists ? to_float(head_gmem[(first_row + row) * stride_row + d]) : 0.0f;
    }
}

// Maximum and sum over the 16 threads that share a row: half a warp, so no shared memory and no barrier.
__device__ float row_maximum(float x) {
    for (int offset = SIDE / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ float row_total(float x) {
    for (int offset = SIDE / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

// One block: BLOCK_Q queries of one head.
template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV>
__global__ void __launch_bounds__(SIDE* SIDE) attention_forward_kernel(ForwardArgs<T> args, int diagonal) {
    constexpr int ROWS = BLOCK_Q / SIDE;      // query rows of a thread
    constexpr int KEYS = BLOCK_KV / SIDE;     // keys of a thread: tx, tx + 16, ...
    constexpr int COLUMNS = HEAD_DIM / SIDE;  // output columns of a thread: tx, tx + 16, ...
    constexpr int LD = HEAD_DIM + 1;          // odd, so that 16 rows of one column lie in 16 different banks
    const Shape& shape = args.shape;
    const int tx = static_cast<int>(threadIdx.x) % SIDE;
    const int ty = static_cast<int>(threadIdx.x) / SIDE;

    const int tiles_q = (shape.len_q + BLOCK_Q - 1) / BLOCK_Q;
    const int head_index = static_cast<int>(blockIdx.x) / tiles_q;
    const int first_row = static_cast<int>(blockIdx.x) % tiles_q * BLOCK_Q;
    const int b = head_index / shape.heads_q;
    const int head = head_index % shape.heads_q;
    const int head_kv = head / (shape.heads_q / shape.heads_kv);

    const T* q_gmem = args.q.data + b * args.q.stride_batch + head * args.q.stride_head;
    const T* k_gmem = args.k.data + b * args.k.stride_batch + head_kv * args.k.stride_head;
    const T* v_gmem = args.v.data + b * args.v.stride_batch + head_kv * args.v.stride_head;

    float* q_smem = gpu::dynamic_smem<float>();  // (BLOCK_Q, LD)
    float* kv_smem = q_smem + BLOCK_Q * LD;      // (BLOCK_KV, LD): first K, then V of the same keys
    float* p_smem = kv_smem + BLOCK_KV * LD;     // (BLOCK_Q, BLOCK_KV + 1)
    load_tile<BLOCK_Q, HEAD_DIM>(q_smem, q_gmem, args.q.stride_row, first_row, shape.len_q, shape.head_dim);

    float row_max[ROWS], row_sum[ROWS], acc[ROWS][COLUMNS];
    for (int r = 0; r < ROWS; ++r) {
        row_max[r] = -INFINITY;
        row_sum[r] = 0.0f;
        for (int c = 0; c < COLUMNS; ++c) acc[r][c] = 0.0f;
    }

    for (int first_key = 0; first_key < shape.len_kv; first_key += BLOCK_KV) {
        load_tile<BLOCK_KV, HEAD_DIM>(kv_smem, k_gmem, args.k.stride_row, first_key, shape.len_kv,
                                      shape.head_dim);
        __syncthreads();  // the tile is complete

        // 1. S = Q K^T
        float s[ROWS][KEYS] = {};
        for (int d = 0; d < HEAD_DIM; ++d) {
            float q_frag[ROWS], k_frag[KEYS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) q_frag[r] = q_smem[(ty + r * SIDE) * LD + d];
#pragma unroll
            for (int c = 0; c < KEYS; ++c) k_frag[c] = kv_smem[(tx + c * SIDE) * LD + d];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int c = 0; c < KEYS; ++c) s[r][c] += q_frag[r] * k_frag[c];
            }
        }
        __syncthreads();  // everyone is done with K

        // 2. S scaled, with -inf where the mask or the end hides the key. The running maximum, and the factor
        // that brings the old state to it.
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int row = first_row + ty + r * SIDE;
            float new_max = row_max[r];
#pragma unroll
            for (int c = 0; c < KEYS; ++c) {
                const int key = first_key + tx + c * SIDE;
                s[r][c] = key < shape.len_kv && key <= row + diagonal ? args.scale * s[r][c] : -INFINITY;
                new_max = fmaxf(new_max, s[r][c]);
            }
            new_max = row_maximum(new_max);
            const float shift = new_max == -INFINITY ? 0.0f : new_max;  // a row that has seen nothing yet
            const float rescale = expf(row_max[r] - shift);
            row_max[r] = new_max;

            // 3. P = exp(S - row_max), not yet divided by anything, and its sum.
            float tile_sum = 0.0f;
#pragma unroll
            for (int c = 0; c < KEYS; ++c) {
                const float p = expf(s[r][c] - shift);
                tile_sum += p;
                p_smem[(ty + r * SIDE) * (BLOCK_KV + 1) + tx + c * SIDE] = to_float(from_float<T>(p));
            }
            row_sum[r] = row_sum[r] * rescale + row_total(tile_sum);
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) acc[r][c] *= rescale;
        }

        load_tile<BLOCK_KV, HEAD_DIM>(kv_smem, v_gmem, args.v.stride_row, first_key, shape.len_kv,
                                      shape.head_dim);
        __syncthreads();  // V and P are complete

        // 4. acc += P V
        for (int j = 0; j < BLOCK_KV; ++j) {
            float p_frag[ROWS], v_frag[COLUMNS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) p_frag[r] = p_smem[(ty + r * SIDE) * (BLOCK_KV + 1) + j];
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) v_frag[c] = kv_smem[j * LD + tx + c * SIDE];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) acc[r][c] += p_frag[r] * v_frag[c];
            }
        }
        __syncthreads();  // everyone is done with V and P
    }

    // 5. One division at the end. A row that saw no key has row_sum = 0: O = 0 and L = -inf + ln 0 = -inf.
    T* o_gmem = args.o.data + b * args.o.stride_batch + head * args.o.stride_head;
    for (int r = 0; r < ROWS; ++r) {
        const int row = first_row + ty + r * SIDE;
        if (row >= shape.len_q) continue;
        const float divisor = row_sum[r] == 0.0f ? 1.0f : row_sum[r];
        for (int c = 0; c < COLUMNS; ++c) {
            const int d = tx + c * SIDE;
            if (d < shape.head_dim) o_gmem[row * args.o.stride_row + d] = from_float<T>(acc[r][c] / divisor);
        }
        if (tx == 0) {
            args.lse[static_cast<std::int64_t>(head_index) * shape.len_q + row] =
                row_max[r] + logf(row_sum[r]);
        }
    }
}

template <class T, int HEAD_DIM, int BLOCK_Q, int BLOCK_KV> void launch_forward(const ForwardArgs<T>& args) {
    const Shape& shape = args.shape;
    const std::int64_t tiles_q = (static_cast<std::int64_t>(shape.len_q) + BLOCK_Q - 1) / BLOCK_Q;
    const std::int64_t blocks = static_cast<std::int64_t>(shape.batch) * shape.heads_q * tiles_q;
    if (blocks == 0) return;
    constexpr std::size_t kSharedBytes =
        ((BLOCK_Q + BLOCK_KV) * (HEAD_DIM + 1) + BLOCK_Q * (BLOCK_KV + 1)) * sizeof(float);
    const auto kernel = attention_forward_kernel<T, HEAD_DIM, BLOCK_Q, BLOCK_KV>;
    gpu::launch(kernel, dim3(checked_grid(blocks, kLimits)), dim3(SIDE * SIDE), kSharedBytes, args.stream,
                without_idle_strides(args), args.mask.kernel_diagonal(shape));
}

}  // namespace

template <class T> void attention_forward(const ForwardArgs<T>& args) {
    check_arguments(args, kLimits);
    if (args.shape.head_dim <= 64) return launch_forward<T, 64, 64, 64>(args);
    if (args.shape.head_dim <= 128) return launch_forward<T, 128, 64, 64>(args);
    return launch_forward<T, 256, 32, 32>(args);  // 64 rows of 256 fp32 would not fit into 99 KB
}

template <class T> void attention_forward_small_tiles(const ForwardArgs<T>& args) {
    check_arguments(args, kLimits);
    if (args.shape.head_dim <= 64) return launch_forward<T, 64, 16, 16>(args);
    if (args.shape.head_dim <= 128) return launch_forward<T, 128, 16, 16>(args);
    return launch_forward<T, 256, 16, 16>(args);
}

template void attention_forward(const ForwardArgs<float>&);
template void attention_forward(const ForwardArgs<fp16>&);
template void attention_forward(const ForwardArgs<bf16>&);
template void attention_forward_small_tiles(const ForwardArgs<float>&);
template void attention_forward_small_tiles(const ForwardArgs<fp16>&);
template void attention_forward_small_tiles(const ForwardArgs<bf16>&);

}  // namespace flash::step05
