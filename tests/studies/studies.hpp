// The questions that docs/numerics.md answers, each a function of its parameters. A variant's name is
// "METHOD: CASE"; the metric's name says which question the row belongs to.
#pragma once

#include <vector>

#include "common/bench/results.hpp"

namespace flash::studies {

struct Finding {
    bench::Case what;
    bench::Metric metric;
};
using Findings = std::vector<Finding>;

// Where is the scale applied? scale_error: relative error of O, everything else in fp32.
Findings where_to_scale(int head_dim, double logit_size);

// What does rounding P cost? p_error: relative error of O, everything else in fp32.
Findings rounding_of_p(double logit_size);
Findings rounding_of_small_weights();

// Which value hides a score? wrong_rows and nan_rows, of 64.
Findings mask_values();

// How does the error grow with N? growth_error: relative error of O.
Findings growth(int len_kv, bool rising_scores);

// fp16 or bf16 at large logits? logit_error and logit_nan_rows, of 256.
Findings large_logits(double logit_size);

// Two equal keys: what does L in fp32 give back? rebuilt_p, which should be 0.5, and lse_spacing.
Findings equal_keys(double logit);

// All of them with the parameters of plots/data/study.csv.
Findings all_findings();

// The row of a results file. What a row says does not depend on the machine, so none is named.
std::string csv_row(const Finding& finding);

}  // namespace flash::studies
