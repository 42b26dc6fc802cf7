// The gradients of one backward call row by row, so that of a large call a sample will do: in double
// precision, bit for bit those of reference_backward (common/reference.hpp), and as an honest backward in a
// step's precision has them, from the O and L that the step is given.
#pragma once

#include <cstdint>
#include <vector>

#include "common/reference.hpp"
#include "common/testing/inputs.hpp"

namespace flash::testing {

// The elements of a tensor, dense (B, H, N, D).
template <class Real, class T> std::vector<Real> dense_elements(const HostTensor<T>& t) {
    std::vector<Real> elements;
    elements.reserve(static_cast<std::size_t>(t.elements()));
    for (int b = 0; b < t.batch; ++b)
        for (int h = 0; h < t.heads; ++h)
            for (int n = 0; n < t.len; ++n)
                for (int d = 0; d < t.head_dim; ++d)
                    elements.push_back(
                        static_cast<Real>(to_float(t.memory[static_cast<std::size_t>(t.index(b, h, n, d))])));
    return elements;
}

// Precision: Exact or InStepPrecision<T>. Row numbers count through (B, H, N) of Q or of K.
template <class Precision> class BackwardRows {
  public:
    using Real = typename Precision::Real;
    struct Inputs {
        Shape shape;
        Mask mask;
        float scale;
        std::vector<Real> q, k, v, d_o;  // dense
    };
    // What the forward leaves of a query row: P = exp(S - shift) / sum.
    struct QueryRow {
        Real shift, sum, lse, delta;
        std::vector<Real> o;
        double max_score;        // max |S| over visible finite scores
        double delta_magnitude;  // sum |dO| (P |V|): what the error of delta is relative to
    };
    // A row of dQ, or a row of dK and dV, and the sums of the absolute values of what it adds up.
    struct QueryGradient {
        std::vector<Real> dq, dq_magnitude;
    };
    struct KeyGradient {
        std::vector<Real> dk, dv, dk_magnitude, dv_magnitude;
    };

    // With O and L computed from the inputs.
    explicit BackwardRows(Inputs inputs);
    // With the O (dense) and L of a call.
    BackwardRows(Inputs inputs, const std::vector<Real>& o, const std::vector<float>& lse);
    const std::vector<QueryRow>& query_rows() const { return query_rows_; }
    QueryGradient query_gradient(std::int64_t row) const;
    KeyGradient key_gradient(std::int64_t row) const;

  private:
    struct Pair {
        Real p, ds;
        double ds_magnitude;
    };

    const Real* q_row(std::int64_t row) const { return in_.q.data() + row * in_.shape.head_dim; }
    const Real* d_o_row(std::int64_t row) const { return in_.d_o.data() + row * in_.shape.head_dim; }
    std::int64_t key_row(std::int64_t query_row, int key) const;
    QueryRow forward_row(std::int64_t row) const;
    Real score(std::int64_t query_row, std::int64_t key_row) const;
    Real probability(const QueryRow& row, Real score) const;
    Pair pair_of(std::int64_t query_row, std::int64_t key_row) const;

    Inputs in_;
    std::vector<QueryRow> query_rows_;
};

}  // namespace flash::testing
