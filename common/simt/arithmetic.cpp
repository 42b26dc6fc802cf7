// What a single thread computes here because it is counted or checked: atomics and exponentials.
#include <algorithm>
#include <cmath>
#include <functional>

#include "common/simt/aligned_access.hpp"

namespace flash::simt {

float counted_exp(float x) {
    ++machine.counters.exp2;
    return std::exp(x);
}

float exp2_flushed(float x) {
    ++machine.counters.exp2;
    const float result = std::exp2(x);  // a subnormal x gives 1, flushed or not
    return result < 0x1p-126f ? 0.0f : result;
}

namespace {

// Threads take turns between hooks only, so a plain update is atomic.
template <class T, class Update> T atomic(T* address, T value, const void* site, Update update) {
    access_aligned<sizeof(T)>(reinterpret_cast<std::uintptr_t>(address), Kind::kAtomic, site);
    ++machine.counters.atomics;
    const T before = *address;
    *address = static_cast<T>(update(before, value));
    return before;
}
constexpr auto kLarger = [](auto a, auto b) { return std::max(a, b); };

}  // namespace

}  // namespace flash::simt

int atomicAdd(int* address, int value) {  // wraps around
    return flash::simt::atomic(address, value, __builtin_return_address(0), std::plus<unsigned>());
}
unsigned atomicAdd(unsigned* address, unsigned value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), std::plus<>());
}
unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), std::plus<>());
}
float atomicAdd(float* address, float value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), std::plus<>());
}
int atomicMax(int* address, int value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), flash::simt::kLarger);
}
unsigned atomicMax(unsigned* address, unsigned value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), flash::simt::kLarger);
}
