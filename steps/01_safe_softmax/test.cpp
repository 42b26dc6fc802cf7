#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/testing/host_buffer.hpp"
#include "common/testing/print_vectors.hpp"
#include "common/testing/random.hpp"
#include "common/types.hpp"
#include "doctest/doctest.h"
#include "softmax.hpp"

using flash::bf16;
using flash::fp16;
using flash::from_float;
using flash::to_float;
using flash::step01::naive_softmax;
using flash::step01::safe_softmax;

namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float QUIET_NAN = std::numeric_limits<float>::quiet_NaN();

// The row goes in and out as fp32; rows end at a page that may not be touched, and y starts as NaN.
template <class T>
std::vector<float> run(void (*softmax)(const T*, T*, std::int64_t), const std::vector<float>& row) {
    flash::testing::HostBuffer<T> x(row.size()), y(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
        x.data()[i] = from_float<T>(row[i]);
        y.data()[i] = from_float<T>(QUIET_NAN);
    }
    softmax(x.data(), y.data(), static_cast<std::int64_t>(row.size()));
    std::vector<float> result(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) result[i] = to_float(y.data()[i]);
    return result;
}

std::vector<float> naive(const std::vector<float>& row) {
    return run<float>(naive_softmax<float>, row);
}
std::vector<float> safe(const std::vector<float>& row) {
    return run<float>(safe_softmax<float>, row);
}

std::vector<double> exact_softmax(const std::vector<float>& row) {
    const double row_max = *std::max_element(row.begin(), row.end());
    std::vector<double> y;
    double sum = 0;
    for (const float x : row) sum += y.emplace_back(std::exp(x - row_max));
    for (double& p : y) p /= sum;
    return y;
}

// The largest |y - exact| / exact; NaN and wrong lengths fail.
void check_relative_error(const std::vector<float>& y, const std::vector<double>& exact, double tolerance) {
    REQUIRE(y.size() == exact.size());
    double worst = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
        const double error = std::abs(y[i] - exact[i]) / exact[i];
        worst = error <= worst ? worst : error;  // keeps a NaN
    }
    CHECK(worst <= tolerance);
}

bool all_nan(const std::vector<float>& row) {
    return std::all_of(row.begin(), row.end(), [](float y) { return std::isnan(y); });
}

std::vector<float> normal_row(std::size_t n, std::uint64_t seed, float spread) {
    std::vector<float> row(n);
    for (std::size_t i = 0; i < n; ++i) row[i] = spread * flash::testing::random_normal(seed, i);
    return row;
}

// The smallest x > 0 of fp32 whose naive softmax alone in its row is not 1.
float first_fp32_overflow() {
    std::uint32_t good = std::bit_cast<std::uint32_t>(1.0f), bad = std::bit_cast<std::uint32_t>(1000.0f);
    while (bad - good > 1) {
        const std::uint32_t middle = good + (bad - good) / 2;
        (naive({std::bit_cast<float>(middle)})[0] == 1 ? good : bad) = middle;
    }
    return std::bit_cast<float>(bad);
}

float first_fp16_overflow() {
    for (std::uint16_t bits = 0; bits < 0x7c00u; ++bits) {
        const float x = flash::float_from_fp16_bits(bits);
        if (run<fp16>(naive_softmax<fp16>, {x})[0] != 1) return x;
    }
    return INF;
}

// y[0] of n equal elements: 1 / n if their sum is right.
float fp16_naive_share_of_equal_elements(std::size_t n) {
    return run<fp16>(naive_softmax<fp16>, std::vector<float>(n, 0.0f))[0];
}

}  // namespace

TEST_CASE("naive and safe softmax agree with the formula on a row by hand: ln 1, ln 2, ln 5") {
    const std::vector<float> row = {0.0f, std::log(2.0f), std::log(5.0f)};
    for (const auto& y : {naive(row), safe(row)}) {
        CHECK(y[0] == doctest::Approx(1.0 / 8));
        CHECK(y[1] == doctest::Approx(2.0 / 8));
        CHECK(y[2] == doctest::Approx(5.0 / 8));
    }
}

TEST_CASE("Predict: naive softmax fails in fp16 from x = 11.09375 on, the first fp16 number above ln 65520") {
    // 65504 is the largest fp16 number; what is nearer to it than to 65536 still rounds down to it.
    const double threshold = std::log(65520.0);
    CHECK(std::log(65504.0) == doctest::Approx(11.0898).epsilon(1e-5));
    CHECK(first_fp16_overflow() == 11.09375f);
    CHECK(first_fp16_overflow() >= threshold);
    CHECK(first_fp16_overflow() - 0x1p-7f < threshold);  // fp16 numbers near 11 are 2^-7 apart
    CHECK(std::isnan(run<fp16>(naive_softmax<fp16>, {first_fp16_overflow()})[0]));
}

TEST_CASE("naive softmax fails in fp32 from the first number above ln 2^128 = 88.7228 on") {
    // Halfway between the largest fp32 number, 2^128 - 2^104, and 2^128: from there on exp rounds to inf.
    const double threshold = std::log(0x1p128 - 0x1p103);
    CHECK(std::log(static_cast<double>(std::numeric_limits<float>::max())) ==
          doctest::Approx(88.7228).epsilon(1e-6));
    const float first = first_fp32_overflow();
    CHECK(first >= threshold);
    CHECK(std::nextafter(first, 0.0f) < threshold);
    CHECK(std::isnan(naive({first})[0]));
}

TEST_CASE("exp overflows in bf16 from x = 89 on, the first bf16 number above ln (2^128 - 2^119)") {
    const double threshold = std::log(0x1p128 - 0x1p119);
    CHECK(to_float(from_float<bf16>(static_cast<float>(0x1p128 - 0x1p120))) == 0x1p128 - 0x1p120);
    CHECK(std::isfinite(
        to_float(from_float<bf16>(std::nextafter(static_cast<float>(0x1p128 - 0x1p119), 0.0f)))));
    CHECK(std::isinf(to_float(from_float<bf16>(static_cast<float>(0x1p128 - 0x1p119)))));
    CHECK((88.5 < threshold && threshold <= 89));
    CHECK(to_float(from_float<bf16>(88.74f)) == 88.5f);  // bf16 numbers near 89 are 1/2 apart
    CHECK(to_float(from_float<bf16>(88.76f)) == 89);
}

TEST_CASE("Predict: naive softmax of two fp32 scores of 88.5 is 0 and 0: each exp fits, their sum does not") {
    const auto y = naive({88.5f, 88.5f});
    CHECK(y[0] == 0);
    CHECK(y[1] == 0);
    CHECK(safe({88.5f, 88.5f})[0] == 0.5f);
}

TEST_CASE("naive softmax of very negative scores is 0 / 0") {
    CHECK(all_nan(naive({-110.0f, -111.0f})));
    CHECK(safe({-110.0f, -111.0f})[0] == doctest::Approx(1 / (1 + std::exp(-1.0))));
}

TEST_CASE("the example by hand: 1000, 1001, 1002 has the softmax of 0, 1, 2") {
    const auto y = safe({1000, 1001, 1002});
    CHECK(y == safe({0, 1, 2}));
    CHECK(y[0] == doctest::Approx(0.135335 / 1.503215));
    CHECK(y[1] == doctest::Approx(0.2447).epsilon(2e-4));
    CHECK(y[2] == doctest::Approx(1 / 1.503215));
    CHECK(all_nan(naive({1000, 1001, 1002})));
}

TEST_CASE("safe softmax is right where naive softmax is not, in fp32 and fp16") {
    for (const float shift : {0.0f, 11.5f, 100.0f, 10000.0f, -200.0f, -10000.0f}) {
        CAPTURE(shift);
        const std::vector<float> row = {shift, shift + 1, shift + 2};
        check_relative_error(safe(row), exact_softmax(row), 4e-7);
        std::vector<float> rounded;
        for (const float x : row) rounded.push_back(to_float(from_float<fp16>(x)));
        check_relative_error(run<fp16>(safe_softmax<fp16>, row), exact_softmax(rounded), 0x1p-11 + 4e-7);
    }
}

TEST_CASE("safe softmax matches double precision on random rows of every spread") {
    for (const float spread : {1.0f, 10.0f}) {
        for (const std::size_t n : {1u, 2u, 3u, 7u, 64u, 1000u}) {
            CAPTURE(spread);
            CAPTURE(n);
            const auto row = normal_row(n, n, spread);
            check_relative_error(safe(row), exact_softmax(row), 1e-5);
        }
    }
}

TEST_CASE("adding a constant to every element changes nothing, bit for bit where the addition is exact") {
    const std::vector<float> row = {3, -1, 0.5f, 2, -7};
    for (const float c : {1.0f, -64.0f, 1024.0f, 65536.0f}) {
        std::vector<float> shifted = row;
        for (float& x : shifted) x += c;
        CHECK(safe(shifted) == safe(row));
    }
}

TEST_CASE("the elements of a row sum to 1, and a permuted row gives the permuted result") {
    auto row = normal_row(257, 3, 2);
    auto y = safe(row);
    CHECK(std::accumulate(y.begin(), y.end(), 0.0) == doctest::Approx(1).epsilon(1e-6));
    std::reverse(row.begin(), row.end());
    std::reverse(y.begin(), y.end());
    check_relative_error(safe(row), {y.begin(), y.end()}, 2e-7);
}

TEST_CASE("a row of one element is 1, whatever the element") {
    for (const float x : {0.0f, 1e30f, -1e30f, 88.8f, std::numeric_limits<float>::max()}) {
        CHECK(safe({x})[0] == 1);
    }
}

TEST_CASE("the largest and the smallest number side by side are 1 and 0") {
    constexpr float MAX = std::numeric_limits<float>::max();
    CHECK(safe({MAX, -MAX}) == std::vector<float>{1, 0});
}

TEST_CASE("a row of length 0 needs no memory") {
    CHECK_NOTHROW(safe_softmax<float>(nullptr, nullptr, 0));
    CHECK_NOTHROW(naive_softmax<fp16>(nullptr, nullptr, 0));
}

TEST_CASE("a long row keeps its digits: 10 million elements whose small terms an fp32 sum would lose") {
    const std::size_t n = 10'000'000;
    std::vector<float> row(n, -1.2f);
    row[n / 2] = 0;
    const double sum = 1 + static_cast<double>(n - 1) * std::exp(static_cast<double>(-1.2f));
    const auto y = safe(row);
    CHECK(y[n / 2] * sum == doctest::Approx(1).epsilon(1e-6));
    CHECK(y[0] * sum == doctest::Approx(std::exp(static_cast<double>(-1.2f))).epsilon(1e-6));
    CHECK(y[n - 1] == y[0]);

    float fp32_sum = 0;
    for (const float x : row) fp32_sum += std::exp(x);
    CHECK(std::abs(fp32_sum - sum) > 0.01 * sum);
}

TEST_CASE(
    "Predict: an fp16 sum of ones stops at 2048, so 4096 equal elements get 1/2048 each, twice too much") {
    CHECK(fp16_naive_share_of_equal_elements(2048) == 1.0f / 2048);
    CHECK(fp16_naive_share_of_equal_elements(4096) == 1.0f / 2048);
    CHECK(run<fp16>(safe_softmax<fp16>, std::vector<float>(4096, 0.0f))[4095] == 1.0f / 4096);
}

TEST_CASE("an element of -inf weighs exactly 0, and a row of nothing else is all zeros") {
    CHECK(safe({-INF, 2, -INF, 2}) == std::vector<float>{0, 0.5f, 0, 0.5f});
    CHECK(safe({-INF, -INF, -INF}) == std::vector<float>{0, 0, 0});
    CHECK(run<fp16>(safe_softmax<fp16>, {-INF, -INF}) == std::vector<float>{0, 0});
}

TEST_CASE("A9: a NaN or +inf anywhere makes the whole row NaN, never silent zeros") {
    const std::vector<std::vector<float>> rows = {{0, INF},
                                                  {INF, 0},
                                                  {-INF, 0, INF},
                                                  {INF, INF},
                                                  {INF},
                                                  {QUIET_NAN},
                                                  {0, QUIET_NAN},
                                                  {QUIET_NAN, 0},
                                                  {1, QUIET_NAN, 2},
                                                  {QUIET_NAN, -INF},
                                                  {-INF, QUIET_NAN},
                                                  {-INF, -INF, QUIET_NAN},
                                                  {INF, QUIET_NAN}};
    for (const auto& row : rows) {
        CAPTURE(row.size());
        CHECK(all_nan(safe(row)));
        CHECK(all_nan(run<fp16>(safe_softmax<fp16>, row)));
    }
}

TEST_CASE("A14: a masked element weighs exactly 0, and an exp below the smallest normal number counts as 0") {
    for (const float x : {-1e30f, -87.4f, -100.0f, -87.34f}) CHECK(safe({0, x}) == std::vector<float>{1, 0});
    const float smallest_kept = safe({0, -87.33f})[1];
    CHECK(smallest_kept / std::exp(static_cast<double>(-87.33f)) == doctest::Approx(1).epsilon(1e-5));
    // Over every fp32 number around the limit: nothing subnormal comes out.
    int kept = 0, dropped = 0;
    for (float x = -87.336f; x > -87.337f; x = std::nextafter(x, -INF)) {
        const float y = safe({0, x})[1];
        CHECK((y == 0 || std::isnormal(y)));
        ++(y == 0 ? dropped : kept);
    }
    CHECK(kept > 10);
    CHECK(dropped > 10);
}

TEST_CASE("y may be x itself") {
    std::vector<float> row = {2, 1, 5, 3};
    const auto y = safe(row);
    safe_softmax(row.data(), row.data(), 4);
    CHECK(row == y);
    std::vector<float> other = {2, 1, 5, 3};
    naive_softmax(other.data(), other.data(), 4);
    check_relative_error(other, {y.begin(), y.end()}, 1e-6);
}

TEST_CASE("bad arguments are refused by name and nothing is written") {
    std::vector<float> x(8, 1.0f), y(8, 7.0f);
    const auto refused = [&](const float* from, float* to, std::int64_t n, const std::string& name) {
        for (auto* softmax : {naive_softmax<float>, safe_softmax<float>}) {
            try {
                softmax(from, to, n);
                FAIL("accepted a bad " << name);
            } catch (const std::invalid_argument& error) {
                CHECK(std::string(error.what()).find(name) == 0);
            }
        }
    };
    refused(x.data(), y.data(), -1, "n is -1");
    refused(x.data(), y.data(), INT64_MAX, "n is 9223372036854775807");
    refused(nullptr, y.data(), 4, "x is null");
    refused(x.data(), nullptr, 4, "y is null");
    refused(x.data(), x.data() + 3, 4, "y overlaps x");
    refused(x.data() + 3, x.data(), 4, "y overlaps x");
    const auto misaligned = reinterpret_cast<std::uintptr_t>(x.data()) + 1;
    refused(reinterpret_cast<const float*>(misaligned), y.data(), 4, "x is not aligned");
    CHECK(x == std::vector<float>(8, 1.0f));
    CHECK(y == std::vector<float>(8, 7.0f));
}
