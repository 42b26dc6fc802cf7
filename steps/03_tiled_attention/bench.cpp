// Step 03 measured: the whole matrix, tiles, and the same tiles with SIMD: time, rate as a share of the peak,
// and extra memory over N; then what the two loop orders move.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "attention.hpp"
#include "attention_simd.hpp"
#include "common/bench/cpu_peak.hpp"
#include "common/bench/forward_problem.hpp"
#include "common/bench/memory.hpp"
#include "common/bench/session.hpp"
#include "common/testing/host_buffer.hpp"
#include "loop_order.hpp"

namespace {

using namespace flash;
using Problem = bench::ForwardProblem<float, testing::HostBuffer>;

struct Function {
    std::string name;
    std::function<void(const ForwardArgs<float>&)> forward;
};

std::vector<Function> all_functions() {
    return {{"full", step03::attention_full},
            {"tiled", step03::attention_forward},
            {"simd", [](const ForwardArgs<float>& args) { step03::attention_simd(args); }}};
}

bench::Case as_case(const Problem& problem, const std::string& variant = "") {
    return {variant, "cpu", "forward", "fp32", problem.shape(), problem.mask()};
}

// The peak is whatever this processor was seen to do at most: a loop of multiply-adds, or BLAS's matrix
// product.
double measure_peak(bench::Session& session) {
    const double fma = bench::measured_fma_peak_gflops();
    const auto sgemm = bench::measured_sgemm_gflops();
    const bench::Case one_thread{"fma loop", "cpu", "peak", "fp32", {}, Mask::none()};
    session.record(one_thread, {{"rate", "GFLOP/s", bench::exactly(fma)}});
    if (sgemm) {
        bench::Case blas = one_thread;
        blas.variant = "sgemm";
        session.record(blas, {{"rate", "GFLOP/s", bench::exactly(*sgemm)}});
    }
    return std::max(fma, sgemm.value_or(0)) * 1e9;
}

void check(bench::Session& session, Problem& problem, const Function& function, const std::string& input) {
    session.check(function.name + ", fp32 " + input + ", " + bench::describe(problem.shape(), problem.mask()),
                  problem.failure(function.forward));
}

// The functions take turns on one problem; all of them with the same number of threads.
void measure(bench::Session& session, const Shape& shape, const Mask& mask,
             const std::vector<Function>& functions, double peak) {
    Problem problem(shape, mask);
    std::vector<bench::Variant> variants;
    for (const Function& function : functions) {
        check(session, problem, function, "random");
        const auto call = [&problem, &function] { function.forward(problem.args()); };
        const auto extra_bytes = static_cast<double>(bench::peak_extra_host_bytes(call));
        variants.push_back({function.name,
                            call,
                            {bench::forward_flops(shape, mask), 0},
                            0,
                            {{"extra_memory", "bytes", bench::exactly(extra_bytes)}}});
    }
    const auto watch = bench::cpu_stopwatch();
    const bench::Plan plan{1, 3, 50, session.tour() ? 0.2 : 1.0};
    session.measure(as_case(problem), *watch, variants, {peak, 0}, plan);
}

// What the N x N version would take where it cannot run, and what one tile of queries takes against as many
// keys.
void measure_memory_at(bench::Session& session, int len_kv) {
    const Shape square{1, 1, 1, len_kv, len_kv, 64};
    session.record({"full", "cpu", "forward", "fp32", square, Mask::none()},
                   {{"extra_memory_computed", "bytes",
                     bench::exactly(static_cast<double>(step03::full_extra_bytes(square)))}});
    const Function tiled{"tiled", step03::attention_forward};
    Problem problem({1, 1, 1, step03::BLOCK_Q, len_kv, 64}, Mask::none());
    check(session, problem, tiled, "random");
    const auto bytes = bench::peak_extra_host_bytes([&] { tiled.forward(problem.args()); });
    session.record(as_case(problem, "tiled"),
                   {{"extra_memory", "bytes", bench::exactly(static_cast<double>(bytes))}});
}

void count_loop_orders(bench::Session& session, int len) {
    Problem problem({1, 1, 1, len, len, 64}, Mask::none());
    const auto count = [&](const std::string& name, auto forward) {
        step03::Traffic traffic;
        session.check(name + ", fp32 random, " + bench::describe(problem.shape(), problem.mask()),
                      problem.failure([&](const ForwardArgs<float>& args) {
                          traffic = forward(args, step03::BLOCK_Q, step03::BLOCK_KV);
                      }));
        const auto exactly = [](std::int64_t n) { return bench::exactly(static_cast<double>(n)); };
        session.record(as_case(problem, name), {{"traffic", "elements", exactly(traffic.elements())},
                                                {"output_loads", "elements", exactly(traffic.o_loads)},
                                                {"output_stores", "elements", exactly(traffic.o_stores)},
                                                {"key_value_loads", "elements", exactly(traffic.kv_loads)},
                                                {"divisions", "", exactly(traffic.divisions)}});
    };
    count("FA1 order", step03::fa1_forward);
    count("FA2 order", step03::fa2_forward);
}

void run(bench::Session& session) {
    bench::use_threads(1);
    auto real = Problem::real();
    for (const Function& function : all_functions()) check(session, real, function, "real text");

    const double peak = measure_peak(session);
    const std::vector<int> lengths =
        session.tour() ? std::vector<int>{256, 512, 1024} : std::vector<int>{256, 512, 1024, 2048, 4096};
    for (const int head_dim : {64, 128}) {
        if (session.tour() && head_dim != 64) continue;
        for (const int len : lengths) {
            const Shape shape{1, 1, 1, len, len, head_dim};
            measure(session, shape, Mask::none(), all_functions(), peak);
            if (!session.tour() || len == lengths.back()) {
                measure(session, shape, Mask::causal_top_left(), all_functions(), peak);
            }
        }
    }
    const int threads = bench::available_threads();
    if (threads > 1) {
        std::vector<Function> threaded = all_functions();
        threaded.erase(threaded.begin());  // the whole matrix is written for one thread
        for (Function& function : threaded) function.name += ", " + std::to_string(threads) + " threads";
        bench::use_threads(threads);
        measure(session, {1, 8, 8, lengths.back(), lengths.back(), 64}, Mask::none(), threaded,
                peak * threads);
        bench::use_threads(1);
    }
    measure_memory_at(session, 65536);
    count_loop_orders(session, 1024);
}

}  // namespace

int main(int argc, char** argv) {
    const bench::StepInfo step{"03",
                               "in tiles, attention needs no N x N matrix, and the tiles can be made fast"};
    return bench::run_bench(argc, argv, step, "cpu", "", run);
}
