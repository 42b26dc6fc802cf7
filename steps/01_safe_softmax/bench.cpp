// Step 01 measured: where the naive softmax overflows, and what the pass for the maximum costs.
#include <cmath>

#include "common/bench/softmax_bench.hpp"
#include "softmax.hpp"

namespace {

using namespace flash;

// The smallest x, to the 20th bit, for which the naive softmax of (x, 0) is no longer finite.
template <class T> double overflow_point() {
    double finite = 0, overflown = 128;
    for (int step = 0; step < 20; ++step) {
        const double middle = (finite + overflown) / 2;
        const T row[2] = {from_float<T>(static_cast<float>(middle)), from_float<T>(0.0f)};
        T out[2];
        step01::naive_softmax(row, out, 2);
        (std::isfinite(to_float(out[0])) ? finite : overflown) = middle;
    }
    return overflown;
}

template <class T> void bench_overflow(bench::Session& session, double largest) {
    const double measured = overflow_point<T>();
    const double expected = std::log(largest);
    const double difference = std::abs(measured - expected);
    session.check(std::string("naive softmax in ") + dtype_name<T>() + " overflows where exp(x) passes " +
                      bench::format_number(largest),
                  difference < 0.02 ? ""
                                    : "at " + bench::format_number(measured) + ", expected " +
                                          bench::format_number(expected));
    session.record({"naive", "cpu", "softmax", dtype_name<T>(), bench::row_shape(2), Mask::none()},
                   {{"overflow_at", "", bench::exactly(measured)}});
}

}  // namespace

int main(int argc, char** argv) {
    const bench::StepInfo step{
        "01", "exp overflows; subtracting the row's maximum costs one more pass and saves it"};
    return bench::run_bench(argc, argv, step, "cpu", "", [](bench::Session& session) {
        bench_overflow<fp16>(session, 65504);
        bench_overflow<float>(session, 3.4028235e38);
        const std::vector<bench::SoftmaxVariant> variants = {{"naive", step01::naive_softmax<float>, 3},
                                                             {"safe", step01::safe_softmax<float>, 4}};
        bench::check_on_real_scores(session, variants);
        if (session.tour()) return bench::bench_softmax(session, variants, 1 << 20);
        for (const std::int64_t n : {1 << 12, 1 << 16, 1 << 20, 1 << 22}) {
            bench::bench_softmax(session, variants, n);
        }
    });
}
