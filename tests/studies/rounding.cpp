// Roundings on the way through one row: of the scaled query, and of P.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "arithmetic.hpp"
#include "studies.hpp"

namespace flash::studies {

namespace {

constexpr double kLog2E = 1.4426950408889634;

std::string number(double x) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", x);
    return text;
}

bench::Case as_case(const std::string& variant, const char* dtype, const Head<float>& head) {
    return {variant, "cpu", "study", dtype, {1, 1, 1, head.len_q, head.len_kv, head.head_dim}, Mask::none()};
}

Finding finding(const std::string& variant, const char* dtype, const Head<float>& head, const char* metric,
                double value) {
    return {as_case(variant, dtype, head), {metric, "", bench::exactly(value)}};
}

// exp(factor * scores - max), unnormalised, as a kernel with a separate multiplication computes it.
std::vector<float> weights_of(std::vector<float> scores, float factor, float (*power)(float)) {
    for (float& s : scores) s *= factor;
    const float largest = *std::max_element(scores.begin(), scores.end());
    for (float& s : scores) s = power(s - largest);
    return scores;
}

// The same by one multiply-add a score.
std::vector<float> weights_by_fma(std::vector<float> scores, float factor) {
    const float shift = -*std::max_element(scores.begin(), scores.end()) * factor;
    for (float& s : scores) s = exp2_fp32(std::fma(s, factor, shift));
    return scores;
}

std::vector<float> scaled_query(const Head<float>& head, int i, double factor) {
    std::vector<float> q(head.query(i), head.query(i) + head.head_dim);
    for (float& x : q) x = rounded<bf16>(x * static_cast<float>(factor));
    return q;
}

std::vector<double> exact_output(const Head<float>& head, int i) {
    auto scores = exact_dots(head, i);
    for (double& s : scores) s *= head.scale();
    return exact_row(head, scores);
}

}  // namespace

Findings where_to_scale(int head_dim, double logit_size) {
    const auto head = random_head(256, 256, head_dim, logit_size, rounded<bf16>);
    const float scale = static_cast<float>(head.scale());
    const float scale_log2 = static_cast<float>(head.scale() * kLog2E);
    Errors on_q, on_q_log2, on_scores, folded, whole;
    for (int i = 0; i < head.len_q; ++i) {
        const auto exact = exact_output(head, i);
        const auto scores = dots(head, head.query(i));
        const auto add = [&](Errors& errors, const std::vector<float>& weights) {
            errors.add(weighted_mean(head, weights, rounded<float>, false), exact);
        };
        add(on_q, weights_of(dots(head, scaled_query(head, i, head.scale()).data()), 1, exp_fp32));
        add(on_q_log2,
            weights_of(dots(head, scaled_query(head, i, head.scale() * kLog2E).data()), 1, exp2_fp32));
        add(on_scores, weights_of(scores, scale, exp_fp32));
        add(folded, weights_by_fma(scores, scale_log2));
        auto o = weighted_mean(head, weights_by_fma(scores, scale_log2), rounded<bf16>, false);
        for (float& x : o) x = rounded<bf16>(x);
        whole.add(o, exact);
    }
    const std::string at = ": logit size " + number(logit_size);
    const auto row = [&](const char* method, const Errors& errors) {
        return finding(method + at, "bf16", head, "scale_error", errors.relative());
    };
    return {row("scale on bf16 Q", on_q), row("scale log2(e) on bf16 Q", on_q_log2),
            row("scale on fp32 scores", on_scores), row("scale folded into exp2", folded),
            row("folded, P and O in bf16", whole)};
}

namespace {

struct RoundedP {
    const char* method;
    const char* dtype;
    Rounding round;
    bool round_divisor;
};
constexpr RoundedP kRoundedP[] = {{"P in fp32", "fp32", rounded<float>, false},
                                  {"P in fp16", "fp16", rounded<fp16>, false},
                                  {"P in bf16", "bf16", rounded<bf16>, false},
                                  {"P in bf16, its sum too", "bf16", rounded<bf16>, true}};

}  // namespace

Findings rounding_of_p(double logit_size) {
    const auto head = random_head(128, 1024, 64, logit_size, rounded<bf16>);
    auto ones = head;
    std::fill(ones.v.begin(), ones.v.end(), 1.0f);
    Errors errors[std::size(kRoundedP)], errors_of_ones[std::size(kRoundedP)], output;
    for (int i = 0; i < head.len_q; ++i) {
        const auto exact = exact_output(head, i);
        const std::vector<double> exact_ones(exact.size(), 1.0);
        const auto weights =
            weights_by_fma(dots(head, head.query(i)), static_cast<float>(head.scale() * kLog2E));
        for (std::size_t n = 0; n < std::size(kRoundedP); ++n) {
            const auto& [method, dtype, round, round_divisor] = kRoundedP[n];
            errors[n].add(weighted_mean(head, weights, round, round_divisor), exact);
            errors_of_ones[n].add(weighted_mean(ones, weights, round, round_divisor), exact_ones);
        }
        auto o = weighted_mean(head, weights, rounded<float>, false);
        for (float& x : o) x = rounded<bf16>(x);
        output.add(o, exact);
    }
    const std::string at = ": logit size " + number(logit_size);
    Findings findings;
    for (std::size_t n = 0; n < std::size(kRoundedP); ++n) {
        const auto& [method, dtype, round, round_divisor] = kRoundedP[n];
        findings.push_back(finding(method + at, dtype, head, "p_error", errors[n].relative()));
        findings.push_back(
            finding(method + at + ", V all ones", dtype, head, "p_error", errors_of_ones[n].relative()));
    }
    findings.push_back(finding("P in fp32, O in bf16" + at, "bf16", head, "p_error", output.relative()));
    return findings;
}

// One key with a scaled score of 17 and V = 0 beside 65,535 keys with score 0 and V = 1: each of them weighs
// exp(-17), less than the smallest number of fp16, and together they are 0.27 % of the sum.
Findings rounding_of_small_weights() {
    constexpr int kKeys = 65536;
    Head<float> head{1, kKeys, 1, {1}, std::vector<float>(kKeys, 0), std::vector<float>(kKeys, 1)};
    head.k.back() = 17;  // last, so that the small weights are added to each other before they meet a 1
    head.v.back() = 0;
    std::vector<double> scores(head.k.begin(), head.k.end());
    const auto exact = exact_row(head, scores);
    const auto weights = weights_of(head.k, 1, exp_fp32);
    Findings findings;
    for (const auto& [method, dtype, round, round_divisor] : kRoundedP) {
        Errors errors;
        errors.add(weighted_mean(head, weights, round, round_divisor), exact);
        findings.push_back(
            finding(std::string(method) + ": many small weights", dtype, head, "p_error", errors.relative()));
    }
    return findings;
}

}  // namespace flash::studies
