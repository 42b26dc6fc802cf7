// Device memory, shared memory, and the checks and counts of every access to them.
#include "common/simt/memory_access.hpp"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "common/simt/control.hpp"

namespace flash::simt {

Arena arena;

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLineBytes = 64;

std::mutex memory_mutex;
std::map<std::uintptr_t, std::size_t> allocations;  // begin, exact size
std::uintptr_t next_place = 0;

void* reserve(std::size_t bytes) {
    void* p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

// Address room only; pages take memory when they are first written. Where the system allows less, less is
// taken.
void reserve_arena() {
    for (std::size_t bytes = std::size_t{1} << 40; bytes >= std::size_t{1} << 30; bytes >>= 1) {
        void* data = reserve(bytes);
        void* lines = data == nullptr ? nullptr : reserve(bytes / kLineBytes * sizeof(Line));
        if (lines != nullptr) {
            arena = {reinterpret_cast<std::uintptr_t>(data), bytes, static_cast<Line*>(lines)};
            next_place = arena.begin;
            return;
        }
        if (data != nullptr) munmap(data, bytes);
    }
    throw gpu::DeviceError("the emulator could not reserve 2 GiB of address space for device memory");
}

std::size_t round_up(std::size_t n, std::size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// A range with free room of its own size (64 KiB at least) before and behind it, so that a wild index meets
// nothing.
std::uintptr_t find_place(std::size_t bytes) {
    const std::size_t room = round_up(std::max(bytes, std::size_t{1} << 16), kPage);
    if (bytes > arena.bytes / 4) return 0;
    for (int round = 0; round < 2; ++round) {
        std::uintptr_t place = next_place;
        while (place + 3 * room <= arena.begin + arena.bytes) {
            const auto above = allocations.lower_bound(place + 3 * room);
            const auto below = above == allocations.begin() ? allocations.end() : std::prev(above);
            const std::uintptr_t end =
                below == allocations.end() ? 0 : round_up(below->first + below->second, kPage);
            if (end <= place) {
                next_place = place + 2 * room;
                return place + room;
            }
            place = end;
        }
        next_place = arena.begin;
    }
    return 0;
}

void mark(std::uintptr_t begin, std::size_t bytes, std::uint64_t Line::*field) {
    Line* line = arena.lines + (begin - arena.begin) / kLineBytes;
    for (; bytes >= kLineBytes; bytes -= kLineBytes, ++line) line->*field = ~std::uint64_t{0};
    if (bytes > 0) line->*field |= (std::uint64_t{1} << bytes) - 1;
}

// Program data that kernels may read: constants that the compiler put into read-only segments.
bool is_read_only_data(std::uintptr_t address) {
    struct Search {
        std::uintptr_t address;
        bool found;
    } search{address, false};
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* data) {
            auto& s = *static_cast<Search*>(data);
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                const auto& segment = info->dlpi_phdr[i];
                const bool constant = (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) == 0) ||
                                      segment.p_type == PT_GNU_RELRO;
                s.found |= constant && s.address - (info->dlpi_addr + segment.p_vaddr) < segment.p_memsz;
            }
            return s.found ? 1 : 0;
        },
        &search);
    return search.found;
}

std::string words(Access access, std::size_t bytes, std::uintptr_t address) {
    const char* verb = access == Access::kRead ? "read" : access == Access::kWrite ? "write" : "atomic";
    return std::string(verb) + " of " + std::to_string(bytes) + " bytes at " + hex(address);
}

[[noreturn]] void fail_access(Access access, std::size_t bytes, std::uintptr_t address, const char* why) {
    fail([=] { return words(access, bytes, address) + ": " + describe_address(address) + why; });
}

// "thread (3,0,0)" of the running block.
std::string thread_of(std::uint32_t cell) {
    return thread_name(machine.threads[cell & kThreadMask]);
}

}  // namespace

void init_memory() {
    if (machine.cells == nullptr) {
        auto* room = static_cast<std::byte*>(reserve(kSharedReserve));
        machine.cells = static_cast<SharedCell*>(reserve(kSharedCapacity / 2 * sizeof(SharedCell)));
        if (room == nullptr || machine.cells == nullptr)
            throw gpu::DeviceError("the emulator found no memory for shared memory");
        machine.shared_begin =
            reinterpret_cast<std::uintptr_t>(room) + (kSharedReserve - kSharedCapacity) / 2;
    }
}

void fail_global(const Line& line, std::uint64_t mask, Access access, std::size_t bytes,
                 std::uintptr_t address) {
    const bool outside = (mask & ~line.valid) != 0;
    fail_access(access, bytes, address, outside ? "" : ", which nothing has written");
}

void fail_misaligned(Access access, std::size_t bytes, std::uintptr_t address) {
    fail_access(access, bytes, address, ": not aligned to its size, which a GPU does not allow");
}

void fail_shared(Access access, std::size_t bytes, std::uintptr_t address) {
    const std::size_t offset = address - machine.shared_begin;
    if (offset >= machine.shared_bytes || bytes > machine.shared_bytes - offset)
        fail_access(access, bytes, address, "");
    for (std::size_t i = offset / 2; 2 * i < offset + bytes; ++i) {
        const SharedCell cell = machine.cells[i];
        const bool written = (cell.write >> kStampShift) >= machine.block_start;
        if (written && (cell.write & kInFlight) != 0)
            fail_access(access, bytes, address,
                        ", which a cp.async is still writing (no wait has completed it)");
        if (!written && access != Access::kWrite)
            fail_access(access, bytes, address, ", which nothing has written");
        if (written && !is_ordered(cell.write)) {
            fail([=] {
                return words(access, bytes, address) + ": " + describe_address(address) + ", which " +
                       thread_of(cell.write) + " wrote with no barrier in between";
            });
        }
        if (access != Access::kRead && !reads_are_ordered(cell.read)) {
            fail([=] {
                return words(access, bytes, address) + ": " + describe_address(address) + ", which " +
                       thread_of(cell.read) + " read with no barrier in between";
            });
        }
    }
    fail_access(access, bytes, address, "");
}

void check_other(Access access, std::size_t bytes, std::uintptr_t address) {
    const auto built_in = reinterpret_cast<std::uintptr_t>(&built_ins);
    if (address - built_in < sizeof(built_ins)) return;
    const RuntimeScope scope;
    if (access == Access::kRead && is_read_only_data(address)) return;
    fail_access(access, bytes, address, "");
}

void check_access(const void* address, std::size_t bytes, Access access) {
    const RuntimeScope scope;
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    if (place % bytes != 0) fail_misaligned(access, bytes, place);
    access_memory(machine, place, bytes, access);
}

std::uint32_t advance_time() {
    if (++machine.stamp < kMaxStamp) return machine.stamp;
    // Out of stamps: everything of this block becomes one moment, everything older the one before.
    for (std::size_t i = 0; i < kSharedCapacity / 2; ++i) {
        SharedCell& cell = machine.cells[i];
        const auto renew = [](std::uint32_t word) {
            const bool old = (word >> kStampShift) < machine.block_start;
            return old ? 0u : (word & ((1u << kStampShift) - 1u)) | 1u << kStampShift;
        };
        cell = {renew(cell.write), renew(cell.read)};
    }
    for (Warp& warp : machine.warps) warp.stamp = 1;
    machine.block_start = machine.block_stamp = machine.warp_stamp = 1;
    return machine.stamp = 2;
}

void* shared_memory() {
    return reinterpret_cast<void*>(machine.shared_begin);
}

#if defined(FLASH_STEPS_ASAN)
// AddressSanitizer watches the exact bounds of ordinary memory itself.
std::uintptr_t allocate(std::size_t bytes) {
    void* data = nullptr;
    if (posix_memalign(&data, 256, bytes) != 0)
        throw gpu::DeviceError("out of device memory: " + std::to_string(bytes) + " bytes were asked for");
    std::memset(data, 0xff, bytes);
    return reinterpret_cast<std::uintptr_t>(data);
}
void release(std::uintptr_t begin) {
    std::free(reinterpret_cast<void*>(begin));
}
void mark_written(std::uintptr_t, std::size_t) {}
#else
std::uintptr_t allocate(std::size_t bytes) {
    const std::lock_guard lock(memory_mutex);
    if (arena.bytes == 0) reserve_arena();
    const std::uintptr_t begin = find_place(bytes);
    if (begin == 0)
        throw gpu::DeviceError("out of device memory: " + std::to_string(bytes) + " bytes were asked for");
    allocations[begin] = bytes;
    mark(begin, bytes, &Line::valid);
    return begin;
}
// The pages go back to the system and read as fresh ones, data and lines: later accesses are errors.
void release(std::uintptr_t begin) {
    const std::lock_guard lock(memory_mutex);
    const auto found = allocations.find(begin);
    if (found == allocations.end()) return;
    const std::size_t bytes = round_up(found->second, kPage);
    madvise(reinterpret_cast<void*>(begin), bytes, MADV_DONTNEED);
    madvise(arena.lines + (begin - arena.begin) / kLineBytes, bytes / kLineBytes * sizeof(Line),
            MADV_DONTNEED);
    allocations.erase(found);
}
void mark_written(std::uintptr_t begin, std::size_t bytes) {
    mark(begin, bytes, &Line::written);
}
#endif

bool hooks_enabled() {
    return kHooks;
}

std::string hex(std::uintptr_t value) {
    char text[32];
    std::snprintf(text, sizeof(text), "0x%zx", value);
    return text;
}

std::string describe_address(std::uintptr_t address) {
    if (address - (machine.shared_begin - (kSharedReserve - kSharedCapacity) / 2) < kSharedReserve) {
        const auto offset = static_cast<std::ptrdiff_t>(address - machine.shared_begin);
        return "byte " + std::to_string(offset) + " of the block's " + std::to_string(machine.shared_bytes) +
               " bytes of shared memory";
    }
    if (address - arena.begin >= arena.bytes) return "neither device memory nor shared memory";
    const std::lock_guard lock(memory_mutex);
    const auto above = allocations.upper_bound(address);
    const auto text = [](const auto& allocation) {
        return "an allocation of " + std::to_string(allocation.second) + " bytes at " + hex(allocation.first);
    };
    if (above != allocations.begin()) {
        const auto& below = *std::prev(above);
        const std::size_t offset = address - below.first;
        if (offset < below.second) return "byte " + std::to_string(offset) + " of " + text(below);
        const std::size_t past = offset - below.second;
        if (above == allocations.end() || past <= above->first - address)
            return std::to_string(past) + " bytes past the end of " + text(below);
    }
    if (above != allocations.end())
        return std::to_string(above->first - address) + " bytes before " + text(*above);
    return "device memory in which nothing is allocated";
}

}  // namespace flash::simt

namespace flash::gpu {

namespace detail {

void* device_allocate(std::size_t bytes) {
    return reinterpret_cast<void*>(simt::allocate(bytes));
}
void device_free(void* data) noexcept {
    simt::release(reinterpret_cast<std::uintptr_t>(data));
}
void copy_to_device(void* device, const void* host, std::size_t bytes) {
    simt::mark_written(reinterpret_cast<std::uintptr_t>(device), bytes);
    std::memcpy(device, host, bytes);
}
void copy_to_host(void* host, const void* device, std::size_t bytes) {
    std::memcpy(host, device, bytes);
}

}  // namespace detail

DeviceInfo device_info() {
    const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
    const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
    return {.name = "emulator",
            .sm_count = 1,
            .cc_major = 9,
            .cc_minor = 0,
            .shared_per_block_optin = simt::shared_memory_limit(),
            .l2_bytes = 0,
            .memory_bytes = pages * page_bytes,
            .clock_mhz = 0,
            .is_emulator = true};
}
void synchronize() {}
std::string why_no_device() {
    return {};
}

}  // namespace flash::gpu
