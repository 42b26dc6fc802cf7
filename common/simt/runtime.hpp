// What device code calls in the emulator: the CUDA built-ins below are thin names over these. Operands travel
// by value and in registers, so that the instrumented caller adds no memory access of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/simt/vector_types.hpp"

namespace flash::simt {

// A place in the kernel's source. Two barriers are the same one when their places are.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

struct BuiltIns {
    uint3 thread_idx, block_idx;
    dim3 block_dim, grid_dim;
};
extern BuiltIns built_ins;  // of the thread that runs now

struct Launch {
    dim3 grid, block;
    std::size_t shared_bytes;
    const void* kernel;     // its address, for its name
    void (*call)(void*);    // runs one thread of the kernel on its copy of the arguments
    const void* arguments;  // copied to the stack of each thread
    std::size_t argument_bytes;
};
// Runs every thread of the grid. Throws gpu::DeviceError for a launch no device could do and EmulatorError
// for a kernel that breaks a rule.
void run(const Launch& launch);

void* shared_memory();
void sync_block(Site site);
void sync_warp(std::uint32_t mask, Site site);
void mbarrier_init(std::uint32_t shared, int arrivals);
void mbarrier_arrive(std::uint32_t shared);
void mbarrier_wait(std::uint32_t shared, int parity, Site site);
// The value that source_lane passes; lanes that are not in the mask pass nothing, and asking one is an error.
std::uint64_t shuffle(std::uint32_t mask, std::uint64_t value, int source_lane, Site site);
std::uint32_t ballot(std::uint32_t mask, bool vote, Site site);
int lane_id();

// The operations behind common/simt/ptx.hpp. Shared memory is named by its offset.
struct Fragment {
    std::uint32_t r[4];
};
struct Accumulator {
    float c[4];
};
enum class MmaType : std::uint8_t { kFp16, kBf16 };
std::uint32_t shared_offset(const void* smem);
void cp_async(std::uint32_t shared, const void* source, int bytes);
void cp_async_commit();
void cp_async_wait(int groups_left);
Fragment ldmatrix(std::uint32_t row, bool transposed, Site site);
Accumulator mma(MmaType type, Accumulator acc, Fragment a, std::uint32_t b0, std::uint32_t b1, Site site);
float exp2_flushed(float x);
float counted_exp(float x);

}  // namespace flash::simt

int atomicAdd(int* address, int value);
unsigned atomicAdd(unsigned* address, unsigned value);
unsigned long long atomicAdd(unsigned long long* address, unsigned long long value);
float atomicAdd(float* address, float value);
int atomicMax(int* address, int value);
unsigned atomicMax(unsigned* address, unsigned value);
