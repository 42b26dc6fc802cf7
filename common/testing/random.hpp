// Random numbers that are the same on every platform: integer arithmetic only, no state, no libm.
#pragma once

#include <cstdint>

namespace flash::testing {

// A well-mixed 64-bit number per (seed, index): the output function of SplitMix64 (Steele, Lea and Flood
// 2014).
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
    std::uint64_t z = (seed + 1) * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// An integer in [0, n); n > 0. The bias of the remainder does not matter here.
constexpr std::int64_t random_below(std::uint64_t seed, std::uint64_t index, std::int64_t n) {
    return static_cast<std::int64_t>((random_bits(seed, index) >> 1) % static_cast<std::uint64_t>(n));
}

// Close to a standard normal: the sum of twelve uniform 16-bit numbers, centred; exact, between -6 and 6.
constexpr float random_normal(std::uint64_t seed, std::uint64_t index) {
    std::int64_t sum = 0;
    for (std::uint64_t word = 0; word < 3; ++word) {
        const std::uint64_t bits = random_bits(seed, 3 * index + word);
        for (int shift = 0; shift < 64; shift += 16)
            sum += static_cast<std::int64_t>((bits >> shift) & 0xffffu);
    }
    return static_cast<float>(sum - 6 * 65535) * 0x1p-16f;
}

}  // namespace flash::testing
