#include "common/testing/judging.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace flash::testing {

std::string number(double x) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.9g", x);
    return text;
}

void absorb(Judgement& judgement, const Verdict& verdict, const Compared& values, const std::string& place) {
    judgement.compared += verdict.compared;
    if (verdict.finite > 0 && verdict.allowed > 0)
        judgement.worst_error_share = std::max(judgement.worst_error_share, verdict.error / verdict.allowed);
    judgement.worst_twin_share = std::max(judgement.worst_twin_share, verdict.twin_share);
    if (verdict.why.empty() || !judgement.failure.empty()) return;
    const auto i = static_cast<std::size_t>(verdict.first_wrong);
    judgement.failure = place + ": " + verdict.why + ": got " + number(values.out[i]) + ", want " +
                        number(values.reference[i]) + " +- " + number(verdict.allowed) + " (twin " +
                        number(values.twin[i]) + ")";
}

template <class T> std::string check_written(const HostTensor<T>& t, const std::string& name) {
    std::vector<bool> inside(t.memory.size(), false);
    for (int b = 0; b < t.batch; ++b) {
        for (int h = 0; h < t.heads; ++h) {
            for (int n = 0; n < t.len; ++n) {
                for (int d = 0; d < t.head_dim; ++d) {
                    const auto at = static_cast<std::size_t>(t.index(b, h, n, d));
                    inside[at] = true;
                    if (bits_of(t.memory[at]) == bits_of(canary<T>()))
                        return name + "[b=" + std::to_string(b) + ", h=" + std::to_string(h) +
                               ", i=" + std::to_string(n) + ", d=" + std::to_string(d) +
                               "] was never written";
                }
            }
        }
    }
    for (std::size_t at = 0; at < t.memory.size(); ++at) {
        if (!inside[at] && bits_of(t.memory[at]) != bits_of(canary<T>()))
            return "the step wrote outside " + name + ": " +
                   std::to_string(static_cast<std::int64_t>(at) - t.first) + " elements after its first one";
    }
    return "";
}

double largest_finite(std::span<const double> values) {
    double largest = 0;
    for (const double x : values)
        if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    return largest;
}

template <class T> double largest_norm(const HostTensor<T>& t) {
    double largest = 0;
    for (int b = 0; b < t.batch; ++b) {
        for (int h = 0; h < t.heads; ++h) {
            for (int n = 0; n < t.len; ++n) {
                double sum = 0;
                for (int d = 0; d < t.head_dim; ++d) {
                    const double x = to_float(t.memory[static_cast<std::size_t>(t.index(b, h, n, d))]);
                    if (std::isfinite(x)) sum += x * x;
                }
                largest = std::max(largest, sum);
            }
        }
    }
    return std::sqrt(largest);
}

template <class T> double largest_element(const HostTensor<T>& t, int channel) {
    double largest = 0;
    for (int b = 0; b < t.batch; ++b) {
        for (int h = 0; h < t.heads; ++h) {
            for (int n = 0; n < t.len; ++n) {
                for (int d = 0; d < t.head_dim; ++d) {
                    const double x = to_float(t.memory[static_cast<std::size_t>(t.index(b, h, n, d))]);
                    if ((channel < 0 || d == channel) && std::isfinite(x))
                        largest = std::max(largest, std::abs(x));
                }
            }
        }
    }
    return largest;
}

double score_error_bound(double score_reach, double max_score, int head_dim) {
    return kFp32Roundoff * (4 * std::sqrt(head_dim + 1.0) * score_reach + 4 * max_score);
}

template std::string check_written(const HostTensor<float>&, const std::string&);
template std::string check_written(const HostTensor<fp16>&, const std::string&);
template std::string check_written(const HostTensor<bf16>&, const std::string&);
template double largest_norm(const HostTensor<float>&);
template double largest_norm(const HostTensor<fp16>&);
template double largest_norm(const HostTensor<bf16>&);
template double largest_element(const HostTensor<float>&, int);
template double largest_element(const HostTensor<fp16>&, int);
template double largest_element(const HostTensor<bf16>&, int);

}  // namespace flash::testing
