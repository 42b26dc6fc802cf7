#include "arithmetic.hpp"

#include <algorithm>
#include <limits>

#include "common/testing/random.hpp"

namespace flash::studies {

namespace {

constexpr std::uint64_t kSeedQ = 101, kSeedK = 102, kSeedV = 103;

std::vector<float> normal(std::int64_t n, std::uint64_t seed, double size, Rounding round) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double sample = static_cast<double>(testing::random_normal(seed, i));
        x[i] = round(static_cast<float>(sample * size));
    }
    return x;
}

}  // namespace

Head<float> random_head(int len_q, int len_kv, int head_dim, double logit_size, Rounding round) {
    const std::int64_t width = head_dim;
    const double size = std::sqrt(logit_size);
    return {len_q,
            len_kv,
            head_dim,
            normal(len_q * width, kSeedQ, size, round),
            normal(len_kv * width, kSeedK, size, round),
            normal(len_kv * width, kSeedV, 1, round)};
}

std::vector<float> dots(const Head<float>& head, const float* query) {
    std::vector<float> scores(static_cast<std::size_t>(head.len_kv));
    for (int j = 0; j < head.len_kv; ++j) {
        float sum = 0;
        for (int d = 0; d < head.head_dim; ++d) sum += query[d] * head.key(j)[d];
        scores[static_cast<std::size_t>(j)] = sum;
    }
    return scores;
}

std::vector<double> exact_dots(const Head<float>& head, int i) {
    std::vector<double> scores(static_cast<std::size_t>(head.len_kv));
    for (int j = 0; j < head.len_kv; ++j) {
        double sum = 0;
        for (int d = 0; d < head.head_dim; ++d) {
            sum += static_cast<double>(head.query(i)[d]) * static_cast<double>(head.key(j)[d]);
        }
        scores[static_cast<std::size_t>(j)] = sum;
    }
    return scores;
}

std::vector<double> exact_row(const Head<float>& head, const std::vector<double>& scaled_scores) {
    const double largest = *std::max_element(scaled_scores.begin(), scaled_scores.end());
    std::vector<double> o(static_cast<std::size_t>(head.head_dim));
    double sum = 0;
    for (int j = 0; j < head.len_kv; ++j) {
        const double p = std::exp(scaled_scores[static_cast<std::size_t>(j)] - largest);
        sum += p;
        for (int d = 0; d < head.head_dim; ++d) {
            o[static_cast<std::size_t>(d)] += p * static_cast<double>(head.value(j)[d]);
        }
    }
    for (double& x : o) x /= sum;
    return o;
}

float exp_fp32(float x) {
    return static_cast<float>(std::exp(static_cast<double>(x)));
}

float exp2_fp32(float x) {
    return static_cast<float>(std::exp2(static_cast<double>(x)));
}

void Errors::add(const std::vector<float>& o, const std::vector<double>& exact) {
    double error_squares = 0, exact_squares = 0;
    for (std::size_t d = 0; d < exact.size(); ++d) {
        const double error = static_cast<double>(o[d]) - exact[d];
        error_squares += error * error;
        exact_squares += exact[d] * exact[d];
    }
    if (std::isnan(error_squares)) {
        ++nan_rows_;
        return;
    }
    error_squares_ += error_squares;
    exact_squares_ += exact_squares;
}

std::vector<float> weighted_mean(const Head<float>& head, const std::vector<float>& weights, Rounding round,
                                 bool round_divisor) {
    std::vector<float> o(static_cast<std::size_t>(head.head_dim));
    float sum = 0;
    for (int j = 0; j < head.len_kv; ++j) {
        const float weight = weights[static_cast<std::size_t>(j)];
        const float p = round(weight);
        sum += round_divisor ? p : weight;
        for (int d = 0; d < head.head_dim; ++d) o[static_cast<std::size_t>(d)] += p * head.value(j)[d];
    }
    for (float& x : o) x /= sum;
    return o;
}

}  // namespace flash::studies
