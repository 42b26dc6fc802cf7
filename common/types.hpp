// The element types of the steps: float, fp16 and bf16, with conversions that round to nearest even.
//
// A tree built for CUDA uses NVIDIA's own types, so that kernels see what every CUDA programmer knows. A tree
// built for the emulator has no CUDA headers and uses the two structs below: same size, same bits, same
// rounding.
#pragma once

#include <bit>
#include <cstdint>

#if defined(FLASH_STEPS_CUDA)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define FLASH_HOST_DEVICE __host__ __device__
#else
#define FLASH_HOST_DEVICE
#endif

namespace flash {

// IEEE 754 binary16 bits of x, round to nearest even; overflow gives infinity, NaN stays NaN (quiet).
constexpr std::uint16_t fp16_bits_from_float(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7fffu);
    if (magnitude >= 0x477ff000u)
        return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to inf
    std::uint32_t kept = 0, dropped = 0, half = 0;
    if (magnitude >= 0x38800000u) {  // normal in fp16: rebias the exponent from 127 to 15, drop 13 bits
        const std::uint32_t rebiased = magnitude - (112u << 23);
        kept = rebiased >> 13;
        dropped = rebiased & 0x1fffu;
        half = 0x1000u;
    } else if (magnitude >= 0x33000000u) {  // subnormal in fp16 (>= 2^-25): shift the significand into place
        const std::uint32_t shift = 126u - (magnitude >> 23);  // 14 .. 24
        const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
        kept = significand >> shift;
        dropped = significand & ((1u << shift) - 1u);
        half = 1u << (shift - 1u);
    }
    if (dropped > half || (dropped == half && half != 0 && (kept & 1u))) ++kept;
    return static_cast<std::uint16_t>(sign | kept);
}

constexpr float float_from_fp16_bits(std::uint16_t h) {
    const std::uint32_t sign = (h & 0x8000u) << 16;
    const std::uint32_t exponent = (h >> 10) & 0x1fu;
    const std::uint32_t fraction = h & 0x3ffu;
    if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
    const float value = static_cast<float>(fraction) * 0x1p-24f;  // subnormal or zero, exact in fp32
    return sign ? -value : value;
}

// bfloat16 bits of x: the upper half of fp32, round to nearest even; NaN stays NaN (quiet).
constexpr std::uint16_t bf16_bits_from_float(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x7fffu);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float float_from_bf16_bits(std::uint16_t h) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

#if defined(FLASH_STEPS_CUDA)
using fp16 = __half;
using bf16 = __nv_bfloat16;
FLASH_HOST_DEVICE inline float to_float(fp16 x) {
    return __half2float(x);
}
FLASH_HOST_DEVICE inline float to_float(bf16 x) {
    return __bfloat162float(x);
}
#else
struct fp16 {
    std::uint16_t bits;
};
struct bf16 {
    std::uint16_t bits;
};
inline float to_float(fp16 x) {
    return float_from_fp16_bits(x.bits);
}
inline float to_float(bf16 x) {
    return float_from_bf16_bits(x.bits);
}
#endif
FLASH_HOST_DEVICE inline float to_float(float x) {
    return x;
}

// from_float<T>(x): x rounded to T.
template <class T> FLASH_HOST_DEVICE T from_float(float x);
template <> FLASH_HOST_DEVICE inline float from_float<float>(float x) {
    return x;
}
#if defined(FLASH_STEPS_CUDA)
template <> FLASH_HOST_DEVICE inline fp16 from_float<fp16>(float x) {
    return __float2half_rn(x);
}
template <> FLASH_HOST_DEVICE inline bf16 from_float<bf16>(float x) {
    return __float2bfloat16_rn(x);
}
#else
template <> inline fp16 from_float<fp16>(float x) {
    return {fp16_bits_from_float(x)};
}
template <> inline bf16 from_float<bf16>(float x) {
    return {bf16_bits_from_float(x)};
}
#endif

// "fp32", "fp16" or "bf16": the dtype column of every results file.
template <class T> constexpr const char* dtype_name();
template <> constexpr const char* dtype_name<float>() {
    return "fp32";
}
template <> constexpr const char* dtype_name<fp16>() {
    return "fp16";
}
template <> constexpr const char* dtype_name<bf16>() {
    return "bf16";
}

}  // namespace flash
