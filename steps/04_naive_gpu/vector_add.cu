#include "steps/04_naive_gpu/vector_add.hpp"

#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>

#include "common/gpu/gpu.hpp"

namespace flash::step04 {
namespace {

// Which element this thread is in charge of. blockIdx.x * blockDim.x alone would be a 32-bit product.
__device__ __forceinline__ std::int64_t element_of_thread() {
    return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__global__ void vector_add_kernel(const float* a, const float* b, float* out, std::int64_t n) {
    const std::int64_t i = element_of_thread();
    if (i < n) out[i] = a[i] + b[i];  // the mask: the last block has more threads than elements are left
}

__global__ void count_live_threads_kernel(int* live, std::int64_t n) {
    if (element_of_thread() < n) atomicAdd(&live[blockIdx.x], 1);
}

unsigned checked_grid(std::int64_t n, int block_threads) {
    const std::int64_t blocks = blocks_for(n, block_threads);
    if (blocks > std::numeric_limits<int>::max()) {
        throw std::invalid_argument("n is " + std::to_string(n) + ", which needs " + std::to_string(blocks) +
                                    " blocks; a grid has at most 2^31 - 1");
    }
    return static_cast<unsigned>(blocks);
}

void check_aligned(const char* name, const void* data) {
    if (reinterpret_cast<std::uintptr_t>(data) % 4 != 0)
        throw std::invalid_argument(std::string(name) + " is not aligned; 4-byte alignment is needed");
}

// n elements at `in` and at `out`, which may be the same ones.
void check_no_partial_overlap(const char* name, const float* in, const float* out, std::int64_t n) {
    const auto distance = reinterpret_cast<std::intptr_t>(out) - reinterpret_cast<std::intptr_t>(in);
    if (distance != 0 && std::abs(distance) < n * static_cast<std::int64_t>(sizeof(float))) {
        throw std::invalid_argument(std::string("out overlaps ") + name + " in part; out must be " + name +
                                    " itself or memory of its own");
    }
}

}  // namespace

std::int64_t blocks_for(std::int64_t n, int block_threads) {
    if (n < 0) throw std::invalid_argument("n is " + std::to_string(n) + "; it must be >= 0");
    if (block_threads < 1 || block_threads > 1024) {
        throw std::invalid_argument("block_threads is " + std::to_string(block_threads) +
                                    "; a block has 1 to 1024 threads");
    }
    return n / block_threads + (n % block_threads != 0);
}

void vector_add(const float* a, const float* b, float* out, std::int64_t n, int block_threads,
                Stream stream) {
    const unsigned grid = checked_grid(n, block_threads);
    if (n == 0) return;  // a grid of zero blocks is an error in CUDA
    if (!a || !b || !out) throw std::invalid_argument("a, b or out is null; n > 0 elements need memory");
    check_aligned("a", a);
    check_aligned("b", b);
    check_aligned("out", out);
    check_no_partial_overlap("a", a, out, n);
    check_no_partial_overlap("b", b, out, n);
    gpu::launch(vector_add_kernel, dim3(grid), dim3(static_cast<unsigned>(block_threads)), 0, stream, a, b,
                out, n);
}

void count_live_threads(int* live, std::int64_t n, int block_threads, Stream stream) {
    const unsigned grid = checked_grid(n, block_threads);
    if (n == 0) return;
    if (!live) throw std::invalid_argument("live is null; it needs one int per block");
    check_aligned("live", live);
    gpu::launch(count_live_threads_kernel, dim3(grid), dim3(static_cast<unsigned>(block_threads)), 0, stream,
                live, n);
}

}  // namespace flash::step04
