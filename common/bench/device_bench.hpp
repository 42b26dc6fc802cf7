// What the bench programs of GPU steps share.
#pragma once

#include <functional>
#include <string>

#include "common/bench/session.hpp"
#include "common/gpu/device.hpp"

namespace flash::bench {

// What the device says about its sizes, line by line, and as a line of the table in docs/memory.md.
std::string device_facts(const gpu::DeviceInfo& device);

// run_bench() for the device. With the option --device alone the program prints device_facts() and ends;
// where no device is usable it says so and ends with 77.
int run_device_bench(int argc, char** argv, const StepInfo& step, const std::function<void(Session&)>& body);

}  // namespace flash::bench
