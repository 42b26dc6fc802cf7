// What every access to memory goes through: is it allowed, is it ordered with those of other threads, and
// what does it count for. And the clock that orders accesses.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "common/simt/machine.hpp"

namespace flash::simt {

namespace {

// ---- What is said about an access that is not allowed

template <class Why> [[noreturn]] void fail_access(const Access& access, const Why& why) {
    fail(access.site, [&] {
        const char* verb = access.kind == Kind::kRead    ? "read"
                           : access.kind == Kind::kWrite ? "write"
                                                         : "atomic";
        return std::string(verb) + " of " + std::to_string(access.bytes) + " bytes at " +
               hex(access.address) + ": " + describe_address(access.address) + why();
    });
}
[[noreturn]] void fail_place(const Access& access) {
    fail_access(access, [] { return ""; });
}
[[noreturn]] void fail_unwritten(const Access& access) {
    fail_access(access, [] { return ", which nothing has written"; });
}

// Another thread of the block wrote or read the bytes, says this word of their cell.
[[noreturn]] void fail_race(const Access& access, std::uint32_t record, const char* verb) {
    fail_access(access, [=] {
        return ", which " + thread_name(machine.threads[record & kThreadMask]) + " " + verb +
               " with no barrier in between";
    });
}

// Another block did. The latest access, which the cell names, may be this block's own.
[[noreturn]] void fail_race_of_blocks(const Access& access, std::uint32_t record, const char* verb) {
    fail_access(access, [=] {
        const std::uint32_t stamp = record >> kStampShift;
        std::string who = "another block";
        for (const auto& [start, index] : machine.block_starts) {
            if (start <= stamp && stamp < machine.block_start)
                who = thread_name(machine.threads[record & kThreadMask]) + " of block " + index_name(index);
        }
        return ", which " + who + " " + verb + " in this launch; nothing orders blocks";
    });
}

// ---- Races between the threads of a block

// True when a barrier lies between the recorded write and the running thread's access now.
bool is_ordered(std::uint32_t write) {
    const std::uint32_t stamp = write >> kStampShift, writer = write & kThreadMask;
    if (stamp < machine.block_stamp) return true;  // as the clock would say, but sooner
    return writer == machine.thread_id || stamp < machine.running->before[writer / kWarp];
}
bool reads_are_ordered(std::uint32_t read) {
    const std::uint32_t stamp = read >> kStampShift, reader = read & kThreadMask;
    const Clock& before = machine.running->before;
    if ((read & kReadByBlock) != 0)
        return stamp < *std::min_element(before.begin(), before.begin() + machine.warp_count());
    const bool only_mine = reader == machine.thread_id && (read & kReadByWarp) == 0;
    return only_mine || stamp < before[reader / kWarp];
}

void note_read(Cell& cell) {
    const std::uint32_t stamp = cell.read >> kStampShift, reader = cell.read & kThreadMask;
    std::uint32_t flags = 0;
    if (stamp >= machine.block_stamp) {
        flags = cell.read & kReadByBlock;
        if (reader / kWarp != machine.thread_id / kWarp) {
            flags = kReadByBlock;
        } else if (stamp >= running_warp().stamp &&
                   (reader != machine.thread_id || (cell.read & kReadByWarp) != 0)) {
            flags |= kReadByWarp;
        }
    }
    cell.read = machine.stamp << kStampShift | machine.thread_id | flags;
}

// An atomic that follows its own thread's plain write hides it from nobody.
void note_write(Cell& cell, bool is_atomic, bool both_atomic) {
    const std::uint32_t stamp = cell.write >> kStampShift;
    const bool hides_write = stamp >= machine.block_stamp && stamp >= running_warp().stamp && !both_atomic;
    cell.write =
        machine.stamp << kStampShift | machine.thread_id | (is_atomic && !hides_write ? kByAtomic : 0u);
}

// Bytes whose latest write is older than `oldest` count as never written.
void check_cells(const Access& access, std::uint32_t oldest) {
    const bool is_atomic = access.kind == Kind::kAtomic;
    Cell* const end = cell_at(access.address + access.bytes + 1);
    for (Cell* cell = cell_at(access.address); cell != end; ++cell) {
        const bool both_atomic = is_atomic && (cell->write & kByAtomic) != 0;
        if (cell->write < oldest) {
            if (access.kind != Kind::kWrite) fail_unwritten(access);
        } else if ((cell->write & kInFlight) != 0) {
            fail_access(access,
                        [] { return ", which a cp.async is still writing (no wait has completed it)"; });
        } else if (!both_atomic && !is_ordered(cell->write)) {
            fail_race(access, cell->write, "wrote");
        }
        if (access.kind == Kind::kRead) {
            note_read(*cell);
        } else {
            if (!reads_are_ordered(cell->read)) fail_race(access, cell->read, "read");
            note_write(*cell, is_atomic, both_atomic);
        }
    }
}

// ---- Each kind of memory

void access_shared(const Access& access) {
    const std::size_t offset = access.address - machine.shared_begin;
    if (offset >= machine.shared_bytes || access.bytes > machine.shared_bytes - offset) fail_place(access);
    if (kHooks) check_cells(access, machine.block_start << kStampShift);
    Counters& c = machine.counters;
    (access.kind == Kind::kRead ? c.shared_load_bytes : c.shared_store_bytes) += access.bytes;
}

// Inside one line of device memory.
void access_line(const Access& access) {
    Line& line = *line_at(access.address);
    const std::uint64_t mask = bits_of_line(access.address, access.bytes);
    if ((mask & ~line.valid) != 0) {
        line.valid = allocated_bits_of_line(access.address);
        if ((mask & ~line.valid) != 0) fail_place(access);
    }
    if (access.kind != Kind::kWrite && (mask & ~line.written) != 0) fail_unwritten(access);

    if (line.block_serial != machine.block_serial) {
        const bool is_new = line.block_serial < machine.launch_serial;
        line.load_earlier = is_new ? 0 : line.load_earlier | line.load_block;
        line.store_earlier = is_new ? 0 : line.store_earlier | line.store_block;
        if (is_new) line.plain_stores = 0;
        line.load_block = line.store_block = 0;
        line.block_serial = machine.block_serial;
    }
    const std::uint64_t racing_stores =
        line.store_earlier & (access.kind == Kind::kAtomic ? line.plain_stores : ~std::uint64_t{0});
    if ((mask & racing_stores) != 0) fail_race_of_blocks(access, cell_at(access.address)->write, "wrote");
    if (access.kind != Kind::kRead && (mask & line.load_earlier) != 0)
        fail_race_of_blocks(access, cell_at(access.address)->read, "read");
    // Inside a block single bytes are not looked at: a cell is two.
    if (access.bytes > 1) check_cells(access, 0);

    Counters& c = machine.counters;
    const auto count = [](std::uint64_t bits) { return static_cast<std::uint64_t>(std::popcount(bits)); };
    if (access.kind == Kind::kRead) {
        c.global_load_bytes_issued += access.bytes;
        c.global_load_bytes_distinct_per_block += count(mask & ~line.load_block);
        c.global_load_bytes_distinct_per_launch += count(mask & ~line.load_block & ~line.load_earlier);
        line.load_block |= mask;
    } else {
        c.global_store_bytes_issued += access.bytes;
        c.global_store_bytes_distinct_per_block += count(mask & ~line.store_block);
        c.global_store_bytes_distinct_per_launch += count(mask & ~line.store_block & ~line.store_earlier);
        line.store_block |= mask;
        line.written |= mask;
        if (access.kind == Kind::kWrite) line.plain_stores |= mask;
    }
}

void access_device(const Access& access) {
    for_each_line(access.address, access.bytes, [&](std::uintptr_t address, std::size_t bytes) {
        access_line({address, bytes, access.kind, access.site});
    });
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

void access_other(const Access& access) {
    const auto built_in = reinterpret_cast<std::uintptr_t>(&built_ins);
    if (access.address - built_in < sizeof(built_ins)) return;
    if (access.kind == Kind::kRead && is_read_only_data(access.address)) return;
    fail_place(access);
}

}  // namespace

void fail_misaligned(const Access& access) {
    fail_access(access, [] { return ": not aligned to its size, which a GPU does not allow"; });
}

void check_access(const Access& access) {
    const RuntimeScope scope;
    const std::size_t place = access.address - arena.begin;
    if (access.address - machine.stack_begin < kStackBytes) return;
    if (place >= arena.bytes) return kHooks ? access_other(access) : void();
    if (machine.notes_accesses) note_access(access);
    place < kSharedRoom ? access_shared(access) : access_device(access);
}

std::uint32_t advance_time() {
    if (++machine.stamp < kMaxStamp) return machine.stamp;
    // Out of stamps: all that this block has done becomes one moment of the past, all that is older the one
    // before.
    const auto renew = [](std::uint32_t word) {
        const bool old = (word >> kStampShift) < machine.block_start;
        return old ? 0u : (word & ((1u << kStampShift) - 1u)) | 1u << kStampShift;
    };
    for (Cell& cell : std::span(cell_at(machine.shared_begin), kSharedCapacity / 2)) {
        const bool in_flight = (cell.write & kInFlight) != 0;
        cell = {in_flight ? cell.write : renew(cell.write), renew(cell.read)};
    }
    // Of device memory, whatever block and thread did what is forgotten.
    madvise(cell_at(arena.begin + kSharedRoom), (arena.bytes - kSharedRoom) / 2 * sizeof(Cell),
            MADV_DONTNEED);
    machine.block_starts.clear();
    for (Warp& warp : machine.warps) warp.stamp = 2;
    for (Thread& thread : machine.threads) thread.before.fill(2);
    for (auto& [offset, barrier] : machine.mbarriers) barrier.released = {};
    machine.block_start = 1;
    return machine.stamp = machine.order_stamp = machine.block_stamp = 2;
}

bool hooks_enabled() {
    return kHooks;
}

}  // namespace flash::simt
