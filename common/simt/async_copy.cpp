// cp.async: what a thread has issued arrives at its wait and not before, so that code which reads too early
// fails here every time and not now and then.
#include <cstring>

#include "common/simt/machine.hpp"

namespace flash::simt {

namespace {

constexpr std::size_t kRow = 16;  // bytes

// Marks the destination as written at a time by the running thread.
void mark_row(std::uint32_t offset, std::uint32_t stamp, std::uint32_t flag) {
    for (Cell& cell : std::span(cell_at(machine.shared_begin + offset), kRow / 2))
        cell.write = stamp << kStampShift | machine.thread_id | flag;
}

void complete(const PendingCopy& copy) {
    auto* to = reinterpret_cast<std::byte*>(machine.shared_begin + copy.shared_offset);
    std::memset(to, 0, kRow);
    if (copy.bytes > 0) std::memcpy(to, copy.source, static_cast<std::size_t>(copy.bytes));
    mark_row(copy.shared_offset, machine.stamp, 0);
}

}  // namespace

std::uint32_t shared_offset(const void* smem) {
    const auto address = reinterpret_cast<std::uintptr_t>(smem);
    const std::size_t offset = address - machine.shared_begin;
    if (offset > machine.shared_bytes)
        fail(nullptr,
             [=] { return "smem_address of " + hex(address) + ", which is " + describe_address(address); });
    return static_cast<std::uint32_t>(offset);
}

void cp_async(std::uint32_t shared, const void* source, int bytes) {
    const RuntimeScope scope;
    const void* const site = __builtin_return_address(0);
    const auto from = reinterpret_cast<std::uintptr_t>(source);
    const Access write{machine.shared_begin + shared, kRow, Kind::kWrite, site};
    if (bytes < 0 || bytes > static_cast<int>(kRow))
        fail(site, [=] { return "cp.async of " + std::to_string(bytes) + " bytes; it copies 0 to 16"; });
    const auto copied = static_cast<std::size_t>(bytes);
    if (write.address % kRow != 0) fail_misaligned(write);
    if (from % kRow != 0) fail_misaligned({from, kRow, Kind::kRead, site});
    if (bytes > 0) check_access({from, copied, Kind::kRead, site});
    check_access(write);
    machine.counters.cp_async_bytes += copied;
    mark_row(shared, kMaxStamp, kInFlight);
    std::memset(reinterpret_cast<void*>(write.address), 0xff, kRow);  // NaN, whoever reads it all the same
    Thread& thread = *machine.running;
    thread.copies.push_back({shared, bytes, source, thread.committed_groups});
}

void abandon_copies(Thread& thread) {
    for (const PendingCopy& copy : thread.copies) mark_row(copy.shared_offset, 0, 0);
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
