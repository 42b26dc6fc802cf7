#include "common/testing/tolerance.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/types.hpp"

namespace flash::testing {

double Format::unit_roundoff() const {
    return std::ldexp(1.0, -mantissa_bits - 1);
}

double Format::ulp(double x) const {
    const int exponent = x == 0 ? min_exponent : std::max(std::ilogb(x), min_exponent);
    return std::ldexp(1.0, exponent - mantissa_bits);
}

template <> Format format_of<float>() {
    return {23, -126};
}
template <> Format format_of<fp16>() {
    return {10, -14};
}
template <> Format format_of<bf16>() {
    return {7, -126};
}

namespace {

bool same_kind(double a, double b) {
    return std::isnan(a) ? std::isnan(b) : a == b;
}

}  // namespace

Verdict compare(const Compared& values, const Gate& gate) {
    const std::size_t n = values.reference.size();
    if (values.out.size() != n || values.twin.size() != n)
        throw std::logic_error("compare: out, reference and twin differ in length");
    Verdict verdict;
    const auto wrong = [&verdict](std::size_t i, const char* why) {
        if (verdict.first_wrong >= 0) return;
        verdict.first_wrong = static_cast<std::int64_t>(i);
        verdict.why = why;
    };
    for (std::size_t i = 0; i < n; ++i) {
        if (!std::isfinite(values.reference[i])) continue;
        const double twin_error = std::abs(values.twin[i] - values.reference[i]);
        if (!(twin_error <= gate.twin_bound)) wrong(i, "the twin itself is further off than theory allows");
        verdict.twin_error = std::max(verdict.twin_error, twin_error);
    }
    if (gate.twin_bound > 0) verdict.twin_share = verdict.twin_error / gate.twin_bound;
    verdict.allowed = gate.twin_factor * verdict.twin_error + gate.floor;
    for (std::size_t i = 0; i < n; ++i) {
        ++verdict.compared;
        const double reference = values.reference[i];
        if (!std::isfinite(reference)) {
            if (!same_kind(values.out[i], reference)) wrong(i, "not the same kind of NaN or infinity");
            if (!same_kind(values.twin[i], reference))
                wrong(i, "the twin has another kind of NaN or infinity");
            continue;
        }
        ++verdict.finite;
        const double error = std::abs(values.out[i] - reference);
        if (!(error <= verdict.allowed)) wrong(i, "the error is larger than allowed");
        verdict.error = std::max(verdict.error, error);
    }
    return verdict;
}

}  // namespace flash::testing
