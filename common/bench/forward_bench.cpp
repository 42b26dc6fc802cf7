#include "common/bench/forward_bench.hpp"

#include <cmath>
#include <cstdio>
#include <string_view>
#include <type_traits>

#include "common/bench/device_bench.hpp"
#include "common/bench/device_timing.hpp"
#include "common/bench/forward_problem.hpp"
#include "common/bench/memory.hpp"
#include "common/gpu/device.hpp"

namespace flash::bench {

namespace {

template <class T> using Problem = ForwardProblem<T, gpu::DeviceBuffer>;

template <class T> class TypeBench {
  public:
    TypeBench(Session& session, const GpuForwardStep& step, const GpuForward<T>& forward)
        : session_(session), step_(step), forward_(forward) {}

    void run() {
        if (!forward_.call) return;
        auto real = Problem<T>::real();
        if (real.shape().head_dim <= step_.max_head_dim) check(real, "real text");
        if (session_.backend() == "emulator") {
            count_all();
        } else {
            time_all();
        }
    }

  private:
    Case as_case(const Shape& shape, const Mask& mask) const {
        return {step_.variant, session_.backend(), "forward", dtype_name<T>(), shape, mask};
    }

    void check(Problem<T>& problem, const std::string& name) {
        session_.check(step_.variant + ", " + dtype_name<T>() + " " + name + ", " +
                           describe(problem.shape(), problem.mask()),
                       problem.failure([this](const ForwardArgs<T>& args) {
                           forward_.call(args);
                           gpu::synchronize();
                       }));
    }

    // Emulator: small problems, exact counts.
    void count_all() {
        for (const int head_dim : {64, 128}) {
            if (session_.tour() && head_dim != 64) continue;
            for (const int len : {64, 128, 256, 512}) {
                if (session_.tour() && len > 256) continue;
                const Shape shape{1, 1, 1, len, len, head_dim};
                count(shape, Mask::none());
                if (len == 256) count(shape, Mask::causal_top_left());
            }
        }
    }

    void count(const Shape& shape, const Mask& mask) {
        Problem<T> problem(shape, mask);
        check(problem, "random");
        const auto call = [&] { forward_.call(problem.args()); };
        std::vector<Metric> metrics = count_device_work(call);
        metrics.push_back(
            {"extra_memory", "bytes", exactly(static_cast<double>(peak_extra_device_bytes(call)))});
        if (!mask.is_causal) {
            const int size = static_cast<int>(sizeof(T));
            if (step_.per_block) {
                metrics.push_back({"model_per_block", "bytes", exactly(step_.per_block(shape, size))});
            }
            if (step_.per_launch) {
                metrics.push_back({"model_per_launch", "bytes", exactly(step_.per_launch(shape, size))});
            }
        }
        session_.record(as_case(shape, mask), metrics);
    }

    // GPU: 16,384 tokens and 2,048 numbers a token, however they are divided into sequences and heads.
    void time_all() {
        const auto watch = device_stopwatch();
        const Peaks peaks = measure_device_peaks(dtype_name<T>());
        const Case whole_device{"peak", session_.backend(), "peak", dtype_name<T>(), {}, Mask::none()};
        session_.record(whole_device, {{"rate", "GFLOP/s", exactly(peaks.flops_per_second / 1e9)},
                                       {"bandwidth", "GB/s", exactly(peaks.bytes_per_second / 1e9)},
                                       {"clock", "MHz", exactly(measure_clock_mhz())}});
        for (const int head_dim : {64, 128, 256}) {
            if (head_dim > step_.max_head_dim || (session_.tour() && head_dim != 64)) continue;
            for (const int len : {512, 1024, 2048, 4096, 8192, 16384}) {
                // The sweep over lengths is bf16's; the tour and the other types show one length.
                const bool is_swept = !session_.tour() && std::is_same_v<T, bf16>;
                if (len > step_.max_len || (!is_swept && len != 4096)) continue;
                const int heads = 2048 / head_dim;
                Problem<T> problem({16384 / len, heads, heads, len, len, head_dim}, Mask::none());
                for (const Mask& mask : {Mask::none(), Mask::causal_top_left()}) {
                    problem.set_mask(mask);
                    time(problem, *watch, peaks);
                }
            }
        }
        session_.record(whole_device, {{"clock_after", "MHz", exactly(measure_clock_mhz())}});
    }

    void time(Problem<T>& problem, Stopwatch& watch, const Peaks& peaks) {
        const Shape& shape = problem.shape();
        check(problem, "random");
        const auto extra_bytes = peak_extra_device_bytes([&] { forward_.call(problem.args()); });
        const Forward<T> timed = forward_.prepare ? forward_.prepare(shape) : forward_.call;
        const Variant variant{step_.variant,
                              [&] { timed(problem.args()); },
                              {forward_flops(shape, problem.mask()), forward_bytes(shape, sizeof(T))},
                              0,
                              {{"extra_memory", "bytes", exactly(static_cast<double>(extra_bytes))}}};
        const Plan plan{2, 5, 100, session_.tour() ? 0.1 : 0.5};
        session_.measure(as_case(shape, problem.mask()), watch, {variant}, peaks, plan);
    }

    Session& session_;
    const GpuForwardStep& step_;
    const GpuForward<T>& forward_;
};

}  // namespace

TrafficModel fused_per_block(std::function<int(int head_dim)> block_q) {
    return [block_q](const Shape& s, int element_bytes) {
        const double heads = 1.0 * s.batch * s.heads_q;
        const int rows = block_q(s.head_dim);
        const double blocks = (s.len_q + rows - 1) / rows;
        const double elements = 2.0 * s.len_q * s.head_dim + blocks * 2.0 * s.len_kv * s.head_dim;
        return heads * (elements * element_bytes + 4.0 * s.len_q);
    };
}

TrafficModel fused_per_launch() {
    return forward_bytes;
}

int forward_bench(int argc, char** argv, const std::vector<GpuForwardStep>& versions) {
    return run_device_bench(argc, argv, versions.at(0).info, [&](Session& session) {
        for (const GpuForwardStep& step : versions) {
            if (step.more) step.more(session);
            TypeBench<bf16>(session, step, step.bfloat).run();
            // The tour shows one 2-byte type and fp32; the other 2-byte type runs at the same speed.
            if (!session.tour()) TypeBench<fp16>(session, step, step.half).run();
            TypeBench<float>(session, step, step.fp32).run();
        }
    });
}

}  // namespace flash::bench
