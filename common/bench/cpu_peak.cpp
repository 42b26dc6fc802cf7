#include "common/bench/cpu_peak.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#ifdef FLASH_BENCH_HAS_BLAS
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
// Present in one BLAS and absent from another.
__attribute__((weak)) void openblas_set_num_threads(int count);
__attribute__((weak)) void MKL_Set_Num_Threads(int count);
}
#endif

namespace flash::bench {
namespace {

// Twelve chains keep two units of latency 4 busy (and 4 of latency 3), and fit 16 registers with the two
// factors.
constexpr int kChains = 12;
constexpr long kSteps = 100'000;

// The body is written out per vector width: a function template inlined into a function with a wider target
// is split into narrow vectors by g++ before it is inlined. The factors come from memory the compiler cannot
// know, each chain begins with a read of its own and ends in a write, so that no multiply-add can be left out
// or shared.
using Body = void (*)(volatile float* memory);

#if defined(__x86_64__)
__attribute__((target("avx512f,fma"))) void fma_loop_avx512(volatile float* memory) {
    typedef float Vec __attribute__((vector_size(64)));
    const Vec a = memory[0] - Vec{}, b = memory[1] - Vec{};
    Vec acc[kChains];
    for (Vec& chain : acc) chain = memory[2] - Vec{};
    for (long step = 0; step < kSteps; ++step) {
        for (Vec& chain : acc) chain = chain * a + b;
    }
    for (const Vec& chain : acc) memory[3] = chain[0];
}

__attribute__((target("avx2,fma"))) void fma_loop_avx2(volatile float* memory) {
    typedef float Vec __attribute__((vector_size(32)));
    const Vec a = memory[0] - Vec{}, b = memory[1] - Vec{};
    Vec acc[kChains];
    for (Vec& chain : acc) chain = memory[2] - Vec{};
    for (long step = 0; step < kSteps; ++step) {
        for (Vec& chain : acc) chain = chain * a + b;
    }
    for (const Vec& chain : acc) memory[3] = chain[0];
}
#endif

void fma_loop_baseline(volatile float* memory) {
    typedef float Vec __attribute__((vector_size(16)));
    const Vec a = memory[0] - Vec{}, b = memory[1] - Vec{};
    Vec acc[kChains];
    for (Vec& chain : acc) chain = memory[2] - Vec{};
    for (long step = 0; step < kSteps; ++step) {
        for (Vec& chain : acc) chain = chain * a + b;
    }
    for (const Vec& chain : acc) memory[3] = chain[0];
}

// Shortest of `attempts` runs, in seconds.
template <class F> double shortest(int attempts, const F& f) {
    double best = 1e30;
    for (int i = 0; i < attempts; ++i) {
        const auto start = std::chrono::steady_clock::now();
        f();
        best =
            std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

double gflops(Body body, int lanes) {
    volatile float memory[4] = {0.5f, 1.0f, 0.0f, 0.0f};  // factors, start, result
    constexpr int kAttempts = 60;
    const double seconds = shortest(kAttempts, [&] { body(memory); });
    return 2.0 * kChains * static_cast<double>(kSteps) * lanes / seconds * 1e-9;
}

}  // namespace

double measured_fma_peak_gflops() {
    double best = gflops(fma_loop_baseline, 4);
#if defined(__x86_64__)
    const bool fma = __builtin_cpu_supports("fma") != 0;
    if (fma && __builtin_cpu_supports("avx2")) best = std::max(best, gflops(fma_loop_avx2, 8));
    if (fma && __builtin_cpu_supports("avx512f")) best = std::max(best, gflops(fma_loop_avx512, 16));
#endif
    return best;
}

std::optional<double> measured_sgemm_gflops() {
#ifdef FLASH_BENCH_HAS_BLAS
    if (openblas_set_num_threads) openblas_set_num_threads(1);
    if (MKL_Set_Num_Threads) MKL_Set_Num_Threads(1);
    constexpr int n = 1024;
    std::vector<float> a(n * n), b(n * n), c(n * n);
    for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<float>(i * 7 % 31) - 15.0f;
        b[i] = static_cast<float>(i * 11 % 29) - 14.0f;
    }
    const float one = 1, zero = 0;
    const double seconds = shortest(
        5, [&] { sgemm_("N", "N", &n, &n, &n, &one, a.data(), &n, b.data(), &n, &zero, c.data(), &n); });
    return 2.0 * n * n * n / seconds * 1e-9;
#else
    return std::nullopt;
#endif
}

}  // namespace flash::bench
