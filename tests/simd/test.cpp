// attention_simd with every instruction set this processor has, not only the one it would choose.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/testing/conformance.hpp"
#include "common/testing/host_buffer.hpp"
#include "doctest/doctest.h"
#include "steps/03_tiled_attention/attention_simd.hpp"

using namespace flash;
using step03::attention_simd;
using testing::Capabilities;
using testing::HostBuffer;

namespace {

struct Set {
    const char* step;
    void (*forward)(const ForwardArgs<float>&);
};

// The conformance cases take a plain function: one per name.
std::vector<Set> sets() {
    const std::vector<std::pair<std::string_view, Set>> known = {
        {"avx512",
         {"attention_simd avx512", [](const ForwardArgs<float>& a) { attention_simd(a, "avx512"); }}},
        {"avx2", {"attention_simd avx2", [](const ForwardArgs<float>& a) { attention_simd(a, "avx2"); }}},
        {"baseline",
         {"attention_simd baseline", [](const ForwardArgs<float>& a) { attention_simd(a, "baseline"); }}},
    };
    std::vector<Set> usable;
    for (const std::string_view name : step03::simd_instruction_sets()) {
        const auto found =
            std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.first == name; });
        REQUIRE_MESSAGE(found != known.end(), "no test knows the instruction set " << std::string(name));
        usable.push_back(found->second);
    }
    return usable;
}

// Weights of two keys for each x: the first has score 0, the second score x <= 0, and V is the unit matrix,
// so that O is (1, w) / (1 + w) and O[1] / O[0] is the weight w = exp(x).
std::vector<float> weights(const Set& set, const std::vector<float>& x) {
    const int n = static_cast<int>(x.size());
    std::vector<float> q, o(2 * x.size()), lse(x.size());
    for (const float value : x) q.insert(q.end(), {value, 0.0f});
    const std::vector<float> k = {0, 0, 1, 0}, v = {1, 0, 0, 1};
    ForwardArgs<float> args;
    args.shape = {1, 1, 1, n, 2, 2};
    args.q = dense_bhnd(static_cast<const float*>(q.data()), 1, n, 2);
    args.k = dense_bhnd(k.data(), 1, 2, 2);
    args.v = dense_bhnd(v.data(), 1, 2, 2);
    args.o = dense_bhnd(o.data(), 1, n, 2);
    args.lse = lse.data();
    args.scale = 1;
    set.forward(args);
    std::vector<float> result;
    for (std::size_t i = 0; i < x.size(); ++i) result.push_back(o[2 * i + 1] / o[2 * i]);
    return result;
}

}  // namespace

TEST_CASE("every instruction set passes the conformance cases and the fuzz") {
    for (const Set& set : sets()) {
        const Capabilities capabilities{.step = set.step};
        testing::run_forward_conformance<float, HostBuffer>(capabilities, set.forward);
        testing::run_forward_fuzz<float, HostBuffer>(capabilities, set.forward);
    }
}

TEST_CASE("a row keeps its sums right across key tiles, whichever tile holds its maximum") {
    // The common cases have at most one of this kernel's key tiles (256 keys).
    using enum testing::Pattern;
    for (const Set& set : sets()) {
        std::int64_t compared = 0;
        for (const auto pattern : {kNormal, kLargestLast, kIncreasing, kDecreasing, kNonFinite}) {
            for (const int len_kv : {257, 1000}) {
                const Shape shape{1, 1, 1, 97, len_kv, 72};
                for (const Mask& mask : {Mask::none(), Mask::causal_bottom_right(shape), Mask::causal(255)}) {
                    const testing::ForwardCase c{"key tiles", shape, mask, testing::Storage::kBhnd,
                                                 pattern,     7};
                    auto call = testing::make_call<float>(c, false);
                    const auto before = call;
                    testing::execute_on<float, HostBuffer>(set.forward)(call, {});
                    const auto judgement = testing::judge(before, call, pattern, c.seed);
                    compared += judgement.compared;
                    if (!judgement.failure.empty())
                        FAIL_CHECK(set.step << ": " << testing::describe(c, "fp32") << ": "
                                            << judgement.failure);
                }
            }
        }
        CHECK(compared == 5 * 2 * 3 * 97 * (72 + 1));
    }
}

TEST_CASE("a call with a chosen instruction set refuses bad arguments too") {
    testing::run_bad_arguments<float, HostBuffer>({.step = "attention_simd baseline"}, sets().back().forward);
}

TEST_CASE("an instruction set this processor lacks is refused by name") {
    ForwardArgs<float> args;
    args.scale = 1;
    CHECK_THROWS_WITH_AS(attention_simd(args, "mmx"), doctest::Contains("instruction_set is mmx"),
                         std::invalid_argument);
}

TEST_CASE("every processor has the baseline, and the best instruction set comes first") {
    const auto names = step03::simd_instruction_sets();
    REQUIRE(!names.empty());
    CHECK(names.back() == "baseline");
    for (const auto name : names) std::printf("instruction set: %s\n", std::string(name).c_str());
}

TEST_CASE("a weight is exp of its score to a few units in the last place, at every size") {
    // The exponent x * log2(e) is rounded in fp32 too: 2^-24 of |x|, which the last bound adds.
    std::vector<float> x;
    for (int i = 0; i <= 87'000; ++i) x.push_back(-0.001f * static_cast<float>(i));
    for (const Set& set : sets()) {
        const auto w = weights(set, x);
        double worst = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double want = std::exp(static_cast<double>(x[i]));
            const double allowed = 0x1p-21 + 0x1p-23 * std::fabs(static_cast<double>(x[i]));
            const double error = std::fabs(static_cast<double>(w[i]) / want - 1);
            worst = std::max(worst, error / allowed);
            if (!(error <= allowed)) FAIL_CHECK(set.step << ": exp(" << x[i] << ") gave " << w[i]);
        }
        std::printf("%s: %zu weights, largest error %.2f of what is allowed\n", set.step, x.size(), worst);
    }
}

TEST_CASE("A14: a score far below the row's maximum weighs exactly 0, never a subnormal") {
    std::vector<float> x = {-87.34f, -87.4f,  -88.0f,
                            -95.0f,  -103.9f, -104.0f,
                            -1e3f,   -1e30f,  std::numeric_limits<float>::lowest()};
    for (const Set& set : sets()) {
        for (const float w : weights(set, x)) CHECK(w == 0.0f);
        for (const float w : weights(set, {-87.33f})) CHECK(w >= std::numeric_limits<float>::min());
    }
}
