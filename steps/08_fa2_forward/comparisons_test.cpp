// How many comparisons the kernel executes: no counter of the emulator sees a mask that changes nothing. The
// build compiles attention.cu a second time, for D = 64 alone, with -fsanitize-coverage=trace-cmp: g++ then
// calls the functions below before every comparison of integers.
#include "doctest/doctest.h"

#ifdef STEP08_COUNTS_COMPARISONS
#include <cstdint>

#include "common/gpu/device.hpp"
#include "common/testing/conformance.hpp"

namespace flash::step08_comparisons {
template <class T> void attention_forward(const ForwardArgs<T>& args);
}  // namespace flash::step08_comparisons

namespace {
std::int64_t comparisons = 0;
}

extern "C" {
void __sanitizer_cov_trace_cmp1(std::uint8_t, std::uint8_t) {}
void __sanitizer_cov_trace_cmp2(std::uint16_t, std::uint16_t) {}
void __sanitizer_cov_trace_cmp4(std::uint32_t, std::uint32_t) {
    ++comparisons;
}
void __sanitizer_cov_trace_cmp8(std::uint64_t, std::uint64_t) {}
void __sanitizer_cov_trace_const_cmp1(std::uint8_t, std::uint8_t) {}
void __sanitizer_cov_trace_const_cmp2(std::uint16_t, std::uint16_t) {}
void __sanitizer_cov_trace_const_cmp4(std::uint32_t, std::uint32_t) {
    ++comparisons;
}
void __sanitizer_cov_trace_const_cmp8(std::uint64_t, std::uint64_t) {}
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}
void __sanitizer_cov_trace_switch(std::uint64_t, void*) {}
}

using namespace flash;

TEST_CASE_TEMPLATE("scores are compared with the mask in boundary tiles only", T, fp16, bf16) {
    const auto comparisons_of = [](int len_kv) {
        auto call = testing::make_call<T>({"", {1, 1, 1, 128, len_kv, 64}}, true);
        comparisons = 0;
        testing::execute_on<T, gpu::DeviceBuffer> (&step08_comparisons::attention_forward<T>)(call, {});
        return comparisons;
    };
    // Tiles of 128 queries and 32 keys: four full ones; then three full ones and one that the end cuts, whose
    // every score is compared with the end at least.
    const std::int64_t full = comparisons_of(128), cut = comparisons_of(127);
    CAPTURE(full);
    CAPTURE(cut);
    CHECK(full > 0);
    CHECK(cut - full >= 128 * 32);
}
#else
#include <cstdio>

TEST_CASE("scores are compared with the mask in boundary tiles only") {
    std::puts("SKIP: comparisons are counted by g++ on the emulator");
}
#endif
