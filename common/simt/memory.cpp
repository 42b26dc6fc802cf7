// Where memory lies: one reserved range of addresses for all of it, and the allocations of device memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "common/simt/control.hpp"
#include "common/simt/machine.hpp"

namespace flash::simt {

Arena arena;

namespace {

constexpr std::size_t kPage = 4096;

std::mutex memory_mutex;
std::map<std::uintptr_t, std::size_t> allocations;  // begin, exact size
std::size_t allocated_bytes = 0;                    // by all of them
std::uintptr_t next_place = 0;
std::size_t shared_limit = kDefaultSharedLimit;

// The last allocation that begins at or before an address; without one, an empty one at 0.
std::pair<std::uintptr_t, std::size_t> allocation_before(std::uintptr_t address) {
    const auto above = allocations.upper_bound(address);
    if (above == allocations.begin()) return {};
    return *std::prev(above);
}

// Half of the host's memory. What is known about bytes takes five times as much, but only where they are
// used.
std::size_t memory_size() {
    return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
           static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE)) / 2;
}

std::size_t round_up(std::size_t n, std::size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// A range with free room of its own size (64 KiB at least) before and behind it, so that a wild index meets
// nothing.
std::uintptr_t find_place(std::size_t bytes) {
    const std::size_t room = round_up(std::max(bytes, std::size_t{1} << 16), kPage);
    for (const std::uintptr_t first_place : {next_place, arena.begin + kSharedRoom}) {
        std::uintptr_t place = first_place;
        while (place + 3 * room <= arena.begin + arena.bytes) {
            const auto [begin, size] = allocation_before(place + 3 * room - 1);
            const std::uintptr_t end = round_up(begin + size, kPage);
            if (end <= place) {
                next_place = place + 2 * room;
                return place + room;
            }
            place = end;
        }
    }
    return 0;
}

void mark_written(std::uintptr_t begin, std::size_t bytes) {
    for_each_line(begin, bytes, [](std::uintptr_t address, std::size_t part) {
        line_at(address)->written |= bits_of_line(address, part);
    });
}

// AddressSanitizer watches the exact bounds of ordinary memory itself.
std::uintptr_t place_ordinary(std::size_t bytes) {
    void* data = nullptr;
    if (posix_memalign(&data, 256, bytes) != 0) return 0;
    return reinterpret_cast<std::uintptr_t>(std::memset(data, 0xff, bytes));
}

std::uintptr_t place_allocation(std::size_t bytes) {
    if (!kHooks) return place_ordinary(bytes);
    reserve_arena();
    return find_place(bytes);
}

// The pages go back to the system and read as fresh ones, bytes, lines and cells: later accesses are errors.
void return_pages(std::uintptr_t begin, std::size_t bytes) {
    madvise(reinterpret_cast<void*>(begin), bytes, MADV_DONTNEED);
    madvise(line_at(begin), bytes / kLineBytes * sizeof(Line), MADV_DONTNEED);
    madvise(cell_at(begin), bytes / 2 * sizeof(Cell), MADV_DONTNEED);
}

// Refuses bytes that do not lie in one allocation. The caller holds the mutex.
void check_range(const char* what, std::uintptr_t begin, std::size_t bytes) {
    const auto [first, size] = allocation_before(begin);
    const std::size_t offset = begin - first, left = offset < size ? size - offset : 0;
    if (left > 0 && bytes <= left) return;
    throw gpu::DeviceError(
        std::string(what) + ": " + std::to_string(bytes) + " bytes at " + hex(begin) + ", but " +
        (left == 0 ? "no device memory is allocated there"
                   : "the allocation there ends after " + std::to_string(left) + " bytes"));
}

}  // namespace

// Addresses only; pages take memory when they are first written, and read as zeros before. Where the system
// allows less, less is taken.
void reserve_arena() {
    static std::once_flag once;
    std::call_once(once, [] {
        const std::size_t most = kHooks ? std::size_t{1} << 40 : kSharedRoom,
                          least = std::min(most, std::size_t{1} << 30);
        for (std::size_t bytes = most; bytes >= least; bytes /= 2) {
            // Bytes, lines and cells in one piece.
            const std::size_t line_bytes = bytes / kLineBytes * sizeof(Line),
                              cell_bytes = bytes / 2 * sizeof(Cell);
            void* const room = mmap(nullptr, bytes + line_bytes + cell_bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (room == MAP_FAILED) continue;
            auto* const data = static_cast<std::byte*>(room);
            arena = {reinterpret_cast<std::uintptr_t>(data), bytes, reinterpret_cast<Line*>(data + bytes),
                     reinterpret_cast<Cell*>(data + bytes + line_bytes)};
            next_place = arena.begin + kSharedRoom;
            machine.shared_begin = arena.begin + (kSharedRoom - kSharedCapacity) / 2;
            return;
        }
        throw gpu::DeviceError("the emulator could not reserve 6 GiB of address space for device memory");
    });
}

// Asked for when a line is first touched, so that an allocation costs nothing before it is used.
std::uint64_t allocated_bits_of_line(std::uintptr_t address) {
    const std::lock_guard lock(memory_mutex);
    const std::uintptr_t begin = address / kLineBytes * kLineBytes;  // where allocations begin, too
    const auto [first, size] = allocation_before(begin);
    return begin - first < size ? bits_of_line(begin, std::min(first + size - begin, kLineBytes)) : 0;
}

std::string describe_address(std::uintptr_t address) {
    const std::size_t place = address - arena.begin;
    if (place >= arena.bytes) return "neither device memory nor shared memory";
    if (place < kSharedRoom) {
        const auto offset = static_cast<std::ptrdiff_t>(address - machine.shared_begin);
        return "byte " + std::to_string(offset) + " of the block's " + std::to_string(machine.shared_bytes) +
               " bytes of shared memory";
    }
    const std::lock_guard lock(memory_mutex);
    const auto text = [](const auto& allocation) {
        return "an allocation of " + std::to_string(allocation.second) + " bytes at " + hex(allocation.first);
    };
    const auto below = allocation_before(address);
    const auto above = allocations.upper_bound(address);
    const std::size_t offset = address - below.first;
    if (offset < below.second) return "byte " + std::to_string(offset) + " of " + text(below);
    if (above != allocations.end() && above->first - address < offset - below.second)
        return std::to_string(above->first - address) + " bytes before " + text(*above);
    if (below.second == 0) return "device memory in which nothing is allocated";
    return std::to_string(offset - below.second) + " bytes past the end of " + text(below);
}

void* shared_memory() {
    return reinterpret_cast<void*>(machine.shared_begin);
}
void set_shared_memory_limit(std::size_t bytes) {
    shared_limit = std::min(bytes, kSharedCapacity);
}

}  // namespace flash::simt

namespace flash::gpu {

namespace detail {

void* device_allocate(std::size_t bytes) {
    const std::lock_guard lock(simt::memory_mutex);
    const std::size_t left = simt::memory_size() - simt::allocated_bytes;
    const std::uintptr_t begin = bytes > left ? 0 : simt::place_allocation(bytes);
    if (begin == 0) {
        throw DeviceError("out of device memory: " + std::to_string(bytes) + " bytes were asked for, " +
                          std::to_string(left) + " are left");
    }
    simt::allocations[begin] = bytes;
    simt::allocated_bytes += bytes;
    return reinterpret_cast<void*>(begin);
}
void device_free(void* data) {
    const std::lock_guard lock(simt::memory_mutex);
    const auto found = simt::allocations.find(reinterpret_cast<std::uintptr_t>(data));
    if (found == simt::allocations.end()) {
        throw DeviceError("freeing " + simt::hex(reinterpret_cast<std::uintptr_t>(data)) +
                          ": no allocation of device memory begins there");
    }
    const auto [begin, bytes] = *found;
    if (simt::kHooks) {
        simt::return_pages(begin, simt::round_up(bytes, simt::kPage));
    } else {
        std::free(data);
    }
    simt::allocated_bytes -= bytes;
    simt::allocations.erase(found);
}
void copy_to_device(void* device, const void* host, std::size_t bytes) {
    const std::lock_guard lock(simt::memory_mutex);
    const auto begin = reinterpret_cast<std::uintptr_t>(device);
    simt::check_range("copying to the device", begin, bytes);
    if (simt::kHooks) simt::mark_written(begin, bytes);
    std::memcpy(device, host, bytes);
}
void copy_to_host(void* host, const void* device, std::size_t bytes) {
    const std::lock_guard lock(simt::memory_mutex);
    simt::check_range("copying from the device", reinterpret_cast<std::uintptr_t>(device), bytes);
    std::memcpy(host, device, bytes);
}

}  // namespace detail

DeviceInfo device_info() {
    return {.name = "emulator",
            .sm_count = 1,
            .cc_major = 9,
            .cc_minor = 0,
            .shared_per_block_optin = simt::shared_limit,
            .l2_bytes = 0,
            .memory_bytes = simt::memory_size(),
            .clock_mhz = 0,
            .is_emulator = true};
}
void synchronize() {}
std::string why_no_device() {
    return {};
}

}  // namespace flash::gpu
