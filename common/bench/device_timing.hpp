// Timing of GPU steps by CUDA events. In a tree built for the emulator nothing is timed: the steps report the
// emulator's counters instead.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/bench/results.hpp"

namespace flash::bench {

std::string device_backend();  // "cuda" or "emulator"
std::string device_label();    // the GPU's name, or "emulator"; never throws

// Events around each run on the default stream; flush() overwrites twice the size of the L2 cache, which also
// keeps the GPU busy while the CPU enqueues the run. The emulator's refuses with std::logic_error.
std::unique_ptr<Stopwatch> device_stopwatch();

// The device's ceilings, measured in this process: fused multiply-adds on CUDA cores for fp32, mma.sync from
// registers for fp16 and bf16; and a device-to-device copy, read plus written.
Peaks measure_device_peaks(const std::string& dtype);

// The SM clock under load, now.
double measure_clock_mhz();

// Runs the call on the emulator and returns its exact counters, summed over its launches: global-memory
// traffic (loads and stores) as issued, distinct per block and distinct per launch, and instruction counts.
// Traffic is left out in a build whose device code is not instrumented. A GPU's refuses with
// std::logic_error.
std::vector<Metric> count_device_work(const std::function<void()>& call);

}  // namespace flash::bench
