#include "common/testing/backward_rows.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

namespace flash::testing {
namespace {

// each(0) .. each(n - 1), on several threads when the work is worth it.
void for_each_row(std::int64_t n, double work, const std::function<void(std::int64_t)>& each) {
    constexpr double kWorthThreads = 1e8;
    const unsigned threads = work < kWorthThreads ? 1 : std::max(1u, std::thread::hardware_concurrency());
    std::atomic<std::int64_t> next{0};
    const auto take_rows = [&] {
        for (std::int64_t row = next++; row < n; row = next++) each(row);
    };
    std::vector<std::thread> others;
    for (unsigned t = 1; t < threads; ++t) others.emplace_back(take_rows);
    take_rows();
    for (auto& thread : others) thread.join();
}

template <class Real> Real dot(const Real* x, const Real* y, int n) {
    Real sum = 0;
    for (int d = 0; d < n; ++d) sum += x[d] * y[d];
    return sum;
}

template <class Real> double dot_of_magnitudes(const Real* x, const Real* y, int n) {
    double sum = 0;
    for (int d = 0; d < n; ++d) sum += std::abs(static_cast<double>(x[d]) * static_cast<double>(y[d]));
    return sum;
}

template <class Real> void add_scaled(std::vector<Real>& y, Real weight, const Real* x) {
    for (std::size_t d = 0; d < y.size(); ++d) y[d] += weight * x[d];
}

template <class Real> void add_magnitudes(std::vector<Real>& y, double weight, const Real* x) {
    for (std::size_t d = 0; d < y.size(); ++d) y[d] += static_cast<Real>(weight) * std::abs(x[d]);
}

}  // namespace

template <class Precision> BackwardRows<Precision>::BackwardRows(Inputs inputs) : in_(std::move(inputs)) {
    const Shape& s = in_.shape;
    const std::int64_t rows = static_cast<std::int64_t>(s.batch) * s.heads_q * s.len_q;
    query_rows_.resize(static_cast<std::size_t>(rows));
    const double work = static_cast<double>(rows) * s.len_kv * s.head_dim;
    for_each_row(rows, work,
                 [this](std::int64_t row) { query_rows_[static_cast<std::size_t>(row)] = forward_row(row); });
}

template <class Precision>
BackwardRows<Precision>::BackwardRows(Inputs inputs, const std::vector<Real>& o,
                                      const std::vector<float>& lse)
    : in_(std::move(inputs)) {
    const int D = in_.shape.head_dim;
    for (const float l : lse) {
        const auto row = static_cast<std::int64_t>(query_rows_.size());
        const bool empty = l == -std::numeric_limits<float>::infinity();
        const Real shift = empty ? Real(0) : static_cast<Real>(l);
        const Real delta = dot(d_o_row(row), o.data() + row * D, D);
        query_rows_.push_back({shift, Real(empty ? 0 : 1), static_cast<Real>(l), delta, {}, 0, 0});
    }
}

// The row of K that key `key` has for a query row.
template <class Precision>
std::int64_t BackwardRows<Precision>::key_row(std::int64_t query_row, int key) const {
    const Shape& s = in_.shape;
    const std::int64_t head = query_row / s.len_q;  // b * Hq + h
    const std::int64_t head_kv = head / s.heads_q * s.heads_kv + head % s.heads_q / (s.heads_q / s.heads_kv);
    return head_kv * s.len_kv + key;
}

template <class Precision>
auto BackwardRows<Precision>::score(std::int64_t query_row, std::int64_t key_row) const -> Real {
    const int D = in_.shape.head_dim;
    return static_cast<Real>(in_.scale) * dot(q_row(query_row), in_.k.data() + key_row * D, D);
}

template <class Precision>
auto BackwardRows<Precision>::probability(const QueryRow& row, Real score) const -> Real {
    const Real x = std::exp(score - row.shift);
    return row.sum == 0 ? x : x / row.sum;
}

template <class Precision> auto BackwardRows<Precision>::forward_row(std::int64_t row) const -> QueryRow {
    constexpr Real kMinusInf = -std::numeric_limits<Real>::infinity();
    const Shape& s = in_.shape;
    const int D = s.head_dim;
    const int visible = static_cast<int>(in_.mask.visible_keys(row % s.len_q, s.len_kv));
    std::vector<Real> scores;
    QueryRow result{0, 0, kMinusInf, 0, std::vector<Real>(static_cast<std::size_t>(D)), 0, 0};
    Real row_max = kMinusInf;
    for (int j = 0; j < visible; ++j) {
        scores.push_back(score(row, key_row(row, j)));
        row_max = std::fmax(row_max, scores.back());
        if (std::isfinite(scores.back()))
            result.max_score = std::max(result.max_score, std::abs(static_cast<double>(scores.back())));
    }
    result.shift = row_max == kMinusInf ? Real(0) : row_max;
    for (const Real x : scores) result.sum += std::exp(x - result.shift);
    if (result.sum != 0) result.lse = result.shift + std::log(result.sum);
    std::vector<Real> magnitude(static_cast<std::size_t>(D));
    for (int j = 0; j < visible; ++j) {
        const Real p = probability(result, scores[static_cast<std::size_t>(j)]);
        const Real* v = in_.v.data() + key_row(row, j) * D;
        add_scaled(result.o, Precision::round(p), v);
        add_magnitudes(magnitude, static_cast<double>(p), v);
    }
    for (Real& x : result.o) x = Precision::round(x);
    result.delta = dot(d_o_row(row), result.o.data(), D);
    result.delta_magnitude = dot_of_magnitudes(d_o_row(row), magnitude.data(), D);
    return result;
}

template <class Precision>
auto BackwardRows<Precision>::pair_of(std::int64_t query_row, std::int64_t key_row) const -> Pair {
    const int D = in_.shape.head_dim;
    const QueryRow& row = query_rows_[static_cast<std::size_t>(query_row)];
    const Real p = probability(row, score(query_row, key_row));
    const Real* v = in_.v.data() + key_row * D;
    const Real ds = Precision::round(Precision::round(p) * (dot(d_o_row(query_row), v, D) - row.delta));
    const double magnitude =
        static_cast<double>(p) * (dot_of_magnitudes(d_o_row(query_row), v, D) + row.delta_magnitude);
    return {p, ds, magnitude};
}

template <class Precision>
auto BackwardRows<Precision>::query_gradient(std::int64_t row) const -> QueryGradient {
    const Shape& s = in_.shape;
    const auto D = static_cast<std::size_t>(s.head_dim);
    const Real scale = static_cast<Real>(in_.scale);
    QueryGradient grad{std::vector<Real>(D), std::vector<Real>(D)};
    const int visible = static_cast<int>(in_.mask.visible_keys(row % s.len_q, s.len_kv));
    for (int j = 0; j < visible; ++j) {
        const Pair pair = pair_of(row, key_row(row, j));
        const Real* k = in_.k.data() + key_row(row, j) * s.head_dim;
        add_scaled(grad.dq, scale * pair.ds, k);
        add_magnitudes(grad.dq_magnitude, static_cast<double>(scale) * pair.ds_magnitude, k);
    }
    for (Real& x : grad.dq) x = Precision::round(x);
    return grad;
}

template <class Precision> auto BackwardRows<Precision>::key_gradient(std::int64_t row) const -> KeyGradient {
    const Shape& s = in_.shape;
    const auto D = static_cast<std::size_t>(s.head_dim);
    const Real scale = static_cast<Real>(in_.scale);
    const std::vector<Real> zeros(D);
    KeyGradient grad{zeros, zeros, zeros, zeros};
    const int key = static_cast<int>(row % s.len_kv);
    const int group = s.heads_q / s.heads_kv;
    const std::int64_t first_query = row / s.len_kv * group * s.len_q;  // heads of a group follow each other
    for (std::int64_t i = first_query; i < first_query + std::int64_t{group} * s.len_q; ++i) {
        if (key >= in_.mask.visible_keys(i % s.len_q, s.len_kv)) continue;
        const Pair pair = pair_of(i, row);
        add_scaled(grad.dv, Precision::round(pair.p), d_o_row(i));
        add_scaled(grad.dk, scale * pair.ds, q_row(i));
        add_magnitudes(grad.dv_magnitude, static_cast<double>(pair.p), d_o_row(i));
        add_magnitudes(grad.dk_magnitude, static_cast<double>(scale) * pair.ds_magnitude, q_row(i));
    }
    for (auto* values : {&grad.dk, &grad.dv})
        for (Real& x : *values) x = Precision::round(x);
    return grad;
}

template class BackwardRows<Exact>;
template class BackwardRows<InStepPrecision<float>>;
template class BackwardRows<InStepPrecision<fp16>>;
template class BackwardRows<InStepPrecision<bf16>>;

}  // namespace flash::testing
