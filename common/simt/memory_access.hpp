// The path of every single access: which memory, is it allowed, count it. Everything here is inline and takes
// no memory of its own; the slow paths, which end in an error, are in memory.cpp.
#pragma once

#include <bit>

#include "common/simt/machine.hpp"

namespace flash::simt {

#if defined(FLASH_STEPS_ASAN)
inline constexpr bool kHooks =
    false;  // plain accesses are not seen, so nothing is known about what was written
#else
inline constexpr bool kHooks = true;
#endif

[[noreturn]] void fail_global(const Line& line, std::uint64_t mask, Access access, std::size_t bytes,
                              std::uintptr_t address);
[[noreturn]] void fail_shared(Access access, std::size_t bytes, std::uintptr_t address);
[[noreturn]] void fail_misaligned(Access access, std::size_t bytes, std::uintptr_t address);
void check_other(Access access, std::size_t bytes, std::uintptr_t address);

// Counts the bytes of mask that are new in a bit set.
inline std::uint64_t count_new(std::uint64_t& seen, std::uint64_t mask) {
    const std::uint64_t added = mask & ~seen;
    seen |= added;
    return static_cast<std::uint64_t>(std::popcount(added));
}

// One access inside one 64-byte line of device memory.
inline void access_line(Machine& m, std::uintptr_t address, std::size_t bytes, Access access) {
    Line& line = arena.lines[(address - arena.begin) / 64];
    const std::uint64_t mask = (~std::uint64_t{0} >> (64 - bytes)) << (address % 64);
    const std::uint64_t needed = access == Access::kWrite ? line.valid : line.valid & line.written;
    if ((mask & ~needed) != 0) fail_global(line, mask, access, bytes, address);
    if (line.block_serial != m.block_serial) {
        if (line.block_serial < m.launch_serial) line.load_launch = line.store_launch = 0;
        line.load_block = line.store_block = 0;
        line.block_serial = m.block_serial;
    }
    Counters& c = m.counters;
    if (access == Access::kRead) {
        c.global_load_bytes_issued += bytes;
        if ((mask & ~line.load_block) == 0) return;
        c.global_load_bytes_distinct_per_block += count_new(line.load_block, mask);
        c.global_load_bytes_distinct_per_launch += count_new(line.load_launch, mask);
    } else {
        c.global_store_bytes_issued += bytes;
        if ((mask & ~line.store_block) == 0) return;
        line.written |= mask;
        c.global_store_bytes_distinct_per_block += count_new(line.store_block, mask);
        c.global_store_bytes_distinct_per_launch += count_new(line.store_launch, mask);
    }
}

// True when a barrier lies between the recorded access and the running thread's access now.
inline bool is_ordered(std::uint32_t record) {
    const std::uint32_t stamp = record >> kStampShift, thread = record & kThreadMask;
    if (stamp < machine.block_stamp || thread == machine.thread_id) return true;
    return thread / kWarp == machine.thread_id / kWarp && stamp < machine.warp_stamp;
}
inline bool reads_are_ordered(std::uint32_t read) {
    if ((read >> kStampShift) < machine.block_stamp) return true;
    if ((read & kReadByBlock) != 0) return false;
    const bool same_warp = (read & kThreadMask) / kWarp == machine.thread_id / kWarp;
    if ((read & kReadByWarp) != 0) return same_warp && (read >> kStampShift) < machine.warp_stamp;
    return is_ordered(read);
}

inline void read_cell(Machine& m, SharedCell& cell, std::size_t bytes, std::uintptr_t address) {
    const std::uint32_t stamp = cell.write >> kStampShift;
    if (stamp < m.block_start || (cell.write & kInFlight) != 0 || !is_ordered(cell.write))
        fail_shared(Access::kRead, bytes, address);
    const std::uint32_t mine = m.stamp << kStampShift | m.thread_id;
    const std::uint32_t before = cell.read;
    if ((before >> kStampShift) < m.block_stamp) {
        cell.read = mine;
        return;
    }
    const std::uint32_t other = before & kThreadMask;
    std::uint32_t flags = before & kReadByBlock;
    if (other / kWarp != m.thread_id / kWarp) {
        flags = kReadByBlock;
    } else if ((before >> kStampShift) >= m.warp_stamp &&
               (other != m.thread_id || (before & kReadByWarp) != 0)) {
        flags |= kReadByWarp;
    }
    cell.read = mine | flags;
}

inline void write_cell(Machine& m, SharedCell& cell, std::size_t bytes, std::uintptr_t address,
                       Access access) {
    const std::uint32_t stamp = cell.write >> kStampShift;
    const bool written = stamp >= m.block_start, atomic = access == Access::kAtomic;
    const bool both_atomic = atomic && (cell.write & kByAtomic) != 0;
    if (written && ((cell.write & kInFlight) != 0 || (!both_atomic && !is_ordered(cell.write))))
        fail_shared(access, bytes, address);
    if ((!written && atomic) || !reads_are_ordered(cell.read)) fail_shared(access, bytes, address);
    // An atomic that follows its own thread's plain write hides it from nobody.
    const bool hides_write = stamp >= m.block_stamp && stamp >= m.warp_stamp && !both_atomic;
    cell.write = m.stamp << kStampShift | m.thread_id | (atomic && !hides_write ? kByAtomic : 0u);
}

inline void access_shared(Machine& m, std::uintptr_t address, std::size_t bytes, Access access) {
    const std::size_t offset = address - m.shared_begin;
    if (offset >= m.shared_bytes || bytes > m.shared_bytes - offset) fail_shared(access, bytes, address);
    SharedCell* cell = m.cells + offset / 2;
    SharedCell* const end = m.cells + (offset + bytes + 1) / 2;
    if (access == Access::kRead) {
        m.counters.shared_load_bytes += bytes;
        for (; kHooks && cell != end; ++cell) read_cell(m, *cell, bytes, address);
    } else {
        m.counters.shared_store_bytes += bytes;
        for (; kHooks && cell != end; ++cell) write_cell(m, *cell, bytes, address, access);
    }
}

inline void access_memory(Machine& m, std::uintptr_t address, std::size_t bytes, Access access) {
    if (address - m.stack_begin < kStackBytes) return;
    if (address - arena.begin < arena.bytes) {
        const std::size_t in_line = 64 - address % 64;
        if (bytes <= in_line) return access_line(m, address, bytes, access);
        for (std::size_t done = 0; done < bytes;) {
            const std::uintptr_t place = address + done;
            const std::size_t part = bytes - done < 64 - place % 64 ? bytes - done : 64 - place % 64;
            access_line(m, place, part, access);
            done += part;
        }
    } else if (address - (m.shared_begin - (kSharedReserve - kSharedCapacity) / 2) < kSharedReserve) {
        access_shared(m, address, bytes, access);
    } else if (kHooks) {
        check_other(access, bytes, address);
    }
}

}  // namespace flash::simt
