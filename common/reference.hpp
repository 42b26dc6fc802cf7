// Attention written from its formulas, with no cleverness, to judge every step by. One text, two precisions:
//
//   reference_forward, reference_backward   double precision: what the right answer is
//   twin_forward, twin_backward             a step's own precision: how far from it an honest answer may be
//
// The twin is the naive algorithm on inputs of type T: scores, sums and gradients accumulate in fp32, P and
// dS are rounded to T before the matrix products that consume them, and so is every output but L. Neither
// shares code with a step; tests/golden checks this text against an independent implementation. All pointers
// are host pointers. Results are dense: (B, H, N, D), and L (B, Hq, Nq).
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "common/attention.hpp"
#include "common/types.hpp"

namespace flash {

// What the formulas are computed in (Real) and what P, dS and the outputs are rounded to.
struct Exact {
    using Real = double;
    static Real round(Real x) { return x; }
};
template <class T> struct InStepPrecision {
    using Real = float;
    static Real round(Real x) { return to_float(from_float<T>(x)); }
};

template <class Real> struct RowResult {
    std::vector<Real> o;  // D numbers
    Real lse;
};
template <class Real> struct ForwardResult { std::vector<Real> o, lse; };
template <class Real> struct BackwardResult { std::vector<Real> dq, dk, dv; };

namespace detail {

// Row (b, h, n) of a tensor.
template <class Real, class T>
std::vector<Real> load_row(const TensorView<const T>& x, int b, int h, int n, int head_dim) {
    const T* first = x.data + row_offset(x, b, h, n);
    std::vector<Real> row;
    row.reserve(static_cast<std::size_t>(head_dim));
    for (int d = 0; d < head_dim; ++d) row.push_back(static_cast<Real>(to_float(first[d])));
    return row;
}

template <class Real> Real dot(const std::vector<Real>& x, const std::vector<Real>& y) {
    Real sum = 0;
    for (std::size_t d = 0; d < x.size(); ++d) sum += x[d] * y[d];
    return sum;
}

// y += weight * x, where y points to as many numbers as x has.
template <class Real> void add_scaled(Real* y, Real weight, const std::vector<Real>& x) {
    for (std::size_t d = 0; d < x.size(); ++d) y[d] += weight * x[d];
}

// The key head that query head h reads.
inline int key_head(const Shape& s, int h) {
    return h / (s.heads_q / s.heads_kv);
}

// Where row (b, h, n) begins in a dense result whose rows have `width` numbers.
inline std::size_t dense_offset(int heads, int len, int width, int b, int h, int n) {
    const auto row = (static_cast<std::int64_t>(b) * heads + h) * len + n;
    return static_cast<std::size_t>(row * width);
}

}  // namespace detail

// S of query row (b, h, i): one scaled score per key that the row sees. Args: ForwardArgs or BackwardArgs.
template <class Real, class Args> std::vector<Real> scores_of_row(const Args& args, int b, int h, int i) {
    const Shape& s = args.shape;
    const auto q = detail::load_row<Real>(args.q, b, h, i, s.head_dim);
    std::vector<Real> scores;
    for (int j = 0; j < args.mask.visible_keys(i, s.len_kv); ++j) {
        const auto k = detail::load_row<Real>(args.k, b, detail::key_head(s, h), j, s.head_dim);
        scores.push_back(static_cast<Real>(args.scale) * detail::dot(q, k));
    }
    return scores;
}

// Turns a row of scores into probabilities and returns its L. Without a score above -inf the row is all zeros
// and L is -inf; a NaN or a +inf score makes all of it NaN.
template <class Real> Real softmax_in_place(std::vector<Real>& row) {
    constexpr Real kMinusInf = -std::numeric_limits<Real>::infinity();
    Real row_max = kMinusInf;
    for (const Real x : row) row_max = std::fmax(row_max, x);
    const Real shift = row_max == kMinusInf ? Real(0) : row_max;
    Real row_sum = 0;
    for (Real& x : row) {
        x = std::exp(x - shift);
        row_sum += x;
    }
    if (row_sum == 0) return kMinusInf;
    for (Real& x : row) x /= row_sum;
    return shift + std::log(row_sum);
}

// O and L of query row (b, h, i), given its scores.
template <class Precision, class Args>
auto forward_row(const Args& args, int b, int h, std::vector<typename Precision::Real> row) {
    using Real = typename Precision::Real;
    const Shape& s = args.shape;
    RowResult<Real> result{std::vector<Real>(static_cast<std::size_t>(s.head_dim)), softmax_in_place(row)};
    for (int j = 0; j < static_cast<int>(row.size()); ++j) {
        const auto v = detail::load_row<Real>(args.v, b, detail::key_head(s, h), j, s.head_dim);
        detail::add_scaled(result.o.data(), Precision::round(row[static_cast<std::size_t>(j)]), v);
    }
    for (Real& x : result.o) x = Precision::round(x);
    return result;
}

template <class Precision, class Args> auto forward(const Args& args) {
    using Real = typename Precision::Real;
    const Shape& s = args.shape;
    ForwardResult<Real> result;
    for (int b = 0; b < s.batch; ++b) {
        for (int h = 0; h < s.heads_q; ++h) {
            for (int i = 0; i < s.len_q; ++i) {
                const auto row = forward_row<Precision>(args, b, h, scores_of_row<Real>(args, b, h, i));
                result.o.insert(result.o.end(), row.o.begin(), row.o.end());
                result.lse.push_back(row.lse);
            }
        }
    }
    return result;
}

// For every query row, with dP = dO V^T and delta = rowsum(dO o O):
//   dS = P o (dP - delta)    dV += P^T dO    dK += scale * dS^T Q    dQ = scale * dS K
// dK and dV of a key head sum over the query heads that read it. Uses q, k, v, d_o, mask and scale of args;
// O and L are computed anew.
template <class Precision, class T> auto backward(const BackwardArgs<T>& args) {
    using Real = typename Precision::Real;
    const Shape& s = args.shape;
    const Real scale = static_cast<Real>(args.scale);
    const auto zeros = [&s](int heads, int len) {
        return std::vector<Real>(detail::dense_offset(heads, len, s.head_dim, s.batch, 0, 0));
    };
    BackwardResult<Real> grad{zeros(s.heads_q, s.len_q), zeros(s.heads_kv, s.len_kv),
                              zeros(s.heads_kv, s.len_kv)};
    for (int b = 0; b < s.batch; ++b) {
        for (int h = 0; h < s.heads_q; ++h) {
            const int h_kv = detail::key_head(s, h);
            for (int i = 0; i < s.len_q; ++i) {
                auto p = scores_of_row<Real>(args, b, h, i);
                const auto o = forward_row<Precision>(args, b, h, p).o;
                softmax_in_place(p);
                const auto q = detail::load_row<Real>(args.q, b, h, i, s.head_dim);
                const auto d_o = detail::load_row<Real>(args.d_o, b, h, i, s.head_dim);
                const Real delta = detail::dot(d_o, o);
                Real* dq = grad.dq.data() + detail::dense_offset(s.heads_q, s.len_q, s.head_dim, b, h, i);
                for (int j = 0; j < static_cast<int>(p.size()); ++j) {
                    const auto k = detail::load_row<Real>(args.k, b, h_kv, j, s.head_dim);
                    const auto v = detail::load_row<Real>(args.v, b, h_kv, j, s.head_dim);
                    const Real p_ij = p[static_cast<std::size_t>(j)];
                    const Real p_rounded = Precision::round(p_ij);
                    const Real ds = Precision::round(p_rounded * (detail::dot(d_o, v) - delta));
                    const auto row = detail::dense_offset(s.heads_kv, s.len_kv, s.head_dim, b, h_kv, j);
                    detail::add_scaled(grad.dv.data() + row, p_rounded, d_o);
                    detail::add_scaled(grad.dk.data() + row, scale * ds, q);
                    detail::add_scaled(dq, scale * ds, k);
                }
            }
        }
    }
    for (auto* values : {&grad.dq, &grad.dk, &grad.dv}) {
        for (Real& x : *values) x = Precision::round(x);
    }
    return grad;
}

template <class T> ForwardResult<double> reference_forward(const ForwardArgs<T>& args) {
    return forward<Exact>(args);
}
template <class T> ForwardResult<float> twin_forward(const ForwardArgs<T>& args) {
    return forward<InStepPrecision<T>>(args);
}
template <class T> BackwardResult<double> reference_backward(const BackwardArgs<T>& args) {
    return backward<Exact>(args);
}
template <class T> BackwardResult<float> twin_backward(const BackwardArgs<T>& args) {
    return backward<InStepPrecision<T>>(args);
}

}  // namespace flash
