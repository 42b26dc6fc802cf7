// Inputs of every measurement: seeded standard normal numbers with all bits of the significand in use. Zeros,
// repeated values or short significands run faster than real data on some hardware.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "common/testing/random.hpp"
#include "common/types.hpp"

namespace flash::bench {

// Box and Muller's transform of two uniform numbers in (0, 1] and [0, 1).
template <class T = float> std::vector<T> random_normal(std::int64_t n, std::uint64_t seed) {
    std::vector<T> values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint64_t bits = testing::random_bits(seed, i);
        const double radius = std::sqrt(-2 * std::log(static_cast<double>((bits >> 32) + 1) * 0x1p-32));
        const double angle = 2 * std::numbers::pi * static_cast<double>(bits & 0xffffffffu) * 0x1p-32;
        values[i] = from_float<T>(static_cast<float>(radius * std::cos(angle)));
    }
    return values;
}

}  // namespace flash::bench
