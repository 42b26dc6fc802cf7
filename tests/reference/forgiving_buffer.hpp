// Memory that forgives reads beyond the end, as the memory of a GPU often does: the values read are finite.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

template <class T> class ForgivingBuffer {
  public:
    explicit ForgivingBuffer(std::size_t n) : size_(n), memory_(n + 65536) {}
    T* data() { return memory_.data(); }
    std::size_t size() const { return size_; }
    void copy_from_host(const T* from) { std::copy_n(from, size_, memory_.data()); }
    void copy_to_host(T* to) const { std::copy_n(memory_.data(), size_, to); }

  private:
    std::size_t size_;
    std::vector<T> memory_;
};
