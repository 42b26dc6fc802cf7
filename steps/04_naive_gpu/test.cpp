#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "common/gpu/device.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/conformance.hpp"
#include "common/testing/exact_counts.hpp"
#include "common/testing/needs_device.hpp"
#include "common/testing/print_vectors.hpp"
#include "common/testing/random.hpp"
#include "doctest/doctest.h"
#include "softmax.hpp"
#include "vector_add.hpp"

using namespace flash;
using namespace flash::step04;
using flash::gpu::DeviceBuffer;

namespace {

constexpr flash::testing::Capabilities kCapabilities{.step = "step 04"};
constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float QUIET_NAN = std::numeric_limits<float>::quiet_NaN();

std::size_t as_size(std::int64_t n) {
    return static_cast<std::size_t>(n);
}

template <class T> DeviceBuffer<T> on_device(const std::vector<T>& host) {
    DeviceBuffer<T> buffer(host.size());
    buffer.copy_from_host(host.data());
    return buffer;
}
template <class T> std::vector<T> on_host(const DeviceBuffer<T>& buffer) {
    std::vector<T> host(buffer.size());
    buffer.copy_to_host(host.data());
    return host;
}
template <class T> std::vector<T> random_values(std::int64_t n, std::uint64_t seed, float size = 1) {
    std::vector<T> values(as_size(n));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = from_float<T>(size * flash::testing::random_normal(seed, i));
    return values;
}
template <class T> T* shifted(T* pointer, std::uintptr_t bytes) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
}
template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
        if (flash::testing::bits_of(a[i]) != flash::testing::bits_of(b[i])) return false;
    return true;
}

// The emulator's counters of one call, or a SKIP line where nothing is counted.
bool count(simt::Counters& counters, const std::function<void()>& call) {
    if (!simt::hooks_enabled()) {
        std::printf("SKIP: this build counts no memory accesses\n");
        return false;
    }
    counters = simt::count(call);
    return true;
}

// One forward call on random values with dense storage.
template <class T> struct Problem {
    Shape shape;
    Mask mask = Mask::none();
    DeviceBuffer<T> q{0}, k{0}, v{0}, o{0};
    DeviceBuffer<float> lse{0};

    explicit Problem(const Shape& s) : shape(s) {
        const std::int64_t q_size = std::int64_t{s.batch} * s.heads_q * s.len_q * s.head_dim;
        const std::int64_t kv_size = std::int64_t{s.batch} * s.heads_kv * s.len_kv * s.head_dim;
        q = on_device(random_values<T>(q_size, 1));
        k = on_device(random_values<T>(kv_size, 2));
        v = on_device(random_values<T>(kv_size, 3));
        o = on_device(std::vector<T>(as_size(q_size), from_float<T>(QUIET_NAN)));
        lse = on_device(std::vector<float>(as_size(std::int64_t{s.batch} * s.heads_q * s.len_q), QUIET_NAN));
    }
    ForwardArgs<T> args() {
        const Shape& s = shape;
        return {s,
                dense_bhnd<const T>(q.data(), s.heads_q, s.len_q, s.head_dim),
                dense_bhnd<const T>(k.data(), s.heads_kv, s.len_kv, s.head_dim),
                dense_bhnd<const T>(v.data(), s.heads_kv, s.len_kv, s.head_dim),
                dense_bhnd<T>(o.data(), s.heads_q, s.len_q, s.head_dim),
                lse.data(),
                mask,
                default_scale(s.head_dim)};
    }
};

}  // namespace

TEST_CASE_TEMPLATE("attention fulfils the contract", T, float, fp16, bf16) {
    flash::testing::run_forward_conformance<T, DeviceBuffer>(kCapabilities, attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention is right on random shapes", T, float, fp16, bf16) {
    flash::testing::run_forward_fuzz<T, DeviceBuffer>(kCapabilities, attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention refuses bad arguments and writes nothing", T, float, fp16, bf16) {
    flash::testing::run_bad_arguments<T, DeviceBuffer>(kCapabilities, attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention is free of faults others have met", T, float, fp16, bf16) {
    flash::testing::run_public_faults<T, DeviceBuffer>(kCapabilities, attention_forward<T>);
}

// ---------------------------------------------------------------------------------------------------------
// Vector add

TEST_CASE("Predict: 300 elements in blocks of 128 take three blocks, and 44 threads of the third are live") {
    REQUIRE(blocks_for(300, 128) == 3);
    DeviceBuffer<int> live = on_device(std::vector<int>(3, 0));
    count_live_threads(live.data(), 300);
    CHECK(on_host(live) == std::vector<int>{128, 128, 44});
}

TEST_CASE("vector add is exact at every length around a block and writes nothing beyond it") {
    for (const std::int64_t n : {0, 1, 127, 128, 129, 300, 100'003}) {
        for (const int block_threads : {1, 33, 128, 1024}) {
            if (n > 1000 && block_threads < 128) continue;
            CAPTURE(n);
            CAPTURE(block_threads);
            const auto a = random_values<float>(n, 1), b = random_values<float>(n, 2);
            DeviceBuffer<float> device_a = on_device(a), device_b = on_device(b);
            DeviceBuffer<float> out = on_device(std::vector<float>(as_size(n + 8), -1));
            vector_add(device_a.data(), device_b.data(), out.data(), n, block_threads);
            const auto sum = on_host(out);
            std::int64_t wrong = 0;
            for (std::size_t i = 0; i < sum.size(); ++i) wrong += sum[i] != (i < a.size() ? a[i] + b[i] : -1);
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("threads that the mask stops touch no memory") {
    DeviceBuffer<float> a = on_device(random_values<float>(300, 1)),
                        b = on_device(random_values<float>(300, 1));
    DeviceBuffer<float> out(300);
    simt::Counters counters;
    if (!count(counters, [&] { vector_add(a.data(), b.data(), out.data(), 300); })) return;
    CHECK(counters.global_load_bytes_issued == 2 * 300 * 4);
    CHECK(counters.global_store_bytes_issued == 300 * 4);
}

TEST_CASE("vector add refuses what it cannot do, naming the argument") {
    DeviceBuffer<float> a = on_device(std::vector<float>(4, 1)), b = on_device(std::vector<float>(4, 1)),
                        out = on_device(std::vector<float>(8, 1));
    float *x = a.data(), *y = out.data();
    CHECK_THROWS_WITH_AS(vector_add(x, x, x, -1), "n is -1; it must be >= 0", std::invalid_argument);
    CHECK_THROWS_WITH_AS(vector_add(x, x, x, 4, 0), "block_threads is 0; a block has 1 to 1024 threads",
                         std::invalid_argument);
    CHECK_THROWS_AS(vector_add(x, x, x, 4, 1025), std::invalid_argument);
    CHECK_THROWS_AS(vector_add(nullptr, x, x, 4), std::invalid_argument);
    CHECK_THROWS_AS(vector_add(x, x, x, std::numeric_limits<std::int64_t>::max()), std::invalid_argument);
    CHECK_THROWS_AS(count_live_threads(nullptr, 4), std::invalid_argument);
    CHECK_THROWS_WITH_AS(blocks_for(5, 0), "block_threads is 0; a block has 1 to 1024 threads",
                         std::invalid_argument);
    CHECK_THROWS_AS(blocks_for(std::numeric_limits<std::int64_t>::min(), -1), std::invalid_argument);
    CHECK_THROWS_WITH_AS(blocks_for(-5, 128), "n is -5; it must be >= 0", std::invalid_argument);
    CHECK_THROWS_WITH_AS(vector_add(shifted(x, 2), b.data(), y, 3),
                         "a is not aligned; 4-byte alignment is needed", std::invalid_argument);
    CHECK_THROWS_AS(vector_add(x, shifted(b.data(), 1), y, 3), std::invalid_argument);
    CHECK_THROWS_AS(vector_add(x, b.data(), shifted(y, 2), 3), std::invalid_argument);
    CHECK_THROWS_WITH_AS(vector_add(y, b.data(), y + 1, 4),
                         "out overlaps a in part; out must be a itself or memory of its own",
                         std::invalid_argument);
    CHECK_THROWS_AS(vector_add(x, y + 1, y, 4), std::invalid_argument);
    CHECK_NOTHROW(vector_add(y, y + 4, y, 4));
    CHECK_NOTHROW(vector_add(x, y, y, 4));
    DeviceBuffer<int> live(4);
    CHECK_THROWS_WITH_AS(count_live_threads(shifted(live.data(), 2), 4),
                         "live is not aligned; 4-byte alignment is needed", std::invalid_argument);
    CHECK_NOTHROW(vector_add(nullptr, nullptr, nullptr, 0));
}

// ---------------------------------------------------------------------------------------------------------
// Row softmax

namespace {

template <class T> using Softmax = void (*)(const T*, T*, std::int64_t rows, std::int64_t cols);

template <class T> void fused(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
    softmax_fused(x, y, rows, cols);
}
template <class T> void unfused(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
    DeviceBuffer<float> row_max(as_size(rows)), row_sum(as_size(rows));
    softmax_unfused(x, y, row_max.data(), row_sum.data(), rows, cols);
    gpu::synchronize();
}

// y for a host matrix. Both matrices begin `offset` elements behind a 16-byte boundary; what lies around y
// must stay.
template <class T>
std::vector<T> run(Softmax<T> softmax, const std::vector<T>& x, std::int64_t rows, std::int64_t cols,
                   std::size_t offset = 0) {
    const std::size_t begin = 16 + offset, size = x.size();
    std::vector<T> memory(begin + size + 16, flash::testing::canary<T>());
    DeviceBuffer<T> device_y = on_device(memory);
    std::copy(x.begin(), x.end(), memory.begin() + static_cast<std::ptrdiff_t>(offset));
    memory.resize(offset + size);  // x ends with its allocation
    DeviceBuffer<T> device_x = on_device(memory);
    softmax(device_x.data() + offset, device_y.data() + begin, rows, cols);
    const std::vector<T> all = on_host(device_y);
    std::size_t touched = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const bool is_canary =
            flash::testing::bits_of(all[i]) == flash::testing::bits_of(flash::testing::canary<T>());
        touched += is_canary != (i < begin || i >= begin + size);
    }
    CHECK(touched == 0);  // all of y is written and nothing else
    return {all.begin() + static_cast<std::ptrdiff_t>(begin),
            all.begin() + static_cast<std::ptrdiff_t>(begin + size)};
}

// How far y may be from the exact value, relative to it: (x - max) * log2(e) is rounded three times, exp2 and
// the sum cost a few units in the last place of fp32, and every rounding to T half a unit of T.
template <class T> double allowed_error(double exact, double distance_from_max, int roundings_to_T) {
    const bool is_float = sizeof(T) == 4;
    const bool is_fp16 = std::string(dtype_name<T>()) == "fp16";
    const double half_unit = is_float ? 0 : is_fp16 ? 0x1p-11 : 0x1p-8;
    const double relative = 0x1p-20 + 0x1p-22 * distance_from_max + roundings_to_T * half_unit;
    return exact * relative + (is_fp16 ? 0x1p-24 : 0x1p-126);  // the second: subnormal numbers
}

// The number of elements of rows `first_row` and on that are farther from double precision than allowed.
template <class T>
std::int64_t count_wrong(const std::vector<T>& x, const std::vector<T>& y, std::int64_t rows,
                         std::int64_t cols, int roundings_to_T) {
    std::int64_t wrong = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
        const T* x_row = x.data() + row * cols;
        const T* y_row = y.data() + row * cols;
        double row_max = -INF, row_sum = 0;
        for (std::int64_t i = 0; i < cols; ++i) row_max = std::fmax(row_max, to_float(x_row[i]));
        for (std::int64_t i = 0; i < cols; ++i) row_sum += std::exp(to_float(x_row[i]) - row_max);
        for (std::int64_t i = 0; i < cols; ++i) {
            const double exact = std::exp(to_float(x_row[i]) - row_max) / row_sum;
            const double error = std::abs(to_float(y_row[i]) - exact);
            wrong += !(error <= allowed_error<T>(exact, row_max - to_float(x_row[i]), roundings_to_T));
        }
    }
    return wrong;
}

template <class T> void check_softmax(std::int64_t rows, std::int64_t cols, std::size_t offset = 0) {
    CAPTURE(rows);
    CAPTURE(cols);
    CAPTURE(offset);
    const auto x = random_values<T>(rows * cols, 1, 4);
    CHECK(count_wrong(x, run(fused<T>, x, rows, cols, offset), rows, cols, 1) == 0);
    CHECK(count_wrong(x, run(unfused<T>, x, rows, cols, offset), rows, cols, 3) == 0);
}

// What a row of fp32 values becomes; the same at the start and at the end of a row, on chip and beyond, 16
// bytes at a time and one element. The rest of the row is -inf, and a row of zeros follows that must not be
// affected.
void check_special_row(const std::vector<float>& row, const std::vector<float>& want) {
    const std::int64_t on_chip = kOnChipRowBytes / 4;
    for (const std::int64_t cols : {std::int64_t{8}, std::int64_t{1001}, std::int64_t{1024}, on_chip + 4}) {
        for (const std::int64_t first : {std::int64_t{0}, cols - static_cast<std::int64_t>(row.size())}) {
            for (const Softmax<float> softmax : {fused<float>, unfused<float>}) {
                CAPTURE(cols);
                CAPTURE(first);
                std::vector<float> x(as_size(2 * cols), 0);
                for (std::int64_t i = 0; i < cols; ++i) x[as_size(i)] = -INF;
                for (std::size_t i = 0; i < row.size(); ++i) x[as_size(first) + i] = row[i];
                const auto y = run(softmax, x, 2, cols);
                const bool row_is_nan = std::isnan(want[0]);
                std::int64_t wrong = 0;
                for (std::int64_t i = 0; i < cols; ++i) {
                    const bool in_row = i >= first && i < first + static_cast<std::int64_t>(row.size());
                    const float expected = row_is_nan ? QUIET_NAN : in_row ? want[as_size(i - first)] : 0;
                    const float got = y[as_size(i)];
                    wrong += std::isnan(expected) ? !std::isnan(got)
                                                  : !(std::abs(got - expected) <= 1e-6f * expected);
                    wrong += !(std::abs(y[as_size(cols + i)] * static_cast<float>(cols) - 1) <= 1e-6f);
                }
                CHECK(wrong == 0);
            }
        }
    }
}

}  // namespace

TEST_CASE_TEMPLATE("row softmax equals double precision around every length where it changes course", T,
                   float, fp16, bf16) {
    for (const std::int64_t cols :
         {1,   2,   3,   4,   7,   8,   9,    31,   32,   33,   63,   64,   65,   127,  128, 129,
          255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 4097})
        check_softmax<T>(cols < 300 ? 9 : 3, cols);
    const std::int64_t on_chip = kOnChipRowBytes / static_cast<std::int64_t>(sizeof(T));
    for (const std::int64_t cols : {on_chip - 1, on_chip, on_chip + 1, on_chip + 8, 3 * on_chip})
        check_softmax<T>(2, cols);
}

TEST_CASE_TEMPLATE("row softmax takes matrices that are aligned to an element only", T, float, fp16, bf16) {
    for (const std::size_t offset : {1, 2, 3})
        for (const std::int64_t cols : {64, 1024}) check_softmax<T>(3, cols, offset);
}

TEST_CASE(
    "C2: the warps of a block meet at one barrier per row, between writing their sums and reading all") {
    check_softmax<bf16>(40, 3000);
    const std::int64_t rows = 7, cols = 3000;
    DeviceBuffer<float> x = on_device(random_values<float>(rows * cols, 1)), y(as_size(rows * cols));
    simt::Counters counters;
    if (!count(counters, [&] { softmax_fused(x.data(), y.data(), rows, cols); })) return;
    CHECK(counters.barriers == rows);
}

TEST_CASE("a softmax of no rows or no columns launches nothing and needs no memory") {
    CHECK_NOTHROW(softmax_fused<float>(nullptr, nullptr, 0, 5));
    CHECK_NOTHROW(softmax_fused<float>(nullptr, nullptr, 5, 0));
    CHECK_NOTHROW(softmax_unfused<bf16>(nullptr, nullptr, nullptr, nullptr, 5, 0));
}

TEST_CASE("A1: a large negative finite score is a score, not minus infinity") {
    check_special_row({-46340.95f}, {1});
    check_special_row({-3e38f, -3e38f}, {0.5f, 0.5f});
}
TEST_CASE("A7: a row of nothing but -inf is all zeros") {
    check_special_row({-INF, -INF}, {0, 0});
}
TEST_CASE("A9: a row with +inf or NaN is all NaN, and no other row is") {
    check_special_row({0, INF}, {QUIET_NAN, QUIET_NAN});
    check_special_row({-INF, 0, INF}, {QUIET_NAN, QUIET_NAN, QUIET_NAN});
    check_special_row({0, QUIET_NAN}, {QUIET_NAN, QUIET_NAN});
    check_special_row({QUIET_NAN}, {QUIET_NAN});
    check_special_row({INF, INF}, {QUIET_NAN, QUIET_NAN});
}
TEST_CASE("A14: a weight below the smallest normal number is exactly 0") {
    check_special_row({0, -87.4f, -1e30f, -3e38f}, {1, 0, 0, 0});
}
TEST_CASE("a row of equal numbers, however large, is uniform") {
    check_special_row({3e38f, 3e38f, 3e38f, 3e38f}, {0.25f, 0.25f, 0.25f, 0.25f});
    check_special_row({3e38f, -3e38f}, {1, 0});
}

TEST_CASE_TEMPLATE("row softmax gives the same bits every time", T, float, bf16) {
    const auto x = random_values<T>(5 * 3000, 1, 4);
    for (const Softmax<T> softmax : {fused<T>, unfused<T>}) {
        const auto first = run(softmax, x, 5, 3000);
        for (int repeat = 0; repeat < 5; ++repeat) CHECK(same_bits(first, run(softmax, x, 5, 3000)));
    }
}

TEST_CASE("row softmax refuses what it cannot do, naming the argument") {
    DeviceBuffer<float> memory = on_device(std::vector<float>(64, 1));
    float* x = memory.data();
    float* y = x + 32;
    const auto* x_bytes = reinterpret_cast<const char*>(x);
    CHECK_THROWS_WITH_AS(softmax_fused(x, y, -1, 4), "rows is -1; it must be >= 0", std::invalid_argument);
    CHECK_THROWS_WITH_AS(softmax_fused(x, y, 1, -4), "cols is -4; it must be >= 0", std::invalid_argument);
    CHECK_THROWS_AS(softmax_fused(x, y, 1, (std::int64_t{1} << 30) + 1), std::invalid_argument);
    CHECK_THROWS_AS(softmax_fused(x, y, std::int64_t{1} << 40, std::int64_t{1} << 24), std::invalid_argument);
    CHECK_THROWS_AS(softmax_fused(x, x + (std::int64_t{1} << 40), std::int64_t{1} << 35, 1),
                    std::invalid_argument);
    CHECK_THROWS_AS(softmax_fused<float>(nullptr, y, 1, 4), std::invalid_argument);
    CHECK_THROWS_AS(softmax_fused<float>(x, nullptr, 1, 4), std::invalid_argument);
    CHECK_THROWS_AS(softmax_fused(reinterpret_cast<const float*>(x_bytes + 2), y, 1, 4),
                    std::invalid_argument);
    CHECK_THROWS_WITH_AS(softmax_fused(x, x + 3, 1, 4), "y overlaps x; it needs memory of its own",
                         std::invalid_argument);
    CHECK_THROWS_AS(softmax_unfused<float>(x, y, nullptr, x, 1, 4), std::invalid_argument);
    float* row_max = x + 16;
    float* row_sum = x + 24;  // of 2 rows of 4 numbers at x and at y
    CHECK_NOTHROW(softmax_unfused(x, y, row_max, row_sum, 2, 4));
    CHECK_THROWS_WITH_AS(softmax_unfused(x, y, shifted(row_max, 2), row_sum, 2, 4),
                         "row_max is not aligned; 4-byte alignment is needed", std::invalid_argument);
    CHECK_THROWS_AS(softmax_unfused(x, y, row_max, shifted(row_sum, 1), 2, 4), std::invalid_argument);
    CHECK_THROWS_WITH_AS(softmax_unfused(x, y, y + 7, row_sum, 2, 4),
                         "row_max overlaps y; it needs memory of its own", std::invalid_argument);
    CHECK_THROWS_AS(softmax_unfused(x, y, row_max, y + 3, 2, 4), std::invalid_argument);
    CHECK_THROWS_AS(softmax_unfused(x, y, x + 7, row_sum, 2, 4), std::invalid_argument);
    CHECK_THROWS_AS(softmax_unfused(x, y, row_max, x, 2, 4), std::invalid_argument);
    CHECK_THROWS_WITH_AS(softmax_unfused(x, y, row_max, row_max, 2, 4),
                         "row_sum overlaps row_max; it needs memory of its own", std::invalid_argument);
    CHECK_THROWS_AS(softmax_unfused(x, y, row_max, row_max + 1, 2, 4), std::invalid_argument);
}

TEST_CASE_TEMPLATE(
    "the fused kernel moves 2 s R C bytes, a longer row 3 s R C; the four kernels 6 s R C + 16 R", T, float,
    fp16, bf16) {
    const std::int64_t s = sizeof(T);
    simt::Counters counters;
    struct Size {
        std::int64_t rows, cols;
    };
    for (const Size size : {Size{5, 64}, Size{9, 33}, Size{2, 1024}, Size{3, 1001},
                            Size{2, kOnChipRowBytes / s}, Size{2, kOnChipRowBytes / s + 8}}) {
        const std::int64_t R = size.rows, C = size.cols;
        CAPTURE(R);
        CAPTURE(C);
        const auto matrix = static_cast<std::uint64_t>(s * R * C), rows = static_cast<std::uint64_t>(R);
        DeviceBuffer<T> x = on_device(random_values<T>(R * C, 1)), y(as_size(R * C));
        DeviceBuffer<float> row_max(as_size(R)), row_sum(as_size(R));
        if (!count(counters, [&] { softmax_fused(x.data(), y.data(), R, C); })) return;
        CHECK(counters.launches == 1);
        CHECK(counters.global_load_bytes_issued == (s * C <= kOnChipRowBytes ? 1 : 2) * matrix);
        CHECK(counters.global_load_bytes_distinct_per_launch == matrix);
        CHECK(counters.global_store_bytes_issued == matrix);
        CHECK(counters.global_store_bytes_distinct_per_launch == matrix);

        count(counters, [&] { softmax_unfused(x.data(), y.data(), row_max.data(), row_sum.data(), R, C); });
        CHECK(counters.launches == 4);
        CHECK(counters.global_load_bytes_distinct_per_launch == 4 * matrix + 8 * rows);
        CHECK(counters.global_store_bytes_distinct_per_launch == 2 * matrix + 8 * rows);
        CHECK(counters.global_store_bytes_issued == 2 * matrix + 8 * rows);
    }
}

TEST_CASE("Predict: the four kernels of the unfused softmax move 3 times the bytes of the fused one") {
    DeviceBuffer<float> x = on_device(random_values<float>(16 * 1024, 1)), y(16 * 1024), row_max(16),
                        row_sum(16);
    const auto bytes = [](const simt::Counters& c) {
        return static_cast<double>(c.global_load_bytes_distinct_per_launch +
                                   c.global_store_bytes_distinct_per_launch);
    };
    simt::Counters one, four;
    if (!count(one, [&] { softmax_fused(x.data(), y.data(), 16, 1024); })) return;
    count(four, [&] { softmax_unfused(x.data(), y.data(), row_max.data(), row_sum.data(), 16, 1024); });
    CHECK(bytes(four) / bytes(one) == doctest::Approx(3).epsilon(0.001));
}

// ---------------------------------------------------------------------------------------------------------
// Attention

namespace {

// Bytes that the three kernels move per head, each byte once per kernel: S in fp32 is stored and loaded, P in
// T likewise, Q, K and V are loaded, O and L stored.
double model_bytes(std::int64_t N, std::int64_t D, std::int64_t element_bytes) {
    return static_cast<double>(N * N * (8 + 2 * element_bytes) + 4 * N * D * element_bytes + 4 * N);
}

}  // namespace

TEST_CASE_TEMPLATE("attention moves N^2 (8 + 2 s) + 4 N D s + 4 N bytes per head, causal or not", T, float,
                   fp16, bf16) {
    const int N = 70, D = 24, heads = 2;
    for (const Mask& mask : {Mask::none(), Mask::causal_top_left()}) {
        Problem<T> p({1, heads, heads, N, N, D});
        p.mask = mask;
        DeviceBuffer<std::byte> workspace(as_size(workspace_bytes<T>(p.shape)));
        const auto bytes = static_cast<std::int64_t>(workspace.size());
        simt::Counters counters;
        if (!count(counters, [&] { attention_forward(p.args(), workspace.data(), bytes); })) return;
        CHECK(counters.launches == 3);
        CHECK(static_cast<double>(counters.global_load_bytes_distinct_per_launch +
                                  counters.global_store_bytes_distinct_per_launch) ==
              heads * model_bytes(N, D, sizeof(T)));
        // No fewer passes than stated: S is loaded three times as issued, P once per output channel.
        const double s_loads = 3.0 * N * N * 4, p_v_loads = 2.0 * N * N * D * sizeof(T);
        const double q_k_loads = (mask.is_causal ? N * (N + 1) / 2 : N * N) * 2.0 * D * sizeof(T);
        CHECK(static_cast<double>(counters.global_load_bytes_issued) ==
              heads * (s_loads + p_v_loads + q_k_loads));
    }
}

TEST_CASE_TEMPLATE("a load of K takes a sector for every lane, every other load and store whole sectors", T,
                   float, fp16, bf16) {
    const std::uint64_t N = 96, D = 64, s = sizeof(T), heads_q = 4;
    Problem<T> p({1, 4, 2, 96, 96, 64});  // two query heads to a key head
    DeviceBuffer<std::byte> workspace(as_size(workspace_bytes<T>(p.shape)));
    const auto bytes = static_cast<std::int64_t>(workspace.size());
    simt::Counters counters;
    if (!flash::testing::counts_are_exact()) return;
    if (!count(counters, [&] { attention_forward(p.args(), workspace.data(), bytes); })) return;
    // Warps are 32 neighbouring elements: of a row of S, of a row of P, of a row of O.
    const std::uint64_t warps_s = N * N / 32, warps_o = N * D / 32;
    CHECK(counters.global_load_requests == heads_q * (warps_s * 2 * D + 3 * warps_s + warps_o * 2 * N));
    // q_i[d] is one address, K is 32 rows, S is 128 bytes, P is one address, V is 32 s bytes.
    CHECK(counters.global_load_sectors ==
          heads_q * (warps_s * D * (1 + 32) + 3 * warps_s * 4 + warps_o * N * (1 + s)));
    // S, P, O, and one number of L from each row's warp.
    CHECK(counters.global_store_requests == heads_q * (2 * warps_s + warps_o + N));
    CHECK(counters.global_store_sectors == heads_q * (warps_s * (4 + s) + warps_o * s + N));
    CHECK(counters.exp2 == heads_q * 2 * N * N);  // in the sum's pass and in the last
    CHECK(counters.barriers + counters.shared_load_requests + counters.shared_store_requests == 0);
}

TEST_CASE_TEMPLATE("the row softmax loads and stores 16 bytes a lane, in whole sectors", T, float, fp16,
                   bf16) {
    const std::int64_t rows = 4, cols = 2048;
    DeviceBuffer<T> x = on_device(random_values<T>(rows * cols, 1)), y(as_size(rows * cols));
    simt::Counters counters;
    if (!flash::testing::counts_are_exact()) return;
    if (!count(counters, [&] { softmax_fused(x.data(), y.data(), rows, cols); })) return;
    const std::uint64_t bytes = rows * cols * sizeof(T);
    CHECK(counters.global_load_requests == bytes / (32 * 16));
    CHECK(counters.global_load_sectors == bytes / 32);
    CHECK(counters.global_store_requests == bytes / (32 * 16));
    CHECK(counters.global_store_sectors == bytes / 32);
    CHECK(counters.shared_bank_conflicts == 0);
}

TEST_CASE("at N = 256, D = 64 in bf16 a head issues 33.2 MiB, of which 897 KiB are distinct per launch") {
    Problem<bf16> p({1, 1, 1, 256, 256, 64});
    DeviceBuffer<std::byte> workspace(as_size(workspace_bytes<bf16>(p.shape)));
    const auto bytes = static_cast<std::int64_t>(workspace.size());
    simt::Counters counters;
    if (!count(counters, [&] { attention_forward(p.args(), workspace.data(), bytes); })) return;
    const auto issued = counters.global_load_bytes_issued + counters.global_store_bytes_issued;
    CHECK(static_cast<double>(issued) / (1 << 20) == doctest::Approx(33.2).epsilon(0.002));
    CHECK(counters.global_load_bytes_distinct_per_launch + counters.global_store_bytes_distinct_per_launch ==
          897 * 1024);
}

TEST_CASE(
    "Predict: a head of N = 4096, D = 64 in bf16 does 21 FLOP per byte it moves, and one of N = 16384 as "
    "many") {
    const auto intensity = [](std::int64_t N, std::int64_t D) {
        return 4.0 * static_cast<double>(N * N * D) / model_bytes(N, D, 2);
    };
    CHECK(model_bytes(4096, 64, 2) == 203'440'128);
    CHECK(std::round(intensity(4096, 64)) == 21);
    CHECK(std::round(intensity(16384, 64)) == 21);
    CHECK(intensity(1 << 20, 64) == doctest::Approx(64.0 / 3).epsilon(0.001));  // D / 3
}

TEST_CASE("the intensities of docs/memory.md") {
    const double N = 1 << 20, D = 128, flop = 4 * N * N * D;
    const auto tensors = [&](double s) { return 4 * s * N * D; };
    CHECK(flop / (4 * 2 * N * N + tensors(2)) == doctest::Approx(D / 2).epsilon(0.001));
    CHECK(flop / (16 * N * N + tensors(4)) == doctest::Approx(D / 4).epsilon(0.001));
    CHECK(flop / model_bytes(1 << 20, 128, 2) == doctest::Approx(D / 3).epsilon(0.001));
    CHECK(flop / model_bytes(1 << 20, 128, 4) == doctest::Approx(D / 4).epsilon(0.001));
    CHECK(flop / (8 * 2 * N * N + tensors(2)) == doctest::Approx(D / 4).epsilon(0.001));  // D / (2 s)
    CHECK(flop / (28 * N * N + tensors(2)) == doctest::Approx(D / 7).epsilon(0.001));
    CHECK(flop / (tensors(2) + 4 * N) == doctest::Approx(N / 2).epsilon(0.01));
    CHECK(model_bytes(4, 2, 4) == 400);
    // The kernels of step 04 one by one, in a 2-byte type: scores, output.
    CHECK(flop / 2 / (4 * N * N + tensors(2) / 2) == doctest::Approx(D / 2).epsilon(0.001));
    CHECK(flop / 2 / (2 * N * N + tensors(2) / 2) == doctest::Approx(D).epsilon(0.001));
}

TEST_CASE("Predict: at 32,768 tokens S and P of one head take 6.4 GB in bf16, and L takes 131,072 bytes") {
    const Shape shape{1, 1, 1, 32768, 32768, 64};
    CHECK(slice_workspace_bytes<bf16>(shape) == 6'442'450'944);
    CHECK(std::int64_t{4} * shape.len_q == 131'072);
}

TEST_CASE("the workspace holds whole slices, within its limit unless one slice is larger") {
    const std::int64_t slice = 4096 * 4096 * 6;
    CHECK(slice_workspace_bytes<bf16>({1, 1, 1, 4096, 4096, 64}) == slice);
    CHECK(workspace_bytes<bf16>({2, 8, 8, 4096, 4096, 64}) == 16 * slice);
    CHECK(workspace_bytes<bf16>({100, 8, 8, 4096, 4096, 64}) == kWorkspaceLimit / slice * slice);
    CHECK(workspace_bytes<bf16>({2, 8, 8, 65536, 65536, 64}) == std::int64_t{24} << 30);
    CHECK(workspace_bytes<float>({1, 1, 1, 3, 5, 64}) == 3 * 5 * 8);
    CHECK(workspace_bytes<float>({0, 1, 1, 3, 5, 64}) == 0);
    CHECK(workspace_bytes<float>({1, 1, 1, 3, 0, 64}) == 0);
    const int max = std::numeric_limits<int>::max();
    CHECK_THROWS_AS(slice_workspace_bytes<float>({1, 1, 1, max, max, 1}), std::invalid_argument);
    CHECK_THROWS_WITH_AS(slice_workspace_bytes<float>({1, 1, 1, -3, 5, 64}),
                         "shape.len_q is -3; sizes must be >= 0", std::invalid_argument);
    CHECK_THROWS_AS(slice_workspace_bytes<float>({1, 1, 1, 3, -5, 64}), std::invalid_argument);
    CHECK_THROWS_AS(workspace_bytes<float>({-2, 1, 1, 3, 5, 64}), std::invalid_argument);
    CHECK_THROWS_AS(workspace_bytes<float>({2, -1, -1, 3, 5, 64}), std::invalid_argument);
    const int most = (1 << 30) - 32768;  // the most tokens a call may have, as queries and keys
    CHECK(slice_workspace_bytes<float>({1, 1, 1, most, most, 1}) == std::int64_t{8} * most * most);
}

TEST_CASE_TEMPLATE("a workspace for fewer slices gives the same bits in more launches", T, float, fp16,
                   bf16) {
    Problem<T> p({3, 4, 2, 33, 45, 16});
    p.mask = Mask::causal_bottom_right(p.shape);
    attention_forward(p.args());
    const auto o = on_host(p.o);
    const auto lse = on_host(p.lse);
    const std::int64_t slice = slice_workspace_bytes<T>(p.shape);
    for (const std::int64_t slices : {1, 5, 11, 12, 13}) {
        CAPTURE(slices);
        Problem<T> again(p.shape);
        again.mask = p.mask;
        DeviceBuffer<std::byte> workspace(as_size(slices * slice + slice / 2));
        attention_forward(again.args(), workspace.data(), static_cast<std::int64_t>(workspace.size()));
        gpu::synchronize();
        CHECK(same_bits(on_host(again.o), o));
        CHECK(same_bits(on_host(again.lse), lse));
    }
}

TEST_CASE("a workspace that is too small, null or misaligned is refused, and nothing is written") {
    Problem<bf16> p({1, 2, 2, 7, 9, 8});
    const std::int64_t slice = slice_workspace_bytes<bf16>(p.shape);
    DeviceBuffer<std::byte> workspace(as_size(slice + 8));
    CHECK_THROWS_WITH_AS(attention_forward(p.args(), workspace.data(), slice - 1),
                         "the workspace has 377 bytes; S and P of one (batch, head) slice need 378",
                         std::invalid_argument);
    CHECK_THROWS_AS(attention_forward(p.args(), nullptr, slice), std::invalid_argument);
    CHECK_THROWS_AS(attention_forward(p.args(), workspace.data() + 2, slice), std::invalid_argument);
    CHECK_THROWS_AS(attention_forward(p.args(), workspace.data(), -1), std::invalid_argument);
    for (const float x : on_host(p.lse)) CHECK(std::isnan(x));
}

TEST_CASE("a workspace that overlaps a tensor is refused, and nothing is written") {
    Problem<float> p({1, 2, 2, 8, 9, 8});
    const std::int64_t bytes = workspace_bytes<float>(p.shape);
    DeviceBuffer<float> memory(4096);  // tensor and workspace are cut out of it
    float* tensor = memory.data() + 1024;
    const std::vector<std::pair<std::string, std::function<void(ForwardArgs<float>&)>>> tensors = {
        {"q", [&](ForwardArgs<float>& args) { args.q.data = tensor; }},
        {"k", [&](ForwardArgs<float>& args) { args.k.data = tensor; }},
        {"v", [&](ForwardArgs<float>& args) { args.v.data = tensor; }},
        {"o", [&](ForwardArgs<float>& args) { args.o.data = tensor; }},
        {"lse", [&](ForwardArgs<float>& args) { args.lse = tensor; }}};
    for (const auto& tensor_and_put : tensors) {
        const std::string& name = tensor_and_put.first;
        CAPTURE(name);
        memory.copy_from_host(std::vector<float>(4096, 1).data());
        ForwardArgs<float> args = p.args();
        tensor_and_put.second(args);
        const std::string message =
            "workspace overlaps " + name + " in memory; outputs need memory of their own";
        CHECK_THROWS_WITH_AS(attention_forward(args, tensor, bytes), message.c_str(), std::invalid_argument);
        float* too_near = tensor - bytes / 4 + 1;
        CHECK_THROWS_WITH_AS(attention_forward(args, too_near, bytes), message.c_str(),
                             std::invalid_argument);
        for (const float x : on_host(p.lse)) CHECK(std::isnan(x));
        CHECK(on_host(memory) == std::vector<float>(4096, 1));
        // Just before it is right, however much memory the caller says there is.
        CHECK_NOTHROW(attention_forward(args, too_near - 1, bytes));
        p = Problem<float>(p.shape);
    }
}

TEST_CASE("a slice that needs more blocks than a grid has is refused, and nothing is written") {
    Problem<bf16> p({1, 1, 1, 1 << 20, 1 << 20, 1});
    // S and P would take 6 TiB: the address is refused together with the shape, before it is used.
    void* nowhere = reinterpret_cast<void*>(std::uintptr_t{1} << 40);
    CHECK_THROWS_WITH_AS(attention_forward(p.args(), nowhere, slice_workspace_bytes<bf16>(p.shape)),
                         "the shape needs 4294967296 blocks; step 04 can launch 2147483647: split the batch",
                         std::invalid_argument);
    CHECK(std::isnan(on_host(p.lse)[0]));
}

TEST_CASE_TEMPLATE("attention gives the same bits every time", T, float, bf16) {
    Problem<T> p({2, 3, 1, 50, 70, 40});
    attention_forward(p.args());
    const auto o = on_host(p.o);
    for (int repeat = 0; repeat < 5; ++repeat) {
        attention_forward(p.args());
        CHECK(same_bits(on_host(p.o), o));
    }
}
