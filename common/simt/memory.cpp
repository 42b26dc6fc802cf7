// What happens to an access that is not allowed, and the clock that orders accesses to shared memory.
#include "common/simt/memory_access.hpp"

#include <link.h>
#include <sys/mman.h>

#include <bit>
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

// Another thread wrote or read the bytes, says their cell, and nothing orders that: neither a barrier nor,
// for earlier blocks, anything. The latest access that the cell names may be this block's own.
[[noreturn]] void fail_race(Access access, std::size_t bytes, std::uintptr_t address, std::uint32_t cell,
                            const char* verb, bool of_blocks = false) {
    fail([=] {
        std::string who = thread_name(machine.threads[cell & kThreadMask]), block = "another block";
        for (const auto& [start, index] : machine.block_starts) {
            if (start <= cell >> kStampShift && cell >> kStampShift < machine.block_start)
                block = who + " of block " + index_name(index);
        }
        return words(access, bytes, address) + ": " + describe_address(address) + ", which " +
               (of_blocks ? block : who) + " " + verb +
               (of_blocks ? " in this launch; nothing orders blocks" : " with no barrier in between");
    });
}

// The way of an access that meets bytes which are not known to be allocated, or not written.
void check_line(Line& line, std::uint64_t mask, Access access, std::size_t bytes, std::uintptr_t address) {
    const RuntimeScope scope;
    line.valid = allocated_bits_of_line(address);
    if ((mask & ~line.valid) != 0) fail_access(access, bytes, address, "");
    if (access != Access::kWrite && (mask & ~line.written) != 0)
        fail_access(access, bytes, address, ", which nothing has written");
}

[[noreturn]] void fail_shared(Access access, std::size_t bytes, std::uintptr_t address) {
    const std::size_t offset = address - machine.shared_begin;
    if (offset >= machine.shared_bytes || bytes > machine.shared_bytes - offset)
        fail_access(access, bytes, address, "");
    for (std::size_t i = offset / 2; 2 * i < offset + bytes; ++i) {
        const Cell cell = machine.cells[i];
        const bool written = (cell.write >> kStampShift) >= machine.block_start;
        if (written && (cell.write & kInFlight) != 0)
            fail_access(access, bytes, address,
                        ", which a cp.async is still writing (no wait has completed it)");
        if (!written && access != Access::kWrite)
            fail_access(access, bytes, address, ", which nothing has written");
        if (written && !is_ordered(cell.write)) fail_race(access, bytes, address, cell.write, "wrote");
        if (access != Access::kRead && !reads_are_ordered(cell.read))
            fail_race(access, bytes, address, cell.read, "read");
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

void note_read(Machine& m, Cell& cell) {
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

// An atomic that follows its own thread's plain write hides it from nobody.
void note_write(Machine& m, Cell& cell, Access access) {
    const std::uint32_t stamp = cell.write >> kStampShift;
    const bool atomic = access == Access::kAtomic, both_atomic = atomic && (cell.write & kByAtomic) != 0;
    const bool hides_write = stamp >= m.block_stamp && stamp >= m.warp_stamp && !both_atomic;
    cell.write = m.stamp << kStampShift | m.thread_id | (atomic && !hides_write ? kByAtomic : 0u);
}

// Races on device memory, between blocks and inside this one. Inside a block single bytes are not looked at:
// a cell is two.
void check_races(Machine& m, const Line& line, std::uint64_t mask, std::uintptr_t address, std::size_t bytes,
                 Access access) {
    Cell* cell = arena.cells + (address - arena.begin) / 2;
    Cell* const end = arena.cells + (address - arena.begin + bytes + 1) / 2;
    const std::uint64_t stores = line.store_earlier & (access == Access::kAtomic ? line.plain_stores : ~0ull);
    if ((mask & stores) != 0) fail_race(access, bytes, address, cell->write, "wrote", true);
    if (access != Access::kRead && (mask & line.load_earlier) != 0)
        fail_race(access, bytes, address, cell->read, "read", true);
    for (; bytes > 1 && cell != end; ++cell) {
        const bool both_atomic = access == Access::kAtomic && (cell->write & kByAtomic) != 0;
        if (!both_atomic && !is_ordered(cell->write)) fail_race(access, bytes, address, cell->write, "wrote");
        if (access == Access::kRead) {
            note_read(m, *cell);
            continue;
        }
        if (!reads_are_ordered(cell->read)) fail_race(access, bytes, address, cell->read, "read");
        note_write(m, *cell, access);
    }
}

// One access inside one 64-byte line of device memory.
void access_line(Machine& m, std::uintptr_t address, std::size_t bytes, Access access) {
    Line& line = arena.lines[(address - arena.begin) / 64];
    const std::uint64_t mask = bits_of_line(address, bytes);
    const std::uint64_t needed = access == Access::kWrite ? line.valid : line.valid & line.written;
    if ((mask & ~needed) != 0) check_line(line, mask, access, bytes, address);
    if (line.block_serial != m.block_serial) {
        const bool is_new = line.block_serial < m.launch_serial;
        line.load_earlier = is_new ? 0 : line.load_earlier | line.load_block;
        line.store_earlier = is_new ? 0 : line.store_earlier | line.store_block;
        if (is_new) line.plain_stores = 0;
        line.load_block = line.store_block = 0;
        line.block_serial = m.block_serial;
    }
    check_races(m, line, mask, address, bytes, access);
    Counters& c = m.counters;
    const auto count = [](std::uint64_t bits) { return static_cast<std::uint64_t>(std::popcount(bits)); };
    if (access == Access::kRead) {
        c.global_load_bytes_issued += bytes;
        c.global_load_bytes_distinct_per_block += count(mask & ~line.load_block);
        c.global_load_bytes_distinct_per_launch += count(mask & ~line.load_block & ~line.load_earlier);
        line.load_block |= mask;
    } else {
        c.global_store_bytes_issued += bytes;
        c.global_store_bytes_distinct_per_block += count(mask & ~line.store_block);
        c.global_store_bytes_distinct_per_launch += count(mask & ~line.store_block & ~line.store_earlier);
        line.store_block |= mask;
        line.written |= mask;
        if (access == Access::kWrite) line.plain_stores |= mask;
    }
}

void read_cell(Machine& m, Cell& cell, std::size_t bytes, std::uintptr_t address) {
    const bool written = cell.write >> kStampShift >= m.block_start && (cell.write & kInFlight) == 0;
    if (!written || !is_ordered(cell.write)) fail_shared(Access::kRead, bytes, address);
    note_read(m, cell);
}

void write_cell(Machine& m, Cell& cell, std::size_t bytes, std::uintptr_t address, Access access) {
    const std::uint32_t stamp = cell.write >> kStampShift;
    const bool written = stamp >= m.block_start, atomic = access == Access::kAtomic;
    const bool both_atomic = atomic && (cell.write & kByAtomic) != 0;
    if (written && ((cell.write & kInFlight) != 0 || (!both_atomic && !is_ordered(cell.write))))
        fail_shared(access, bytes, address);
    if ((!written && atomic) || !reads_are_ordered(cell.read)) fail_shared(access, bytes, address);
    note_write(m, cell, access);
}

}  // namespace

void init_memory() {
    if (machine.cells != nullptr) return;
    const auto room = reinterpret_cast<std::uintptr_t>(reserve(kSharedReserve));
    auto* cells = static_cast<Cell*>(reserve(kSharedCapacity / 2 * sizeof(Cell)));
    if (room == 0 || cells == nullptr)
        throw gpu::DeviceError("the emulator found no memory for shared memory");
    machine.cells = cells;
    machine.shared_begin = room + (kSharedReserve - kSharedCapacity) / 2;
}

void access_shared(Machine& m, std::uintptr_t address, std::size_t bytes, Access access) {
    const std::size_t offset = address - m.shared_begin;
    if (offset >= m.shared_bytes || bytes > m.shared_bytes - offset) fail_shared(access, bytes, address);
    Cell* cell = m.cells + offset / 2;
    Cell* const end = m.cells + (offset + bytes + 1) / 2;
    if (access == Access::kRead) {
        m.counters.shared_load_bytes += bytes;
        for (; kHooks && cell != end; ++cell) read_cell(m, *cell, bytes, address);
    } else {
        m.counters.shared_store_bytes += bytes;
        for (; kHooks && cell != end; ++cell) write_cell(m, *cell, bytes, address, access);
    }
}

void access_memory(Machine& m, std::uintptr_t address, std::size_t bytes, Access access) {
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

void fail_misaligned(Access access, std::size_t bytes, std::uintptr_t address) {
    fail_access(access, bytes, address, ": not aligned to its size, which a GPU does not allow");
}

void check_access(std::uintptr_t address, std::size_t bytes, Access access, const void* site) {
    const RuntimeScope scope;
    machine.site = site;
    if (address % bytes != 0) fail_misaligned(access, bytes, address);
    access_memory(machine, address, bytes, access);
    if (machine.notes_accesses) note_access(address, bytes, access, site);
    machine.site = nullptr;
}

std::uint32_t advance_time() {
    if (++machine.stamp < kMaxStamp) return machine.stamp;
    // Out of stamps: all that this block has done becomes one moment of the past, all that is older the one
    // before.
    for (std::size_t i = 0; i < kSharedCapacity / 2; ++i) {
        Cell& cell = machine.cells[i];
        const auto renew = [](std::uint32_t word) {
            const bool old = (word >> kStampShift) < machine.block_start;
            return old ? 0u : (word & ((1u << kStampShift) - 1u)) | 1u << kStampShift;
        };
        const bool in_flight = (cell.write & kInFlight) != 0;
        cell = {in_flight ? cell.write : renew(cell.write), renew(cell.read)};
    }
    // Of device memory, whatever block and thread did what is forgotten.
    if (arena.bytes > 0) madvise(arena.cells, arena.bytes / 2 * sizeof(Cell), MADV_DONTNEED);
    machine.block_starts.clear();
    for (Warp& warp : machine.warps) warp.stamp = 2;
    machine.block_start = 1;
    return machine.stamp = machine.order_stamp = machine.block_stamp = machine.warp_stamp = 2;
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
