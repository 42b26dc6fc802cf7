// Tensors whose heads or rows lie more than 2^31 elements apart: 32-bit offset arithmetic would read or write
// elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/forward_case.hpp"
#include "common/testing/host_buffer.hpp"

namespace flash::testing {

// Two regions of kRegion elements, next to each other or more than 2^31 elements apart.
template <class T, template <class> class Buffer> class TwoRegions {
  public:
    static constexpr std::int64_t kRegion = 8192;
    static constexpr std::int64_t kFar = (std::int64_t{1} << 31) + kRegion;

    explicit TwoRegions(bool far) : first_(0), second_(0) {
        if (far && on_emulator()) {
            place_second_far_away();
        } else {
            distance_ = far ? kFar : kRegion;
            first_ = Buffer<T>(static_cast<std::size_t>(distance_ + kRegion));
        }
    }

    static bool on_device() { return std::is_same_v<Buffer<T>, gpu::DeviceBuffer<T>>; }
    static bool on_emulator() {
        if constexpr (std::is_same_v<Buffer<T>, gpu::DeviceBuffer<T>>) return gpu::device_info().is_emulator;
        return false;
    }

    // Under AddressSanitizer the emulator hands out ordinary memory, which cannot be placed.
    static bool can_place() {
        if constexpr (std::is_same_v<Buffer<T>, gpu::DeviceBuffer<T>>)
            return !on_emulator() || simt::hooks_enabled();
        return true;
    }

    T* data() { return first_.data(); }
    std::int64_t distance() const { return distance_; }  // of the two regions' first elements
    void write(int region, std::int64_t offset, const T* from, std::int64_t n) {
        T* to = data() + region * distance_ + offset;
        const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
        if constexpr (std::is_same_v<Buffer<T>, gpu::DeviceBuffer<T>>)
            gpu::detail::copy_to_device(to, from, bytes);
        else
            std::memcpy(to, from, bytes);
    }
    void read(int region, T* to, std::int64_t n) {
        const T* from = data() + region * distance_;
        const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
        if constexpr (std::is_same_v<Buffer<T>, gpu::DeviceBuffer<T>>)
            gpu::detail::copy_to_host(to, from, bytes);
        else
            std::memcpy(to, from, bytes);
    }

  private:
    // The emulator's device may have less memory than 4 GiB; but it places each allocation behind the one
    // before, so that two small ones can be brought far apart.
    void place_second_far_away() {
        first_ = Buffer<T>(static_cast<std::size_t>(kRegion));
        const auto begin = reinterpret_cast<std::intptr_t>(first_.data());
        constexpr int kMaxTries = 1 << 18;
        for (int n = 0; n < kMaxTries; ++n) {
            Buffer<T> spacer(static_cast<std::size_t>(kRegion));
            const auto bytes = reinterpret_cast<std::intptr_t>(spacer.data()) - begin;
            distance_ = bytes / static_cast<std::intptr_t>(sizeof(T));
            if (distance_ < kFar) continue;
            second_ = std::move(spacer);
            return;
        }
        throw gpu::DeviceError("no two allocations of the emulator lie 2^31 elements apart");
    }

    Buffer<T> first_, second_;
    std::int64_t distance_ = 0;
};

// The bits of O and L of a dense call with two heads, or with one head of two rows, where those two parts of
// the inputs or of the output lie far apart.
template <class T, template <class> class Buffer>
std::vector<std::uint32_t> spread_result(const ForwardCall<T>& call, bool far_inputs, bool far_output,
                                         void (*forward)(const ForwardArgs<T>&)) {
    const Shape& s = call.shape;
    const bool heads = s.heads_q == 2;
    Buffer<float> lse(static_cast<std::size_t>(s.heads_q) * static_cast<std::size_t>(s.len_q));
    TwoRegions<T, Buffer> inputs(far_inputs), output(far_output);
    const auto spread = [&](const HostTensor<T>& t, int slot) {
        const std::int64_t offset = slot * TwoRegions<T, Buffer>::kRegion / 4;
        const std::int64_t part = heads ? t.stride_head : t.stride_row;
        for (int i = 0; i < 2; ++i) inputs.write(i, offset, t.memory.data() + t.first + i * part, part);
        return TensorView<const T>{inputs.data() + offset, 0, heads ? inputs.distance() : 0,
                                   heads ? t.stride_row : inputs.distance()};
    };
    const TensorView<T> o{output.data(), 2 * output.distance(), (heads ? 1 : 2) * output.distance(),
                          heads ? s.head_dim : output.distance()};
    forward(
        {s, spread(call.q, 0), spread(call.k, 1), spread(call.v, 2), o, lse.data(), call.mask, call.scale});

    std::vector<T> part(static_cast<std::size_t>(heads ? s.len_q : 1) * static_cast<std::size_t>(s.head_dim));
    std::vector<float> l(lse.size());
    lse.copy_to_host(l.data());
    std::vector<std::uint32_t> bits;
    for (const float x : l) bits.push_back(bits_of(x));
    for (int i = 0; i < 2; ++i) {
        output.read(i, part.data(), static_cast<std::int64_t>(part.size()));
        for (const T x : part) bits.push_back(bits_of(x));
    }
    return bits;
}

// Why tensors cannot be spread so far in this build or on this device; empty when they can.
template <class T, template <class> class Buffer> std::string why_no_wide_offsets() {
    using Regions = TwoRegions<T, Buffer>;
    if (!Regions::can_place()) return "this build's device memory cannot be placed 2^31 elements apart";
    if (!Regions::on_device() || Regions::on_emulator()) return "";
    const std::size_t needed = static_cast<std::size_t>(Regions::kFar) * sizeof(T);
    if (gpu::device_info().memory_bytes / 2 >= needed) return "";
    return "it needs " + std::to_string(needed >> 20) + " MiB of free device memory";
}

// A call whose heads or rows lie far apart must give the result of a dense one, bit for bit. Empty when it
// does, else what is wrong.
template <class T, template <class> class Buffer>
std::string check_wide_offsets(const Capabilities& can, void (*forward)(const ForwardArgs<T>&)) {
    const std::string skip = why_no_wide_offsets<T, Buffer>();
    if (!skip.empty()) {
        std::printf("SKIP: B6 is left out: %s\n", skip.c_str());
        return "";
    }
    const int head_dim = can.head_dim_multiple > 8 ? can.head_dim_multiple : 8;
    for (const Shape& shape : {Shape{1, 2, 2, 5, 7, head_dim}, Shape{1, 1, 1, 2, 2, head_dim}}) {
        const auto call = make_call<T>({"", shape, Mask::causal_bottom_right(shape)}, can.aligned);
        const std::string parts = shape.heads_q == 2 ? "heads" : "rows";
        const auto want = spread_result<T, Buffer>(call, false, false, forward);
        if (spread_result<T, Buffer>(call, true, false, forward) != want)
            return "Q, K and V with " + parts + " more than 2^31 elements apart give another result";
        if (spread_result<T, Buffer>(call, false, true, forward) != want)
            return "O with " + parts + " more than 2^31 elements apart gets another result";
    }
    return "";
}

}  // namespace flash::testing
