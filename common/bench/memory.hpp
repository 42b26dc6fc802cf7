// Peak extra memory: the most a call holds, at one moment, beyond what was held when it began.
//
// Host memory is counted at operator new, which every container of a step uses: a program that links this
// library has its operator new and delete replaced. Device memory is counted by the allocator in
// common/gpu/device.hpp.
#pragma once

#include <cstdint>
#include <functional>

namespace flash::bench {

std::int64_t host_bytes_in_use();

// The count starts anew with every call: nothing allocated before it, and no earlier peak, is included.
std::int64_t peak_extra_host_bytes(const std::function<void()>& call);
std::int64_t peak_extra_device_bytes(const std::function<void()>& call);

}  // namespace flash::bench
