// What attention_simd.cpp hands to attention_simd_kernel.cpp, which is compiled once per instruction set.
#pragma once

#include <cstdint>

namespace flash::step03 {

inline constexpr int kSimdBlockQ = 96;  // queries that share a key tile while it lies in the L2 cache
inline constexpr int kSimdMaxHeadDim = 256;

// One query tile. Packed K and V consist of strips as wide as one register tile of the kernel:
//   k_packed (Nk / strip, D, strip)    K transposed: keys lie side by side
//   v_packed (D / strip, Nk, strip)    both divisions rounded up, the missing columns zero
struct SimdQueryTile {
    const float* q;  // (rows, D)
    std::int64_t q_stride;
    float* o;  // (rows, D)
    std::int64_t o_stride;
    float* lse;  // (rows)
    int rows;    // 1 .. kSimdBlockQ
    int head_dim;
    const float* k_packed;
    const float* v_packed;
    std::int64_t len_kv;
    std::int64_t diagonal;  // the tile's row i sees the keys j <= i + diagonal
    float scale;
};

struct SimdKernel {
    int strip;
    void (*query_tile)(const SimdQueryTile&);
};

extern const SimdKernel simd_kernel_baseline;
extern const SimdKernel simd_kernel_avx2;    // on x86-64 only
extern const SimdKernel simd_kernel_avx512;  // on x86-64 only

}  // namespace flash::step03
