// The tolerance rule: an answer may be as far from the reference as twice the error of an honest computation
// in the same precision, plus a floor of a few units in the last place (docs/numerics.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace flash::testing {

// A floating-point format.
struct Format {
    int mantissa_bits;  // stored bits of the significand
    int min_exponent;   // of the smallest normal number
    double unit_roundoff() const;
    double ulp(double x) const;  // spacing of the numbers near x
};
template <class T> Format format_of();

// Values of one tensor, or of one channel of it, as doubles.
struct Compared {
    std::span<const double> out, reference, twin;
};

struct Gate {
    double twin_factor = 2;  // 3 for gradients
    double floor = 0;        // added to the twin's error
    double twin_bound = 0;   // what theory allows the twin's own error to be; beyond it the twin is broken
};

struct Verdict {
    std::int64_t compared = 0;      // elements looked at; finite ones count towards the errors below
    std::int64_t finite = 0;        // elements whose reference is finite
    double error = 0;               // max |out - reference|
    double twin_error = 0;          // max |twin - reference|
    double twin_share = 0;          // twin_error divided by its bound
    double allowed = 0;             // twin_factor * twin_error + floor
    std::int64_t first_wrong = -1;  // -1: none
    std::string why;                // empty when all is well
};

// Where the reference is NaN, +inf or -inf, `out` must be the same kind; elsewhere the rule holds.
Verdict compare(const Compared& values, const Gate& gate);

}  // namespace flash::testing
