#include "common/bench/device_bench.hpp"

#include <cmath>
#include <cstdio>
#include <string_view>

#include "common/bench/device_timing.hpp"

namespace flash::bench {

std::string device_facts(const gpu::DeviceInfo& d) {
    const auto size = [](std::size_t bytes, int power, const char* unit) {
        const auto whole = std::llround(std::ldexp(static_cast<double>(bytes), -10 * power));
        return bytes == 0 ? std::string("none") : std::to_string(whole) + " " + unit;
    };
    const std::string capability = std::to_string(d.cc_major) + "." + std::to_string(d.cc_minor);
    const std::string clock = d.clock_mhz == 0 ? "none" : std::to_string(d.clock_mhz) + " MHz";
    const std::string shared = size(d.shared_per_block_optin, 1, "KB"), l2 = size(d.l2_bytes, 2, "MB"),
                      memory = size(d.memory_bytes, 3, "GB"), sms = std::to_string(d.sm_count);
    std::string text = d.name + ", compute capability " + capability + "\n";
    if (d.is_emulator)
        text +=
            "no GPU: the emulator has the limits of that capability, half of the host's memory, and no "
            "time\n";
    const auto add = [&text](const std::string& what, const std::string& value) {
        text += what + std::string(32 - what.size(), ' ') + value + "\n";
    };
    add("SMs", sms);
    add("registers of an SM", size(d.register_bytes_per_sm, 1, "KB"));
    add("shared memory of an SM", size(d.shared_per_sm, 1, "KB"));
    add("shared memory for one block", shared);
    add("L2", l2);
    add("memory", memory);
    add("clock, at most", clock);
    text += "KB, MB and GB are powers of 1024. As the first columns of the table in docs/memory.md:\n";
    return text + "| " + d.name + " | " + capability + " | " + sms + " | " + shared + " | " + l2 + " | " +
           memory + " |\n";
}

int run_device_bench(int argc, char** argv, const StepInfo& step, const std::function<void(Session&)>& body) {
    if (argc == 2 && std::string_view(argv[1]) == "--device") {
        const std::string why_not = gpu::why_no_device();
        std::fputs(why_not.empty() ? device_facts(gpu::device_info()).c_str() : (why_not + "\n").c_str(),
                   stdout);
        return 0;
    }
    return run_bench(argc, argv, step, device_backend(), device_label(), [&](Session& session) {
        const std::string why_not = gpu::why_no_device();
        if (!why_not.empty()) throw DeviceMissing(why_not);
        body(session);
    });
}

}  // namespace flash::bench
