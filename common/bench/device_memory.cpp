#include "common/bench/memory.hpp"
#include "common/gpu/device.hpp"

namespace flash::bench {

std::int64_t peak_extra_device_bytes(const std::function<void()>& call) {
    const std::size_t before = gpu::device_bytes_in_use();
    gpu::reset_peak_device_bytes();
    call();
    return static_cast<std::int64_t>(gpu::peak_device_bytes() - before);
}

}  // namespace flash::bench
