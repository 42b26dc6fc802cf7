// The part of the measuring harness that needs a device: the emulator, or a GPU in a CUDA tree.
#include <doctest/doctest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/bench/device_bench.hpp"
#include "common/bench/device_timing.hpp"
#include "common/bench/memory.hpp"
#include "common/gpu/device.hpp"
#include "common/testing/needs_device.hpp"

namespace {

using namespace flash;
using namespace flash::bench;

constexpr std::size_t kBytes = std::size_t{1} << 20;

}  // namespace

TEST_CASE("F6: peak device memory counts one call and nothing before it") {
    const auto hold = [](std::size_t bytes) { gpu::DeviceBuffer<char> block(bytes); };
    CHECK(peak_extra_device_bytes([&] { hold(1'000'000); }) == 1'000'000);
    CHECK(peak_extra_device_bytes([&] { hold(1'000); }) == 1'000);
    gpu::DeviceBuffer<float> outside(1'000);
    CHECK(peak_extra_device_bytes([] {}) == 0);
    CHECK(gpu::device_bytes_in_use() == 4'000);
}

TEST_CASE("M1: the device's sizes are printed as they stand in the table of docs/memory.md") {
    const std::string facts = device_facts({.name = "A chip",
                                            .sm_count = 132,
                                            .cc_major = 9,
                                            .cc_minor = 0,
                                            .shared_per_block_optin = 227 * 1024,
                                            .shared_per_sm = 228 * 1024,
                                            .register_bytes_per_sm = 256 * 1024,
                                            .l2_bytes = std::size_t{60} << 20,
                                            .memory_bytes = 150'754'820'096,
                                            .clock_mhz = 1980,
                                            .is_emulator = false});
    for (const char* line :
         {"A chip, compute capability 9.0\n", "registers of an SM              256 KB\n",
          "shared memory for one block     227 KB\n", "clock, at most                  1980 MHz\n",
          "\n| A chip | 9.0 | 132 | 227 KB | 60 MB | 140 GB |\n"})
        CHECK(facts.find(line) != std::string::npos);
    CHECK(facts.find("emulator") == std::string::npos);
    const std::string here = device_facts(gpu::device_info());
    CHECK((here.find("no GPU: the emulator has") != std::string::npos) == gpu::device_info().is_emulator);
    CHECK(here.find(gpu::device_info().name) == 0);

    char program[] = "step99_bench", option[] = "--device";
    char* argv[] = {program, option};
    const auto body = [](Session&) { FAIL("--device measures nothing"); };
    CHECK(run_device_bench(2, argv, {"99", "nothing"}, body) == 0);
}

TEST_CASE("the emulator counts and refuses to time; a GPU is timed and refuses to count") {
    gpu::DeviceBuffer<char> device(kBytes);
    const std::vector<char> host(kBytes);
    const auto copy = [&] { device.copy_from_host(host.data()); };
    if (gpu::device_info().is_emulator) {
        CHECK(device_backend() == "emulator");
        CHECK_THROWS_AS(device_stopwatch(), std::logic_error);
        CHECK_THROWS_AS(measure_device_peaks("fp32"), std::logic_error);
        CHECK(count_device_work(copy).front().value.median >= 0);
        return;
    }
    CHECK(device_backend() == "cuda");
    CHECK_THROWS_AS(count_device_work(copy), std::logic_error);
    // F1: the time between the events covers the copy, which no device does faster than its memory allows.
    const auto watch = device_stopwatch();
    const Peaks peaks = measure_device_peaks("fp32");
    const Summary s = time_interleaved(*watch, {copy}, {1, 5, 5, 1.0})[0];
    CHECK(measuring_error(s, {0, kBytes}, peaks).empty());
}
