// Every device primitive against a plain host loop, with small integers and exact equality: what passes here
// on the emulator and on a GPU means the same in both.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/testing/needs_device.hpp"
#include "common/types.hpp"
#include "primitives.hpp"

using namespace flash;
using namespace flash::primitives;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Small integers with no symmetry to hide behind: -8 .. 8.
float entry(int row, int column, int salt) {
    return static_cast<float>((row * 7 + column * 13 + salt * 5 + row * column) % 17 - 8);
}

template <class T> std::vector<T> matrix(int rows, int columns, int salt) {
    std::vector<T> m;
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; ++j) m.push_back(from_float<T>(entry(i, j, salt)));
    }
    return m;
}

template <class T> std::uint32_t bits(float x) {
    const T value = from_float<T>(x);
    return std::bit_cast<std::uint16_t>(value);
}
template <class T> std::uint32_t pair(float low, float high) {
    return bits<T>(high) << 16 | bits<T>(low);
}

std::vector<float> numbered_lanes() {
    std::vector<float> value(32);
    for (int i = 0; i < 32; ++i) value[i] = static_cast<float>(100 + i);
    return value;
}

}  // namespace

TEST_CASE("ldmatrix gives lane i elements 2(i%4) and 2(i%4)+1 of row i/4 of each matrix") {
    std::vector<std::uint16_t> rows(32 * 8);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint16_t>(i + 1);
    for (const int step : {1, 5, 31}) {  // in order, and two permutations of the rows
        Words order(32);
        for (int i = 0; i < 32; ++i) order[i] = static_cast<std::uint32_t>(i * step % 32);
        for (const bool transposed : {false, true}) {
            CAPTURE(step);
            CAPTURE(transposed);
            const Words got = primitives::ldmatrix(rows, order, transposed);
            int compared = 0;
            for (int lane = 0; lane < 32; ++lane) {
                for (int m = 0; m < 4; ++m) {
                    const auto element = [&](int row, int column) -> std::uint32_t {
                        return rows[order[m * 8 + row] * 8 + static_cast<std::uint32_t>(column)];
                    };
                    const int g = lane / 4, t = lane % 4 * 2;
                    const std::uint32_t low = transposed ? element(t, g) : element(g, t);
                    const std::uint32_t high = transposed ? element(t + 1, g) : element(g, t + 1);
                    REQUIRE(got[lane * 4 + m] == (high << 16 | low));
                    ++compared;
                }
            }
            CHECK(compared == 128);
        }
    }
}

TEST_CASE_TEMPLATE("mma.m16n8k16 holds its operands as the PTX ISA draws them", T, fp16, bf16) {
    Words a(32 * 4), b(32 * 2);
    std::vector<float> c(32 * 4);
    const auto row = [](int lane, int i) { return lane / 4 + i % 2 * 8; };
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < 4; ++i) {
            const int k = t + i / 2 * 8;
            a[lane * 4 + i] = pair<T>(entry(row(lane, i), k, 1), entry(row(lane, i), k + 1, 1));
            c[lane * 4 + i] = entry(g + i / 2 * 8, t + i % 2, 3);
        }
        for (int i = 0; i < 2; ++i) {
            const int k = t + i * 8;
            b[lane * 2 + i] = pair<T>(entry(k, g, 2), entry(k + 1, g, 2));
        }
    }
    const auto d = mma_fragments<T>(a, b, c);
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int m = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
            float want = entry(m, n, 3);
            for (int k = 0; k < 16; ++k) want += entry(m, k, 1) * entry(k, n, 2);
            REQUIRE(d[lane * 4 + i] == want);
        }
    }
}

TEST_CASE_TEMPLATE("a product through ldmatrix, ldmatrix.trans and mma is the matrix product", T, fp16,
                   bf16) {
    const auto d = multiply<T>(matrix<T>(16, 16, 1), matrix<T>(16, 16, 2));
    for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 16; ++n) {
            float want = 0;
            for (int k = 0; k < 16; ++k) want += entry(m, k, 1) * entry(k, n, 2);
            REQUIRE(d[m * 16 + n] == want);
        }
    }
}

TEST_CASE_TEMPLATE("an accumulator rounded in pairs is the A operand of the next product", T, fp16, bf16) {
    const auto d = multiply_twice<T>(matrix<T>(16, 16, 1), matrix<T>(16, 16, 2), matrix<T>(16, 16, 3));
    for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 16; ++n) {
            float want = 0;
            for (int j = 0; j < 16; ++j) {
                float p = 0;
                for (int k = 0; k < 16; ++k) p += entry(m, k, 1) * entry(k, j, 2);
                want += to_float(from_float<T>(p)) * entry(j, n, 3);
            }
            REQUIRE(d[m * 16 + n] == want);
        }
    }
}

TEST_CASE("cp.async copies src_bytes, fills the rest of the 16 with zeros, and reads nothing for 0") {
    std::vector<std::uint8_t> source(512);
    std::vector<int> bytes(32);
    for (int i = 0; i < 512; ++i) source[i] = static_cast<std::uint8_t>(i % 255 + 1);
    for (int lane = 0; lane < 32; ++lane) bytes[lane] = lane % 17;
    const auto got = cp_async(source, bytes);
    for (int i = 0; i < 512; ++i) REQUIRE(got[i] == (i % 16 < bytes[i / 16] ? source[i] : 0));
}

TEST_CASE("cp_async_wait<1> completes the older of two groups, cp_async_wait<0> both") {
    std::vector<std::uint8_t> source(1024);
    for (int i = 0; i < 1024; ++i) source[i] = static_cast<std::uint8_t>(i * 7 % 251);
    CHECK(cp_async_two_groups(source) == source);
}

TEST_CASE(
    "the swizzle permutes a tile, spreads every column of eight rows over all banks, and along_row follows "
    "it") {
    for (const int head_dim : {32, 64, 96, 128, 256}) {
        CAPTURE(head_dim);
        const int rows = 64, chunks = head_dim / 8;
        const Swizzle got = swizzle(head_dim, rows);
        std::vector<int> places = got.swizzled;
        std::sort(places.begin(), places.end());
        for (std::size_t i = 0; i < places.size(); ++i) REQUIRE(places[i] == static_cast<int>(i) * 16);
        CHECK(got.along == got.swizzled);
        for (int first_row = 0; first_row < rows; first_row += 8) {
            for (int c = 0; c < chunks; ++c) {
                unsigned banks = 0;  // eight groups of four banks: 128 bytes
                for (int r = 0; r < 8; ++r)
                    banks |= 1u << got.swizzled[(first_row + r) * chunks + c] / 16 % 8;
                REQUIRE(banks == 0xffu);
            }
        }
    }
}

TEST_CASE("shuffles move values between lanes, inside segments of width lanes") {
    const auto value = numbered_lanes();
    for (const int width : {32, 16, 8}) {
        for (const int argument : {0, 1, 3, 4, 7, 9}) {
            CAPTURE(width);
            CAPTURE(argument);
            const auto indexed = shuffle(Shuffle::kIndexed, value, argument, width);
            const auto exchanged = shuffle(Shuffle::kXor, value, argument, width);
            const auto up = shuffle(Shuffle::kUp, value, argument, width);
            const auto down = shuffle(Shuffle::kDown, value, argument, width);
            for (int lane = 0; lane < 32; ++lane) {
                const int segment = lane / width * width;
                const auto inside = [&](int source) {
                    return source >= segment && source < segment + width ? source : lane;
                };
                REQUIRE(indexed[lane] == value[segment + argument % width]);
                if (argument < width) REQUIRE(exchanged[lane] == value[lane ^ argument]);
                REQUIRE(up[lane] == value[inside(lane - argument)]);
                REQUIRE(down[lane] == value[inside(lane + argument)]);
            }
        }
    }
}

TEST_CASE("votes see every lane") {
    std::vector<int> predicate(32, 0);
    Votes votes = vote(predicate);
    CHECK((votes.any == 0 && votes.all == 0 && votes.ballot == 0));
    predicate[31] = predicate[4] = 5;
    votes = vote(predicate);
    CHECK((votes.any == 1 && votes.all == 0 && votes.ballot == 0x80000010u));
    votes = vote(std::vector<int>(32, 1));
    CHECK((votes.any == 1 && votes.all == 1 && votes.ballot == 0xffffffffu));
}

TEST_CASE_TEMPLATE("pack2 rounds to nearest even, low half first", T, fp16, bf16) {
    std::vector<float> low = {0.0f,  -0.0f, 1.0f,    65504.0f,  65520.0f,  1e-8f,
                              6e-8f, 3e38f, 3.4e38f, kInfinity, -kInfinity};
    for (int i = 0; i < 20000; ++i)  // a walk over the bit patterns of finite numbers of both signs
        low.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(i) * 106733u % 0x7f7fffffu |
                                           static_cast<std::uint32_t>(i % 2) << 31));
    std::vector<float> high(low.rbegin(), low.rend());
    const Words got = pack2<T>(low, high);
    for (std::size_t i = 0; i < low.size(); ++i) {
        CAPTURE(low[i]);
        CAPTURE(high[i]);
        REQUIRE(got[i] == pair<T>(low[i], high[i]));
    }
}

TEST_CASE("exp2_approx is within 2 ulp, flushes subnormal results, and keeps the special values") {
    std::vector<float> x;
    for (int i = -126 * 64; i < 128 * 64; ++i) x.push_back(static_cast<float>(i) / 64.0f);
    const auto y = exp2_approx(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double want = std::exp2(static_cast<double>(x[i]));
        REQUIRE(!(std::abs(y[i] - want) > 2 * 0x1p-23 * want));
    }
    const auto special = exp2_approx({-kInfinity, kInfinity, -126.5f, -200.0f, 1e-40f, 0.0f, -0.0f, 128.0f,
                                      std::numeric_limits<float>::quiet_NaN()});
    CHECK(special[0] == 0.0f);
    CHECK(special[1] == kInfinity);
    CHECK(special[2] == 0.0f);
    CHECK(special[3] == 0.0f);
    CHECK(special[4] == 1.0f);
    CHECK(special[5] == 1.0f);
    CHECK(special[6] == 1.0f);
    CHECK(special[7] == kInfinity);
    CHECK(std::isnan(special[8]));
}

TEST_CASE_TEMPLATE("unpack2 gives back every value exactly, low half first", T, fp16, bf16) {
    Words packed;
    for (std::uint32_t bits = 0; bits < 65536; bits += 2) packed.push_back((bits + 1) << 16 | bits);
    const std::vector<float> values = unpack2<T>(packed);
    REQUIRE(values.size() == 65536);
    for (std::size_t i = 0; i < packed.size(); ++i) {
        const auto same = [](float got, std::uint32_t bits) {
            const float want = to_float(std::bit_cast<T>(static_cast<std::uint16_t>(bits)));
            return std::isnan(want) ? std::isnan(got)
                                    : std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(want);
        };
        CAPTURE(i);
        CHECK(same(values[i], packed[i] & 0xffff));
        CHECK(same(values[packed.size() + i], packed[i] >> 16));
    }
}

TEST_CASE("an mbarrier orders two warps, phase after phase, and leaves the others alone") {
    for (const int pairs : {1, 4, 15}) {
        const std::vector<int> got = hand_over(pairs, 6);
        REQUIRE(got.size() == static_cast<std::size_t>(6 * pairs * 32));
        for (int i = 0; i < static_cast<int>(got.size()); ++i) {
            const int round = i / (pairs * 32), slot = i % (pairs * 32);
            CAPTURE(pairs);
            CHECK(got[static_cast<std::size_t>(i)] == 1000 * round + (slot ^ 1));
        }
    }
}

TEST_CASE("atomic_add_x4 adds four neighbours and loses nothing") {
    std::vector<float> x(128);
    for (int i = 0; i < 128; ++i) x[i] = static_cast<float>(i - 40);
    std::vector<float> want(128);
    for (int i = 0; i < 128; ++i) want[i] = 50.0f * x[i];
    CHECK(atomic_add_x4(x, 50) == want);
}

TEST_CASE("atomics lose no update, in global and in shared memory") {
    const int n = 5 * 96;
    const AtomicResults r = atomics(5, 96);
    CHECK(r.sum_int == n * (n - 1) / 2);
    CHECK(r.shared_sum == n * (n - 1) / 2);
    CHECK(r.max_int == n - 1);
    CHECK(r.sum_unsigned == static_cast<unsigned>(n * (n - 1) / 2));
    CHECK(r.max_unsigned == static_cast<unsigned>(n - 1));
    CHECK(r.sum_long == static_cast<unsigned long long>(n * (n - 1) / 2) << 32);
    CHECK(r.sum_float == static_cast<float>(n * (n - 1) / 2));
}

TEST_CASE("a block sums through shared memory, up to the largest block") {
    for (const int n : {64, 256, 1024}) {
        std::vector<float> x(n);
        for (int i = 0; i < n; ++i) x[i] = static_cast<float>(i % 9);
        float want = 0;
        for (const float v : x) want += v;
        CHECK(block_sum(x) == want);
    }
}

TEST_CASE("16-byte and 8-byte vectors copy whole") {
    std::vector<float> x(400);
    for (int i = 0; i < 400; ++i) x[i] = static_cast<float>(i);
    CHECK(copy_float4(x) == x);
    CHECK(copy_float2(x) == x);
}
