// What a hidden key's score is replaced by, in tiles of 16 x 16 keys, over rows that each mistake needs.
#include <algorithm>
#include <functional>
#include <limits>

#include "arithmetic.hpp"
#include "common/testing/random.hpp"
#include "studies.hpp"

namespace flash::studies {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kLen = 64, kTile = 16;

struct Method {
    const char* name;
    float hidden;     // the score of a hidden key
    bool is_guarded;  // a row that has seen nothing is shifted by 0, and an empty sum gives 0
};
constexpr Method kMethods[] = {{"-inf, guarded", -kInf, true},
                               {"-inf, not guarded", -kInf, false},
                               {"-1e30", -1e30f, false},
                               {"-1e4", -1e4f, false}};

struct Situation {
    const char* name;
    std::function<bool(int i, int j)> visible;
    float base;  // added to the scores
};
const Situation kSituations[] = {
    {"causal", [](int i, int j) { return j <= i; }, 0},
    {"a hidden first tile", [](int, int j) { return j >= kTile; }, 0},
    {"rows that see no key", [](int i, int j) { return j <= i - 20; }, 0},
    {"causal, logits near -2e6", [](int i, int j) { return j <= i; }, -2e6f},
};

struct Row {
    double o, lse;
};

// One value per key is enough: V = 1, 2, ... 64.
double value(int j) {
    return j + 1;
}

Row exact_row(const Situation& situation, const std::vector<float>& scores, int i) {
    double largest = -static_cast<double>(kInf), sum = 0, o = 0;
    for (int j = 0; j < kLen; ++j) {
        if (situation.visible(i, j)) largest = std::max(largest, double{scores[static_cast<std::size_t>(j)]});
    }
    for (int j = 0; j < kLen; ++j) {
        if (!situation.visible(i, j)) continue;
        const double p = std::exp(double{scores[static_cast<std::size_t>(j)]} - largest);
        sum += p;
        o += p * value(j);
    }
    return sum == 0 ? Row{0, largest} : Row{o / sum, largest + std::log(sum)};
}

Row tiled_row(const Method& method, const Situation& situation, const std::vector<float>& scores, int i) {
    float row_max = -kInf, row_sum = 0, o = 0;
    for (int first = 0; first < kLen; first += kTile) {
        float s[kTile];
        float new_max = row_max;
        for (int j = 0; j < kTile; ++j) {
            const float score = scores[static_cast<std::size_t>(first + j)];
            s[j] = situation.visible(i, first + j) ? score : method.hidden;
            new_max = std::max(new_max, s[j]);
        }
        const float shift = method.is_guarded && new_max == -kInf ? 0 : new_max;
        const float rescale = exp_fp32(row_max - shift);
        o *= rescale;
        row_sum *= rescale;
        row_max = new_max;
        for (int j = 0; j < kTile; ++j) {
            const float p = exp_fp32(s[j] - shift);
            row_sum += p;
            o += p * static_cast<float>(value(first + j));
        }
    }
    if (method.is_guarded && row_sum == 0) return {0, -static_cast<double>(kInf)};
    return {double{o / row_sum}, double{row_max} + std::log(double{row_sum})};
}

bool differs(double got, double want, double tolerance) {
    return got != want && !(std::abs(got - want) <= tolerance);
}

}  // namespace

Findings mask_values() {
    Findings findings;
    for (const Situation& situation : kSituations) {
        for (const Method& method : kMethods) {
            int wrong = 0, nan = 0;
            for (int i = 0; i < kLen; ++i) {
                std::vector<float> scores;
                for (int j = 0; j < kLen; ++j) {
                    const auto index = static_cast<std::uint64_t>(i * kLen + j);
                    scores.push_back(situation.base + testing::random_normal(7, index));
                }
                const Row want = exact_row(situation, scores, i);
                const Row got = tiled_row(method, situation, scores, i);
                nan += std::isnan(got.o) || std::isnan(got.lse) ? 1 : 0;
                wrong += differs(got.o, want.o, 1e-3) || differs(got.lse, want.lse, 1e-3) ? 1 : 0;
            }
            const bench::Case what{std::string(method.name) + ": " + situation.name,
                                   "cpu",
                                   "study",
                                   "fp32",
                                   {1, 1, 1, kLen, kLen, 1},
                                   Mask::none()};
            findings.push_back({what, {"wrong_rows", "rows", bench::exactly(wrong)}});
            findings.push_back({what, {"nan_rows", "rows", bench::exactly(nan)}});
        }
    }
    return findings;
}

}  // namespace flash::studies
