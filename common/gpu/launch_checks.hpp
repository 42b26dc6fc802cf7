// The limits that every CUDA device puts on a launch, checked with a sentence before the driver answers with
// a code.
#pragma once

#include <cstddef>
#include <string>

#include "common/gpu/device.hpp"

namespace flash::gpu::detail {

// Empty when a device with shared_available bytes per block can do the launch, else what is wrong with it.
template <class Dim3>
std::string why_launch_is_illegal(const Dim3& grid, const Dim3& block, std::size_t shared_bytes,
                                  std::size_t shared_available) {
    const auto sizes = [](const Dim3& d) {
        return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
    };
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        return "a grid of " + sizes(grid) +
               " blocks; each size must be at least 1, and at most (2147483647, 65535, 65535)";
    }
    const bool fits =
        block.x <= 1024 && block.y <= 1024 && block.z <= 64 && block.x * block.y * block.z <= 1024;
    if (block.x < 1 || block.y < 1 || block.z < 1 || !fits) {
        return "a block of " + sizes(block) +
               " threads; each size must be at least 1, and the block at most 1024 threads, 64 deep";
    }
    if (shared_bytes > shared_available) {
        return "it wants " + std::to_string(shared_bytes) +
               " bytes of shared memory per block; this device has " + std::to_string(shared_available);
    }
    return {};
}

}  // namespace flash::gpu::detail
