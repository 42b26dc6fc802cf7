// What the judges of forward and backward calls share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/testing/inputs.hpp"
#include "common/testing/tolerance.hpp"

namespace flash::testing {

inline constexpr double kFp32Roundoff = 0x1p-24;
inline constexpr double kFloorUlps = 2;

// What checking a call found.
struct Judgement {
    std::int64_t compared = 0;     // elements of the outputs compared with the reference
    double worst_error_share = 0;  // largest error divided by what is allowed
    double worst_twin_share = 0;   // largest error of the twin divided by what theory allows it
    std::string failure;           // empty when the call is right
};

// Adds a verdict on some values; `place` names the first wrong one.
void absorb(Judgement& judgement, const Verdict& verdict, const Compared& values, const std::string& place);

// Every element of an output is written, and nothing around it. Empty when so.
template <class T> std::string check_written(const HostTensor<T>& output, const std::string& name);

double largest_finite(std::span<const double> values);

// The largest Euclidean norm of a row, non-finite elements left out.
template <class T> double largest_norm(const HostTensor<T>& t);

// The largest finite magnitude; of one channel when channel >= 0.
template <class T> double largest_element(const HostTensor<T>& t, int channel = -1);

// What an fp32 score may be off by: scores of at most max_score in size, products of rows whose scaled norms
// multiply to score_reach. Rounding errors of a sum of n terms grow like sqrt(n); 4 is four standard
// deviations.
double score_error_bound(double score_reach, double max_score, int head_dim);

std::string number(double x);

}  // namespace flash::testing
