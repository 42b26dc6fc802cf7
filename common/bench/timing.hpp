// How a call is timed: warm-up runs that are not counted, caches flushed before every counted run, variants
// taken in turn, and the median of the runs with the 10th and 90th percentile beside it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace flash::bench {

// Median and spread of some samples, in the samples' own unit.
struct Summary {
    double median = 0;
    double p10 = 0;
    double p90 = 0;
    int reps = 0;
};

// The value itself, for what is counted and not sampled.
inline Summary exactly(double value) {
    return {value, value, value, 1};
}

// Percentiles by linear interpolation between neighbours; at least one sample.
Summary summarize(std::vector<double> samples);

// f of every value. A falling f (a rate from a time) swaps the ends, so that p10 <= p90 stays true.
Summary transform(const Summary& s, const std::function<double(double)>& f);

// What measures one run. stop() returns only when everything begun since start() has finished.
class Stopwatch {
  public:
    virtual ~Stopwatch() = default;
    virtual void flush() = 0;  // makes the next run find cold caches
    virtual void start() = 0;
    virtual double stop() = 0;  // seconds since start()
};

// Wall clock of the calling thread; flush() walks a buffer larger than the last-level cache.
std::unique_ptr<Stopwatch> cpu_stopwatch();

struct Plan {
    int warmup = 1;
    int min_reps = 5;
    int max_reps = 50;
    double seconds = 0.5;  // per variant: after min_reps, no new run once this much time was measured
};

// Times every call. The runs of different calls take turns, so that a clock that falls during the measurement
// slows all of them and not only the last. Seconds, one summary per call.
std::vector<Summary> time_interleaved(Stopwatch& watch, const std::vector<std::function<void()>>& calls,
                                      const Plan& plan);

// What a run has to do at least, and what the machine was measured to do at most. 0 means not known.
struct Work {
    double flops = 0;
    double bytes = 0;
};
struct Peaks {
    double flops_per_second = 0;
    double bytes_per_second = 0;
};

// Empty when the time is possible. Otherwise one sentence: a clock that shows more than the machine's peak
// has missed part of the run (no synchronisation, work dropped by the compiler, a warm cache), or the work
// was counted wrong.
std::string measuring_error(const Summary& seconds, const Work& work, const Peaks& peaks);

// OpenMP threads of the parallel regions that follow; does nothing in a build without OpenMP.
void use_threads(int threads);
int available_threads();  // 1 in a build without OpenMP

// Bytes per second of copying `bytes` bytes once, read plus written, from cold caches.
double cpu_copy_bandwidth(std::size_t bytes);

}  // namespace flash::bench
