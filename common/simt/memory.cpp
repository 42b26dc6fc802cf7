// What happens to an access that is not allowed, and the clock that orders accesses to shared memory.
#include "common/simt/memory_access.hpp"

#include <link.h>
#include <sys/mman.h>

#include <cstdio>

#include "common/simt/control.hpp"

namespace flash::simt {

namespace {

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
    if (machine.cells != nullptr) return;
    const auto room = reinterpret_cast<std::uintptr_t>(reserve(kSharedReserve));
    auto* cells = static_cast<SharedCell*>(reserve(kSharedCapacity / 2 * sizeof(SharedCell)));
    if (room == 0 || cells == nullptr)
        throw gpu::DeviceError("the emulator found no memory for shared memory");
    machine.cells = cells;
    machine.shared_begin = room + (kSharedReserve - kSharedCapacity) / 2;
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

bool hooks_enabled() {
    return kHooks;
}

void* shared_memory() {
    return reinterpret_cast<void*>(machine.shared_begin);
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
    return describe_device_address(address);
}

}  // namespace flash::simt
