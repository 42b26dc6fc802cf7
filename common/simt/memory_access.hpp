// The path of every single access: which memory, is it allowed, count it.
#pragma once

#include "common/simt/machine.hpp"

namespace flash::simt {

// False where plain accesses are not seen, so that nothing is known about what was written.
#if defined(FLASH_STEPS_ASAN)
inline constexpr bool kHooks = false;
#else
inline constexpr bool kHooks = true;
#endif

// The whole of it, for any address and size.
void access_memory(Machine& m, std::uintptr_t address, std::size_t bytes, Access access);
void access_shared(Machine& m, std::uintptr_t address, std::size_t bytes, Access access);
[[noreturn]] void fail_misaligned(Access access, std::size_t bytes, std::uintptr_t address);

// True when a barrier lies between the recorded access and the running thread's access now.
inline bool is_ordered(std::uint32_t record) {
    const std::uint32_t stamp = record >> kStampShift, thread = record & kThreadMask;
    if (stamp < machine.block_stamp || thread == machine.thread_id) return true;
    if (stamp < machine.acquired->before[thread / kWarp]) return true;
    return thread / kWarp == machine.thread_id / kWarp && stamp < machine.warp_stamp;
}
inline bool reads_are_ordered(std::uint32_t read) {
    if ((read >> kStampShift) < machine.block_stamp) return true;
    if ((read & kReadByBlock) != 0) {
        for (int warp = 0; warp * kWarp < machine.thread_count; ++warp)
            if ((read >> kStampShift) >= machine.acquired->before[warp]) return false;
        return true;
    }
    const bool same_warp = (read & kThreadMask) / kWarp == machine.thread_id / kWarp;
    if ((read & kReadByWarp) != 0) return same_warp && (read >> kStampShift) < machine.warp_stamp;
    return is_ordered(read);
}

// True when a read has nothing to check and nothing to note: the bytes were written before the latest
// barrier, and not before `oldest`, and as many threads as matter have read them since.
inline bool is_quiet_read(const Machine& m, const Cell& cell, std::uint32_t oldest) {
    const std::uint32_t barrier = m.block_stamp << kStampShift;
    if (cell.write - oldest >= barrier - oldest || cell.read < m.order_stamp << kStampShift) return false;
    if ((cell.read & kReadByBlock) != 0 || cell.read == (m.stamp << kStampShift | m.thread_id)) return true;
    return (cell.read & kReadByWarp) != 0 && (cell.read & kThreadMask) / kWarp == m.thread_id / kWarp &&
           cell.read >> kStampShift >= m.warp_stamp;
}
// The same for a write: nobody has touched the bytes since the latest barrier.
inline bool is_quiet_write(const Machine& m, const Cell& cell) {
    const std::uint32_t barrier = m.block_stamp << kStampShift;
    return cell.write < barrier && cell.read < barrier;
}

template <std::size_t kBytes>
inline bool are_quiet(Machine& m, Cell* cells, Access access, std::uint32_t oldest) {
    for (std::size_t i = 0; i < (kBytes + 1) / 2; ++i) {
        if (!(access == Access::kRead ? is_quiet_read(m, cells[i], oldest) : is_quiet_write(m, cells[i])))
            return false;
    }
    if (access == Access::kRead) return true;
    for (std::size_t i = 0; i < (kBytes + 1) / 2; ++i) cells[i].write = m.stamp << kStampShift | m.thread_id;
    return true;
}

// Deals with what most accesses are, plain and nothing new: true when it has done all there is to do. The
// bytes lie in one line because the address is a multiple of their number.
template <std::size_t kBytes> inline bool is_ordinary(Machine& m, std::uintptr_t address, Access access) {
    if (address - m.stack_begin < kStackBytes) return true;
    Counters& c = m.counters;
    const std::size_t offset = address - m.shared_begin;
    if (offset < m.shared_bytes && kBytes <= m.shared_bytes - offset) {
        if (!are_quiet<kBytes>(m, m.cells + offset / 2, access, m.block_start << kStampShift)) return false;
        (access == Access::kRead ? c.shared_load_bytes : c.shared_store_bytes) += kBytes;
        return true;
    }
    const std::size_t place = address - arena.begin;
    if (place >= arena.bytes) return false;
    const Line& line = arena.lines[place / kLineBytes];
    const std::uint64_t mask = ((std::uint64_t{1} << kBytes) - 1) << (address % kLineBytes);
    const std::uint64_t known =
        access == Access::kRead ? line.load_block : line.store_block & line.plain_stores;
    if (line.block_serial != m.block_serial || (mask & ~known) != 0) return false;
    if (kBytes > 1 && !are_quiet<kBytes>(m, arena.cells + place / 2, access, 0)) return false;
    (access == Access::kRead ? c.global_load_bytes_issued : c.global_store_bytes_issued) += kBytes;
    return true;
}

}  // namespace flash::simt
