// The error of O over N: when it is divided, and what it is kept in meanwhile.
#include <algorithm>
#include <limits>

#include "arithmetic.hpp"
#include "studies.hpp"

namespace flash::studies {

namespace {

constexpr int kTile = 64;

struct Keeping {
    const char* method;
    const char* dtype;
    bool divide_every_tile;
    Rounding keep;     // of O between tiles
    Rounding round_p;  // for the product with V
    Rounding output;
};
constexpr Keeping kKeepings[] = {
    {"divided once, kept in fp32", "fp32", false, rounded<float>, rounded<float>, rounded<float>},
    {"divided at every tile, kept in fp32", "fp32", true, rounded<float>, rounded<float>, rounded<float>},
    {"divided once, kept in bf16", "bf16", false, rounded<bf16>, rounded<float>, rounded<float>},
    {"divided at every tile, kept in bf16", "bf16", true, rounded<bf16>, rounded<float>, rounded<float>},
    {"a whole step: P and O rounded to bf16", "bf16", false, rounded<float>, rounded<bf16>, rounded<bf16>},
};

// Online softmax over tiles of keys; scores are scaled.
std::vector<float> tiled_row(const Head<float>& head, const std::vector<float>& scores,
                             const Keeping& keeping) {
    std::vector<float> o(static_cast<std::size_t>(head.head_dim));
    float row_max = -std::numeric_limits<float>::infinity(), row_sum = 0;
    for (int first = 0; first < head.len_kv; first += kTile) {
        const int last = std::min(first + kTile, head.len_kv);
        const float tile_max = *std::max_element(scores.begin() + first, scores.begin() + last);
        const float new_max = std::max(row_max, tile_max);
        const float rescale = exp_fp32(row_max - new_max);
        for (float& x : o) x *= keeping.divide_every_tile ? row_sum * rescale : rescale;
        row_max = new_max;
        row_sum *= rescale;
        for (int j = first; j < last; ++j) {
            const float p = exp_fp32(scores[static_cast<std::size_t>(j)] - row_max);
            row_sum += p;
            const float weight = keeping.round_p(p);
            for (int d = 0; d < head.head_dim; ++d) {
                o[static_cast<std::size_t>(d)] += weight * head.value(j)[d];
            }
        }
        for (float& x : o) x = keeping.keep(keeping.divide_every_tile ? x / row_sum : x);
    }
    for (float& x : o) x = keeping.output(keeping.divide_every_tile ? x : x / row_sum);
    return o;
}

}  // namespace

Findings growth(int len_kv, bool rising_scores) {
    const auto head = random_head(16, len_kv, 64, 1, rounded<bf16>);
    Errors errors[std::size(kKeepings)];
    for (int i = 0; i < head.len_q; ++i) {
        auto scores = dots(head, head.query(i));
        for (int j = 0; j < len_kv; ++j) {
            float& s = scores[static_cast<std::size_t>(j)];
            s *= static_cast<float>(head.scale());
            if (rising_scores) s += 20 * static_cast<float>(j) / static_cast<float>(len_kv);
        }
        // Exact for these very scores, so that only what happens after them counts.
        const auto exact = exact_row(head, {scores.begin(), scores.end()});
        for (std::size_t n = 0; n < std::size(kKeepings); ++n) {
            errors[n].add(tiled_row(head, scores, kKeepings[n]), exact);
        }
    }
    Findings findings;
    for (std::size_t n = 0; n < std::size(kKeepings); ++n) {
        const std::string variant =
            std::string(kKeepings[n].method) + (rising_scores ? ": rising scores" : ": random scores");
        findings.push_back(
            {{variant, "cpu", "study", kKeepings[n].dtype, {1, 1, 1, head.len_q, len_kv, 64}, Mask::none()},
             {"growth_error", "", bench::exactly(errors[n].relative())}});
    }
    return findings;
}

}  // namespace flash::studies
