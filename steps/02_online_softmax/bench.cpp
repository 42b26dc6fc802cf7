// Step 02 measured: three passes over a row against one pass and an output pass. One pass less is not less
// time here: an element costs three exps instead of two, and a call of rescale.
#include <algorithm>
#include <cmath>

#include "common/bench/softmax_bench.hpp"
#include "softmax.hpp"

namespace {

// What the online form replaces: maximum, sum, output, with the sum in double as in step 01.
void three_passes(const float* x, float* y, std::int64_t n) {
    float row_max = -INFINITY;
    for (std::int64_t i = 0; i < n; ++i) row_max = std::max(row_max, x[i]);
    double row_sum = 0;
    for (std::int64_t i = 0; i < n; ++i) row_sum += std::exp(x[i] - row_max);
    const auto divisor = static_cast<float>(row_sum);
    for (std::int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i] - row_max) / divisor;
}

}  // namespace

int main(int argc, char** argv) {
    using namespace flash;
    const bench::StepInfo step{"02", "one pass with a running maximum and a running sum replaces two"};
    return bench::run_bench(argc, argv, step, "cpu", "", [](bench::Session& session) {
        const std::vector<bench::SoftmaxVariant> variants = {{"three passes", three_passes, 4},
                                                             {"online", step02::online_softmax, 3}};
        bench::check_on_real_scores(session, variants);
        if (session.tour()) return bench::bench_softmax(session, variants, 1 << 20);
        for (const std::int64_t n : {1 << 12, 1 << 16, 1 << 20, 1 << 22}) {
            bench::bench_softmax(session, variants, n);
        }
    });
}
