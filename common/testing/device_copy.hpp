// The memory of a test's tensor where the step under test can reach it.
#pragma once

#include <memory>
#include <vector>

namespace flash::testing {

// A copy of `memory` in a Buffer; null when there is nothing to copy, which the contract allows for an empty
// tensor.
template <template <class> class Buffer, class U> class DeviceCopy {
  public:
    explicit DeviceCopy(std::vector<U>& memory) : memory_(memory) {
        if (memory.empty()) return;
        buffer_ = std::make_unique<Buffer<U>>(memory.size());
        buffer_->copy_from_host(memory.data());
    }
    U* data() { return buffer_ ? buffer_->data() : nullptr; }
    void download() {
        if (buffer_) buffer_->copy_to_host(memory_.data());
    }

  private:
    std::vector<U>& memory_;
    std::unique_ptr<Buffer<U>> buffer_;
};

}  // namespace flash::testing
