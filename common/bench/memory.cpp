#include "common/bench/memory.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> g_in_use{0};
std::atomic<std::int64_t> g_peak{0};

// Every block is preceded by a header as large as its alignment, whose last word holds the size.
constexpr std::size_t kDefaultAlignment = 16;

void* allocate(std::size_t size, std::size_t alignment) noexcept {
    const std::size_t header = alignment < kDefaultAlignment ? kDefaultAlignment : alignment;
    const std::size_t rounded = (size + header - 1) / header * header;
    if (rounded < size || rounded + header < rounded) return nullptr;
    auto* block = static_cast<char*>(std::aligned_alloc(header, rounded + header));
    if (block == nullptr) return nullptr;
    char* user = block + header;
    reinterpret_cast<std::size_t*>(user)[-1] = size;
    const std::int64_t now = g_in_use += static_cast<std::int64_t>(size);
    std::int64_t peak = g_peak.load();
    while (now > peak && !g_peak.compare_exchange_weak(peak, now)) {
    }
    return user;
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
    void* user = allocate(size, alignment);
    if (user == nullptr) throw std::bad_alloc();
    return user;
}

void release(void* user, std::size_t alignment) noexcept {
    if (user == nullptr) return;
    const std::size_t header = alignment < kDefaultAlignment ? kDefaultAlignment : alignment;
    g_in_use -= static_cast<std::int64_t>(static_cast<std::size_t*>(user)[-1]);
    std::free(static_cast<char*>(user) - header);
}

}  // namespace

void* operator new(std::size_t size) {
    return allocate_or_throw(size, kDefaultAlignment);
}
void* operator new[](std::size_t size) {
    return allocate_or_throw(size, kDefaultAlignment);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
    return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
    return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    return allocate(size, kDefaultAlignment);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
    return allocate(size, kDefaultAlignment);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept {
    release(block, kDefaultAlignment);
}
void operator delete[](void* block) noexcept {
    release(block, kDefaultAlignment);
}
void operator delete(void* block, std::size_t) noexcept {
    release(block, kDefaultAlignment);
}
void operator delete[](void* block, std::size_t) noexcept {
    release(block, kDefaultAlignment);
}
void operator delete(void* block, std::align_val_t alignment) noexcept {
    release(block, static_cast<std::size_t>(alignment));
}
void operator delete[](void* block, std::align_val_t alignment) noexcept {
    release(block, static_cast<std::size_t>(alignment));
}
void operator delete(void* block, std::size_t, std::align_val_t alignment) noexcept {
    release(block, static_cast<std::size_t>(alignment));
}
void operator delete[](void* block, std::size_t, std::align_val_t alignment) noexcept {
    release(block, static_cast<std::size_t>(alignment));
}

namespace flash::bench {

std::int64_t host_bytes_in_use() {
    return g_in_use;
}

std::int64_t peak_extra_host_bytes(const std::function<void()>& call) {
    const std::int64_t before = g_in_use;
    g_peak = before;
    call();
    return g_peak - before;
}

}  // namespace flash::bench
