// Kernels that keep the rules, to be counted, and kernels that break exactly one rule each, to be reported.
#pragma once

#include <cstddef>
#include <vector>

namespace flash::emulator {

using Floats = std::vector<float>;

// ---- sound_kernels.cu

Floats add(const Floats& a, const Floats& b);  // blocks of 128 threads, one element a thread
Floats sum_all_in_every_thread(const Floats& x, int blocks, int threads);  // every thread reads all of x
Floats scale(const Floats& x, bool extra_load);  // the extra load reads the neighbour's element too
Floats reverse_through_shared(const Floats& x);  // one block: one store, one barrier, one load a thread
Floats exchange_in_warps(const Floats& x);       // through shared memory and __syncwarp
std::vector<int> order_of_warps(int warps, int blocks);  // ids of the warps (blocks in turn) as they ran
Floats from_constant_table(int n);
void use_every_instruction(int repetitions);  // ldmatrix, mma, exp2_approx, atomicAdd, cp.async
void ldmatrix_with_row_stride(int stride_bytes);
void cp_async_with_row_stride(int stride_bytes);
// One warp, one access of `bytes` (2, 4, 8 or 16) a lane, lane i at i * stride_bytes: a load from device
// memory and a store to it; a store to shared memory and a load from it.
void global_with_stride(int bytes, int stride_bytes, int offset_bytes = 0);
void shared_with_stride(int bytes, int stride_bytes);
void load_once_more_in_each_lane(
    bool extra_load);                  // lane i of a warp loads element n at its n-th load, i + 1 times
Floats exponentials(const Floats& x);  // expf, __expf and exp2_approx of each element, added up
Floats reverse_through_global(const Floats& x, int blocks);  // as above, a barrier between write and read
Floats one_launch_after_the_other(const Floats& x);  // the second reads what other blocks of the first wrote
Floats hand_over_at_mbarrier();                      // from the 32 readers of a number to its next writer
int add_in_every_block(int blocks);                  // atomically, to one number
void launch_empty(unsigned grid_y, unsigned block_x, std::size_t shared_bytes);
bool every_thread_runs_once(int blocks, int threads);
void many_barriers(int barriers);
Floats many_syncwarps(int syncs);
Floats leave_copies_unfinished(int blocks);

// ---- faulty_kernels.cu

void read_past_the_end();
void write_past_the_end();
void read_before_the_start();
void read_freed_memory();
void read_host_memory();
void read_unwritten_global();
void read_before_a_copy();
void read_behind_a_copy();
void read_misaligned_float4();
void read_past_shared();
void read_unwritten_shared();
void forget_barrier_after_write();
void forget_barrier_before_overwrite();
void forget_barrier_after_zeroing();
void forget_syncwarp();
void overwrite_what_the_warp_read();
void write_shared_twice();
void write_global_twice();
void forget_barrier_after_global_write();
void forget_barrier_before_global_overwrite();
void read_what_another_block_wrote();
void write_what_another_block_wrote();
void write_what_another_block_read();
void read_what_another_block_added();
void add_to_what_another_block_wrote();
void diverge_at_barrier();
void skip_barrier_in_one_warp();
void exit_before_barrier();
void exit_before_shuffle();
void shuffle_from_outside_the_mask();
void shuffle_in_two_branches();
void shuffle_with_two_masks();
void vote_in_half_a_warp();
void read_cp_async_before_the_wait();
void wait_for_too_few_groups();
void read_cp_async_of_another_thread();
void overwrite_cp_async_in_flight();
void arrive_at_no_mbarrier();
void forget_barrier_after_mbarrier_init();
void read_without_mbarrier_wait();
void wait_for_the_wrong_parity();
void wait_for_too_many_arrivals();
void write_after_mbarrier_arrival();
void initialise_misaligned_mbarrier();
void initialise_mbarrier_for_no_arrivals();
void cp_async_of_nothing_from_a_misaligned_source();
void cp_async_of_a_negative_number();
void cp_async_of_more_than_16_bytes();
void ldmatrix_of_misaligned_row();
void ldmatrix_past_shared();
void mma_in_half_a_warp();

}  // namespace flash::emulator
