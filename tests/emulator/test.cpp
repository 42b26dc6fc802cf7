// The emulator itself: it counts exactly, and it reports every broken rule with kernel, block, thread and
// place.
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "common/simt/control.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/exact_counts.hpp"
#include "kernels.hpp"

using namespace flash;
using namespace flash::emulator;

namespace {

// True, with the reason printed, where this build's emulator does not see plain loads and stores.
bool hooks_are_off() {
    if (simt::hooks_enabled()) return false;
    MESSAGE(
        "SKIP: device code is not instrumented in a sanitizer build, so the emulator sees no plain access");
    return true;
}

// The text of the error a faulty kernel ends in, or "" when nothing was reported.
std::string error_of(void (*faulty)()) {
    try {
        faulty();
    } catch (const simt::EmulatorError& error) {
        return error.what();
    }
    return "";
}

// Every text must be in the error, under several warp orders: a fault must not depend on luck.
void check_reported(void (*faulty)(), std::initializer_list<const char*> texts) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        simt::set_seed(seed);
        const std::string error = error_of(faulty);
        CAPTURE(seed);
        CAPTURE(error);
        for (const std::string text : texts) {
            CAPTURE(text);
            CHECK(error.find(text) != std::string::npos);
        }
        CHECK(add({1}, {2}) == Floats{3});  // the next launch works
    }
    simt::set_seed(0);
}

struct Limit {  // sets the shared memory limit for one scope
    explicit Limit(std::size_t bytes) { simt::set_shared_memory_limit(bytes); }
    ~Limit() { simt::set_shared_memory_limit(simt::kDefaultSharedLimit); }
};

}  // namespace

// The first test, before any other sets a seed.
TEST_CASE("the seed starts as FLASH_STEPS_SIMT_SEED, or 0") {
    const char* text = std::getenv("FLASH_STEPS_SIMT_SEED");
    CHECK(simt::seed() == (text == nullptr ? 0 : std::stoull(text)));
}

TEST_CASE("a vector add of 300 elements loads 2400 bytes and stores 1200") {
    const Floats a(300, 1.0f), b(300, 2.0f);
    CHECK(add(a, b) == Floats(300, 3.0f));
    if (hooks_are_off()) return;
    const simt::Counters c = simt::last_launch();
    CHECK(c.launches == 1);
    CHECK(c.global_load_bytes_issued == 2400);
    CHECK(c.global_load_bytes_distinct_per_block == 2400);
    CHECK(c.global_load_bytes_distinct_per_launch == 2400);
    CHECK(c.global_store_bytes_issued == 1200);
    CHECK(c.global_store_bytes_distinct_per_block == 1200);
    CHECK(c.global_store_bytes_distinct_per_launch == 1200);
    CHECK(c.shared_load_bytes + c.shared_store_bytes + c.barriers + c.atomics == 0);
}

TEST_CASE("issued, distinct per block and distinct per launch are three numbers") {
    const int blocks = 5, threads = 40, n = 333;
    CHECK(sum_all_in_every_thread(Floats(n, 1.0f), blocks, threads) == Floats(blocks * threads, 333.0f));
    if (hooks_are_off()) return;
    const simt::Counters c = simt::last_launch();
    CHECK(c.global_load_bytes_issued == std::uint64_t{4} * n * blocks * threads);
    CHECK(c.global_load_bytes_distinct_per_block == std::uint64_t{4} * n * blocks);
    CHECK(c.global_load_bytes_distinct_per_launch == std::uint64_t{4} * n);
    // The same buffers' lines in a new launch are counted afresh.
    sum_all_in_every_thread(Floats(n, 1.0f), 1, 1);
    CHECK(simt::last_launch().global_load_bytes_distinct_per_launch == std::uint64_t{4} * n);
}

TEST_CASE("one load added to a kernel adds exactly its bytes, and they are not distinct") {
    if (hooks_are_off()) return;
    const Floats x(1000, 1.0f);
    CHECK(scale(x, false) == Floats(1000, 2.0f));
    const simt::Counters before = simt::last_launch();
    CHECK(scale(x, true) == Floats(1000, 2.5f));
    const simt::Counters after = simt::last_launch();
    CHECK(before.global_load_bytes_issued == 4000);
    CHECK(after.global_load_bytes_issued - before.global_load_bytes_issued == 4000);
    CHECK(after.global_load_bytes_distinct_per_launch == before.global_load_bytes_distinct_per_launch);
    // Each of the 16 blocks meets one element more than its own 64 (the last block: the first element).
    CHECK(after.global_load_bytes_distinct_per_block - before.global_load_bytes_distinct_per_block == 16 * 4);
    CHECK(after.global_store_bytes_issued == before.global_store_bytes_issued);
}

TEST_CASE("shared memory traffic and barriers are counted") {
    Floats x(256), want(256);
    for (int i = 0; i < 256; ++i) want[255 - i] = x[i] = static_cast<float>(i);
    CHECK(reverse_through_shared(x) == want);
    CHECK(simt::last_launch().barriers == 1);
    if (hooks_are_off()) return;
    CHECK(simt::last_launch().shared_store_bytes == 1024);
    CHECK(simt::last_launch().shared_load_bytes == 1024);
}

TEST_CASE("instructions are counted") {
    use_every_instruction(3);
    const simt::Counters c = simt::last_launch();
    CHECK(c.mma == 2 * 3);  // two warps
    CHECK(c.ldmatrix == 2 * 3);
    CHECK(c.exp2 == 64 * 3);
    CHECK(c.atomics == 3);
    CHECK(c.cp_async_bytes == 64 * 16 * 3);
    CHECK(c.barriers == 2 * 3);
    CHECK(c.shared_bank_conflicts == 0);
    if (hooks_are_off()) return;
    CHECK(c.global_load_bytes_issued == 64 * 16 * 3);
    CHECK(c.global_load_bytes_distinct_per_launch == 64 * 16);
    CHECK(c.global_store_bytes_issued == 64 * 4 + 3 * 4);
}

TEST_CASE("totals add up over launches until reset") {
    simt::reset();
    CHECK(simt::total().launches == 0);
    use_every_instruction(1);
    use_every_instruction(2);
    CHECK(simt::total().launches == 2);
    CHECK(simt::total().exp2 == 64 * 3);
    CHECK(simt::last_launch().exp2 == 64 * 2);
}

TEST_CASE(
    "bank conflicts: rows 128 bytes apart share their banks, an odd multiple of 16 bytes apart they do not") {
    const auto conflicts = [](void (*kernel)(int), int stride_bytes) {
        return simt::count([=] { kernel(stride_bytes); }).shared_bank_conflicts;
    };
    CHECK(conflicts(ldmatrix_with_row_stride, 128) == 4 * 7);
    CHECK(conflicts(ldmatrix_with_row_stride, 64) == 4 * 3);
    CHECK(conflicts(ldmatrix_with_row_stride, 144) == 0);
    CHECK(conflicts(ldmatrix_with_row_stride, 16) == 0);
    CHECK(conflicts(cp_async_with_row_stride, 128) == 4 * 7);
    CHECK(conflicts(cp_async_with_row_stride, 144) == 0);
}

TEST_CASE(
    "bank conflicts of plain loads and stores: 4, 8 and 16 bytes a lane go in one, two and four parts") {
    if (hooks_are_off()) return;
    struct Line {
        int bytes, stride_bytes;
        std::uint64_t conflicts;  // of one store and of one load
    };
    for (const Line& line : {Line{4, 4, 0}, Line{4, 8, 1}, Line{4, 128, 31}, Line{4, 132, 0}, Line{4, 64, 15},
                             Line{4, 12, 0}, Line{2, 2, 0}, Line{2, 4, 0}, Line{2, 128, 31}, Line{2, 64, 15},
                             Line{8, 8, 0}, Line{8, 16, 2 * 1}, Line{8, 128, 2 * 15}, Line{8, 136, 0},
                             Line{16, 16, 0}, Line{16, 32, 4 * 1}, Line{16, 128, 4 * 7}, Line{16, 144, 0}}) {
        CAPTURE(line.bytes);
        CAPTURE(line.stride_bytes);
        const auto c = simt::count([&] { shared_with_stride(line.bytes, line.stride_bytes); });
        CHECK(c.shared_store_requests == 1);
        CHECK(c.shared_load_requests == 1);
        CHECK(c.shared_bank_conflicts == 2 * line.conflicts);
    }
}

TEST_CASE("a request to device memory takes the sectors of 32 bytes that its lanes touch") {
    if (hooks_are_off()) return;
    struct Line {
        int bytes, stride_bytes, offset_bytes;
        std::uint64_t sectors;
    };
    for (const Line& line : {Line{4, 4, 0, 4}, Line{4, 4, 4, 5}, Line{4, 8, 0, 8}, Line{4, 32, 0, 32},
                             Line{4, 256, 0, 32}, Line{2, 2, 0, 2}, Line{2, 128, 0, 32}, Line{8, 8, 0, 8},
                             Line{16, 16, 0, 16}, Line{16, 16, 16, 17}, Line{16, 64, 0, 32}}) {
        CAPTURE(line.bytes);
        CAPTURE(line.stride_bytes);
        CAPTURE(line.offset_bytes);
        const auto c =
            simt::count([&] { global_with_stride(line.bytes, line.stride_bytes, line.offset_bytes); });
        CHECK(c.global_load_requests == 1);
        CHECK(c.global_store_requests == 1);
        CHECK(c.global_load_sectors == line.sectors);
        CHECK(c.global_store_sectors == line.sectors);
    }
}

TEST_CASE("lanes that loop for different times share the requests of the turns they take") {
    if (!flash::testing::counts_are_exact()) return;  // an unrolled loop has several loads for one
    const auto c = simt::count([] { load_once_more_in_each_lane(false); });
    CHECK(c.global_load_requests == 32);  // as many as the longest lane's turns
    CHECK(c.global_load_sectors == 32);   // one address each
    CHECK(c.global_load_bytes_issued == 4 * 32 * 33 / 2);
    const auto more = simt::count([] { load_once_more_in_each_lane(true); });
    CHECK(more.global_load_requests == 33);
    CHECK(more.global_load_sectors == 33);
    CHECK(more.global_load_bytes_issued - c.global_load_bytes_issued == 4 * 32);
}

TEST_CASE("one load added to a kernel adds exactly its requests and sectors") {
    if (hooks_are_off()) return;
    const Floats x(1024, 1.0f);
    const auto before = simt::count([&] { scale(x, false); }), after = simt::count([&] { scale(x, true); });
    CHECK(before.global_load_requests == 32);
    CHECK(before.global_load_sectors == 32 * 4);
    CHECK(after.global_load_requests == 2 * 32);
    // The neighbours' elements begin 4 bytes further on, in a fifth sector; those of the last warp wrap
    // around.
    CHECK(after.global_load_sectors == 32 * (4 + 5));
    CHECK(after.global_store_sectors == before.global_store_sectors);
}

TEST_CASE("requests and conflicts are counted inside of count() only, whose result is that of its launches") {
    global_with_stride(4, 4);
    CHECK(simt::last_launch().global_load_requests == 0);
    simt::reset();
    use_every_instruction(1);
    const auto c = simt::count([] { use_every_instruction(2); });
    CHECK(c.launches == 1);
    CHECK(c.exp2 == 64 * 2);
    CHECK(simt::total().exp2 == 64 * 3);
    CHECK_THROWS_AS(simt::count([] { diverge_at_barrier(); }), simt::EmulatorError);
    use_every_instruction(1);
    CHECK(simt::last_launch().shared_load_requests == 0);
    if (hooks_are_off()) return;
    CHECK(c.shared_load_requests == c.ldmatrix);
    CHECK(c.shared_store_requests == 2 * 2);  // cp.async, two warps
    CHECK(c.global_load_requests == 2 * 2);   // likewise
    CHECK(c.global_load_sectors == 2 * 2 * 512 / 32);
    CHECK(c.global_store_requests == 2 + 2);  // y; the atomics of one lane
}

TEST_CASE("expf, __expf and exp2_approx are the exponentials that are counted") {
    const float x = 0.75f;
    const Floats y = exponentials(Floats(40, x));
    CHECK(y[39] == doctest::Approx(2 * std::exp(0.75) + std::exp2(0.75)));
    CHECK(simt::last_launch().exp2 == 3 * 40);
}

TEST_CASE("what a barrier, an atomic or the end of a launch orders in device memory is no race") {
    Floats x(128), reversed(128);
    for (int i = 0; i < 128; ++i) x[i] = static_cast<float>(i);
    for (int i = 0; i < 128; ++i) reversed[i] = x[i / 64 * 64 + 63 - i % 64];
    CHECK(reverse_through_global(x, 2) == reversed);
    Floats twice(128);
    for (int i = 0; i < 128; ++i) twice[i] = x[(i + 64) % 128];
    CHECK(one_launch_after_the_other(x) == twice);
    CHECK(add_in_every_block(5) == 5 * 64);
}

TEST_CASE(
    "readers that arrive at an mbarrier are before a writer that waits for it, under every warp order") {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        simt::set_seed(seed);
        CHECK(hand_over_at_mbarrier() == Floats(32, 1.0f));
    }
    simt::set_seed(0);
    CHECK(simt::last_launch().mbarrier_phases == 1);
}

TEST_CASE("every thread of a three-dimensional launch runs once, up to 1024 threads a block") {
    CHECK(every_thread_runs_once(7, 33));
    CHECK(every_thread_runs_once(1, 512));
}

TEST_CASE("a seed fixes the order of warps and blocks, another seed changes it") {
    const auto order = [](std::uint64_t seed) {
        simt::set_seed(seed);
        return order_of_warps(8, 6);
    };
    const auto first = order(1);
    CHECK(first == order(1));
    CHECK(first != order(2));
    CHECK(std::set<int>(first.begin(), first.end()).size() == 48);
    CHECK(order(0) != std::vector<int>(48, 0));
    simt::set_seed(0);
}

TEST_CASE("kernels may read constants of the program") {
    CHECK(from_constant_table(10) == Floats{3, 1, 4, 1, 5, 9, 2, 6, 3, 1});
}

TEST_CASE("__syncwarp orders a warp's accesses to shared memory") {
    Floats x(64);
    for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i);
    const Floats y = exchange_in_warps(x);
    for (int i = 0; i < 64; ++i) REQUIRE(y[i] == x[i ^ 1]);
}

TEST_CASE("a block may run more barriers than there are time stamps") {
    many_barriers(1 << 21);
    CHECK(simt::last_launch().barriers == (1 << 21) + 1);
    CHECK(many_syncwarps(1 << 20) == Floats(32, 6.0f));
}

TEST_CASE("a cp.async that nobody waits for ends with its block") {
    CHECK(leave_copies_unfinished(5) == Floats(32 * 5, 3.0f));
}

TEST_CASE("host threads may launch at the same time") {
    std::vector<std::thread> threads;
    std::vector<int> right(4, 0);
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([t, &right] {
            for (int n = 0; n < 20; ++n) {
                const Floats x(100 + n, static_cast<float>(t));
                right[t] += add(x, x) == Floats(100 + n, static_cast<float>(2 * t)) ? 1 : 0;
            }
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(right == std::vector<int>(4, 20));
}

TEST_CASE("C1: too much shared memory is refused with wanted and available bytes; exactly the limit is not") {
    launch_empty(1, 32, simt::kDefaultSharedLimit);
    launch_empty(1, 32, 48 * 1024);
    CHECK_THROWS_WITH_AS(
        launch_empty(1, 32, simt::kDefaultSharedLimit + 1),
        doctest::Contains("wants 232449 bytes of shared memory per block; this device has 232448"),
        gpu::DeviceError);
    const Limit sm_89(101376);
    CHECK(gpu::device_info().shared_per_block_optin == 101376);
    CHECK_THROWS_WITH_AS(
        launch_empty(1, 32, 131072),
        doctest::Contains("wants 131072 bytes of shared memory per block; this device has 101376"),
        gpu::DeviceError);
}

TEST_CASE("launches that no device can do are refused") {
    CHECK_THROWS_WITH_AS(launch_empty(0, 32, 0), doctest::Contains("a grid of (1, 0, 1)"), gpu::DeviceError);
    CHECK_THROWS_WITH_AS(launch_empty(65536, 32, 0), doctest::Contains("a grid of (1, 65536, 1)"),
                         gpu::DeviceError);
    CHECK_THROWS_WITH_AS(launch_empty(1, 0, 0), doctest::Contains("a block of (0, 1, 1)"), gpu::DeviceError);
    CHECK_THROWS_WITH_AS(launch_empty(1, 1025, 0), doctest::Contains("a block of (1025, 1, 1)"),
                         gpu::DeviceError);
    launch_empty(65535, 1, 0);
    launch_empty(1, 1024, 0);
}

TEST_CASE("device memory that cannot be had is refused") {
    CHECK_THROWS_AS(gpu::DeviceBuffer<float>(std::size_t{1} << 62), gpu::DeviceError);
    CHECK_THROWS_WITH_AS(gpu::DeviceBuffer<float>(std::size_t{1} << 50),
                         doctest::Contains("out of device memory"), gpu::DeviceError);
}

// Of this process, in bytes.
std::size_t resident_memory() {
    std::size_t pages_mapped = 0, pages_resident = 0;
    std::ifstream("/proc/self/statm") >> pages_mapped >> pages_resident;
    return pages_resident * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

TEST_CASE("device memory takes the host's memory when it is used, not when it is allocated") {
    if (hooks_are_off()) return;
    const std::size_t bytes = std::size_t{256} << 20, before = resident_memory();
    const gpu::DeviceBuffer<char> buffer(bytes);
    CHECK(resident_memory() - before < bytes / 16);
}

TEST_CASE("all allocations together have no more than the device's memory, and freed memory is free again") {
    const std::size_t all = gpu::device_info().memory_bytes;
    if (simt::hooks_enabled()) {
        const gpu::DeviceBuffer<char> most(all - (std::size_t{1} << 20));
        CHECK_THROWS_WITH_AS(gpu::DeviceBuffer<char>(std::size_t{2} << 20),
                             doctest::Contains("out of device memory: 2097152 bytes were asked for"),
                             gpu::DeviceError);
    }
    CHECK_THROWS_AS(gpu::DeviceBuffer<char>(all + 1), gpu::DeviceError);
    CHECK(add({1}, {2}) == Floats{3});
}

TEST_CASE("a copy to device memory makes its own bytes readable and no others, wherever it begins") {
    if (hooks_are_off()) return;
    check_reported(read_before_a_copy, {"byte 28 of an allocation of 1200", "which nothing has written"});
    check_reported(read_behind_a_copy, {"byte 64 of an allocation of 1200", "which nothing has written"});
}

TEST_CASE("C4: a read or a write one element out of bounds is reported with block, thread and allocation") {
    if (hooks_are_off()) return;
    check_reported(read_past_the_end,
                   {"read_kernel", "block (2,0,0), thread (44,0,0)", "read of 4 bytes at 0x",
                    "0 bytes past the end of an allocation of 1200 bytes at 0x"});
    check_reported(write_past_the_end,
                   {"write_kernel", "block (2,0,0), thread (44,0,0)", "write of 4 bytes at 0x",
                    "0 bytes past the end of an allocation of 1200 bytes at 0x"});
    check_reported(read_before_the_start,
                   {"read_kernel", "block (2,0,0), thread (44,0,0)", "read of 4 bytes at 0x",
                    "4 bytes before an allocation of 1200 bytes at 0x"});
}

TEST_CASE("freed device memory, host memory and unwritten device memory are reported") {
    if (hooks_are_off()) return;
    check_reported(read_freed_memory,
                   {"read_kernel", "block (2,0,0), thread (44,0,0)", "read of 4 bytes at 0x"});
    check_reported(read_host_memory,
                   {"thread (44,0,0)", "read of 4 bytes at 0x", "neither device memory nor shared"});
    check_reported(read_unwritten_global, {"thread (44,0,0)", "byte 28 of an allocation of 1200 bytes",
                                           "which nothing has written"});
}

TEST_CASE("a misaligned 16-byte access is reported") {
    if (hooks_are_off()) return;
    check_reported(read_misaligned_float4, {"read_float4_kernel", "block (0,0,0), thread (9,0,0)",
                                            "read of 16 bytes at 0x", "not aligned to its size"});
}

TEST_CASE("shared memory out of bounds or unwritten is reported") {
    if (hooks_are_off()) return;
    check_reported(read_past_shared,
                   {"read_shared_kernel", "block (0,0,0), thread (5,0,0)", "read of 4 bytes at 0x",
                    "byte 256 of the block's 256 bytes of shared memory"});
    check_reported(read_unwritten_shared, {"thread (5,0,0)", "read of 4 bytes at 0x",
                                           "byte 256 of the block's 260 bytes", "which nothing has written"});
}

TEST_CASE("a missing barrier between a write and another thread's read is reported under every warp order") {
    if (hooks_are_off()) return;
    check_reported(forget_barrier_after_write, {"no_barrier_after_write_kernel", "block (0,0,0)", "thread (",
                                                "read of 4 bytes at 0x", "bytes of shared memory, which"});
}

TEST_CASE("a missing barrier between a read and another thread's write is reported under every warp order") {
    if (hooks_are_off()) return;
    check_reported(forget_barrier_before_overwrite, {"no_barrier_before_overwrite_kernel", "thread (",
                                                     "of 4 bytes at 0x", "with no barrier in between"});
}

TEST_CASE("a lane that overwrites what other lanes of its warp have read is reported, whoever read last") {
    if (hooks_are_off()) return;
    check_reported(overwrite_what_the_warp_read,
                   {"overwrite_after_warp_read_kernel", "thread (31,0,0)", "write of 4 bytes at 0x",
                    "byte 0 of the block's 128 bytes", "read with no barrier in between"});
}

TEST_CASE("C2: zeroing a shared sum races with the adds of other warps when no barrier lies between") {
    if (hooks_are_off()) return;
    check_reported(forget_barrier_after_zeroing, {"no_barrier_after_zeroing_kernel", "of 4 bytes at 0x",
                                                  "byte 0 of the block's 4 bytes of shared memory"});
}

TEST_CASE("a missing __syncwarp is reported") {
    if (hooks_are_off()) return;
    check_reported(forget_syncwarp,
                   {"no_syncwarp_kernel", "thread (0,0,0)", "byte 4 of", "which nothing has written"});
}

TEST_CASE("two threads writing one place without a barrier are reported") {
    if (hooks_are_off()) return;
    check_reported(write_shared_twice,
                   {"write_twice_kernel", "thread (", "write of 4 bytes", "wrote with no barrier"});
}

TEST_CASE("threads of a block that touch a place in device memory with no barrier in between are reported") {
    if (hooks_are_off()) return;
    check_reported(write_global_twice, {"write_global_twice_kernel", "thread (", "write of 4 bytes",
                                        "of an allocation of 1200 bytes", "wrote with no barrier"});
    check_reported(forget_barrier_after_global_write,
                   {"no_barrier_after_global_write_kernel", "of 4 bytes", "with no barrier in between"});
    check_reported(forget_barrier_before_global_overwrite,
                   {"no_barrier_before_global_overwrite_kernel", "of 4 bytes", "with no barrier in between"});
}

TEST_CASE("two blocks that touch a place in device memory, one of them writing, are reported") {
    if (hooks_are_off()) return;
    for (const auto faulty :
         {read_what_another_block_wrote, write_what_another_block_read, write_what_another_block_wrote,
          read_what_another_block_added, add_to_what_another_block_wrote}) {
        check_reported(faulty, {"blocks_kernel", "block (", "thread (0,0,0)", "of 4 bytes at 0x",
                                "byte 0 of an allocation of 4 bytes", "which thread (0,0,0) of block (",
                                "in this launch; nothing orders blocks"});
    }
}

TEST_CASE("a report of an access names its source line") {
    if (hooks_are_off()) return;
    for (const auto faulty :
         {read_past_the_end, read_what_another_block_wrote, write_shared_twice, overwrite_cp_async_in_flight,
          ldmatrix_past_shared, cp_async_of_nothing_from_a_misaligned_source})
        check_reported(faulty, {", faulty_kernels.cu:"});
}

TEST_CASE("C3: a barrier in a divergent branch is reported, with both places") {
    check_reported(diverge_at_barrier,
                   {"diverge_at_barrier_kernel", "block (0,0,0), thread (0,0,0)", "waits at __syncthreads (",
                    "for ever: thread (16,0,0) waits at __syncthreads", "faulty_kernels.cu:"});
}

TEST_CASE("a barrier that part of the block never reaches is reported") {
    check_reported(skip_barrier_in_one_warp, {"skip_barrier_kernel", "thread (0,0,0) waits at __syncthreads",
                                              "for ever: thread (32,0,0) has left the kernel"});
    check_reported(exit_before_barrier, {"exit_before_barrier_kernel", "block (2,0,0), thread (0,0,0)",
                                         "for ever: thread (44,0,0) has left the kernel"});
}

TEST_CASE("a warp operation that a lane of its mask never reaches is reported") {
    check_reported(exit_before_shuffle, {"exit_before_shuffle_kernel", "thread (0,0,0) waits at a shuffle",
                                         "for ever: thread (17,0,0) has left the kernel"});
    check_reported(vote_in_half_a_warp,
                   {"vote_kernel", "waits at a vote", "thread (16,0,0) has left the kernel"});
    check_reported(mma_in_half_a_warp,
                   {"half_a_warp_mma_kernel", "waits at mma", "thread (16,0,0) has left"});
}

TEST_CASE("shuffles in two branches with one mask, or from a lane outside the mask, are reported") {
    check_reported(shuffle_in_two_branches,
                   {"thread (0,0,0) waits at a shuffle", "for ever: thread (16,0,0) waits at"});
    check_reported(shuffle_from_outside_the_mask,
                   {"thread (0,0,0)", "reads lane 16, which its mask leaves out"});
}

TEST_CASE("lanes that come to one shuffle with two masks are reported") {
    check_reported(shuffle_with_two_masks,
                   {"thread (0,0,0) waits at a shuffle", "for ever: thread (16,0,0) names another mask"});
}

TEST_CASE("what cp.async writes may not be touched before the matching wait") {
    if (hooks_are_off()) return;
    check_reported(read_cp_async_before_the_wait,
                   {"cp_async_kernel", "block (0,0,0), thread (0,0,0)", "read of 4 bytes at 0x",
                    "which a cp.async is still writing"});
    check_reported(wait_for_too_few_groups,
                   {"thread (0,0,0)", "byte 512 of", "which a cp.async is still writing"});
    check_reported(overwrite_cp_async_in_flight, {"write of 4 bytes", "which a cp.async is still writing"});
}

TEST_CASE("an mbarrier orders only those who wait for it, and a wait that nobody ends is an error") {
    check_reported(arrive_at_no_mbarrier,
                   {"mbarrier_kernel", "shared offset 128", "no mbarrier_init has run"});
    check_reported(wait_for_the_wrong_parity,
                   {"waits at mbarrier_wait", "for ever: 0 of 32 arrivals have come"});
    check_reported(wait_for_too_many_arrivals,
                   {"waits at mbarrier_wait", "for ever: 32 of 33 arrivals have come"});
    if (hooks_are_off()) return;
    check_reported(read_without_mbarrier_wait, {"mbarrier_kernel", "read of 4 bytes"});
    check_reported(forget_barrier_after_mbarrier_init, {"mbarrier_kernel"});
}

TEST_CASE("an mbarrier orders what a warp did before its own arrival, whatever phases follow") {
    if (hooks_are_off()) return;
    check_reported(write_after_mbarrier_arrival, {"write_after_arrival_kernel", "read of 4 bytes at 0x",
                                                  "wrote with no barrier in between"});
}

TEST_CASE("an mbarrier lies at a multiple of 8 and expects an arrival") {
    check_reported(initialise_misaligned_mbarrier,
                   {"mbarrier_init_kernel", "mbarrier_init at shared offset 4 for 32 arrivals"});
    check_reported(initialise_mbarrier_for_no_arrivals,
                   {"mbarrier_init_kernel", "mbarrier_init at shared offset 8 for 0 arrivals"});
}

TEST_CASE("cp.async needs an aligned source even when it copies none of it") {
    check_reported(cp_async_of_nothing_from_a_misaligned_source,
                   {"cp_async_from_one_place_kernel", "read of 16 bytes at 0x", "not aligned to its size"});
}

TEST_CASE("cp.async copies 0 to 16 bytes") {
    check_reported(cp_async_of_a_negative_number,
                   {"thread (0,0,0)", "cp.async of -1 bytes; it copies 0 to 16"});
    check_reported(cp_async_of_more_than_16_bytes,
                   {"thread (0,0,0)", "cp.async of 17 bytes; it copies 0 to 16"});
}

TEST_CASE("what another thread's cp.async wrote needs a barrier after the wait") {
    if (hooks_are_off()) return;
    check_reported(read_cp_async_of_another_thread,
                   {"cp_async_kernel", "thread (0,0,0)", "read of 4 bytes", "byte 16"});
}

TEST_CASE("ldmatrix checks its rows") {
    check_reported(ldmatrix_of_misaligned_row, {"ldmatrix_kernel", "thread (0,0,0)", "read of 16 bytes at 0x",
                                                "not aligned to its size"});
    check_reported(ldmatrix_past_shared, {"ldmatrix_kernel", "thread (31,0,0)", "read of 16 bytes at 0x",
                                          "byte 512 of the block's 512 bytes"});
}

TEST_CASE("a launch that failed leaves the counters of the latest good one") {
    use_every_instruction(2);
    CHECK(error_of(diverge_at_barrier) != "");
    CHECK(simt::last_launch().exp2 == 64 * 2);
}
