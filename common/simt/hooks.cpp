// The entry points of ThreadSanitizer's instrumentation, with the emulator behind them instead of that tool:
// compilers call these before every load and store of the translation units that hold device code. Outside a
// running kernel they return at once. (Interface: the compiler-rt header tsan_interface.h; GCC emits the same
// names.) Most accesses are plain and nothing new; they end here, the others go on to check_access().
#include <cstring>

#include "common/simt/machine.hpp"

namespace {

using namespace flash::simt;

// True when a read has nothing to check and nothing to note: the bytes were written before the latest
// barrier, and not before `oldest`, and as many threads as matter have read them since.
bool is_quiet_read(const Cell& cell, std::uint32_t oldest) {
    const Machine& m = machine;
    const std::uint32_t barrier = m.block_stamp << kStampShift;
    if (cell.write - oldest >= barrier - oldest || cell.read < m.order_stamp << kStampShift) return false;
    if ((cell.read & kReadByBlock) != 0 || cell.read == (m.stamp << kStampShift | m.thread_id)) return true;
    return (cell.read & kReadByWarp) != 0 && (cell.read & kThreadMask) / kWarp == m.thread_id / kWarp &&
           cell.read >> kStampShift >= m.warp_stamp;
}
// The same for a write: nobody has touched the bytes since the latest barrier.
bool is_quiet_write(const Cell& cell) {
    const std::uint32_t barrier = machine.block_stamp << kStampShift;
    return cell.write < barrier && cell.read < barrier;
}

template <std::size_t kBytes> bool are_quiet(Cell* cells, Kind kind, std::uint32_t oldest) {
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
template <std::size_t kBytes> bool is_ordinary(std::uintptr_t address, Kind kind) {
    if (address - machine.stack_begin < kStackBytes) return true;
    Counters& c = machine.counters;
    const std::size_t offset = address - machine.shared_begin, place = address - arena.begin;
    if (offset < machine.shared_bytes && kBytes <= machine.shared_bytes - offset) {
        if (!are_quiet<kBytes>(cell_at(address), kind, machine.block_start << kStampShift)) return false;
        (kind == Kind::kRead ? c.shared_load_bytes : c.shared_store_bytes) += kBytes;
        return true;
    }
    if (place >= arena.bytes) return false;
    const Line& line = arena.lines[place / kLineBytes];
    const std::uint64_t mask = bits_of_line(address, kBytes);
    const std::uint64_t known = kind == Kind::kRead ? line.load_block : line.store_block & line.plain_stores;
    if (line.block_serial != machine.block_serial || (mask & ~known) != 0) return false;
    if (kBytes > 1 && !are_quiet<kBytes>(cell_at(address), kind, 0)) return false;
    (kind == Kind::kRead ? c.global_load_bytes_issued : c.global_store_bytes_issued) += kBytes;
    return true;
}

template <std::size_t kBytes> inline void aligned(const void* p, Kind kind, const void* site) {
    if (!in_kernel) return;
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    if (address % kBytes == 0 && !machine.notes_accesses && is_ordinary<kBytes>(address, kind)) [[likely]]
        return;
    const Access access{address, kBytes, kind, site};
    check_alignment(access);
    check_access(access);
}

inline void any(const void* p, std::size_t bytes, Kind kind, const void* site) {
    if (in_kernel && bytes > 0) check_access({reinterpret_cast<std::uintptr_t>(p), bytes, kind, site});
}

}  // namespace

// Names are the compilers' business, so a macro makes them.
// clang-format off
#define FLASH_SITE __builtin_return_address(0)
#define FLASH_HOOKS(bytes)                                                                         \
    void __tsan_read##bytes(void* p) { aligned<bytes>(p, Kind::kRead, FLASH_SITE); }             \
    void __tsan_write##bytes(void* p) { aligned<bytes>(p, Kind::kWrite, FLASH_SITE); }           \
    void __tsan_unaligned_read##bytes(void* p) { any(p, bytes, Kind::kRead, FLASH_SITE); }       \
    void __tsan_unaligned_write##bytes(void* p) { any(p, bytes, Kind::kWrite, FLASH_SITE); }

// std::atomic and the guards of local statics, which only host code uses.
#define FLASH_ATOMICS(bits, T)                                                                     \
    T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, 5); }       \
    void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, 5); }       \
    T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { return __atomic_exchange_n(p, v, 5); } \
    T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) { return __atomic_fetch_add(p, v, 5); } \
    T __tsan_atomic##bits##_fetch_sub(volatile T* p, T v, int) { return __atomic_fetch_sub(p, v, 5); } \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) {        \
        return __atomic_compare_exchange_n(p, c, v, false, 5, 5);                                  \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* c, T v, int, int) {          \
        return __atomic_compare_exchange_n(p, c, v, true, 5, 5);                                   \
    }                                                                                              \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T c, T v, int, int) {              \
        __atomic_compare_exchange_n(p, &c, v, false, 5, 5);                                        \
        return c;                                                                                  \
    }
// clang-format on
static_assert(__ATOMIC_SEQ_CST == 5);

extern "C" {

FLASH_HOOKS(1)
FLASH_HOOKS(2)
FLASH_HOOKS(4)
FLASH_HOOKS(8)
FLASH_HOOKS(16)
void __tsan_read_range(void* p, std::size_t bytes) {
    any(p, bytes, Kind::kRead, FLASH_SITE);
}
void __tsan_write_range(void* p, std::size_t bytes) {
    any(p, bytes, Kind::kWrite, FLASH_SITE);
}
void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
    any(from, bytes, Kind::kRead, FLASH_SITE);
    any(to, bytes, Kind::kWrite, FLASH_SITE);
    return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
    any(from, bytes, Kind::kRead, FLASH_SITE);
    any(to, bytes, Kind::kWrite, FLASH_SITE);
    return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
    any(to, bytes, Kind::kWrite, FLASH_SITE);
    return std::memset(to, value, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_atomic_thread_fence(int) {}
FLASH_ATOMICS(8, std::uint8_t)
FLASH_ATOMICS(32, std::uint32_t)
FLASH_ATOMICS(64, std::uint64_t)

}  // extern "C"
