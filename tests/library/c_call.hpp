// One forward call through the C interface, with its memory: host memory for CPU steps, device memory for the
// others.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/attention.hpp"
#include "common/reference.hpp"
#include "common/testing/random.hpp"
#include "common/types.hpp"
#include "steps/library/flash_steps.h"

namespace flash::testing {

// The steps behind the library, in ladder order.
inline std::vector<FlashStepInfo> library_steps() {
    std::vector<FlashStepInfo> steps(static_cast<std::size_t>(flash_steps_count()));
    for (std::size_t i = 0; i < steps.size(); ++i) {
        if (flash_steps_info(static_cast<int>(i), &steps[i]) != FLASH_OK)
            throw std::logic_error("flash_steps_info");
    }
    return steps;
}

// False for GPU steps of a CUDA build on a machine without a GPU.
inline bool can_run(const FlashStepInfo& step) {
    if (!step.on_device) return true;
    void* probe = flash_steps_device_alloc(1);
    flash_steps_device_free(probe);
    return probe != nullptr;
}

// Bytes where a step wants its pointers.
class StepMemory {
  public:
    StepMemory(bool on_device, std::vector<std::byte> content)
        : host_(std::move(content)), on_device_(on_device) {
        if (!on_device_ || host_.empty()) return;
        device_ = flash_steps_device_alloc(host_.size());
        if (device_ == nullptr) throw std::runtime_error(flash_steps_last_error());
        check(flash_steps_copy_to_device(device_, host_.data(), host_.size()));
    }
    ~StepMemory() { flash_steps_device_free(device_); }
    StepMemory(const StepMemory&) = delete;
    StepMemory& operator=(const StepMemory&) = delete;

    void* data() { return on_device_ ? device_ : host_.data(); }
    std::vector<std::byte> content() const {
        std::vector<std::byte> copy = host_;
        if (on_device_) check(flash_steps_copy_to_host(copy.data(), device_, copy.size()));
        return copy;
    }

  private:
    static void check(int code) {
        if (code != FLASH_OK) throw std::runtime_error(flash_steps_last_error());
    }
    std::vector<std::byte> host_;
    bool on_device_;
    void* device_ = nullptr;
};

template <class T> std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}
template <class T> std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
    std::vector<float> values;
    for (std::size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
        T value;
        std::memcpy(&value, bytes.data() + i, sizeof(T));
        values.push_back(to_float(value));
    }
    return values;
}

template <class T> constexpr int dtype_code() {
    return sizeof(T) == 4                                ? FLASH_FP32
           : std::string_view(dtype_name<T>()) == "fp16" ? FLASH_FP16
                                                         : FLASH_BF16;
}

// Q, K and V of a problem, dense (B, H, N, D).
struct Inputs {
    std::vector<float> q, k, v;
};

// Standard normal numbers that T can represent, so that steps of different types can be given the same
// problem.
template <class T> Inputs random_inputs(const Shape& s, std::uint64_t seed) {
    const auto numbers = [&](int heads, int len, std::uint64_t stream) {
        std::vector<float> values(static_cast<std::size_t>(std::int64_t{s.batch} * heads * len * s.head_dim));
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = to_float(from_float<T>(random_normal(3 * seed + stream, i)));
        return values;
    };
    return {numbers(s.heads_q, s.len_q, 0), numbers(s.heads_kv, s.len_kv, 1),
            numbers(s.heads_kv, s.len_kv, 2)};
}

// The outputs start as bytes that no result has.
template <class T> class ForwardCall {
  public:
    ForwardCall(const FlashStepInfo& step, const Shape& shape, Mask mask, const Inputs& inputs)
        : step_(step),
          shape_(shape),
          mask_(mask),
          q_host_(rounded(inputs.q)),
          k_host_(rounded(inputs.k)),
          v_host_(rounded(inputs.v)),
          q_(step.on_device, bytes_of(q_host_)),
          k_(step.on_device, bytes_of(k_host_)),
          v_(step.on_device, bytes_of(v_host_)),
          o_(step.on_device, canaries(q_host_.size() * sizeof(T))),
          lse_(step.on_device, canaries(rows() * sizeof(float))) {
        call.q = tensor(q_, shape.heads_q, shape.len_q);
        call.k = tensor(k_, shape.heads_kv, shape.len_kv);
        call.v = tensor(v_, shape.heads_kv, shape.len_kv);
        call.o = tensor(o_, shape.heads_q, shape.len_q);
        call.lse = static_cast<float*>(lse_.data());
        call.dtype = dtype_code<T>();
        call.mask = mask.is_causal ? FLASH_MASK_CAUSAL_DIAGONAL : FLASH_MASK_NONE;
        call.diagonal = mask.diagonal;
        call.scale = flash_steps_default_scale(shape.head_dim);
    }
    ForwardCall(const FlashStepInfo& step, const Shape& shape, Mask mask, std::uint64_t seed)
        : ForwardCall(step, shape, mask, random_inputs<T>(shape, seed)) {}

    FlashForward call{};  // a test may change it before it runs

    int run() const { return flash_steps_forward(step_.step, &call, nullptr); }
    std::vector<float> o() const { return floats_of<T>(o_.content()); }
    std::vector<float> lse() const { return floats_of<float>(lse_.content()); }
    bool nothing_written() const {
        return o_.content() == canaries(q_host_.size() * sizeof(T)) &&
               lse_.content() == canaries(rows() * sizeof(float));
    }
    // The same problem in host memory, for the reference and the twin; it has no outputs.
    ForwardArgs<T> host_args() const {
        return {shape_,
                dense_bhnd<const T>(q_host_.data(), shape_.heads_q, shape_.len_q, shape_.head_dim),
                dense_bhnd<const T>(k_host_.data(), shape_.heads_kv, shape_.len_kv, shape_.head_dim),
                dense_bhnd<const T>(v_host_.data(), shape_.heads_kv, shape_.len_kv, shape_.head_dim),
                {},
                nullptr,
                mask_,
                call.scale};
    }

  private:
    std::size_t rows() const {
        return static_cast<std::size_t>(shape_.batch) * static_cast<std::size_t>(shape_.heads_q) *
               static_cast<std::size_t>(shape_.len_q);
    }
    static std::vector<T> rounded(const std::vector<float>& values) {
        std::vector<T> result;
        for (const float x : values) result.push_back(from_float<T>(x));
        return result;
    }
    static std::vector<std::byte> canaries(std::size_t bytes) {
        return std::vector<std::byte>(bytes, std::byte{0xa5});
    }
    FlashTensor tensor(StepMemory& memory, std::int64_t heads, std::int64_t len) const {
        const std::int64_t d = shape_.head_dim;
        return {memory.data(), {shape_.batch, heads, len, d}, {heads * len * d, len * d, d, 1}};
    }

    FlashStepInfo step_;
    Shape shape_;
    Mask mask_;
    std::vector<T> q_host_, k_host_, v_host_;
    StepMemory q_, k_, v_, o_, lse_;
};

}  // namespace flash::testing
