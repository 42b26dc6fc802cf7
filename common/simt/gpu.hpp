// Plain CUDA C++ for an ordinary C++ compiler: the qualifiers, built-in variables and functions that kernels
// use, and launch(), over the emulator's runtime. Included through common/gpu/gpu.hpp.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/attention.hpp"
#include "common/simt/runtime.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

inline constexpr const uint3& threadIdx = flash::simt::built_ins.thread_idx;
inline constexpr const uint3& blockIdx = flash::simt::built_ins.block_idx;
inline constexpr const dim3& blockDim = flash::simt::built_ins.block_dim;
inline constexpr const dim3& gridDim = flash::simt::built_ins.grid_dim;

inline void __syncthreads(flash::simt::Site site = flash::simt::Site::here()) {
    flash::simt::sync_block(site);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, flash::simt::Site site = flash::simt::Site::here()) {
    flash::simt::sync_warp(mask, site);
}

namespace flash::simt {

template <class T> T shuffle_from(std::uint32_t mask, T value, int source_lane, Site site) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    const std::uint64_t result = shuffle(mask, std::bit_cast<Bits>(value), source_lane, site);
    return std::bit_cast<T>(static_cast<Bits>(result));
}
// A lane keeps its own value when the source lies outside its segment of width lanes.
template <class T> T shuffle_in_segment(std::uint32_t mask, T value, int source, int width, Site site) {
    const bool inside = source / width == lane_id() / width && source >= 0;
    return shuffle_from(mask, value, inside ? source : lane_id(), site);
}

}  // namespace flash::simt

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              flash::simt::Site site = flash::simt::Site::here()) {
    const int segment = flash::simt::lane_id() & ~(width - 1);
    return flash::simt::shuffle_from(mask, value, segment + (source & (width - 1)), site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  flash::simt::Site site = flash::simt::Site::here()) {
    return flash::simt::shuffle_in_segment(mask, value, flash::simt::lane_id() ^ lane_mask, width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   flash::simt::Site site = flash::simt::Site::here()) {
    const int source = flash::simt::lane_id() + static_cast<int>(delta);
    return flash::simt::shuffle_in_segment(mask, value, source, width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 flash::simt::Site site = flash::simt::Site::here()) {
    const int source = flash::simt::lane_id() - static_cast<int>(delta);
    return flash::simt::shuffle_in_segment(mask, value, source, width, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              flash::simt::Site site = flash::simt::Site::here()) {
    return flash::simt::ballot(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, flash::simt::Site site = flash::simt::Site::here()) {
    return flash::simt::ballot(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, flash::simt::Site site = flash::simt::Site::here()) {
    return flash::simt::ballot(mask, predicate != 0, site) == mask;
}

// CUDA's min and max take two numbers of one type; of a NaN and a number they return the number.
template <class T>
requires std::is_arithmetic_v<T> T min(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    return a < b ? a : b;
}
template <class T>
requires std::is_arithmetic_v<T> T max(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    return a > b ? a : b;
}
inline float __expf(float x) {
    return flash::simt::counted_exp(x);
}
namespace flash {
inline float expf(float x) {  // found before the C library's, so that it counts
    return simt::counted_exp(x);
}
}  // namespace flash

namespace flash::gpu {

template <class T> T* dynamic_smem() {
    return static_cast<T*>(simt::shared_memory());
}

// The arguments convert to the kernel's parameter types at the call, as with <<<>>>.
template <class... Params>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes, Stream /*stream*/,
            std::type_identity_t<Params>... arguments) {
    const auto call = [kernel, arguments...] { kernel(arguments...); };
    using Call = decltype(call);
    static_assert(std::is_trivially_copyable_v<Call>, "kernel parameters are copied byte by byte");
    simt::run({grid, block, shared_bytes, reinterpret_cast<const void*>(kernel),
               [](void* copy) { (*static_cast<Call*>(copy))(); }, &call, sizeof(call)});
}

}  // namespace flash::gpu
