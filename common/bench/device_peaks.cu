// Loops that do nothing but the instruction whose peak rate is measured, on registers alone. Each launcher
// returns how much it started: FLOPs, or clock cycles.
#include "common/gpu/gpu.hpp"
#include "common/types.hpp"

namespace flash::bench {

namespace {

constexpr int kIterations = 16384;  // some milliseconds: long against a launch
constexpr int kChains = 8;          // independent accumulators: enough to hide the latency of one instruction
constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 4;

__global__ void fma_loop(float* sink, float factor) {
    float acc[kChains];
    for (int c = 0; c < kChains; ++c) acc[c] = static_cast<float>(threadIdx.x + c);
    for (int i = 0; i < kIterations; ++i) {
#pragma unroll
        for (int c = 0; c < kChains; ++c) acc[c] = fmaf(acc[c], factor, factor);
    }
    float sum = 0;
    for (int c = 0; c < kChains; ++c) sum += acc[c];
    if (sum == -1.0f) *sink = sum;  // never, but the compiler cannot know
}

template <class T> __global__ void mma_loop(float* sink) {
    const std::uint32_t a[4] = {threadIdx.x, threadIdx.x * 3, threadIdx.x * 5, threadIdx.x * 7};
    float acc[kChains][4] = {};
    for (int i = 0; i < kIterations; ++i) {
#pragma unroll
        for (int c = 0; c < kChains; ++c) gpu::mma_m16n8k16<T>(acc[c], a, a[0] + c, a[1] + c);
    }
    float sum = 0;
    for (int c = 0; c < kChains; ++c) sum += acc[c][0] + acc[c][1] + acc[c][2] + acc[c][3];
    if (sum == -1.0f) *sink = sum;
}

constexpr long long kCycles = 20'000'000;

__global__ void clock_loop() {
    const long long begin = clock64();
    while (clock64() - begin < kCycles) {
    }
}

// Asked for once, since a query of the device would fall between the events around a launch.
int full_grid() {
    static const int blocks = gpu::device_info().sm_count * kBlocksPerSm;
    return blocks;
}

}  // namespace

double launch_fma_loop() {
    gpu::launch(fma_loop, dim3(full_grid()), dim3(kThreads), 0, nullptr, static_cast<float*>(nullptr), 0.5f);
    return 2.0 * full_grid() * kThreads * kIterations * kChains;
}

double launch_mma_loop(bool is_bf16) {
    gpu::launch(is_bf16 ? mma_loop<bf16> : mma_loop<fp16>, dim3(full_grid()), dim3(kThreads), 0, nullptr,
                static_cast<float*>(nullptr));
    return 2.0 * 16 * 8 * 16 * full_grid() * (kThreads / 32.0) * kIterations * kChains;
}

double launch_clock_loop() {
    gpu::launch(clock_loop, dim3(1), dim3(1), 0, nullptr);
    return static_cast<double>(kCycles);
}

}  // namespace flash::bench
