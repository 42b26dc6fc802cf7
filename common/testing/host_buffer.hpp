// Host memory with the interface of flash::gpu::DeviceBuffer, so that one set of tests serves CPU and GPU
// steps.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace flash::testing {

// n elements whose end touches a page nobody may access: reading or writing past the last element stops the
// program on the spot. Pages are taken from the system when first touched, so that a test of 64-bit offsets
// can span more memory than the machine has.
template <class T> class HostBuffer {
  public:
    explicit HostBuffer(std::size_t n) : size_(n) {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t usable = (n * sizeof(T) + page - 1) / page * page;
        mapped_bytes_ = usable + page;
        mapping_ =
            mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapping_ == MAP_FAILED) throw std::bad_alloc();
        auto* begin = static_cast<std::byte*>(mapping_);
        if (usable != 0 && mprotect(begin, usable, PROT_READ | PROT_WRITE) != 0) {
            munmap(mapping_, mapped_bytes_);
            throw std::bad_alloc();
        }
        data_ = reinterpret_cast<T*>(begin + usable - n * sizeof(T));
    }
    ~HostBuffer() {
        if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
    }
    HostBuffer(HostBuffer&& other) noexcept { swap(other); }
    HostBuffer& operator=(HostBuffer&& other) noexcept {
        swap(other);
        return *this;
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    std::size_t size() const { return size_; }
    void copy_from_host(const T* source) {
        if (size_ != 0) std::memcpy(data_, source, size_ * sizeof(T));
    }
    void copy_to_host(T* destination) const {
        if (size_ != 0) std::memcpy(destination, data_, size_ * sizeof(T));
    }

  private:
    void swap(HostBuffer& other) noexcept {
        std::swap(size_, other.size_);
        std::swap(mapped_bytes_, other.mapped_bytes_);
        std::swap(mapping_, other.mapping_);
        std::swap(data_, other.data_);
    }

    std::size_t size_ = 0;
    std::size_t mapped_bytes_ = 0;
    void* mapping_ = nullptr;
    T* data_ = nullptr;
};

}  // namespace flash::testing
