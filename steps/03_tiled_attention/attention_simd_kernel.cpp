// One query tile of attention with GNU vector types. simd.cmake compiles this file once per instruction set,
// with SIMD_KERNEL (the name to define), SIMD_LANES (floats in a vector register) and SIMD_VECTORS (vectors
// in a row of the register tile).
//
// Everything but the table at the end has internal linkage and no inline function of a library is called:
// the linker keeps one copy of an inline function, and that copy must not hold AVX-512 code on another
// machine.
#include "steps/03_tiled_attention/attention_simd_kernel.hpp"

#include <math.h>

namespace flash::step03 {
namespace {

constexpr int kLanes = SIMD_LANES;
constexpr int kStrip = SIMD_LANES * SIMD_VECTORS;
// 6 rows x 4 vectors of accumulators, 4 vectors of B and one broadcast of A fill 29 of AVX-512's 32
// registers; 6 x 2 fill 15 of 16. Each step then loads 10 times for 24 multiply-adds (8 for 12).
constexpr int kRows = 6;
constexpr int kBlockKv = 256;
static_assert(kSimdBlockQ % kRows == 0 && kBlockKv % kStrip == 0);
// Rows a power of two apart would compete for the same few sets of the L1 cache.
constexpr int kPad = 16;
constexpr int kProbStride = kBlockKv + kPad;
constexpr int kMaxRowStride = kSimdMaxHeadDim + kPad;

template <int Lanes> struct Vector {
    typedef float type __attribute__((vector_size(Lanes * sizeof(float))));
};
using Vec = Vector<kLanes>::type;
typedef std::int32_t IntVec __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

template <class V> V load(const float* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
template <class V> void store(float* p, V v) {
    __builtin_memcpy(p, &v, sizeof v);
}
Vec splat(float x) {
    return x - Vec{};
}
// b where a is NaN: a NaN score leaves the maximum alone and enters through its exponential.
template <class V> V maximum(V a, V b) {
    return a > b ? a : b;
}

template <int Lanes> float horizontal_max(const float* lanes) {
    if constexpr (Lanes == 1) {
        return lanes[0];
    } else {
        using Half = typename Vector<Lanes / 2>::type;
        float half[Lanes / 2];
        store(half, maximum(load<Half>(lanes), load<Half>(lanes + Lanes / 2)));
        return horizontal_max<Lanes / 2>(half);
    }
}

// 2^x for x <= 0 to 2 units in the last place, without a branch; exactly 1 at 0, and exactly 0 below -126
// (the smallest normal number), so that no weight is ever subnormal. NaN stays NaN.
Vec exp2_nonpositive(Vec x) {
    const Vec magic = splat(0x1.8p23f);  // adding it rounds to an integer, left in the lowest bits
    const Vec shifted = x + magic;
    const Vec r = x - (shifted - magic);  // in [-1/2, 1/2]
    // 2^r by a polynomial with the least greatest relative error, 1.1e-7, among those with p(0) = 1.
    Vec p = r * 0x1.5bba08p-10f + 0x1.3cea88p-7f;
    p = p * r + 0x1.c6b754p-5f;
    p = p * r + 0x1.ebf9bcp-3f;
    p = p * r + 0x1.62e42ap-1f;
    p = p * r + 1.0f;
    const Vec power = (Vec)(((IntVec)shifted + 127) << 23);  // the integer as exponent bits
    return x < -126.0f ? Vec{} : p * power;
}

// C = beta * C + A B for kRows rows of C and Vectors vectors of columns, which stay in registers throughout.
// A (kRows, n), B (n, kStrip); beta has one factor per row, or is null for C = A B.
template <int Vectors>
void multiply(const float* a, std::int64_t a_stride, const float* b, std::int64_t n, float* c,
              std::int64_t c_stride, const float* beta) {
    Vec acc[kRows][Vectors];
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < Vectors; ++v)
            acc[r][v] = beta ? load<Vec>(c + r * c_stride + v * kLanes) * beta[r] : Vec{};
    }
    for (std::int64_t i = 0; i < n; ++i) {
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < Vectors; ++v)
                acc[r][v] += a[r * a_stride + i] * load<Vec>(b + i * kStrip + v * kLanes);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < Vectors; ++v) store(c + r * c_stride + v * kLanes, acc[r][v]);
    }
}

struct RowState {
    float row_max = -INFINITY;  // of the unscaled scores
    Vec row_sum = {};           // one partial sum per lane
};

// The scale in two factors. The power of two brings scores to their size and rounds nothing, so the maximum
// is subtracted at that size: unscaled scores, or scale * log2(e), may be too large for a float where the
// scaled scores are not.
struct Scale {
    float power;      // 2^e with 2^e <= scale < 2^(e + 1)
    float rest_log2;  // scale / 2^e * log2(e): exp(scale * x) = 2^(rest_log2 * (power * x))
    float whole;
};

Scale split(float scale) {
    int exponent = 0;
    ::frexpf(scale, &exponent);
    const float power = ::ldexpf(1.0f, exponent - 1);
    return {power, scale / power * 0x1.715476p0f, scale};
}

// What the scores, brought to size, are taken relative to. Subtracting -inf from -inf would be NaN; while the
// row has seen no key any finite number serves. A scaled score of +inf makes the row NaN.
float stabiliser_of(float row_max, const Scale& scale) {
    const float scaled_max = row_max * scale.whole;
    if (scaled_max == -INFINITY) return 0.0f;
    return scaled_max == INFINITY ? NAN : row_max * scale.power;
}

// Turns the n scores of a row into weights relative to the new maximum; the keys from `visible` on get weight
// zero. Returns the factor that brings what was accumulated so far to the new maximum.
float weigh(float* scores, std::int64_t n, std::int64_t visible, const Scale& scale, RowState& state) {
    for (std::int64_t j = visible < 0 ? 0 : visible; j < n; ++j) scores[j] = -INFINITY;
    Vec max_even = splat(state.row_max), max_odd = max_even;
    for (std::int64_t j = 0; j < n; j += 2 * kLanes) {
        max_even = maximum(load<Vec>(scores + j), max_even);
        max_odd = maximum(load<Vec>(scores + j + kLanes), max_odd);
    }
    float lanes[kLanes];
    store(lanes, maximum(max_even, max_odd));
    const float new_max = horizontal_max<kLanes>(lanes);
    const float stabiliser = stabiliser_of(new_max, scale);
    const float rest = scale.rest_log2;
    const Vec rescale = exp2_nonpositive(splat((state.row_max * scale.power - stabiliser) * rest));
    Vec sum = state.row_sum * rescale;
    for (std::int64_t j = 0; j < n; j += kLanes) {
        // The difference before what rounds: exact near the maximum however large the scores are.
        const Vec weight = exp2_nonpositive((load<Vec>(scores + j) * scale.power - stabiliser) * rest);
        store(scores + j, weight);
        sum += weight;
    }
    state = {new_max, sum};
    return rescale[0];
}

// C = beta * C + A B over `columns` columns of C; the last strip works on no more vectors than it needs.
void multiply_columns(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_strip_stride,
                      std::int64_t n, float* c, std::int64_t c_stride, int columns, const float* beta) {
    for (; columns > 0; columns -= kStrip, b += b_strip_stride, c += kStrip) {
        if (columns > kStrip - kLanes)
            multiply<SIMD_VECTORS>(a, a_stride, b, n, c, c_stride, beta);
        else if (columns > kStrip / 2)
            multiply<SIMD_VECTORS - 1>(a, a_stride, b, n, c, c_stride, beta);
        else if (columns > kStrip / 4)
            multiply<SIMD_VECTORS / 2>(a, a_stride, b, n, c, c_stride, beta);
        else
            multiply<1>(a, a_stride, b, n, c, c_stride, beta);
    }
}

void query_tile(const SimdQueryTile& t) {
    const int q_stride = t.head_dim + kPad;
    const int acc_stride = (t.head_dim + kStrip - 1) / kStrip * kStrip + kPad;
    alignas(64) float q[kSimdBlockQ * kMaxRowStride];
    alignas(64) float acc[kSimdBlockQ * kMaxRowStride];
    alignas(64) float prob[kRows * kProbStride];
    RowState state[kSimdBlockQ];
    const int rows = (t.rows + kRows - 1) / kRows * kRows;
    for (int r = 0; r < rows; ++r) {
        for (int d = 0; d < t.head_dim; ++d)
            q[r * q_stride + d] = r < t.rows ? t.q[r * t.q_stride + d] : 0.0f;
        for (int d = 0; d < acc_stride; ++d) acc[r * acc_stride + d] = 0.0f;
    }

    const Scale scale = split(t.scale);
    for (std::int64_t key = 0; key < t.len_kv; key += kBlockKv) {
        for (int row = 0; row < rows; row += kRows) {
            // Keys of this tile that the group's last row sees: work beyond them is skipped.
            const std::int64_t last = row + kRows - 1 + t.diagonal + 1 - key;
            std::int64_t n = t.len_kv - key < kBlockKv ? t.len_kv - key : kBlockKv;
            n = last < n ? last : n;
            if (n <= 0) continue;
            const std::int64_t strips = (n + kStrip - 1) / kStrip;
            for (std::int64_t s = 0; s < strips; ++s) {
                multiply<SIMD_VECTORS>(q + row * q_stride, q_stride,
                                       t.k_packed + (key + s * kStrip) * t.head_dim, t.head_dim,
                                       prob + s * kStrip, kProbStride, nullptr);
            }
            float rescale[kRows];
            for (int r = 0; r < kRows; ++r) {
                const std::int64_t seen = row + r + t.diagonal + 1 - key;
                rescale[r] = weigh(prob + r * kProbStride, strips * kStrip, seen < n ? seen : n, scale,
                                   state[row + r]);
            }
            multiply_columns(prob, kProbStride, t.v_packed + key * kStrip, t.len_kv * kStrip, n,
                             acc + row * acc_stride, acc_stride, t.head_dim, rescale);
        }
    }

    for (int r = 0; r < t.rows; ++r) {
        float sum = 0;
        for (int lane = 0; lane < kLanes; ++lane) sum += state[r].row_sum[lane];
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // zero only for a row without keys
        for (int d = 0; d < t.head_dim; ++d) t.o[r * t.o_stride + d] = acc[r * acc_stride + d] * inverse;
        // -inf for a row without keys, by itself: its maximum and its logarithm are both -inf.
        t.lse[r] = static_cast<float>(static_cast<double>(state[r].row_max) * static_cast<double>(t.scale) +
                                      ::log(static_cast<double>(sum)));
    }
}

}  // namespace

extern const SimdKernel SIMD_KERNEL = {kStrip, query_tile};

}  // namespace flash::step03
