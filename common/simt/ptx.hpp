// The functions of common/gpu/ptx_cuda.hpp for the emulator: same names, same operands, same results. The
// drawings of the fragment layouts stand there. A shared-memory address is the offset from the start of
// shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/simt/runtime.hpp"
#include "common/types.hpp"

namespace flash::gpu {

inline std::uint32_t smem_address(const void* smem) {
    return simt::shared_offset(smem);
}

inline void cp_async_16(std::uint32_t dst_smem, const void* src_gmem, int src_bytes) {
    simt::cp_async(dst_smem, src_gmem, src_bytes);
}
inline void cp_async_commit() {
    simt::cp_async_commit();
}
template <int N> void cp_async_wait() {
    static_assert(N >= 0);
    simt::cp_async_wait(N);
}

inline void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t row_smem, simt::Site site = simt::Site::here()) {
    const simt::Fragment loaded = simt::ldmatrix(row_smem, false, site);
    for (int m = 0; m < 4; ++m) r[m] = loaded.r[m];
}
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t row_smem,
                              simt::Site site = simt::Site::here()) {
    const simt::Fragment loaded = simt::ldmatrix(row_smem, true, site);
    for (int m = 0; m < 4; ++m) r[m] = loaded.r[m];
}

template <class T>
void mma_m16n8k16(float (&acc)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  simt::Site site = simt::Site::here()) {
    static_assert(std::is_same_v<T, fp16> || std::is_same_v<T, bf16>);
    constexpr auto kType = std::is_same_v<T, fp16> ? simt::MmaType::kFp16 : simt::MmaType::kBf16;
    const simt::Accumulator sum =
        simt::mma(kType, {{acc[0], acc[1], acc[2], acc[3]}}, {{a[0], a[1], a[2], a[3]}}, b0, b1, site);
    for (int i = 0; i < 4; ++i) acc[i] = sum.c[i];
}

template <class T> std::uint32_t pack2(float low, float high) {
    static_assert(std::is_same_v<T, fp16> || std::is_same_v<T, bf16>);
    return static_cast<std::uint32_t>(from_float<T>(high).bits) << 16 | from_float<T>(low).bits;
}

template <class T> float2 unpack2(std::uint32_t packed) {
    static_assert(std::is_same_v<T, fp16> || std::is_same_v<T, bf16>);
    const T low{static_cast<std::uint16_t>(packed)}, high{static_cast<std::uint16_t>(packed >> 16)};
    return make_float2(to_float(low), to_float(high));
}

inline void mbarrier_init(std::uint32_t mbarrier_smem, int arrivals) {
    simt::mbarrier_init(mbarrier_smem, arrivals);
}
inline void mbarrier_arrive(std::uint32_t mbarrier_smem) {
    simt::mbarrier_arrive(mbarrier_smem);
}
inline void mbarrier_wait(std::uint32_t mbarrier_smem, int parity, simt::Site site = simt::Site::here()) {
    simt::mbarrier_wait(mbarrier_smem, parity, site);
}

inline void atomic_add_x4(float* address, const float (&values)[4]) {
    for (int i = 0; i < 4; ++i) atomicAdd(address + i, values[i]);
}

inline float exp2_approx(float x) {
    return simt::exp2_flushed(x);
}

}  // namespace flash::gpu
