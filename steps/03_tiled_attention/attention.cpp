#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "common/argument_checks.hpp"

namespace flash::step03 {
namespace {

constexpr Limits LIMITS{"step 03", 256};

// Row (b, h, n) of a view. A tensor without elements may come without memory, so null stays null.
template <class T> T* row(const TensorView<T>& view, std::int64_t b, std::int64_t h, std::int64_t n) {
    return view.data == nullptr ? nullptr : view.data + row_offset(view, b, h, n);
}

float dot(const float* x, const float* y, int n) {
    float sum = 0;
    for (int d = 0; d < n; ++d) sum += x[d] * y[d];
    return sum;
}

// What exponents are taken relative to: the maximum, or 0 for a row that has seen no score above -inf, where
// -inf - (-inf) would be NaN.
float shift_for(float row_max) {
    return row_max == -INFINITY ? 0.0f : row_max;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------
// (a) The whole matrix: S = scale Q K^T, then P = softmax(S) in its place, then O = P V.

std::int64_t full_extra_bytes(const Shape& shape) {
    detail::check_shape(shape, LIMITS);
    return std::int64_t{4} * shape.len_q * shape.len_kv;
}

void attention_full(const ForwardArgs<float>& args) {
    check_arguments(args, LIMITS);
    const std::int64_t B = args.shape.batch, Hq = args.shape.heads_q, Hkv = args.shape.heads_kv;
    const std::int64_t Nq = args.shape.len_q, Nk = args.shape.len_kv;
    const int D = args.shape.head_dim;
    if (B == 0 || Hq == 0 || Nq == 0) return;
    if (full_extra_bytes(args.shape) > MAX_SCORE_BYTES) {
        detail::refuse("shape.len_q = " + std::to_string(Nq) + " and shape.len_kv = " + std::to_string(Nk) +
                       " need " + std::to_string(full_extra_bytes(args.shape)) +
                       " bytes for the score matrix of one head; attention_full accepts up to " +
                       std::to_string(MAX_SCORE_BYTES));
    }
    std::vector<float> matrix(static_cast<std::size_t>(Nq * Nk));

    for (std::int64_t head = 0; head < B * Hq; ++head) {
        const std::int64_t b = head / Hq, h = head % Hq;
        const std::int64_t h_kv = h / (Hq / Hkv);

#pragma omp parallel for schedule(static)
        for (std::int64_t i = 0; i < Nq; ++i) {
            float* scores = matrix.data() + i * Nk;  // row i: S, then P
            const float* q = row(args.q, b, h, i);
            const std::int64_t visible = args.mask.visible_keys(i, Nk);
            for (std::int64_t j = 0; j < Nk; ++j)
                scores[j] = j < visible ? args.scale * dot(q, row(args.k, b, h_kv, j), D) : -INFINITY;
        }

#pragma omp parallel for schedule(static)
        for (std::int64_t i = 0; i < Nq; ++i) {
            float* scores = matrix.data() + i * Nk;
            float row_max = -INFINITY;
            for (std::int64_t j = 0; j < Nk; ++j) row_max = std::max(row_max, scores[j]);
            float row_sum = 0;
            for (std::int64_t j = 0; j < Nk; ++j) {
                scores[j] = std::exp(scores[j] - shift_for(row_max));
                row_sum += scores[j];
            }
            const float divisor = row_sum == 0 ? 1.0f : row_sum;  // a row that sees no key: P = 0
            for (std::int64_t j = 0; j < Nk; ++j) scores[j] /= divisor;
            args.lse[head * Nq + i] = row_max + std::log(row_sum);
        }

#pragma omp parallel for schedule(static)
        for (std::int64_t i = 0; i < Nq; ++i) {
            const float* p = matrix.data() + i * Nk;
            float* o = row(args.o, b, h, i);
            for (int d = 0; d < D; ++d) o[d] = 0;
            for (std::int64_t j = 0; j < Nk; ++j) {
                const float* v = row(args.v, b, h_kv, j);
                const float weight = p[j];
                for (int d = 0; d < D; ++d) o[d] += weight * v[d];
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------
// (b) The same O and L, a tile of BLOCK_Q x BLOCK_KV scores at a time.

namespace {

std::size_t workspace_floats(int head_dim) {
    return static_cast<std::size_t>(BLOCK_Q * BLOCK_KV + BLOCK_Q * head_dim + 2 * BLOCK_Q);
}

// The rows q_start .. q_start + BLOCK_Q - 1 of one head (b, h), as far as they exist.
void attention_tile(const ForwardArgs<float>& args, std::int64_t b, std::int64_t h, std::int64_t q_start,
                    float* workspace /* (workspace_floats(D)) */) {
    const std::int64_t Hq = args.shape.heads_q, Hkv = args.shape.heads_kv;
    const std::int64_t Nq = args.shape.len_q, Nk = args.shape.len_kv;
    const int D = args.shape.head_dim;
    const std::int64_t h_kv = h / (Hq / Hkv);
    const int q_rows = static_cast<int>(std::min<std::int64_t>(BLOCK_Q, Nq - q_start));

    float* scores = workspace;                 // (BLOCK_Q, BLOCK_KV): S, then P
    float* acc = scores + BLOCK_Q * BLOCK_KV;  // (BLOCK_Q, D): O before the division
    float* row_max = acc + BLOCK_Q * D;        // (BLOCK_Q)
    float* row_sum = row_max + BLOCK_Q;        // (BLOCK_Q)
    std::fill(acc, acc + BLOCK_Q * D, 0.0f);
    std::fill(row_max, row_max + BLOCK_Q, -INFINITY);
    std::fill(row_sum, row_sum + BLOCK_Q, 0.0f);

    for (std::int64_t kv_start = 0; kv_start < Nk; kv_start += BLOCK_KV) {
        const int kv_rows = static_cast<int>(std::min<std::int64_t>(BLOCK_KV, Nk - kv_start));

        // 1. S = scale Q K^T, with -inf where the mask hides the key.
        for (int i = 0; i < q_rows; ++i) {
            const float* q = row(args.q, b, h, q_start + i);
            const std::int64_t visible = args.mask.visible_keys(q_start + i, Nk);
            for (int j = 0; j < kv_rows; ++j) {
                const bool is_visible = kv_start + j < visible;
                scores[i * BLOCK_KV + j] =
                    is_visible ? args.scale * dot(q, row(args.k, b, h_kv, kv_start + j), D) : -INFINITY;
            }
        }

        for (int i = 0; i < q_rows; ++i) {
            float* p = scores + i * BLOCK_KV;
            float* acc_row = acc + i * D;

            // 2. The running maximum, and the factor that brings the old state to it.
            float new_max = row_max[i];
            for (int j = 0; j < kv_rows; ++j) new_max = std::max(new_max, p[j]);
            const float shift = shift_for(new_max);
            const float rescale = std::exp(row_max[i] - shift);
            row_max[i] = new_max;

            // 3. P = exp(S - row_max), not yet divided by anything, and its sum.
            float tile_sum = 0;
            for (int j = 0; j < kv_rows; ++j) {
                p[j] = std::exp(p[j] - shift);
                tile_sum += p[j];
            }
            row_sum[i] = row_sum[i] * rescale + tile_sum;

            // 4. The accumulator follows: acc = acc * rescale + P V.
            for (int d = 0; d < D; ++d) acc_row[d] *= rescale;
            for (int j = 0; j < kv_rows; ++j) {
                const float* v = row(args.v, b, h_kv, kv_start + j);
                const float weight = p[j];
                for (int d = 0; d < D; ++d) acc_row[d] += weight * v[d];
            }
        }
    }

    // 5. One division at the end. A row that saw no key has row_sum = 0: O = 0 and L = -inf + ln 0 = -inf.
    for (int i = 0; i < q_rows; ++i) {
        const float divisor = row_sum[i] == 0 ? 1.0f : row_sum[i];
        float* o = row(args.o, b, h, q_start + i);
        for (int d = 0; d < D; ++d) o[d] = acc[i * D + d] / divisor;
        args.lse[(b * Hq + h) * Nq + q_start + i] = row_max[i] + std::log(row_sum[i]);
    }
}

int max_threads() {
#if defined(_OPENMP)
    return omp_get_max_threads();
#else
    return 1;
#endif
}

int thread_index() {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

}  // namespace

std::int64_t tiled_extra_bytes(int head_dim) {
    detail::check_shape({.head_dim = head_dim}, LIMITS);
    return static_cast<std::int64_t>(workspace_floats(head_dim) * sizeof(float));
}

void attention_forward(const ForwardArgs<float>& args) {
    check_arguments(args, LIMITS);
    const std::int64_t B = args.shape.batch, Hq = args.shape.heads_q;
    const std::int64_t q_tiles = (std::int64_t{args.shape.len_q} + BLOCK_Q - 1) / BLOCK_Q;
    const std::int64_t tiles = q_tiles * B * Hq;
    const std::size_t floats = workspace_floats(args.shape.head_dim);
    const int threads = static_cast<int>(std::min<std::int64_t>(tiles, max_threads()));
    if (threads == 0) return;

    // Query tiles share nothing they write, so any thread may take any tile. With a causal mask later tiles
    // see more keys; handing tiles out one by one keeps the threads evenly busy.
    std::vector<float> workspaces(static_cast<std::size_t>(threads) * floats);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const std::int64_t head = tile / q_tiles;
        const std::int64_t q_start = tile % q_tiles * BLOCK_Q;
        float* workspace = workspaces.data() + static_cast<std::size_t>(thread_index()) * floats;
        attention_tile(args, head / Hq, head % Hq, q_start, workspace);
    }
}

}  // namespace flash::step03
