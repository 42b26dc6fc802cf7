#include <vector>

#include "common/gpu/gpu.hpp"
#include "kernels.hpp"

namespace flash::emulator {

namespace {

constexpr int kElements = 300;

struct Buffers {
    gpu::DeviceBuffer<float> x{kElements}, y{kElements};
    Buffers() { x.copy_from_host(std::vector<float>(kElements, 1.0f).data()); }
};

// Reads or writes one element away from thread `at` of the grid and nowhere else.
__global__ void read_kernel(const float* x, float* y, int thread, int element) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i == thread) y[0] = x[element];
}
__global__ void write_kernel(float* y, int thread, int element) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i == thread) y[element] = 1;
}
__global__ void read_float4_kernel(const float* x, float4* y) {
    if (threadIdx.x == 9) y[0] = *reinterpret_cast<const float4*>(x);
}

// Everything below is about shared memory: thread i of two warps writes its element.
__global__ void read_shared_kernel(float* y, bool write_first, unsigned element) {
    float* smem = gpu::dynamic_smem<float>();
    if (write_first) smem[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 5) y[0] = smem[element];
}

__global__ void no_barrier_after_write_kernel(float* y) {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x] = 1;
    y[threadIdx.x] = smem[threadIdx.x ^ 32u];
}

// Whichever warp runs first, only the missing barrier is wrong: warp 1 reads what warp 0 overwrites.
__global__ void no_barrier_before_overwrite_kernel(float* y) {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x < 32) {
        smem[threadIdx.x] = 2;
    } else {
        y[threadIdx.x] = smem[threadIdx.x - 32];
    }
}

__global__ void no_barrier_after_zeroing_kernel(float* y) {
    float* sum_smem = gpu::dynamic_smem<float>();
    if (threadIdx.x == 0) *sum_smem = 0;
    atomicAdd(sum_smem, 1.0f);
    __syncthreads();
    if (threadIdx.x == 0) y[0] = *sum_smem;
}

__global__ void no_syncwarp_kernel(float* y) {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x] = 1;
    y[threadIdx.x] = smem[threadIdx.x ^ 1u];
}

// The last lane to read is the one that writes.
__global__ void overwrite_after_warp_read_kernel(float* y) {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = smem[0];
    if (threadIdx.x == 31) smem[0] = 2;
}

__global__ void write_twice_kernel() {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x / 2] = 1;
}

// The same mistakes in device memory, where hardware needs as many barriers.
__global__ void write_global_twice_kernel(float* y) {
    y[threadIdx.x / 2] = 1;
}

__global__ void no_barrier_after_global_write_kernel(float* y, float* z) {
    y[threadIdx.x] = 1;
    z[threadIdx.x] = y[threadIdx.x ^ 32u];
}

__global__ void no_barrier_before_global_overwrite_kernel(float* x, float* z) {
    if (threadIdx.x < 32) {
        x[threadIdx.x] = 2;
    } else {
        z[threadIdx.x] = x[threadIdx.x - 32];
    }
}

// Blocks have no barrier between them. Each of two blocks does one of two things to the same element.
enum class Does { kReads, kWrites, kAdds };
__global__ void blocks_kernel(int* shared_by_blocks, int* z, Does first, Does second) {
    const Does mine = blockIdx.x == 0 ? first : second;
    if (mine == Does::kReads) z[blockIdx.x] = *shared_by_blocks;
    if (mine == Does::kWrites) *shared_by_blocks = 7;
    if (mine == Does::kAdds) atomicAdd(shared_by_blocks, 1);
}
void run_blocks(Does first, Does second) {
    gpu::DeviceBuffer<int> x(1), z(2);
    const int zero = 0;
    x.copy_from_host(&zero);
    gpu::launch(blocks_kernel, 2, 1, 0, nullptr, x.data(), z.data(), first, second);
}

__global__ void diverge_at_barrier_kernel() {
    if (threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

__global__ void skip_barrier_kernel(float* y) {
    if (threadIdx.x < 32) __syncthreads();
    y[threadIdx.x] = 1;
}

__global__ void exit_before_barrier_kernel(float* y, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    __syncthreads();
    y[i] = 1;
}

__global__ void exit_before_shuffle_kernel(float* y) {
    if (threadIdx.x == 17) return;
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}

__global__ void shuffle_outside_mask_kernel(float* y) {
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 16);
}

__global__ void shuffle_in_two_branches_kernel(float* y) {
    if (threadIdx.x < 16) {
        y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    } else {
        y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 2.0f, 1);
    }
}

// In one place, but the first lane is in the mask of some only.
__global__ void shuffle_with_two_masks_kernel(float* y) {
    y[threadIdx.x] = __shfl_xor_sync(threadIdx.x < 16 ? 0xffffffffu : 0xfffffffeu, 1.0f, 1);
}

__global__ void vote_kernel(float* y) {
    if (threadIdx.x < 16) y[threadIdx.x] = static_cast<float>(__all_sync(0xffffffffu, 1));
}

enum class AsyncFault { kNoWait, kTooFew, kNoBarrier, kOverwrite };
__global__ void cp_async_kernel(const float* x, float* y, AsyncFault fault) {
    float* smem = gpu::dynamic_smem<float>();
    const unsigned i = threadIdx.x;
    for (unsigned group = 0; group < 2; ++group) {
        gpu::cp_async_16(gpu::smem_address(smem + 128 * group + 4 * i), x + 4 * i, 16);
        gpu::cp_async_commit();
    }
    unsigned element = 4 * i;
    if (fault == AsyncFault::kOverwrite) smem[element] = 3;
    if (fault == AsyncFault::kTooFew) {
        gpu::cp_async_wait<1>();
        element += 128;
    }
    if (fault == AsyncFault::kNoBarrier) {
        gpu::cp_async_wait<0>();
        element ^= 4;
    }
    y[i] = smem[element];
}
void run_cp_async(AsyncFault fault) {
    Buffers b;
    gpu::launch(cp_async_kernel, 1, 32, 2 * 512, nullptr, b.x.data(), b.y.data(), fault);
}

__global__ void cp_async_from_one_place_kernel(const float* x, int bytes) {
    gpu::cp_async_16(gpu::smem_address(gpu::dynamic_smem<float>()) + 16 * threadIdx.x, x, bytes);
}
void run_cp_async_from_one_place(int first_element, int bytes) {
    Buffers b;
    gpu::launch(cp_async_from_one_place_kernel, 1, 32, 512, nullptr, b.x.data() + first_element, bytes);
}

// Warp 0 writes and arrives, warp 1 waits and reads: the right way, but for the fault.
enum class MbarrierFault { kNoInit, kNoBarrierAfterInit, kNoWait, kWrongParity, kTooFewArrivals };
__global__ void mbarrier_kernel(float* y, MbarrierFault fault) {
    float* smem = gpu::dynamic_smem<float>();  // 32 numbers, and the mbarrier
    const std::uint32_t mbarrier = gpu::smem_address(smem + 32);
    const unsigned lane = threadIdx.x % 32;
    const bool writes = threadIdx.x < 32;
    if (threadIdx.x == 0 && fault != MbarrierFault::kNoInit) {
        gpu::mbarrier_init(mbarrier, fault == MbarrierFault::kTooFewArrivals ? 33 : 32);
    }
    if (fault != MbarrierFault::kNoBarrierAfterInit) __syncthreads();
    if (writes) {
        smem[lane] = 1;
        gpu::mbarrier_arrive(mbarrier);
    } else {
        if (fault != MbarrierFault::kNoWait) gpu::mbarrier_wait(mbarrier, 0);
        if (fault == MbarrierFault::kWrongParity) gpu::mbarrier_wait(mbarrier, 1);
        y[lane] = smem[lane];
    }
}
void run_mbarrier(MbarrierFault fault) {
    Buffers b;
    gpu::launch(mbarrier_kernel, 1, 64, 32 * 4 + 8, nullptr, b.y.data(), fault);
}

// Warp 0 arrives in the first phase and writes after that; warp 1 completes the second phase and reads.
__global__ void write_after_arrival_kernel(float* y) {
    float* smem = gpu::dynamic_smem<float>();
    const std::uint32_t mbarrier = gpu::smem_address(smem + 32);
    const unsigned lane = threadIdx.x % 32;
    if (threadIdx.x == 0) gpu::mbarrier_init(mbarrier, 32);
    __syncthreads();
    if (threadIdx.x < 32) {
        gpu::mbarrier_arrive(mbarrier);
        __syncwarp();  // the first phase is over
        smem[lane] = 1;
    } else {
        gpu::mbarrier_wait(mbarrier, 0);
        gpu::mbarrier_arrive(mbarrier);
        gpu::mbarrier_wait(mbarrier, 1);
        y[lane] = smem[lane];
    }
}

__global__ void mbarrier_init_kernel(unsigned offset, int arrivals) {
    if (threadIdx.x == 0)
        gpu::mbarrier_init(gpu::smem_address(gpu::dynamic_smem<float>()) + offset, arrivals);
}

__global__ void ldmatrix_kernel(unsigned offset) {
    auto* smem = gpu::dynamic_smem<unsigned>();
    for (unsigned i = threadIdx.x; i < 128; i += 32) smem[i] = i;
    __syncthreads();
    std::uint32_t r[4];
    gpu::ldmatrix_x4(r, gpu::smem_address(smem) + 16 * threadIdx.x + offset);
}

__global__ void half_a_warp_mma_kernel(float* y) {
    if (threadIdx.x >= 16) return;
    float acc[4] = {0, 0, 0, 0};
    const std::uint32_t a[4] = {0, 0, 0, 0};
    gpu::mma_m16n8k16<fp16>(acc, a, 0, 0);
    y[threadIdx.x] = acc[0];
}

}  // namespace

// Thread 44 of the third block of 128 is the first past 300 elements.
void read_past_the_end() {
    Buffers b;
    gpu::launch(read_kernel, 3, 128, 0, nullptr, b.x.data(), b.y.data(), 300, kElements);
}
void write_past_the_end() {
    Buffers b;
    gpu::launch(write_kernel, 3, 128, 0, nullptr, b.y.data(), 300, kElements);
}
void read_before_the_start() {
    Buffers b;
    gpu::launch(read_kernel, 3, 128, 0, nullptr, b.x.data(), b.y.data(), 300, -1);
}
void read_freed_memory() {
    Buffers b;
    const float* freed = nullptr;
    {
        const Buffers gone;
        freed = gone.x.data();
    }
    gpu::launch(read_kernel, 3, 128, 0, nullptr, freed, b.y.data(), 300, 7);
}
void read_host_memory() {
    Buffers b;
    const std::vector<float> host(kElements, 1.0f);
    gpu::launch(read_kernel, 3, 128, 0, nullptr, host.data(), b.y.data(), 300, 7);
}
void read_unwritten_global() {
    Buffers b;
    gpu::launch(read_kernel, 3, 128, 0, nullptr, b.y.data(), b.x.data(), 300, 7);
}
// Floats 8 to 15 of y are copied to it, which is neither the start nor the end of a line of the emulator's
// books.
void read_beside_a_copy(int element) {
    Buffers b;
    gpu::detail::copy_to_device(b.y.data() + 8, std::vector<float>(8, 1.0f).data(), 32);
    gpu::launch(read_kernel, 3, 128, 0, nullptr, b.y.data(), b.x.data(), 300, element);
}
void read_before_a_copy() {
    read_beside_a_copy(7);
}
void read_behind_a_copy() {
    read_beside_a_copy(16);
}
void read_misaligned_float4() {
    Buffers b;
    gpu::launch(read_float4_kernel, 1, 32, 0, nullptr, b.x.data() + 1, reinterpret_cast<float4*>(b.y.data()));
}

void read_past_shared() {
    Buffers b;
    gpu::launch(read_shared_kernel, 1, 64, 64 * sizeof(float), nullptr, b.y.data(), true, 64);
}
void read_unwritten_shared() {
    Buffers b;
    gpu::launch(read_shared_kernel, 1, 64, 65 * sizeof(float), nullptr, b.y.data(), true, 64);
}
void forget_barrier_after_write() {
    Buffers b;
    gpu::launch(no_barrier_after_write_kernel, 1, 64, 256, nullptr, b.y.data());
}
void forget_barrier_before_overwrite() {
    Buffers b;
    gpu::launch(no_barrier_before_overwrite_kernel, 1, 64, 256, nullptr, b.y.data());
}
void forget_barrier_after_zeroing() {
    Buffers b;
    gpu::launch(no_barrier_after_zeroing_kernel, 1, 64, sizeof(float), nullptr, b.y.data());
}
void forget_syncwarp() {
    Buffers b;
    gpu::launch(no_syncwarp_kernel, 1, 32, 128, nullptr, b.y.data());
}
void overwrite_what_the_warp_read() {
    Buffers b;
    gpu::launch(overwrite_after_warp_read_kernel, 1, 32, 128, nullptr, b.y.data());
}
void write_shared_twice() {
    gpu::launch(write_twice_kernel, 1, 64, 256, nullptr);
}
void write_global_twice() {
    Buffers b;
    gpu::launch(write_global_twice_kernel, 1, 64, 0, nullptr, b.y.data());
}
void forget_barrier_after_global_write() {
    Buffers b, c;
    b.y.copy_from_host(std::vector<float>(kElements, 0.0f).data());
    gpu::launch(no_barrier_after_global_write_kernel, 1, 64, 0, nullptr, b.y.data(), c.y.data());
}
void forget_barrier_before_global_overwrite() {
    Buffers b;
    gpu::launch(no_barrier_before_global_overwrite_kernel, 1, 64, 0, nullptr, b.x.data(), b.y.data());
}
void read_what_another_block_wrote() {
    run_blocks(Does::kWrites, Does::kReads);
}
void write_what_another_block_wrote() {
    run_blocks(Does::kWrites, Does::kWrites);
}
void write_what_another_block_read() {
    run_blocks(Does::kReads, Does::kWrites);
}
void read_what_another_block_added() {
    run_blocks(Does::kAdds, Does::kReads);
}
void add_to_what_another_block_wrote() {
    run_blocks(Does::kWrites, Does::kAdds);
}
void diverge_at_barrier() {
    gpu::launch(diverge_at_barrier_kernel, 1, 32, 0, nullptr);
}
void skip_barrier_in_one_warp() {
    Buffers b;
    gpu::launch(skip_barrier_kernel, 1, 64, 0, nullptr, b.y.data());
}
void exit_before_barrier() {
    Buffers b;
    gpu::launch(exit_before_barrier_kernel, 3, 128, 0, nullptr, b.y.data(), kElements);
}
void exit_before_shuffle() {
    Buffers b;
    gpu::launch(exit_before_shuffle_kernel, 1, 32, 0, nullptr, b.y.data());
}
void shuffle_from_outside_the_mask() {
    Buffers b;
    gpu::launch(shuffle_outside_mask_kernel, 1, 32, 0, nullptr, b.y.data());
}
void shuffle_in_two_branches() {
    Buffers b;
    gpu::launch(shuffle_in_two_branches_kernel, 1, 32, 0, nullptr, b.y.data());
}
void shuffle_with_two_masks() {
    Buffers b;
    gpu::launch(shuffle_with_two_masks_kernel, 1, 32, 0, nullptr, b.y.data());
}
void vote_in_half_a_warp() {
    Buffers b;
    gpu::launch(vote_kernel, 1, 32, 0, nullptr, b.y.data());
}
void read_cp_async_before_the_wait() {
    run_cp_async(AsyncFault::kNoWait);
}
void wait_for_too_few_groups() {
    run_cp_async(AsyncFault::kTooFew);
}
void read_cp_async_of_another_thread() {
    run_cp_async(AsyncFault::kNoBarrier);
}
void overwrite_cp_async_in_flight() {
    run_cp_async(AsyncFault::kOverwrite);
}
void arrive_at_no_mbarrier() {
    run_mbarrier(MbarrierFault::kNoInit);
}
void forget_barrier_after_mbarrier_init() {
    run_mbarrier(MbarrierFault::kNoBarrierAfterInit);
}
void read_without_mbarrier_wait() {
    run_mbarrier(MbarrierFault::kNoWait);
}
void wait_for_the_wrong_parity() {
    run_mbarrier(MbarrierFault::kWrongParity);
}
void wait_for_too_many_arrivals() {
    run_mbarrier(MbarrierFault::kTooFewArrivals);
}
void write_after_mbarrier_arrival() {
    Buffers b;
    gpu::launch(write_after_arrival_kernel, 1, 64, 32 * 4 + 8, nullptr, b.y.data());
}
void initialise_misaligned_mbarrier() {
    gpu::launch(mbarrier_init_kernel, 1, 32, 16, nullptr, 4u, 32);
}
void initialise_mbarrier_for_no_arrivals() {
    gpu::launch(mbarrier_init_kernel, 1, 32, 16, nullptr, 8u, 0);
}
void cp_async_of_nothing_from_a_misaligned_source() {
    run_cp_async_from_one_place(1, 0);
}
void cp_async_of_a_negative_number() {
    run_cp_async_from_one_place(0, -1);
}
void cp_async_of_more_than_16_bytes() {
    run_cp_async_from_one_place(0, 17);
}
void ldmatrix_of_misaligned_row() {
    gpu::launch(ldmatrix_kernel, 1, 32, 1024, nullptr, 8u);
}
void ldmatrix_past_shared() {
    gpu::launch(ldmatrix_kernel, 1, 32, 512, nullptr, 16u);
}
void mma_in_half_a_warp() {
    Buffers b;
    gpu::launch(half_a_warp_mma_kernel, 1, 32, 0, nullptr, b.y.data());
}

}  // namespace flash::emulator
