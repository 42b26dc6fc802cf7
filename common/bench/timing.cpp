#include "common/bench/timing.hpp"

#include <unistd.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "common/bench/results.hpp"

namespace flash::bench {

namespace {

double percentile(const std::vector<double>& sorted, double fraction) {
    const double position = fraction * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(position);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::size_t last_level_cache_bytes() {
    std::size_t bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    for (const int name : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE}) {
        const long size = sysconf(name);
        if (size > 0) bytes = std::max(bytes, static_cast<std::size_t>(size));
    }
#endif
    return bytes > 0 ? bytes : std::size_t{32} << 20;
}

class CpuStopwatch final : public Stopwatch {
  public:
    // Twice the cache, yet at most 256 MiB: a server's whole last level is rarely one core's to fill.
    CpuStopwatch() : eviction_(std::min(2 * last_level_cache_bytes(), std::size_t{256} << 20)) {}

    void flush() override {
        for (std::size_t i = 0; i < eviction_.size(); i += 64) ++eviction_[i];
    }
    void start() override { begin_ = std::chrono::steady_clock::now(); }
    double stop() override {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }

  private:
    std::vector<unsigned char> eviction_;
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace

Summary summarize(std::vector<double> samples) {
    if (samples.empty()) throw std::invalid_argument("summarize needs at least one sample");
    std::sort(samples.begin(), samples.end());
    return {percentile(samples, 0.5), percentile(samples, 0.1), percentile(samples, 0.9),
            static_cast<int>(samples.size())};
}

Summary transform(const Summary& s, const std::function<double(double)>& f) {
    const double at_p10 = f(s.p10), at_p90 = f(s.p90);
    return {f(s.median), std::min(at_p10, at_p90), std::max(at_p10, at_p90), s.reps};
}

std::unique_ptr<Stopwatch> cpu_stopwatch() {
    return std::make_unique<CpuStopwatch>();
}

std::vector<Summary> time_interleaved(Stopwatch& watch, const std::vector<std::function<void()>>& calls,
                                      const Plan& plan) {
    std::vector<std::vector<double>> samples(calls.size());
    std::vector<double> spent(calls.size(), 0);
    for (const auto& call : calls) {
        for (int i = 0; i < plan.warmup; ++i) call();
    }
    for (int rep = 0; rep < plan.max_reps; ++rep) {
        for (std::size_t c = 0; c < calls.size(); ++c) {
            if (rep >= plan.min_reps && spent[c] >= plan.seconds) continue;
            watch.flush();
            watch.start();
            calls[c]();
            samples[c].push_back(watch.stop());
            spent[c] += samples[c].back();
        }
    }
    std::vector<Summary> summaries;
    for (auto& s : samples) summaries.push_back(summarize(std::move(s)));
    return summaries;
}

std::string measuring_error(const Summary& seconds, const Work& work, const Peaks& peaks) {
    if (!(seconds.median > 0)) return "a run took no time at all";
    const auto above = [&](double amount, double peak, const char* unit) -> std::string {
        const double rate = amount / seconds.median;
        if (peak <= 0 || rate <= peak) return "";
        return format_number(seconds.median * 1e3) + " ms would be " + format_number(rate / 1e9) + " " +
               unit + ", above the measured peak of " + format_number(peak / 1e9) + " " + unit;
    };
    const std::string flops = above(work.flops, peaks.flops_per_second, "GFLOP/s");
    return flops.empty() ? above(work.bytes, peaks.bytes_per_second, "GB/s") : flops;
}

#if defined(_OPENMP)
void use_threads(int threads) {
    omp_set_num_threads(threads);
}
int available_threads() {
    return omp_get_num_procs();
}
#else
void use_threads(int) {}
int available_threads() {
    return 1;
}
#endif

double cpu_copy_bandwidth(std::size_t bytes) {
    std::vector<unsigned char> from(bytes, 1), to(bytes, 2);
    const auto watch = cpu_stopwatch();
    double best = std::numeric_limits<double>::infinity();
    for (int rep = 0; rep < 5; ++rep) {
        watch->flush();
        watch->start();
        std::memcpy(to.data(), from.data(), bytes);
        best = std::min(best, watch->stop());
        from[0] = to[bytes - 1];  // the copy is used, so it cannot be dropped
    }
    return 2.0 * static_cast<double>(bytes) / best;
}

}  // namespace flash::bench
