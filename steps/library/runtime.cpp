// The parts of the C interface that know no step: the last error, and device memory.
#include <cstdio>

#include "common/gpu/device.hpp"
#include "steps/library/flash_steps.h"
#include "steps/library/guard.hpp"

namespace flash::library {
namespace {

thread_local char last_error[1024] = "";

void check_copy(const void* to, const void* from, std::size_t bytes) {
    if (bytes == 0 || (to != nullptr && from != nullptr)) return;
    throw std::invalid_argument(std::string(to == nullptr ? "the destination" : "the source") +
                                " of a copy of " + std::to_string(bytes) + " bytes is null");
}

}  // namespace

void set_last_error(const char* text) noexcept {
    std::snprintf(last_error, sizeof last_error, "%s", text);
}

}  // namespace flash::library

using namespace flash::library;

const char* flash_steps_last_error(void) {
    return last_error;
}

const char* flash_steps_backend(void) {
    return FLASH_STEPS_BACKEND_NAME;
}

void* flash_steps_device_alloc(size_t bytes) {
    void* device = nullptr;
    guarded([&] {
        if (bytes == 0) throw std::invalid_argument("bytes is 0; device memory has at least one byte");
        device = flash::gpu::detail::device_allocate(bytes);
    });
    return device;
}

int flash_steps_device_free(void* device) {
    return guarded([&] {
        if (device != nullptr) flash::gpu::detail::device_free(device);
    });
}

int flash_steps_copy_to_device(void* device, const void* host, size_t bytes) {
    return guarded([&] {
        check_copy(device, host, bytes);
        if (bytes > 0) flash::gpu::detail::copy_to_device(device, host, bytes);
    });
}

int flash_steps_copy_to_host(void* host, const void* device, size_t bytes) {
    return guarded([&] {
        check_copy(host, device, bytes);
        if (bytes > 0) flash::gpu::detail::copy_to_host(host, device, bytes);
    });
}

int flash_steps_synchronize(void) {
    return guarded([] { flash::gpu::synchronize(); });
}
