// Inputs of every measurement: seeded standard normal numbers with all bits of the significand in use. Zeros,
// repeated values or short significands run faster than real data on some hardware.
#pragma once

#include <cstdint>
#include <vector>

#include "common/testing/random.hpp"
#include "common/types.hpp"

namespace flash::bench {

// The tests' normal numbers are multiples of 2^-16; a uniform number below that fills the bits under it.
template <class T = float> std::vector<T> random_normal(std::int64_t n, std::uint64_t seed) {
    std::vector<T> values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto low_bits = static_cast<float>(testing::random_bits(~seed, i) >> 40) * 0x1p-40f;
        values[i] = from_float<T>(testing::random_normal(seed, i) + low_bits);
    }
    return values;
}

}  // namespace flash::bench
