// fp16 and bf16: every bit pattern decodes to its value, and encoding rounds to nearest even everywhere.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "common/testing/inputs.hpp"
#include "common/testing/random.hpp"
#include "common/testing/tolerance.hpp"
#include "common/types.hpp"

using namespace flash;
using namespace flash::testing;

namespace {

// The formats as the standard defines them, computed with doubles: nothing in common with types.hpp.
struct Layout {
    int exponent_bits, fraction_bits;
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    double largest() const { return std::ldexp(2 - std::ldexp(1.0, -fraction_bits), bias()); }

    double decode(std::uint32_t bits) const {
        const int fraction = static_cast<int>(bits & ((1u << fraction_bits) - 1));
        const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
        const double sign = bits >> 15 ? -1.0 : 1.0;
        if (exponent == (1 << exponent_bits) - 1)
            return fraction ? std::numeric_limits<double>::quiet_NaN()
                            : sign * std::numeric_limits<double>::infinity();
        if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias() - fraction_bits);
        return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias() - fraction_bits);
    }
    double round(double x) const {
        if (x == 0 || !std::isfinite(x)) return x;
        const double spacing = std::ldexp(1.0, std::max(std::ilogb(x), 1 - bias()) - fraction_bits);
        const double rounded = std::nearbyint(x / spacing) * spacing;
        return std::abs(rounded) > largest() ? std::copysign(std::numeric_limits<double>::infinity(), x)
                                             : rounded;
    }
};

template <class T> Layout layout_of();
template <> Layout layout_of<fp16>() {
    return {5, 10};
}
template <> Layout layout_of<bf16>() {
    return {8, 7};
}

}  // namespace

TEST_CASE_TEMPLATE("all 65,536 bit patterns decode to their value and encode back to themselves", T, fp16,
                   bf16) {
    int numbers = 0, nans = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const double want = layout_of<T>().decode(bits);
        const float got = to_float(from_bits<T>(bits));
        const std::uint32_t again = bits_of(from_float<T>(got));
        const bool is_right = std::isnan(want) ? std::isnan(got) && std::isnan(to_float(from_bits<T>(again)))
                                               : static_cast<double>(got) == want && again == bits;
        if (!is_right) FAIL_CHECK(std::string(dtype_name<T>()) << " bits " << bits << " decode to " << got);
        ++(std::isnan(want) ? nans : numbers);
    }
    CHECK(numbers + nans == 65536);
    CHECK(nans == 2 * ((1 << layout_of<T>().fraction_bits) - 1));
}

TEST_CASE_TEMPLATE("encoding rounds to nearest, ties to even, between every two neighbours", T, fp16, bf16) {
    const std::uint32_t infinity = bits_of(from_float<T>(std::numeric_limits<float>::infinity()));
    int gaps = 0;
    for (std::uint32_t low = 0; low < infinity; ++low, ++gaps) {
        const double a = layout_of<T>().decode(low);
        const double b =
            low + 1 < infinity ? layout_of<T>().decode(low + 1) : 2 * a - layout_of<T>().decode(low - 1);
        const float middle = static_cast<float>((a + b) / 2);  // exact in fp32
        const std::uint32_t even = low % 2 == 0 ? low : low + 1;
        const float below = std::nextafter(middle, 0.0f);
        const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
        for (const float sign : {1.0f, -1.0f}) {
            const std::uint32_t sign_bit = sign < 0 ? 0x8000u : 0;
            const bool is_right = bits_of(from_float<T>(sign * middle)) == (even | sign_bit) &&
                                  bits_of(from_float<T>(sign * below)) == (low | sign_bit) &&
                                  bits_of(from_float<T>(sign * above)) == ((low + 1) | sign_bit);
            if (!is_right)
                FAIL_CHECK(std::string(dtype_name<T>()) << " rounds wrongly near " << sign * middle);
        }
    }
    CHECK(gaps == static_cast<int>(infinity));
}

TEST_CASE_TEMPLATE("encoding agrees with rounding in double precision for random fp32 bit patterns", T, fp16,
                   bf16) {
    int compared = 0;
    for (std::uint64_t n = 0; n < 300'000; ++n) {
        const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random_bits(7, n)));
        const float got = to_float(from_float<T>(x));
        const double want = layout_of<T>().round(static_cast<double>(x));
        const bool is_right = std::isnan(x) ? std::isnan(got) : static_cast<double>(got) == want;
        if (!is_right)
            FAIL_CHECK(std::string(dtype_name<T>()) << " of " << x << " is " << got << ", want " << want);
        ++compared;
    }
    CHECK(compared == 300'000);
}

TEST_CASE("fp16 agrees with the compiler's own half precision, where it has one") {
#if defined(__FLT16_MAX__)
    int compared = 0;
    for (std::uint64_t n = 0; n < 300'000; ++n, ++compared) {
        // Exponents around those of fp16: random bits would mostly be infinite or zero.
        const float x = std::ldexp(random_normal(8, n), static_cast<int>(random_below(9, n, 44)) - 27);
        const auto want = static_cast<float>(static_cast<_Float16>(x));
        if (to_float(from_float<fp16>(x)) != want) FAIL_CHECK("fp16 of " << x << " is not " << want);
    }
    CHECK(compared == 300'000);
#else
    MESSAGE("SKIP: this compiler has no _Float16");
#endif
}

TEST_CASE_TEMPLATE("overflow gives infinity, NaN stays NaN, zeros keep their sign", T, fp16, bf16) {
    const float inf = std::numeric_limits<float>::infinity();
    CHECK(to_float(from_float<T>(std::numeric_limits<float>::max())) == inf);
    CHECK(to_float(from_float<T>(-inf)) == -inf);
    CHECK(std::isnan(to_float(from_float<T>(std::numeric_limits<float>::quiet_NaN()))));
    CHECK(std::signbit(to_float(from_float<T>(-0.0f))));
    CHECK_FALSE(std::signbit(to_float(from_float<T>(0.0f))));
    // A NaN whose payload lies in the bits that are dropped.
    CHECK(std::isnan(to_float(from_float<T>(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("fp16 overflows from 65520 on, and its subnormals are exact") {
    CHECK(to_float(from_float<fp16>(65519.996f)) == 65504.0f);
    CHECK(std::isinf(to_float(from_float<fp16>(65520.0f))));
    CHECK(to_float(from_float<fp16>(0x1p-24f)) == 0x1p-24f);
    CHECK(to_float(from_float<fp16>(0x1p-25f)) == 0.0f);  // a tie: to even
    CHECK(to_float(from_float<fp16>(0x1.8p-25f)) == 0x1p-24f);
}

TEST_CASE("fp32 passes unchanged") {
    CHECK(from_float<float>(0.1f) == 0.1f);
    CHECK(to_float(0.1f) == 0.1f);
}
