// What the benches of the softmax steps share: rows of random numbers, the check against double precision,
// and the measurement with its passes counted.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/bench/inputs.hpp"
#include "common/bench/memory.hpp"
#include "common/bench/session.hpp"
#include "common/testing/real_model.hpp"

namespace flash::bench {

struct SoftmaxVariant {
    std::string name;
    std::function<void(const float* x, float* y, std::int64_t n)> softmax;
    int passes;  // over the row, reading or writing: for the GB/s
};

// What an honest fp32 sum of n numbers may be off by, as a share of it: rounding errors grow like sqrt(n).
inline double softmax_tolerance(std::int64_t n) {
    return (std::sqrt(static_cast<double>(n)) + 16) * 0x1p-23;
}

// Empty when y is the softmax of x, up to `tolerance` of the row's largest output.
inline std::string softmax_failure(std::span<const float> x, std::span<const float> y,
                                   double tolerance = 1e-5) {
    const double row_max = *std::max_element(x.begin(), x.end());
    double row_sum = 0;
    for (const float value : x) row_sum += std::exp(value - row_max);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = std::abs(y[i] - std::exp(x[i] - row_max) / row_sum) * row_sum;
        worst = error <= worst ? worst : error;  // a NaN stays
    }
    if (worst <= tolerance) return "";
    return "largest error " + format_number(worst) + " of the row's largest output, accepted " +
           format_number(tolerance);
}

// The scaled scores of one query of the captured real input against all keys.
inline std::vector<float> real_scores(int head, int query) {
    const auto& model = testing::real_model();
    std::vector<float> scores;
    for (int key = 0; key < model.tokens; ++key) {
        double dot = 0;
        for (int d = 0; d < model.head_dim; ++d) {
            dot += model.value(0, head, query, d) * model.value(1, head, key, d);
        }
        scores.push_back(static_cast<float>(dot / std::sqrt(model.head_dim)));
    }
    return scores;
}

inline void check_on_real_scores(Session& session, const std::vector<SoftmaxVariant>& variants) {
    const auto& model = testing::real_model();
    for (const auto& variant : variants) {
        std::string failure;
        for (int head = 0; head < model.heads && failure.empty(); ++head) {
            for (int query = 0; query < model.tokens && failure.empty(); ++query) {
                const std::vector<float> x = real_scores(head, query);
                std::vector<float> y(x.size(), NAN);
                variant.softmax(x.data(), y.data(), model.tokens);
                failure = softmax_failure(x, y, softmax_tolerance(model.tokens));
                if (!failure.empty())
                    failure += ", head " + std::to_string(head) + ", query " + std::to_string(query);
            }
        }
        session.check(variant.name + ", fp32 scores of real text, " +
                          std::to_string(model.heads * model.tokens) + " rows of " +
                          std::to_string(model.tokens),
                      failure);
    }
}

inline Shape row_shape(std::int64_t n) {
    return {1, 1, 1, 1, static_cast<int>(n), 1};
}

// Checks, then times every variant on one row of n numbers.
inline void bench_softmax(Session& session, const std::vector<SoftmaxVariant>& variants, std::int64_t n) {
    const std::vector<float> x = random_normal(n, 1);
    std::vector<float> y(x.size());
    std::vector<Variant> timed;
    const double row_bytes = static_cast<double>(n) * sizeof(float);
    for (const auto& variant : variants) {
        const auto call = [&] { variant.softmax(x.data(), y.data(), n); };
        std::fill(y.begin(), y.end(), NAN);
        const std::int64_t extra_bytes = peak_extra_host_bytes(call);
        session.check(variant.name + ", fp32 random, n = " + std::to_string(n),
                      softmax_failure(x, y, softmax_tolerance(n)));
        timed.push_back({variant.name,
                         call,
                         {0, 2 * row_bytes},  // the row has to be read and written at least
                         variant.passes * row_bytes,
                         {{"passes", "", exactly(variant.passes)},
                          {"extra_memory", "bytes", exactly(static_cast<double>(extra_bytes))}}});
    }
    const auto watch = cpu_stopwatch();
    const Peaks peaks{0, cpu_copy_bandwidth(x.size() * sizeof(float))};
    const Plan plan{1, 5, 50, session.tour() ? 0.2 : 1.0};
    session.measure({"", session.backend(), "softmax", "fp32", row_shape(n), Mask::none()}, *watch, timed,
                    peaks, plan);
}

}  // namespace flash::bench
