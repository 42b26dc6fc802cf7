#include "softmax.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "common/types.hpp"

namespace flash::step01 {
namespace {

template <class T> void check_row(const T* x, const T* y, std::int64_t n) {
    if (n < 0) throw std::invalid_argument("n is " + std::to_string(n) + "; a row has n >= 0 elements");
    if (n == 0) return;
    if (n > INT64_MAX / static_cast<std::int64_t>(sizeof(T)))
        throw std::invalid_argument("n is " + std::to_string(n) + "; a row must fit in 2^63 bytes");
    for (const auto& [name, row] : {std::pair{"x", x}, std::pair{"y", y}}) {
        const auto address = reinterpret_cast<std::uintptr_t>(row);
        if (row == nullptr)
            throw std::invalid_argument(std::string(name) + " is null; a row of elements needs memory");
        if (address % alignof(T) != 0)
            throw std::invalid_argument(std::string(name) + " is not aligned to its element type; " +
                                        std::to_string(alignof(T)) + "-byte alignment is needed");
    }
    const auto distance = reinterpret_cast<std::intptr_t>(y) - reinterpret_cast<std::intptr_t>(x);
    const std::int64_t bytes = n * static_cast<std::int64_t>(sizeof(T));
    if (distance != 0 && std::abs(distance) < bytes)
        throw std::invalid_argument("y overlaps x in part; y must be x itself or memory of its own");
}

// One operation in T: fp32 has more than twice fp16's digits, so computing in fp32 and rounding once gives
// exactly what an fp16 unit would give.
template <class T> float in_precision_of(float x) {
    return to_float(from_float<T>(x));
}

// exp(d) for d <= 0 without subnormal results: slow to compute with on many CPUs, and nothing beside a sum
// of at least 1.
float exp_of_difference(float d) {
    constexpr float kLogOfSmallestNormal = -87.33654f;
    return d < kLogOfSmallestNormal ? 0.0f : std::exp(d);  // NaN compares false and stays NaN
}

}  // namespace

template <class T> void naive_softmax(const T* x, T* y, std::int64_t n) {
    check_row(x, y, n);
    float sum = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        const float e = in_precision_of<T>(std::exp(to_float(x[i])));
        sum = in_precision_of<T>(sum + e);
    }
    for (std::int64_t i = 0; i < n; ++i) {
        const float e = in_precision_of<T>(std::exp(to_float(x[i])));
        y[i] = from_float<T>(e / sum);
    }
}

template <class T> void safe_softmax(const T* x, T* y, std::int64_t n) {
    check_row(x, y, n);

    // Pass 1: the largest element. A NaN compares false and is passed over here; pass 2 meets it again.
    float row_max = -INFINITY;
    for (std::int64_t i = 0; i < n; ++i) row_max = std::max(row_max, to_float(x[i]));

    // -inf - (-inf) is NaN, so a row without a finite element is shifted by 0: exp(-inf - 0) = 0.
    const float shift = row_max == -INFINITY ? 0.0f : row_max;

    // Pass 2: the sum, in a wider type than its terms: an fp32 sum that has reached 2^24 ignores a further 1.
    double row_sum = 0;
    for (std::int64_t i = 0; i < n; ++i) row_sum += exp_of_difference(to_float(x[i]) - shift);

    // Pass 3: the quotient. The sum is at least exp(0) = 1, unless every element is -inf.
    const float divisor = row_sum == 0 ? 1.0f : static_cast<float>(row_sum);
    for (std::int64_t i = 0; i < n; ++i)
        y[i] = from_float<T>(exp_of_difference(to_float(x[i]) - shift) / divisor);
}

template void naive_softmax<float>(const float*, float*, std::int64_t);
template void naive_softmax<fp16>(const fp16*, fp16*, std::int64_t);
template void safe_softmax<float>(const float*, float*, std::int64_t);
template void safe_softmax<fp16>(const fp16*, fp16*, std::int64_t);

}  // namespace flash::step01
