// launch() and dynamic_smem() on the CUDA runtime. Included through common/gpu/gpu.hpp by sources that nvcc
// compiles.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "common/attention.hpp"

namespace flash::gpu {

namespace detail {
// arguments: the address of each kernel argument.
void launch_kernel(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, Stream stream,
                   void** arguments);
}  // namespace detail

// The block's dynamic shared memory. It starts at a multiple of 1024, so that swizzles may work on address
// bits.
template <class T> __device__ __forceinline__ T* dynamic_smem() {
    extern __shared__ __align__(1024) unsigned char dynamic_smem_bytes[];
    return reinterpret_cast<T*>(dynamic_smem_bytes);
}

// Launches kernel and throws DeviceError, in one sentence, for a launch that this device cannot do. Errors
// inside the kernel show at the next synchronize().
template <class... Params>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes, Stream stream,
            std::type_identity_t<Params>... arguments) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
    detail::launch_kernel(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream, pointers);
}

}  // namespace flash::gpu
