// The report of every kind of mistake, as docs/checkers.md shows them.
//
//   emulator_reports            prints them as Markdown
//   emulator_reports FILE       compares them with the part of FILE between the markers; exit status 1
//                               when it is out of date, 77 where this build makes other reports
//   emulator_reports FILE --write   brings FILE up to date
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "common/simt/control.hpp"
#include "common/simt/counters.hpp"
#include "kernels.hpp"

using namespace flash;
using namespace flash::emulator;

namespace {

struct Mistake {
    const char* kind;
    const char* what;
    void (*kernel)();
};

const Mistake kMistakes[] = {
    {"Out of bounds", "a read one element past an array", read_past_the_end},
    {"Out of bounds", "a write one element past an array", write_past_the_end},
    {"Out of bounds", "a read before an array", read_before_the_start},
    {"Out of bounds", "a read past the block's shared memory", read_past_shared},
    {"Out of bounds", "a pointer into host memory", read_host_memory},
    {"Out of bounds", "a pointer to freed memory", read_freed_memory},
    {"Uninitialised", "device memory that nothing has written", read_unwritten_global},
    {"Uninitialised", "shared memory that nothing has written", read_unwritten_shared},
    {"Misaligned", "16 bytes at an odd element", read_misaligned_float4},
    {"Misaligned", "a row of ldmatrix", ldmatrix_of_misaligned_row},
    {"Race in shared memory", "no barrier between a write and a read", forget_barrier_after_write},
    {"Race in shared memory", "no barrier between a read and the next write",
     forget_barrier_before_overwrite},
    {"Race in shared memory", "no __syncwarp inside a warp", forget_syncwarp},
    {"Race in shared memory", "a lane overwrites what its warp has read", overwrite_what_the_warp_read},
    {"Race in shared memory", "two threads write one place", write_shared_twice},
    {"Race in shared memory", "a sum is zeroed while others add", forget_barrier_after_zeroing},
    {"Race in device memory, inside a block", "two threads write one place", write_global_twice},
    {"Race in device memory, inside a block", "no barrier between a write and a read",
     forget_barrier_after_global_write},
    {"Race in device memory, inside a block", "no barrier between a read and a write",
     forget_barrier_before_global_overwrite},
    {"Race in device memory, between blocks", "a block reads what another writes",
     read_what_another_block_wrote},
    {"Race in device memory, between blocks", "two blocks write one place", write_what_another_block_wrote},
    {"Race in device memory, between blocks", "a block writes what another reads",
     write_what_another_block_read},
    {"Race in device memory, between blocks", "a block reads what another adds to",
     read_what_another_block_added},
    {"Race in device memory, between blocks", "a block adds to what another writes",
     add_to_what_another_block_wrote},
    {"cp.async", "a read before the wait", read_cp_async_before_the_wait},
    {"cp.async", "a wait for too few groups", wait_for_too_few_groups},
    {"cp.async", "no barrier after the wait", read_cp_async_of_another_thread},
    {"cp.async", "a write to where a copy is on its way", overwrite_cp_async_in_flight},
    {"cp.async", "a number of bytes below 0", cp_async_of_a_negative_number},
    {"Barriers", "__syncthreads in a divergent branch", diverge_at_barrier},
    {"Barriers", "a warp that never comes", skip_barrier_in_one_warp},
    {"Barriers", "threads that have left the kernel", exit_before_barrier},
    {"Mbarriers", "nobody has initialised it", arrive_at_no_mbarrier},
    {"Mbarriers", "no barrier after the initialisation", forget_barrier_after_mbarrier_init},
    {"Mbarriers", "a read without the wait", read_without_mbarrier_wait},
    {"Mbarriers", "a write after the arrival", write_after_mbarrier_arrival},
    {"Mbarriers", "an address that is no multiple of 8", initialise_misaligned_mbarrier},
    {"Mbarriers", "a wait for the parity of a phase that nobody completes", wait_for_the_wrong_parity},
    {"Mbarriers", "more arrivals expected than come", wait_for_too_many_arrivals},
    {"Warp operations", "a lane that has left the kernel", exit_before_shuffle},
    {"Warp operations", "a shuffle in two branches", shuffle_in_two_branches},
    {"Warp operations", "a shuffle with two masks", shuffle_with_two_masks},
    {"Warp operations", "a shuffle from a lane outside of its mask", shuffle_from_outside_the_mask},
    {"Warp operations", "half a warp at mma", mma_in_half_a_warp},
};

// What differs from run to run and from machine to machine is left out: "0x7f12" becomes "0x...", and
// "(/folder/file.cpp:12)" becomes "(file.cpp:12)".
std::string without_addresses_and_folders(const std::string& text) {
    std::string result;
    for (std::size_t at = 0; at < text.size();) {
        if (text.compare(at, 2, "0x") == 0) {
            result += "0x...";
            at = std::min(text.find_first_not_of("0123456789abcdef", at + 2), text.size());
        } else if (text.compare(at, 2, "(/") == 0) {
            result += '(';
            at = text.rfind('/', text.find(')', at)) + 1;
        } else {
            result += text[at++];
        }
    }
    return result;
}

std::string report_of(void (*kernel)()) {
    try {
        kernel();
    } catch (const simt::EmulatorError& error) {
        return without_addresses_and_folders(error.what());
    }
    return "nothing was reported";
}

std::string as_markdown() {
    std::ostringstream text;
    const char* kind = "";
    for (const Mistake& mistake : kMistakes) {
        if (std::strcmp(kind, mistake.kind) != 0) text << "\n### " << mistake.kind << "\n";
        kind = mistake.kind;
        text << "\n*" << mistake.what << "*\n\n    " << report_of(mistake.kernel) << "\n";
    }
    return text.str();
}

const char* why_other_reports() {
    if (!simt::hooks_enabled()) return "this build sees no plain loads and stores";
#if defined(__clang__)
    return "the reports in the document are those of g++";
#else
    return report_of(read_past_the_end).find("faulty_kernels.cu:") == std::string::npos
               ? "no addr2line is there to name source lines"
               : nullptr;
#endif
}

int fail(const std::string& sentence) {
    std::fprintf(stderr, "%s\n", sentence.c_str());
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    simt::set_seed(0);
    if (argc == 2 && std::string(argv[1]) == "--help") {
        std::puts(
            "emulator_reports [FILE [--write]]\n\nWhat the emulator says about known mistakes: prints it, or "
            "compares it with a document, or writes it there.");
        return 0;
    }
    if (argc < 2) {
        std::fputs(as_markdown().c_str(), stdout);
        return 0;
    }
    if (const char* why = why_other_reports()) {
        std::printf("SKIP: %s\n", why);
        return 77;
    }
    const std::string path = argv[1], begin = "<!-- reports -->\n", end = "\n<!-- /reports -->";
    std::ifstream in(path);
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::size_t first = text.find(begin), last = text.find(end);
    if (first == std::string::npos || last == std::string::npos)
        return fail(path + " has no markers " + begin + " and " + end);
    const std::size_t at = first + begin.size();
    const std::string reports = as_markdown();
    if (text.compare(at, last - at, reports) == 0) return 0;
    if (argc < 3) return fail(path + " is out of date: emulator_reports " + path + " --write");
    text.replace(at, last - at, reports);
    std::ofstream(path) << text;
    return 0;
}
