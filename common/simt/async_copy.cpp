// cp.async: what a thread has issued arrives at its wait and not before, so that code which reads too early
// fails here every time and not now and then.
#include <cstring>

#include "common/simt/memory_access.hpp"

namespace flash::simt {

namespace {

constexpr std::size_t kRow = 16;  // bytes

void mark_row(std::uint32_t offset, std::uint32_t stamp, std::uint32_t flag) {
    for (std::size_t i = 0; i < kRow / 2; ++i)
        machine.cells[offset / 2 + i].write = stamp << kStampShift | machine.thread_id | flag;
}

void complete(const PendingCopy& copy) {
    auto* to = reinterpret_cast<std::byte*>(machine.shared_begin + copy.shared_offset);
    std::memset(to, 0, kRow);
    if (copy.bytes > 0) std::memcpy(to, copy.source, static_cast<std::size_t>(copy.bytes));
    mark_row(copy.shared_offset, machine.stamp, 0);
}

}  // namespace

std::uint32_t shared_offset(const void* smem) {
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(smem) - machine.shared_begin;
    if (offset > machine.shared_bytes) {
        const RuntimeScope scope;
        fail([=] {
            return "smem_address of " + hex(reinterpret_cast<std::uintptr_t>(smem)) + ", which is " +
                   describe_address(reinterpret_cast<std::uintptr_t>(smem));
        });
    }
    return static_cast<std::uint32_t>(offset);
}

void cp_async(std::uint32_t shared, const void* source, int bytes) {
    const RuntimeScope scope;
    machine.site = __builtin_return_address(0);
    Thread& thread = *machine.running;
    const auto from = reinterpret_cast<std::uintptr_t>(source);
    const std::uintptr_t to = machine.shared_begin + shared;
    if (bytes < 0 || bytes > static_cast<int>(kRow))
        fail([=] { return "cp.async of " + std::to_string(bytes) + " bytes; it copies 0 to 16"; });
    if (shared % kRow != 0) fail_misaligned(Access::kWrite, kRow, to);
    if (from % kRow != 0) fail_misaligned(Access::kRead, kRow, from);
    const auto copied = static_cast<std::size_t>(bytes);
    if (bytes > 0) access_memory(machine, from, copied, Access::kRead);
    machine.counters.cp_async_bytes += copied;
    access_shared(machine, to, kRow, Access::kWrite);
    if (machine.notes_accesses) {
        if (bytes > 0) note_access(from, copied, Access::kRead, machine.site);
        note_access(to, kRow, Access::kWrite, machine.site);
    }
    machine.site = nullptr;
    mark_row(shared, kMaxStamp, kInFlight);
    std::memset(reinterpret_cast<void*>(to), 0xff, kRow);  // NaN, whoever reads it all the same
    thread.copies.push_back({shared, bytes, source, thread.committed_groups});
}

void abandon_copies(Thread& thread) {
    for (const PendingCopy& copy : thread.copies) {
        for (std::size_t i = 0; i < kRow / 2; ++i) machine.cells[copy.shared_offset / 2 + i].write = 0;
    }
    thread.copies.clear();
    thread.committed_groups = 0;
}

void cp_async_commit() {
    ++machine.running->committed_groups;
}

void cp_async_wait(int groups_left) {
    const RuntimeScope scope;
    Thread& thread = *machine.running;
    const auto left = static_cast<std::uint64_t>(groups_left);
    std::erase_if(thread.copies, [&](const PendingCopy& copy) {
        if (copy.group + left >= thread.committed_groups) return false;
        complete(copy);
        return true;
    });
}

}  // namespace flash::simt
