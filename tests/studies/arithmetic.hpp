// Attention in emulated arithmetic, one head at a time: fp32 where nothing is said, with roundings to other
// types where a study puts them. exp and exp2 are rounded from double, so that every platform gives the same
// numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/types.hpp"

namespace flash::studies {

using Rounding = float (*)(float);

template <class T> float rounded(float x) {
    return to_float(from_float<T>(x));
}

// Q (len_q, D), K and V (len_kv, D).
template <class Real> struct Head {
    int len_q, len_kv, head_dim;
    std::vector<Real> q, k, v;

    const Real* query(int i) const { return q.data() + i * std::int64_t{head_dim}; }
    const Real* key(int j) const { return k.data() + j * std::int64_t{head_dim}; }
    const Real* value(int j) const { return v.data() + j * std::int64_t{head_dim}; }
    double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

// Standard normal V; Q and K such that scaled scores have the standard deviation logit_size. All rounded.
Head<float> random_head(int len_q, int len_kv, int head_dim, double logit_size, Rounding round);

// The scores of query i, not scaled.
std::vector<float> dots(const Head<float>& head, const float* query);
std::vector<double> exact_dots(const Head<float>& head, int i);

// O of one query in double precision from scaled scores.
std::vector<double> exact_row(const Head<float>& head, const std::vector<double>& scaled_scores);

float exp_fp32(float x);
float exp2_fp32(float x);

// Collects O of many rows beside the exact one.
class Errors {
  public:
    void add(const std::vector<float>& o, const std::vector<double>& exact);
    // Root of the mean square of the error, divided by that of the exact values; rows with NaN are left out.
    double relative() const { return std::sqrt(error_squares_ / exact_squares_); }
    int nan_rows() const { return nan_rows_; }

  private:
    double error_squares_ = 0, exact_squares_ = 0;
    int nan_rows_ = 0;
};

// sum_j weight_j V_j / sum_j weight_j, the weights of the products rounded, those of the divisor too if
// asked.
std::vector<float> weighted_mean(const Head<float>& head, const std::vector<float>& weights, Rounding round,
                                 bool round_divisor);

}  // namespace flash::studies
