// Large logits: what the inputs' type leaves of them, what a step adds, and what fp32 leaves of L.
#include <algorithm>
#include <cstdio>

#include "arithmetic.hpp"
#include "common/testing/tolerance.hpp"
#include "studies.hpp"

namespace flash::studies {

namespace {

std::string number(double x) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", x);
    return text;
}

std::vector<double> scaled(std::vector<double> scores, double scale) {
    for (double& s : scores) s *= scale;
    return scores;
}

// O of a step whose scores are rounded by `keep` before they are scaled; P and O are rounded to T.
template <class T> std::vector<float> step_row(const Head<float>& head, int i, Rounding keep) {
    auto weights = dots(head, head.query(i));
    for (float& s : weights) s = keep(s) * static_cast<float>(head.scale());
    const float largest = *std::max_element(weights.begin(), weights.end());
    for (float& s : weights) s = exp_fp32(s - largest);
    auto o = weighted_mean(head, weights, rounded<T>, false);
    for (float& x : o) x = rounded<T>(x);
    return o;
}

template <class T> void large_logits_in(Findings& findings, double logit_size) {
    constexpr int kQueries = 256, kKeys = 256, kHeadDim = 64;
    const auto given = random_head(kQueries, kKeys, kHeadDim, logit_size, rounded<float>);
    const auto head = random_head(kQueries, kKeys, kHeadDim, logit_size, rounded<T>);
    Errors inputs, step, narrow_scores;
    for (int i = 0; i < kQueries; ++i) {
        const auto exact = exact_row(head, scaled(exact_dots(head, i), head.scale()));
        const std::vector<float> exact_as_float(exact.begin(), exact.end());
        inputs.add(exact_as_float, exact_row(given, scaled(exact_dots(given, i), given.scale())));
        step.add(step_row<T>(head, i, rounded<float>), exact);
        narrow_scores.add(step_row<T>(head, i, rounded<T>), exact);
    }
    const auto row = [&](const char* method, const Errors& errors) {
        const bench::Case what{std::string(method) + ": logit size " + number(logit_size),
                               "cpu",
                               "study",
                               dtype_name<T>(),
                               {1, 1, 1, kQueries, kKeys, kHeadDim},
                               Mask::none()};
        const int nan_rows = errors.nan_rows();
        if (nan_rows == 0) {
            findings.push_back({what, {"logit_error", "", bench::exactly(errors.relative())}});
        }
        findings.push_back({what, {"logit_nan_rows", "rows", bench::exactly(nan_rows)}});
    };
    row("rounding the inputs", inputs);
    row("the step, scores in fp32", step);
    row("the step, scores in the inputs' type", narrow_scores);
}

}  // namespace

Findings large_logits(double logit_size) {
    Findings findings;
    large_logits_in<fp16>(findings, logit_size);
    large_logits_in<bf16>(findings, logit_size);
    return findings;
}

Findings equal_keys(double logit) {
    // Of two equal keys, P = 0.5 and L = logit + ln 2.
    const float score = static_cast<float>(logit);
    const float row_sum = 2;
    const float lse = score + static_cast<float>(std::log(2.0));
    const auto row = [&](const char* method, const char* metric, double value) {
        return Finding{{std::string(method) + ": logit " + number(logit),
                        "cpu",
                        "study",
                        "fp32",
                        {1, 1, 1, 1, 2, 1},
                        Mask::none()},
                       {metric, "", bench::exactly(value)}};
    };
    return {row("exp(S - L), L in fp32", "rebuilt_p", static_cast<double>(exp_fp32(score - lse))),
            row("exp(S - m) / l, m and l in fp32", "rebuilt_p",
                static_cast<double>(exp_fp32(score - score) / row_sum)),
            row("exp(S - L), L in fp32", "lse_spacing", testing::format_of<float>().ulp(logit))};
}

Findings all_findings() {
    Findings all;
    const auto add = [&all](const Findings& more) { all.insert(all.end(), more.begin(), more.end()); };
    for (const int head_dim : {64, 128}) {
        for (const double logit_size : {1.0, 4.0, 16.0, 64.0}) add(where_to_scale(head_dim, logit_size));
    }
    for (const double logit_size : {1.0, 4.0}) add(rounding_of_p(logit_size));
    add(rounding_of_small_weights());
    add(mask_values());
    for (const bool rising_scores : {false, true}) {
        for (const int len_kv : {256, 1024, 4096, 16384, 65536}) add(growth(len_kv, rising_scores));
    }
    for (const double logit_size : {1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0})
        add(large_logits(logit_size));
    for (const double logit : {1.0, 1e2, 1e4, 1e6, 1e7, 1e8}) add(equal_keys(logit));
    return all;
}

std::string csv_row(const Finding& finding) {
    return bench::csv_row("", finding.what, finding.metric, {"any", "emulated arithmetic", "", "", "", ""});
}

}  // namespace flash::studies
