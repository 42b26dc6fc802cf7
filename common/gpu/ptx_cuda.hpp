// One PTX instruction per function. The emulator's versions of the same functions are in common/simt/ptx.hpp.
//
// How a warp holds the operands of mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Each
// lane owns pairs of neighbouring elements; g = lane / 4 and t = lane % 4:
//
//   A 16 x 16, row-major            B 16 x 8, column-major          C, D 16 x 8, fp32
//            k 2t 2t+1 | 2t+8 2t+9           n = g                           n 2t 2t+1
//   row g      a[0]    |   a[2]      k 2t   2t+1   b0                row g      c[0] c[1]
//   row g+8    a[1]    |   a[3]      k 2t+8 2t+9   b1                row g+8    c[2] c[3]
//
// The accumulator of one product has the layout of half an A operand of the next: two neighbouring 16 x 8
// accumulators, rounded in pairs, are one 16 x 16 A operand. That is why P never leaves the registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/types.hpp"

namespace flash::gpu {

// The 32-bit address of a shared-memory location, which the instructions below take: address arithmetic on it
// costs half of what it costs on a pointer. dynamic_smem starts at a multiple of 1024.
__device__ __forceinline__ std::uint32_t smem_address(const void* smem) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(smem));
}

// cp.async (PTX ISA, "Data Movement: cp.async"; sm_80): starts copying 16 bytes from global to shared memory
// without passing through registers. Reads src_bytes (0 .. 16) of src_gmem and fills the rest with zeros.
__device__ __forceinline__ void cp_async_16(std::uint32_t dst_smem, const void* src_gmem, int src_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst_smem), "l"(src_gmem),
                 "r"(src_bytes)
                 : "memory");
}

// Closes the group of all cp.async this thread has issued since the last commit.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until all but the latest N groups of this thread are complete. Other threads' copies need a barrier
// as well.
template <int N> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

// ldmatrix (PTX ISA, "Warp-level matrix load"): four 8 x 8 matrices of 16-bit elements. Lane i gives the
// address of row i % 8 of matrix i / 8; afterwards r[m] holds, in lane i, elements 2 (i % 4) and 2 (i % 4) +
// 1 of row i / 4 of matrix m: one fragment register of mma. Each row is 16 bytes, 16-byte aligned.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t row_smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_smem)
                 : "memory");
}

// The same, each matrix transposed on the way: lane i receives elements 2 (i % 4) and 2 (i % 4) + 1 of column
// i / 4.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t row_smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_smem)
                 : "memory");
}

// mma.sync (PTX ISA, "Matrix multiply-accumulate: mma.m16n8k16"; sm_80): acc += A B with fp32 accumulation; T
// is fp16 or bf16, fragments as drawn above.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&acc)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    static_assert(std::is_same_v<T, fp16> || std::is_same_v<T, bf16>);
    if constexpr (std::is_same_v<T, bf16>) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
            "%9}, "
            "{%0, %1, %2, %3};\n"
            : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};\n"
            : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// cvt.rn.{f16x2,bf16x2}.f32: two fp32 values rounded to T and packed, `low` in the lower half.
template <class T> __device__ __forceinline__ std::uint32_t pack2(float low, float high) {
    static_assert(std::is_same_v<T, fp16> || std::is_same_v<T, bf16>);
    std::uint32_t packed;
    if constexpr (std::is_same_v<T, bf16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
}

// The two values of a packed pair, exactly.
template <class T> __device__ __forceinline__ float2 unpack2(std::uint32_t packed) {
    static_assert(std::is_same_v<T, fp16> || std::is_same_v<T, bf16>);
    if constexpr (std::is_same_v<T, bf16>) {
        return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
    } else {
        float2 pair;
        asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}\n"
            : "=f"(pair.x), "=f"(pair.y)
            : "r"(packed));
        return pair;
    }
}

// mbarrier (PTX ISA, "Parallel Synchronization: mbarrier"; sm_80): 8 bytes of shared memory that count
// arrivals. A phase is complete when `arrivals` threads have arrived; the next begins at once. Unlike a
// barrier it is split: a thread arrives when it has done its part and goes on, and waits only before it needs
// what the others did before they arrived. One thread initialises it; a __syncthreads must follow.
__device__ __forceinline__ void mbarrier_init(std::uint32_t mbarrier_smem, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(mbarrier_smem), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t mbarrier_smem) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}\n" ::"r"(mbarrier_smem)
                 : "memory");
}
// Waits for the end of the phase with this parity: 0 for the first, 1 for the second, 0 for the third ...
__device__ __forceinline__ void mbarrier_wait(std::uint32_t mbarrier_smem, int parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{.reg .pred done;\n"
        "again%=: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again%=;}\n" ::"r"(mbarrier_smem),
        "r"(parity)
        : "memory");
#else
    asm volatile(
        "{.reg .pred done;\n"
        "again%=: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again%=;}\n" ::"r"(mbarrier_smem),
        "r"(parity)
        : "memory");
#endif
}

// Adds four values to four neighbouring floats of global memory, each addition atomic by itself; address is
// 16-byte aligned. From sm_90 on it is one instruction (PTX ISA, "red", .v4.f32), before that four.
__device__ __forceinline__ void atomic_add_x4(float* address, const float (&values)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(address), "f"(values[0]),
                 "f"(values[1]), "f"(values[2]), "f"(values[3])
                 : "memory");
#else
    for (int i = 0; i < 4; ++i) atomicAdd(address + i, values[i]);
#endif
}

// ex2.approx.ftz.f32: 2^x within 2 ulp; results below 2^-126 are 0, 2^-inf = 0.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace flash::gpu
