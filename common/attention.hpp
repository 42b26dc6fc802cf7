// The contract every step keeps: shapes, strides, masks and arguments of one attention call.
//
//   S = scale * Q K^T          scores
//   P = softmax of S over the keys that the mask lets a query see
//   O = P V                    output, same type as the inputs
//   L = logsumexp of the visible scaled scores, natural logarithm, fp32
//
// Symbols: B batch, Hq query heads, Hkv key/value heads (Hkv divides Hq; query head h reads key head
// h / (Hq / Hkv)), Nq queries, Nk keys, D head dimension.
//   Q, O, dO, dQ (B, Hq, Nq, D)    K, V, dK, dV (B, Hkv, Nk, D)    L (B, Hq, Nq) fp32, contiguous
// The last dimension is contiguous; the strides of the other three are arguments.
//
// A query that sees no key has O = 0, L = -inf, and contributes zero to every gradient (Nk = 0 included).
// A NaN or +inf score makes its row NaN; a score of -inf is an ordinary masked key: P = dS = 0, though 0 * K
// in dQ and 0 * Q in dK are NaN where K or Q is infinite. Of a pair inside the lengths that the mask hides, a
// non-finite V (in the backward Q, K, V or dO) has an unspecified effect: tile products make 0 * NaN of it.
//
// Limit of fp32 state: the tiled steps add up P V before they divide, so O needs 2^8 * Nk * max|V|
// below 3.4e38.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "flash-steps needs -inf and NaN: build it without -ffast-math, -Ofast and -ffinite-math-only"
#endif

namespace flash {

// A CUDA stream (cudaStream_t). CPU steps and the emulator ignore it; nullptr is the default stream.
using Stream = void*;

// Four-dimensional data without its sizes, which Shape holds. Strides are counted in elements.
// Inputs may have stride 0 (one row, head or batch entry shared by all); outputs may not.
template <class T> struct TensorView {
    T* data = nullptr;
    std::int64_t stride_batch = 0;
    std::int64_t stride_head = 0;
    std::int64_t stride_row = 0;
};

struct Shape {
    int batch = 0;     // B
    int heads_q = 0;   // Hq
    int heads_kv = 0;  // Hkv
    int len_q = 0;     // Nq
    int len_kv = 0;    // Nk
    int head_dim = 0;  // D
};

// Which keys a query sees. Causal: key j is visible to query i when j <= i + diagonal.
struct Mask {
    bool is_causal = false;
    std::int64_t diagonal = 0;

    static Mask none() { return {}; }
    static Mask causal(std::int64_t diagonal) { return {true, diagonal}; }
    // The first query sees the first key only.
    static Mask causal_top_left() { return causal(0); }
    // The last query sees every key: queries are the last Nq positions of a sequence of Nk.
    static Mask causal_bottom_right(const Shape& shape) {
        return causal(static_cast<std::int64_t>(shape.len_kv) - shape.len_q);
    }

    // Query i sees exactly the keys 0 .. visible_keys(i, Nk) - 1.
    std::int64_t visible_keys(std::int64_t query, std::int64_t len_kv) const {
        if (!is_causal) return len_kv;
        return std::clamp<std::int64_t>(query + clamped_diagonal(query + 1, len_kv) + 1, 0, len_kv);
    }

    // The same mask as one int, for kernels: a diagonal beyond [-Nq, Nk] hides or shows everything already,
    // and no mask is a diagonal of Nk. Key j is visible to query i exactly when j <= i + kernel_diagonal.
    int kernel_diagonal(const Shape& shape) const {
        if (!is_causal) return shape.len_kv;
        return static_cast<int>(clamped_diagonal(shape.len_q, shape.len_kv));
    }

  private:
    std::int64_t clamped_diagonal(std::int64_t len_q, std::int64_t len_kv) const {
        return std::clamp(diagonal, -len_q, len_kv);
    }
};

// 1 / sqrt(D) with the true head dimension, never a padded one.
inline float default_scale(int head_dim) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

// Offset of the row (batch b, head h, row n) of a view, in elements.
template <class T>
std::int64_t row_offset(const TensorView<T>& view, std::int64_t b, std::int64_t h, std::int64_t n) {
    return b * view.stride_batch + h * view.stride_head + n * view.stride_row;
}

// A view of dense storage in the order (B, H, N, D), and of the order (B, N, H, D).
template <class T>
TensorView<T> dense_bhnd(T* data, std::int64_t heads, std::int64_t len, std::int64_t head_dim) {
    return {data, heads * len * head_dim, len * head_dim, head_dim};
}
template <class T>
TensorView<T> dense_bnhd(T* data, std::int64_t heads, std::int64_t len, std::int64_t head_dim) {
    return {data, len * heads * head_dim, head_dim, heads * head_dim};
}

// From step 04 on the pointers are device pointers; before that, host pointers.
template <class T> struct ForwardArgs {
    Shape shape;
    TensorView<const T> q;  // (B, Hq, Nq, D)
    TensorView<const T> k;  // (B, Hkv, Nk, D)
    TensorView<const T> v;  // (B, Hkv, Nk, D)
    TensorView<T> o;        // (B, Hq, Nq, D), written
    float* lse = nullptr;   // (B, Hq, Nq), written
    Mask mask;
    float scale = 0;  // finite and > 0; default_scale(D) is the usual choice
    Stream stream = nullptr;
};

template <class T> struct BackwardArgs {
    Shape shape;
    TensorView<const T> q, k, v, o;  // the forward's inputs and output
    const float* lse = nullptr;      // (B, Hq, Nq), the forward's
    TensorView<const T> d_o;         // (B, Hq, Nq, D)
    TensorView<T> dq;                // (B, Hq, Nq, D), written
    TensorView<T> dk, dv;            // (B, Hkv, Nk, D), written: summed over the query heads of a group
    Mask mask;
    float scale = 0;
    void* workspace = nullptr;  // device memory of at least the size the step's query function states
    std::int64_t workspace_bytes = 0;
    bool deterministic = false;  // true: bitwise equal from run to run
    Stream stream = nullptr;
};

}  // namespace flash
