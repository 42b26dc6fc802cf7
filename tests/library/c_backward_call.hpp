// One backward call through the C interface, from the forward of the same step, with its memory.
#pragma once

#include <optional>

#include "tests/library/c_call.hpp"

namespace flash::testing {

inline bool takes_backward(const FlashStepInfo& step) {
    return step.has_backward != 0 && can_run(step);
}

// O and L are those that the step's own forward leaves. The outputs start as bytes that no result has.
template <class T> class CBackwardCall {
  public:
    CBackwardCall(const FlashStepInfo& step, const Shape& shape, Mask mask, std::uint64_t seed,
                  bool deterministic)
        : step_(step), forward_(step, shape, mask, seed), d_o_host_(gradient(shape, seed)) {
        if (forward_.run() != FLASH_OK) throw std::runtime_error(flash_steps_last_error());
        const FlashForward& f = forward_.call;
        call.size = sizeof call;
        call.q = f.q;
        call.k = f.k;
        call.v = f.v;
        call.o = f.o;
        call.lse = f.lse;
        call.d_o = call.dq = f.q;
        call.dk = call.dv = f.k;
        call.dtype = f.dtype;
        call.mask = f.mask;
        call.diagonal = f.diagonal;
        call.scale = f.scale;
        call.deterministic = deterministic ? 1 : 0;
        call.workspace_bytes = flash_steps_backward_workspace_bytes(step.step, &call);
        if (call.workspace_bytes < 0) throw std::runtime_error(flash_steps_last_error());
        workspace_.emplace(step.on_device, canaries(static_cast<std::size_t>(call.workspace_bytes)));
        d_o_.emplace(step.on_device, bytes_of(d_o_host_));
        dq_.emplace(step.on_device, canaries(elements(call.q) * sizeof(T)));
        dk_.emplace(step.on_device, canaries(elements(call.k) * sizeof(T)));
        dv_.emplace(step.on_device, canaries(elements(call.k) * sizeof(T)));
        call.workspace = workspace_->data();
        call.d_o.data = d_o_->data();
        call.dq.data = dq_->data();
        call.dk.data = dk_->data();
        call.dv.data = dv_->data();
    }

    FlashBackward call{};  // a test may change it before it runs

    int run() const { return flash_steps_backward(step_.step, &call, nullptr); }
    std::vector<float> dq() const { return floats_of<T>(dq_->content()); }
    std::vector<float> dk() const { return floats_of<T>(dk_->content()); }
    std::vector<float> dv() const { return floats_of<T>(dv_->content()); }
    bool nothing_written() const {
        for (const auto* memory : {&*dq_, &*dk_, &*dv_, &*workspace_})
            if (memory->content() != canaries(memory->content().size())) return false;
        return true;
    }
    // The same problem in host memory, for the reference; it has no outputs.
    BackwardArgs<T> host_args() const {
        const auto f = forward_.host_args();
        BackwardArgs<T> args{};
        args.shape = f.shape;
        args.q = f.q;
        args.k = f.k;
        args.v = f.v;
        args.d_o = dense_bhnd<const T>(d_o_host_.data(), f.shape.heads_q, f.shape.len_q, f.shape.head_dim);
        args.mask = f.mask;
        args.scale = f.scale;
        return args;
    }

  private:
    static std::vector<T> gradient(const Shape& shape, std::uint64_t seed) {
        std::vector<T> values;
        for (const float x : random_inputs<T>(shape, seed + 1000).q) values.push_back(from_float<T>(x));
        return values;
    }
    static std::size_t elements(const FlashTensor& t) {
        return static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]);
    }
    static std::vector<std::byte> canaries(std::size_t bytes) {
        return std::vector<std::byte>(bytes, std::byte{0xa5});
    }

    FlashStepInfo step_;
    ForwardCall<T> forward_;
    std::vector<T> d_o_host_;
    std::optional<StepMemory> d_o_, dq_, dk_, dv_, workspace_;
};

}  // namespace flash::testing
