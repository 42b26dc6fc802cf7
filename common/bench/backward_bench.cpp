#include "common/bench/backward_bench.hpp"

#include <string>
#include <type_traits>
#include <vector>

#include "common/bench/device_bench.hpp"
#include "common/bench/device_timing.hpp"
#include "common/bench/memory.hpp"
#include "common/gpu/device.hpp"

namespace flash::bench {

namespace {

template <class T> class BackwardTypeBench {
  public:
    using Problem = BackwardProblem<T, gpu::DeviceBuffer>;

    BackwardTypeBench(Session& session, const GpuBackwardStep& step, const BackwardFunctions<T>& functions)
        : session_(session), step_(step), functions_(functions) {}

    void run() {
        auto real = Problem::real(functions_);
        for (const bool deterministic : {false, true}) check(real, deterministic, "real text");
        if (session_.backend() == "emulator") {
            count_all();
        } else {
            time_all();
        }
    }

  private:
    static std::string name(bool deterministic) { return deterministic ? "deterministic" : "fast"; }

    Case as_case(const Problem& problem, bool deterministic) const {
        return {name(deterministic), session_.backend(), "backward",
                dtype_name<T>(),     problem.shape(),    problem.mask()};
    }

    void check(Problem& problem, bool deterministic, const std::string& inputs) {
        session_.check("backward, " + name(deterministic) + ", " + dtype_name<T>() + " " + inputs + ", " +
                           describe(problem.shape(), problem.mask()),
                       problem.failure(deterministic));
    }

    // The workspace that the caller hands in, and whatever the call takes beside it.
    Metric extra_memory(Problem& problem, bool deterministic) {
        const auto args = problem.args(deterministic);
        const std::int64_t taken = peak_extra_device_bytes([&] { functions_.backward(args); });
        return {"extra_memory", "bytes", exactly(static_cast<double>(args.workspace_bytes + taken))};
    }

    // Emulator: small problems, exact counts.
    void count_all() {
        for (const int head_dim : {64, 128}) {
            if (session_.tour() && head_dim != 64) continue;
            for (const int len : {64, 128, 256, 512}) {
                if (session_.tour() && len > 256) continue;
                Problem problem({1, 1, 1, len, len, head_dim}, Mask::none(), functions_);
                count(problem);
                if (len != 256) continue;
                problem.set_mask(Mask::causal_top_left());
                count(problem);
            }
        }
    }

    void count(Problem& problem) {
        const Shape& shape = problem.shape();
        for (const bool deterministic : {false, true}) {
            check(problem, deterministic, "random");
            auto metrics = count_device_work([&] { functions_.backward(problem.args(deterministic)); });
            metrics.push_back(extra_memory(problem, deterministic));
            if (!problem.mask().is_causal && shape.len_q % 128 == 0) {
                const auto model = [&](const char* metric, const BackwardTraffic& traffic) {
                    metrics.push_back({metric, "bytes", exactly(traffic(shape, sizeof(T), deterministic))});
                };
                model("model_per_block", step_.per_block);
                model("model_per_launch", step_.per_launch);
            }
            session_.record(as_case(problem, deterministic), metrics);
        }
    }

    // GPU: 16,384 tokens and 2,048 numbers a token, however they are divided into sequences and heads.
    void time_all() {
        const auto watch = device_stopwatch();
        const Peaks peaks = measure_device_peaks(dtype_name<T>());
        for (const int head_dim : {64, 128, 256}) {
            if (head_dim > step_.max_head_dim || (session_.tour() && head_dim != 64)) continue;
            for (const int len : {512, 1024, 2048, 4096, 8192, 16384}) {
                // The sweep over lengths is bf16's; the tour and fp16 show one length.
                const bool is_swept = !session_.tour() && std::is_same_v<T, bf16>;
                if (len > step_.max_len || (!is_swept && len != 4096)) continue;
                const int heads = 2048 / head_dim;
                Problem problem({16384 / len, heads, heads, len, len, head_dim}, Mask::none(), functions_);
                for (const Mask& mask : {Mask::none(), Mask::causal_top_left()}) {
                    problem.set_mask(mask);
                    time(problem, *watch, peaks);
                }
            }
        }
    }

    // Both modes in turns.
    void time(Problem& problem, Stopwatch& watch, const Peaks& peaks) {
        std::vector<Variant> variants;
        for (const bool deterministic : {false, true}) {
            check(problem, deterministic, "random");
            variants.push_back({name(deterministic),
                                [&, args = problem.args(deterministic)] { functions_.backward(args); },
                                {backward_flops(problem.shape(), problem.mask()),
                                 backward_bytes(problem.shape(), sizeof(T))},
                                0,
                                {extra_memory(problem, deterministic)}});
        }
        const Plan plan{2, 5, 100, session_.tour() ? 0.1 : 0.5};
        session_.measure(as_case(problem, false), watch, variants, peaks, plan);
    }

    Session& session_;
    const GpuBackwardStep& step_;
    const BackwardFunctions<T>& functions_;
};

}  // namespace

int backward_bench(int argc, char** argv, const GpuBackwardStep& step) {
    return run_device_bench(argc, argv, step.info, [&](Session& session) {
        BackwardTypeBench<bf16>(session, step, step.bfloat).run();
        // The tour shows one 2-byte type; the other runs at the same speed.
        if (!session.tour()) BackwardTypeBench<fp16>(session, step, step.half).run();
    });
}

}  // namespace flash::bench
