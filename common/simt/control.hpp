// What a host program can set on the emulator, and the error a faulty kernel ends in. In a CUDA tree the seed
// has no effect, and the limit lowers what the device is said to have and what a launch may ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/gpu/device.hpp"

namespace flash::simt {

// Thrown out of launch() when a kernel breaks a rule of the machine: names kernel, block, thread and address.
// The launch is abandoned, memory keeps what was written, and the next launch works.
struct EmulatorError : gpu::DeviceError {
    using gpu::DeviceError::DeviceError;
};

// The order in which warps and blocks run. It starts as FLASH_STEPS_SIMT_SEED, or 0.
void set_seed(std::uint64_t seed);
std::uint64_t seed();

// Shared memory that one block may ask for; it starts as that of sm_90, 227 KiB.
inline constexpr std::size_t kDefaultSharedLimit = std::size_t{227} * 1024;
void set_shared_memory_limit(std::size_t bytes);

}  // namespace flash::simt
