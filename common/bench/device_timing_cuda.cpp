#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "common/bench/device_timing.hpp"
#include "common/gpu/device.hpp"

namespace flash::bench {

namespace {

void check(cudaError_t status, const char* call) {
    if (status != cudaSuccess) {
        throw std::runtime_error(std::string(call) + " failed: " + cudaGetErrorString(status));
    }
}

class Event {
  public:
    Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
    ~Event() { cudaEventDestroy(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    cudaEvent_t get() const { return event_; }

  private:
    cudaEvent_t event_ = nullptr;
};

class DeviceStopwatch final : public Stopwatch {
  public:
    DeviceStopwatch()
        : eviction_(2 * std::max<std::size_t>(gpu::device_info().l2_bytes, std::size_t{1} << 20)) {}

    void flush() override {
        check(cudaMemsetAsync(eviction_.data(), 0, eviction_.size()), "cudaMemsetAsync");
    }
    void start() override { check(cudaEventRecord(begin_.get()), "cudaEventRecord"); }
    double stop() override {
        check(cudaEventRecord(end_.get()), "cudaEventRecord");
        check(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "cudaEventElapsedTime");
        return static_cast<double>(milliseconds) * 1e-3;
    }

  private:
    gpu::DeviceBuffer<unsigned char> eviction_;
    Event begin_, end_;
};

}  // namespace

// Defined in device_peaks.cu.
double launch_fma_loop();
double launch_mma_loop(bool is_bf16);
double launch_clock_loop();

namespace {

// The highest rate of several runs: a peak is a ceiling, and only noise from outside can lower it.
double best_rate(double (*launch)(const std::string&), const std::string& argument) {
    const auto watch = device_stopwatch();
    double best = 0;
    for (int rep = 0; rep < 8; ++rep) {
        watch->flush();
        watch->start();
        const double amount = launch(argument);
        best = std::max(best, amount / watch->stop());
    }
    return best;
}

double launch_peak_loop(const std::string& dtype) {
    return dtype == "fp32" ? launch_fma_loop() : launch_mma_loop(dtype == "bf16");
}

double copy_bandwidth() {
    const std::size_t bytes = std::min(gpu::device_info().memory_bytes / 8, std::size_t{1} << 30);
    gpu::DeviceBuffer<unsigned char> from(bytes), to(bytes);
    const auto watch = device_stopwatch();
    double best = std::numeric_limits<double>::infinity();
    for (int rep = 0; rep < 10; ++rep) {
        watch->start();
        check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice), "cudaMemcpyAsync");
        best = std::min(best, watch->stop());
    }
    return 2.0 * static_cast<double>(bytes) / best;
}

}  // namespace

std::string device_backend() {
    return "cuda";
}
std::string device_label() {
    return gpu::why_no_device().empty() ? gpu::device_info().name : "no device";
}

std::unique_ptr<Stopwatch> device_stopwatch() {
    return std::make_unique<DeviceStopwatch>();
}

Peaks measure_device_peaks(const std::string& dtype) {
    return {best_rate(launch_peak_loop, dtype), copy_bandwidth()};
}

double measure_clock_mhz() {
    return best_rate([](const std::string&) { return launch_clock_loop(); }, "") / 1e6;
}

std::vector<Metric> count_device_work(const std::function<void()>&) {
    throw std::logic_error("a GPU is timed; only the emulator counts");
}

}  // namespace flash::bench
