#include "backward_cpu.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/argument_checks.hpp"

namespace flash::step09 {
namespace {

constexpr Limits LIMITS{"step 09 on the CPU", 256};
constexpr int BLOCK_Q = 64;   // query rows of a tile
constexpr int BLOCK_KV = 64;  // keys of a tile

template <class T> T* row(const TensorView<T>& view, std::int64_t b, std::int64_t h, std::int64_t n) {
    return view.data + row_offset(view, b, h, n);
}

float dot(const float* x, const float* y, int n) {
    float sum = 0;
    for (int d = 0; d < n; ++d) sum += x[d] * y[d];
    return sum;
}

void add_scaled(float* y, float weight, const float* x, int n) {
    for (int d = 0; d < n; ++d) y[d] += weight * x[d];
}

// One head of keys and the query heads that read it.
class KeyHead {
  public:
    KeyHead(const BackwardArgs<float>& args, std::int64_t b, std::int64_t h_kv)
        : args_(args), b_(b), h_kv_(h_kv), D_(args.shape.head_dim) {}

    void run() {
        const std::int64_t Nq = args_.shape.len_q, Nk = args_.shape.len_kv;
        const std::int64_t group = args_.shape.heads_q / args_.shape.heads_kv;
        const std::int64_t first_head = h_kv_ * group;

        // 0. delta = rowsum(dO o O), one number a query row; and dQ = 0, which the key tiles add to.
        delta_.assign(static_cast<std::size_t>(group * Nq), 0.0f);
        for (std::int64_t h = first_head; h < first_head + group; ++h) {
            for (std::int64_t i = 0; i < Nq; ++i) {
                delta(h, i) = dot(row(args_.d_o, b_, h, i), row(args_.o, b_, h, i), D_);
                std::fill_n(row(args_.dq, b_, h, i), D_, 0.0f);
            }
        }

        // Keys outside, queries inside: dK and dV of a key tile stay in place while the queries pass by.
        for (std::int64_t kv_start = 0; kv_start < Nk; kv_start += BLOCK_KV) {
            const int kv_rows = static_cast<int>(std::min<std::int64_t>(BLOCK_KV, Nk - kv_start));
            dk_.assign(static_cast<std::size_t>(BLOCK_KV * D_), 0.0f);
            dv_.assign(static_cast<std::size_t>(BLOCK_KV * D_), 0.0f);
            for (std::int64_t h = first_head; h < first_head + group; ++h) {
                for (std::int64_t q_start = 0; q_start < Nq; q_start += BLOCK_Q) {
                    // A mask only ever shows a query more keys than the one before it: the last one decides.
                    const std::int64_t q_last = std::min<std::int64_t>(q_start + BLOCK_Q, Nq) - 1;
                    if (args_.mask.visible_keys(q_last, Nk) > kv_start)
                        tile(h, q_start, static_cast<int>(q_last - q_start + 1), kv_start, kv_rows);
                }
            }
            for (int j = 0; j < kv_rows; ++j) {
                std::copy_n(dk_.data() + j * D_, D_, row(args_.dk, b_, h_kv_, kv_start + j));
                std::copy_n(dv_.data() + j * D_, D_, row(args_.dv, b_, h_kv_, kv_start + j));
            }
        }
    }

  private:
    float& delta(std::int64_t h, std::int64_t i) {
        const std::int64_t group = args_.shape.heads_q / args_.shape.heads_kv;
        return delta_[static_cast<std::size_t>((h - h_kv_ * group) * args_.shape.len_q + i)];
    }

    // What one tile of queries and keys adds to dQ, dK and dV: five products.
    void tile(std::int64_t h, std::int64_t q_start, int q_rows, std::int64_t kv_start, int kv_rows) {
        const std::int64_t Nq = args_.shape.len_q, Nk = args_.shape.len_kv;
        float p[BLOCK_Q][BLOCK_KV], ds[BLOCK_Q][BLOCK_KV];

        // 1. S = scale Q K^T, and P = exp(S - L): no maximum, no sum, no division. A hidden key has P = 0.
        for (int i = 0; i < q_rows; ++i) {
            const float* q = row(args_.q, b_, h, q_start + i);
            const std::int64_t visible = args_.mask.visible_keys(q_start + i, Nk);
            const float lse = args_.lse[(b_ * args_.shape.heads_q + h) * Nq + q_start + i];
            for (int j = 0; j < kv_rows; ++j) {
                // A row without a score above -inf has L = -inf, and P = 0 everywhere.
                const bool is_visible = kv_start + j < visible && lse != -INFINITY;
                p[i][j] =
                    is_visible
                        ? std::exp(args_.scale * dot(q, row(args_.k, b_, h_kv_, kv_start + j), D_) - lse)
                        : 0.0f;
            }
        }

        // 2. dP = dO V^T, and dS = P o (dP - delta).
        for (int i = 0; i < q_rows; ++i) {
            const float* d_o = row(args_.d_o, b_, h, q_start + i);
            for (int j = 0; j < kv_rows; ++j) {
                const float dp = dot(d_o, row(args_.v, b_, h_kv_, kv_start + j), D_);
                ds[i][j] = p[i][j] * (dp - delta(h, q_start + i));
            }
        }

        for (int i = 0; i < q_rows; ++i) {
            const float* q = row(args_.q, b_, h, q_start + i);
            const float* d_o = row(args_.d_o, b_, h, q_start + i);
            float* dq = row(args_.dq, b_, h, q_start + i);
            for (int j = 0; j < kv_rows; ++j) {
                const float* k = row(args_.k, b_, h_kv_, kv_start + j);
                add_scaled(dv_.data() + j * D_, p[i][j], d_o, D_);               // 3. dV += P^T dO
                add_scaled(dk_.data() + j * D_, args_.scale * ds[i][j], q, D_);  // 4. dK += scale dS^T Q
                add_scaled(dq, args_.scale * ds[i][j], k, D_);                   // 5. dQ += scale dS K
            }
        }
    }

    const BackwardArgs<float>& args_;
    std::int64_t b_, h_kv_;
    int D_;
    std::vector<float> delta_;    // (group, Nq)
    std::vector<float> dk_, dv_;  // (BLOCK_KV, D)
};

}  // namespace

void attention_backward_cpu(const BackwardArgs<float>& args) {
    check_arguments(args, LIMITS, 0);
    for (std::int64_t b = 0; b < args.shape.batch; ++b)
        for (std::int64_t h_kv = 0; h_kv < args.shape.heads_kv; ++h_kv) KeyHead(args, b, h_kv).run();
}

}  // namespace flash::step09
