// The entry points of ThreadSanitizer's instrumentation, with the emulator behind them instead of that tool:
// compilers call these before every load and store of the translation units that hold device code. Outside a
// running kernel they return at once. (Interface: the compiler-rt header tsan_interface.h; GCC emits the same
// names.)
#include <cstring>

#include "common/simt/aligned_access.hpp"

namespace {

using namespace flash::simt;

template <std::size_t kBytes> inline void aligned(const void* p, Kind kind, const void* site) {
    if (in_kernel) access_aligned<kBytes>(reinterpret_cast<std::uintptr_t>(p), kind, site);
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
