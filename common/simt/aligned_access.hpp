// The short way of an access: most are plain and nothing new, and end here. The others go on to accesses.cpp.
#pragma once

#include "common/simt/machine.hpp"

namespace flash::simt {

// True when a read has nothing to check and nothing to note: the bytes were written before the latest
// barrier, and not before `oldest`, and as many threads as matter have read them since.
inline bool is_quiet_read(const Cell& cell, std::uint32_t oldest) {
    const Machine& m = machine;
    const std::uint32_t barrier = m.block_stamp << kStampShift;
    if (cell.write - oldest >= barrier - oldest || cell.read < m.order_stamp << kStampShift) return false;
    if ((cell.read & kReadByBlock) != 0 || cell.read == (m.stamp << kStampShift | m.thread_id)) return true;
    return (cell.read & kReadByWarp) != 0 && (cell.read & kThreadMask) / kWarp == m.thread_id / kWarp &&
           cell.read >> kStampShift >= running_warp().stamp;
}
// The same for a write: nobody has touched the bytes since the latest barrier.
inline bool is_quiet_write(const Cell& cell) {
    const std::uint32_t barrier = machine.block_stamp << kStampShift;
    return cell.write < barrier && cell.read < barrier;
}

template <std::size_t kBytes> inline bool are_quiet(Cell* cells, Kind kind, std::uint32_t oldest) {
    constexpr std::size_t kCells = (kBytes + 1) / 2;
    for (std::size_t i = 0; i < kCells; ++i) {
        if (!(kind == Kind::kRead ? is_quiet_read(cells[i], oldest) : is_quiet_write(cells[i]))) return false;
    }
    for (std::size_t i = 0; kind == Kind::kWrite && i < kCells; ++i)
        cells[i].write = machine.stamp << kStampShift | machine.thread_id;
    return true;
}

// True when it has done all there is to do. The bytes lie in one line because the address is a multiple of
// their number.
template <std::size_t kBytes> inline bool is_ordinary(std::uintptr_t address, Kind kind) {
    Counters& c = machine.counters;
    const std::size_t offset = address - machine.shared_begin;
    if (offset < machine.shared_bytes && kBytes <= machine.shared_bytes - offset) {
        if (!are_quiet<kBytes>(cell_at(address), kind, machine.block_start << kStampShift)) return false;
        (kind == Kind::kRead ? c.shared_load_bytes : c.shared_store_bytes) += kBytes;
        return true;
    }
    if (address - arena.begin >= arena.bytes) return false;
    const Line& line = *line_at(address);
    const std::uint64_t mask = bits_of_line(address, kBytes);
    const std::uint64_t known = kind == Kind::kRead ? line.load_block : line.store_block & line.plain_stores;
    if (line.block_serial != machine.block_serial || (mask & ~known) != 0) return false;
    if (kBytes > 1 && !are_quiet<kBytes>(cell_at(address), kind, 0)) return false;
    (kind == Kind::kRead ? c.global_load_bytes_issued : c.global_store_bytes_issued) += kBytes;
    return true;
}

template <std::size_t kBytes>
inline void access_aligned(std::uintptr_t address, Kind kind, const void* site) {
    const Access access{address, kBytes, kind, site};
    if (address % kBytes != 0) fail_misaligned(access);
    if (address - machine.stack_begin < kStackBytes) return;
    if (kind == Kind::kAtomic || !is_ordinary<kBytes>(address, kind)) return check_access(access);
    if (machine.notes_accesses) note_access(access);
}

}  // namespace flash::simt
