// The same kernels timed wrongly and rightly, each wrong way alone: how far is it off? Needs a GPU.
//
//   lies [--csv FILE]
//
// The order matters: what is said about a first call has to come first.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/bench/device_bench.hpp"
#include "common/bench/device_timing.hpp"
#include "common/bench/forward_problem.hpp"
#include "common/bench/session.hpp"
#include "common/gpu/device.hpp"
#include "steps/04_naive_gpu/softmax.hpp"
#include "steps/08_fa2_forward/attention.hpp"

namespace {

using namespace flash;

const Shape kAttention{4, 16, 16, 4096, 4096, 128};
const Shape kSoftmax{1, 1, 1, 2048, 4096, 1};  // 2048 rows of 4096 bf16: 16 MiB in, 16 MiB out
constexpr int kSustained = 500;                // calls in a row, so that the clock settles

std::size_t elements(const Shape& s) {
    return static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(s.heads_q) *
           static_cast<std::size_t>(s.len_q) * static_cast<std::size_t>(s.head_dim);
}

template <class T> gpu::DeviceBuffer<T> on_device(const std::vector<T>& host) {
    gpu::DeviceBuffer<T> buffer(host.size());
    buffer.copy_from_host(host.data());
    return buffer;
}

// One attention call, on standard normal numbers or on zeros.
template <class T> class Attention {
  public:
    explicit Attention(bool zeros)
        : q_(input(zeros, 1)),
          k_(input(zeros, 2)),
          v_(input(zeros, 3)),
          o_(elements(kAttention)),
          lse_(elements(kAttention) / static_cast<std::size_t>(kAttention.head_dim)) {}

    void run(const Mask& mask = Mask::none()) {
        const Shape& s = kAttention;
        const auto view = [&]<class U>(U* data) {
            return dense_bhnd<U>(data, s.heads_q, s.len_q, s.head_dim);
        };
        step08::attention_forward<T>({s, view(static_cast<const T*>(q_.data())),
                                      view(static_cast<const T*>(k_.data())),
                                      view(static_cast<const T*>(v_.data())), view(o_.data()), lse_.data(),
                                      mask, default_scale(s.head_dim)});
    }

  private:
    static gpu::DeviceBuffer<T> input(bool zeros, std::uint64_t seed) {
        const auto n = static_cast<std::int64_t>(elements(kAttention));
        return on_device(zeros ? std::vector<T>(elements(kAttention)) : bench::random_normal<T>(n, seed));
    }

    gpu::DeviceBuffer<T> q_, k_, v_, o_;
    gpu::DeviceBuffer<float> lse_;
};

double host_seconds(const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Lies {
  public:
    explicit Lies(bench::Session& session) : session_(session), watch_(bench::device_stopwatch()) {}

    void tell() {
        Attention<bf16> random(false);
        const auto call = [&random] { random.run(); };
        const auto and_wait = [](const std::function<void()>& f) {
            return [f] {
                f();
                gpu::synchronize();
            };
        };
        const double first = host_seconds(and_wait(call));  // nothing has run before it
        check();
        const bench::Summary right = timed(call);
        record("the first call, which loads the code", "bf16", kAttention, bench::exactly(first), right);

        std::this_thread::sleep_for(std::chrono::seconds(3));
        watch_->start();
        call();
        record("one call on an idle GPU", "bf16", kAttention, bench::exactly(watch_->stop()), right);

        gpu::synchronize();
        record("no synchronisation", "bf16", kAttention, bench::exactly(host_seconds(call)), right);
        gpu::synchronize();

        zeros(random);
        warm_cache();
        causal(random);
    }

  private:
    bench::Summary timed(const std::function<void()>& call) {
        return bench::time_interleaved(*watch_, {call}, {5, 20, 50, 0.5})[0];
    }

    // A row of the table. The factor is what the lie claims, divided by what is right.
    void record(const std::string& lie, const std::string& dtype, const Shape& shape,
                const bench::Summary& claimed, const bench::Summary& right) {
        const auto in_ms = [](double seconds) { return seconds * 1e3; };
        session_.record({lie, session_.backend(), "lie", dtype, shape, Mask::none()},
                        {{"claimed", "ms", bench::transform(claimed, in_ms)},
                         {"right", "ms", bench::transform(right, in_ms)},
                         {"factor", "", bench::exactly(claimed.median / right.median)}});
    }

    void check() {
        bench::ForwardProblem<bf16, gpu::DeviceBuffer> problem({1, 2, 2, 1000, 1000, 128}, Mask::none());
        session_.check("attention, bf16", problem.failure([](const ForwardArgs<bf16>& args) {
            step08::attention_forward(args);
            gpu::synchronize();
        }));
    }

    // Calls in a row, in turns with those on random numbers: the clock follows the power that they take.
    void zeros(Attention<bf16>& random) {
        Attention<bf16> zero(true);
        std::vector<double> seconds[2];
        for (int round = 0; round < 4; ++round) {
            for (const bool is_zero : {false, true}) {
                watch_->start();
                for (int i = 0; i < kSustained; ++i) (is_zero ? zero : random).run();
                seconds[is_zero].push_back(watch_->stop() / kSustained);
            }
        }
        record("zeros as input", "bf16", kAttention, bench::summarize(seconds[1]),
               bench::summarize(seconds[0]));
    }

    // The row softmax of step 04, which waits for memory.
    void warm_cache() {
        const std::int64_t rows = kSoftmax.len_q, cols = kSoftmax.len_kv;
        auto x = on_device(bench::random_normal<bf16>(rows * cols, 1));
        gpu::DeviceBuffer<bf16> y(x.size());
        const auto call = [&] { step04::softmax_fused(x.data(), y.data(), rows, cols); };
        constexpr int kInARow = 20;  // one behind the other, as a loop around a call does it
        std::vector<double> warm;
        for (int i = 0; i < 30; ++i) {
            watch_->start();
            for (int n = 0; n < kInARow; ++n) call();
            warm.push_back(watch_->stop() / kInARow);
        }
        record("a warm L2, row softmax", "bf16", kSoftmax, bench::summarize(warm), timed(call));
    }

    // The time is right; what is wrong is the number of operations it is divided into.
    void causal(Attention<bf16>& random) {
        const Mask mask = Mask::causal_top_left();
        const bench::Summary seconds = timed([&] { random.run(mask); });
        const double flops[] = {bench::forward_flops(kAttention, Mask::none()),
                                bench::forward_flops(kAttention, mask)};
        const auto rate = [&](double operations) {
            return bench::transform(seconds, [operations](double s) { return operations / s / 1e9; });
        };
        session_.record({"masked pairs counted as work", session_.backend(), "lie", "bf16", kAttention, mask},
                        {{"claimed", "GFLOP/s", rate(flops[0])},
                         {"right", "GFLOP/s", rate(flops[1])},
                         {"factor", "", bench::exactly(flops[0] / flops[1])}});
    }

    bench::Session& session_;
    std::unique_ptr<bench::Stopwatch> watch_;
};

}  // namespace

int main(int argc, char** argv) {
    const bench::StepInfo info{"", "the same kernels timed wrongly and rightly"};
    return bench::run_device_bench(argc, argv, info, [](bench::Session& session) {
        if (session.backend() == "emulator") {
            throw bench::DeviceMissing(
                "the lies are about time, and the emulator has none: build with "
                "-DFLASH_STEPS_BACKEND=cuda on a machine with a GPU");
        }
        Lies(session).tell();
    });
}
