// The device as host code sees it: buffers, information, errors. The same in a CUDA tree and in an emulator
// tree.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace flash::gpu {

// A launch or a device call that failed; what() is one sentence.
struct DeviceError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct DeviceInfo {
    std::string name;
    int sm_count;
    int cc_major, cc_minor;              // compute capability
    std::size_t shared_per_block_optin;  // largest shared memory of one block, in bytes
    std::size_t shared_per_sm = 0;       // 0 for the emulator, as all that it has no use for
    std::size_t register_bytes_per_sm = 0;
    std::size_t l2_bytes;
    std::size_t memory_bytes;
    int clock_mhz;  // 0 for the emulator, which times nothing
    bool is_emulator;
};
DeviceInfo device_info();

// Waits for all work on the device and throws DeviceError for any that failed.
void synchronize();

// Empty when a usable device exists, else one sentence that says why there is none.
std::string why_no_device();

// Bytes that all DeviceBuffers hold now, and the most they held since reset_peak_device_bytes().
std::size_t device_bytes_in_use();
std::size_t peak_device_bytes();
void reset_peak_device_bytes();

namespace detail {
inline std::atomic<std::size_t> bytes_in_use{0};
inline std::atomic<std::size_t> peak_bytes{0};
inline void count_allocation(std::size_t bytes) {
    const std::size_t now = bytes_in_use += bytes;
    std::size_t peak = peak_bytes;
    while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
    }
}

void* device_allocate(std::size_t bytes);
void device_free(void* data);
void copy_to_device(void* device, const void* host, std::size_t bytes);
void copy_to_host(void* host, const void* device, std::size_t bytes);
}  // namespace detail

inline std::size_t device_bytes_in_use() {
    return detail::bytes_in_use;
}
inline std::size_t peak_device_bytes() {
    return detail::peak_bytes;
}
inline void reset_peak_device_bytes() {
    detail::peak_bytes = detail::bytes_in_use.load();
}

// n elements of uninitialised device memory. T is trivially copyable.
template <class T> class DeviceBuffer {
  public:
    explicit DeviceBuffer(std::size_t n) : size_(n) {
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T))
            throw DeviceError("a device buffer of " + std::to_string(n) +
                              " elements has more bytes than fit in 64 bits");
        if (n == 0) return;
        data_ = static_cast<T*>(detail::device_allocate(n * sizeof(T)));
        detail::count_allocation(n * sizeof(T));
    }
    ~DeviceBuffer() {
        if (data_ == nullptr) return;
        try {
            detail::device_free(data_);
        } catch (const DeviceError& error) {  // a destructor can only say so
            std::fprintf(stderr, "%s\n", error.what());
        }
        detail::bytes_in_use -= size_ * sizeof(T);
    }
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    std::size_t size() const { return size_; }
    // Both copy size() elements and return when the copy is done.
    void copy_from_host(const T* host) {
        if (size_ > 0) detail::copy_to_device(data_, host, size_ * sizeof(T));
    }
    void copy_to_host(T* host) const {
        if (size_ > 0) detail::copy_to_host(host, data_, size_ * sizeof(T));
    }

  private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace flash::gpu
