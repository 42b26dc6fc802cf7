// Whole numbers from environment variables.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>

namespace flash {

// The variable's value, or the fallback where it is not set. Anything but the digits of a whole number from
// least to most is an error.
inline std::uint64_t whole_number_from_environment(
    const char* variable, std::uint64_t fallback, std::uint64_t least = 0,
    std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
    const char* text = std::getenv(variable);
    if (text == nullptr) return fallback;
    const std::string digits = text;
    const char* const end = digits.data() + digits.size();
    std::uint64_t value = 0;
    const auto parsed = std::from_chars(digits.data(), end, value);
    if (parsed.ec != std::errc{} || parsed.ptr != end || value < least || value > most) {
        throw std::runtime_error(std::string(variable) + " is '" + digits +
                                 "'; it must be a whole number from " + std::to_string(least) + " to " +
                                 std::to_string(most));
    }
    return value;
}

}  // namespace flash
