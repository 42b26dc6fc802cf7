#include <stdexcept>

#include "common/bench/device_timing.hpp"
#include "common/simt/counters.hpp"

namespace flash::bench {

std::string device_backend() {
    return "emulator";
}
std::string device_label() {
    return "emulator";
}

std::unique_ptr<Stopwatch> device_stopwatch() {
    throw std::logic_error("the emulator counts, it times nothing");
}
Peaks measure_device_peaks(const std::string&) {
    throw std::logic_error("the emulator counts, it has no peak to measure");
}
double measure_clock_mhz() {
    throw std::logic_error("the emulator counts, it has no clock");
}

std::vector<Metric> count_device_work(const std::function<void()>& call) {
    const simt::Counters c = simt::count(call);
    std::vector<Metric> metrics;
    const auto add = [&metrics](const char* name, const char* unit, std::uint64_t count) {
        metrics.push_back({name, unit, exactly(static_cast<double>(count))});
    };
    if (simt::hooks_enabled()) {
        add("traffic_issued", "bytes", c.global_load_bytes_issued + c.global_store_bytes_issued);
        add("traffic_per_block", "bytes",
            c.global_load_bytes_distinct_per_block + c.global_store_bytes_distinct_per_block);
        add("traffic_per_launch", "bytes",
            c.global_load_bytes_distinct_per_launch + c.global_store_bytes_distinct_per_launch);
        add("requests", "", c.global_load_requests + c.global_store_requests);
        add("sectors", "", c.global_load_sectors + c.global_store_sectors);
        add("shared_bytes", "bytes", c.shared_load_bytes + c.shared_store_bytes);
        add("shared_requests", "", c.shared_load_requests + c.shared_store_requests);
        add("shared_bank_conflicts", "", c.shared_bank_conflicts);
    }
    add("launches", "", c.launches);
    add("barriers", "", c.barriers);
    if (c.mbarrier_phases > 0) add("mbarrier_phases", "", c.mbarrier_phases);
    if (c.mma > 0) add("mma", "", c.mma);
    if (c.ldmatrix > 0) add("ldmatrix", "", c.ldmatrix);
    if (c.exp2 > 0) add("exp2", "", c.exp2);
    if (c.atomics > 0) add("atomics", "", c.atomics);
    return metrics;
}

}  // namespace flash::bench
