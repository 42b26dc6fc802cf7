#include "softmax.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace flash::step02 {
namespace {

constexpr std::int64_t LONGEST_ROW = INT64_MAX / static_cast<std::int64_t>(sizeof(float));

void check_row(const char* name, const float* row, std::int64_t n) {
    if (n < 0) throw std::invalid_argument("n is " + std::to_string(n) + "; a row has n >= 0 elements");
    if (n == 0) return;
    if (n > LONGEST_ROW)
        throw std::invalid_argument("n is " + std::to_string(n) + "; a row must fit in 2^63 bytes");
    if (row == nullptr)
        throw std::invalid_argument(std::string(name) + " is null; a row of elements needs memory");
    if (reinterpret_cast<std::uintptr_t>(row) % alignof(float) != 0)
        throw std::invalid_argument(std::string(name) + " is not aligned; 4-byte alignment is needed");
}

void check_no_partial_overlap(const float* x, const float* y, std::int64_t n) {
    const auto distance = reinterpret_cast<std::intptr_t>(y) - reinterpret_cast<std::intptr_t>(x);
    if (distance != 0 && std::abs(distance) < n * static_cast<std::int64_t>(sizeof(float)))
        throw std::invalid_argument("y overlaps x in part; y must be x itself or memory of its own");
}

std::int64_t row_length(const RowState& row) {
    return static_cast<std::int64_t>(row.acc.size());
}

// What exponents are taken relative to: the maximum, or 0 while the maximum is -inf, because
// -inf - (-inf) is NaN but exp(-inf - 0) is the 0 that is wanted.
float shift_for(float row_max) {
    return row_max == -INFINITY ? 0.0f : row_max;
}

// exp(d) for d <= 0 without subnormal results, as in step 01: below ln 1.18e-38 the weight is 0.
float exp_of_difference(float d) {
    constexpr float kLogOfSmallestNormal = -87.33654f;
    return d < kLogOfSmallestNormal ? 0.0f : std::exp(d);  // NaN compares false and stays NaN
}

// The factors that bring two states, or a state and an element, to the maximum of both.
struct Rescale {
    float row_max;
    float a;  // exp(a's maximum - row_max)
    float b;
};

Rescale rescale(float max_a, float max_b) {
    const float row_max = std::max(max_a, max_b);
    const float shift = shift_for(row_max);
    return {row_max, exp_of_difference(max_a - shift), exp_of_difference(max_b - shift)};
}

}  // namespace

State update(State state, float x) {
    const Rescale r = rescale(state.row_max, x);
    return {r.row_max, state.row_sum * r.a + r.b};
}

State merge(State a, State b) {
    const Rescale r = rescale(a.row_max, b.row_max);
    return {r.row_max, a.row_sum * r.a + b.row_sum * r.b};
}

float log_sum_exp(State state) {
    return state.row_max + std::log(state.row_sum);
}

State chain(const float* x, std::int64_t n) {
    check_row("x", x, n);
    State state;
    for (std::int64_t i = 0; i < n; ++i) state = update(state, x[i]);
    return state;
}

State tree(const float* x, std::int64_t n) {
    check_row("x", x, n);
    constexpr std::int64_t kLeaf = 256;
    if (n <= kLeaf) return chain(x, n);
    const std::int64_t half = n / 2;
    return merge(tree(x, half), tree(x + half, n - half));
}

void online_softmax(const float* x, float* y, std::int64_t n) {
    check_row("x", x, n);
    check_row("y", y, n);
    check_no_partial_overlap(x, y, n);
    const State state = tree(x, n);
    const float shift = shift_for(state.row_max);
    const float divisor = state.row_sum == 0 ? 1.0f : state.row_sum;
    for (std::int64_t i = 0; i < n; ++i) y[i] = exp_of_difference(x[i] - shift) / divisor;
}

RowState::RowState(std::int64_t head_dim) {
    if (head_dim < 0)
        throw std::invalid_argument("head_dim is " + std::to_string(head_dim) + "; it must be >= 0");
    if (head_dim > LONGEST_ROW)
        throw std::invalid_argument("head_dim is " + std::to_string(head_dim) +
                                    "; a row must fit in 2^63 bytes");
    acc.resize(static_cast<std::size_t>(head_dim));
}

void update(RowState& row, float score, const float* value) {
    check_row("value", value, row_length(row));
    if (score == -INFINITY) return;  // a weight of 0 would not silence a value of inf or NaN: 0 * inf is NaN
    const Rescale r = rescale(row.state.row_max, score);
    row.state = {r.row_max, row.state.row_sum * r.a + r.b};
    for (std::size_t d = 0; d < row.acc.size(); ++d) row.acc[d] = row.acc[d] * r.a + r.b * value[d];
}

RowState merge(const RowState& a, const RowState& b) {
    if (a.acc.size() != b.acc.size())
        throw std::invalid_argument("b has D = " + std::to_string(b.acc.size()) +
                                    "; to be merged with a it needs D = " + std::to_string(a.acc.size()));
    const Rescale r = rescale(a.state.row_max, b.state.row_max);
    RowState merged(row_length(a));
    merged.state = {r.row_max, a.state.row_sum * r.a + b.state.row_sum * r.b};
    for (std::size_t d = 0; d < merged.acc.size(); ++d) merged.acc[d] = a.acc[d] * r.a + b.acc[d] * r.b;
    return merged;
}

void write_output(const RowState& row, float* o) {
    check_row("o", o, row_length(row));
    const float divisor = row.state.row_sum == 0 ? 1.0f : row.state.row_sum;
    for (std::size_t d = 0; d < row.acc.size(); ++d) o[d] = row.acc[d] / divisor;
}

}  // namespace flash::step02
