// Around the kernel: packs K and V, chooses the instruction set, spreads query tiles over threads.
#include "steps/03_tiled_attention/attention_simd.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "common/argument_checks.hpp"
#include "steps/03_tiled_attention/attention_simd_kernel.hpp"

namespace flash::step03 {
namespace {

struct NamedKernel {
    std::string_view name;
    const SimdKernel* kernel;
};

std::vector<NamedKernel> usable_kernels() {
    std::vector<NamedKernel> kernels;
#if defined(__x86_64__)
    const bool fma = __builtin_cpu_supports("fma") != 0;
    if (fma && __builtin_cpu_supports("avx512f")) kernels.push_back({"avx512", &simd_kernel_avx512});
    if (fma && __builtin_cpu_supports("avx2")) kernels.push_back({"avx2", &simd_kernel_avx2});
#endif
    kernels.push_back({"baseline", &simd_kernel_baseline});
    return kernels;
}

// Row (b, h, n) of a view. A tensor without elements may come without memory, so null stays null.
template <class T> T* row(const TensorView<T>& view, std::int64_t b, std::int64_t h, std::int64_t n) {
    return view.data == nullptr ? nullptr : view.data + row_offset(view, b, h, n);
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

int thread_count() {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// K (Nk, D) to (Nk / strip, D, strip), keys beyond Nk zero.
void pack_keys(const float* k, std::int64_t stride_row, const Shape& shape, int strip, float* packed) {
    for (std::int64_t key = 0; key < shape.len_kv; key += strip) {
        const std::int64_t keys = std::min<std::int64_t>(strip, shape.len_kv - key);
        for (int d = 0; d < shape.head_dim; ++d, packed += strip) {
            for (std::int64_t j = 0; j < strip; ++j)
                packed[j] = j < keys ? k[(key + j) * stride_row + d] : 0.0f;
        }
    }
}

// V (Nk, D) to (D / strip, Nk, strip), columns beyond D zero.
void pack_values(const float* v, std::int64_t stride_row, const Shape& shape, int strip, float* packed) {
    for (int d = 0; d < shape.head_dim; d += strip) {
        const int columns = std::min(strip, shape.head_dim - d);
        for (std::int64_t key = 0; key < shape.len_kv; ++key, packed += strip) {
            for (int c = 0; c < strip; ++c) packed[c] = c < columns ? v[key * stride_row + d + c] : 0.0f;
        }
    }
}

void forward(const ForwardArgs<float>& args, const SimdKernel& kernel) {
    const Shape& shape = args.shape;
    const std::int64_t key_heads = static_cast<std::int64_t>(shape.batch) * shape.heads_kv;
    const std::int64_t tiles = divide_up(shape.len_q, kSimdBlockQ);
    if (key_heads == 0 || shape.heads_q == 0 || tiles == 0) return;
    const std::int64_t group = shape.heads_q / shape.heads_kv;

    const std::int64_t k_size = divide_up(shape.len_kv, kernel.strip) * kernel.strip * shape.head_dim;
    const std::int64_t v_size = divide_up(shape.head_dim, kernel.strip) * kernel.strip * shape.len_kv;
    const int threads = static_cast<int>(std::min<std::int64_t>(thread_count(), tiles * group * key_heads));
    constexpr std::int64_t kSmallPackFloats = 1 << 20;
    const std::int64_t heads_that_are_small = kSmallPackFloats / std::max<std::int64_t>(k_size + v_size, 1);
    const std::int64_t held =
        std::clamp<std::int64_t>(heads_that_are_small, std::min<std::int64_t>(threads, key_heads), key_heads);
    // new without value initialisation: every float is written by the packing.
    const std::unique_ptr<float[]> packed(new float[static_cast<std::size_t>(held * (k_size + v_size))]);

    const std::int64_t diagonal = args.mask.kernel_diagonal(shape);
#pragma omp parallel num_threads(threads)
    for (std::int64_t first = 0; first < key_heads; first += held) {
        const std::int64_t heads = std::min(held, key_heads - first);
#pragma omp for schedule(dynamic)
        for (std::int64_t i = 0; i < heads; ++i) {
            const std::int64_t b = (first + i) / shape.heads_kv, h = (first + i) % shape.heads_kv;
            float* k_packed = packed.get() + i * (k_size + v_size);
            pack_keys(row(args.k, b, h, 0), args.k.stride_row, shape, kernel.strip, k_packed);
            pack_values(row(args.v, b, h, 0), args.v.stride_row, shape, kernel.strip, k_packed + k_size);
        }
        // The last tile first: under a causal mask it is the longest, and what is left at the end is short.
#pragma omp for schedule(dynamic)
        for (std::int64_t task = 0; task < tiles * heads * group; ++task) {
            const std::int64_t query = (tiles - 1 - task / (heads * group)) * kSimdBlockQ;
            const std::int64_t i = task % (heads * group) / group;
            const std::int64_t b = (first + i) / shape.heads_kv;
            const std::int64_t h = (first + i) % shape.heads_kv * group + task % group;
            const float* k_packed = packed.get() + i * (k_size + v_size);
            kernel.query_tile({row(args.q, b, h, query), args.q.stride_row, row(args.o, b, h, query),
                               args.o.stride_row, args.lse + (b * shape.heads_q + h) * shape.len_q + query,
                               static_cast<int>(std::min<std::int64_t>(kSimdBlockQ, shape.len_q - query)),
                               shape.head_dim, k_packed, k_packed + k_size, shape.len_kv, query + diagonal,
                               args.scale});
        }
    }
}

}  // namespace

std::vector<std::string_view> simd_instruction_sets() {
    std::vector<std::string_view> names;
    for (const NamedKernel& candidate : usable_kernels()) names.push_back(candidate.name);
    return names;
}

void attention_simd(const ForwardArgs<float>& args, std::string_view instruction_set) {
    check_arguments(args, Limits{"step 03's attention_simd", kSimdMaxHeadDim});
    std::string accepted;
    for (const NamedKernel& candidate : usable_kernels()) {
        if (candidate.name == instruction_set) return forward(args, *candidate.kernel);
        accepted += (accepted.empty() ? "" : ", ") + std::string(candidate.name);
    }
    throw std::invalid_argument("instruction_set is " + std::string(instruction_set) +
                                "; this processor runs " + accepted);
}

void attention_simd(const ForwardArgs<float>& args) {
    attention_simd(args, simd_instruction_sets().front());
}

}  // namespace flash::step03
