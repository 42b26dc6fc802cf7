// One backward call for a bench: its tensors on the host and in a Buffer, O and L from a forward of the same
// step, and the check of the gradients by the tests' rule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/bench/backward_check.hpp"
#include "common/bench/inputs.hpp"
#include "common/testing/backward_case.hpp"
#include "common/testing/real_model.hpp"

namespace flash::bench {

// Floating-point operations of the five matrix products, 10 D per visible pair of query and key: 2.5 times
// the forward's.
inline double backward_flops(const Shape& shape, const Mask& mask) {
    double pairs = 0;
    for (int i = 0; i < shape.len_q; ++i) pairs += static_cast<double>(mask.visible_keys(i, shape.len_kv));
    return 10.0 * shape.batch * shape.heads_q * shape.head_dim * pairs;
}

// Bytes that have to move at least: every tensor once. Q, O, dO, dQ; K, V, dK, dV; L.
inline double backward_bytes(const Shape& s, int element_bytes) {
    const double rows_q = 1.0 * s.batch * s.heads_q * s.len_q,
                 rows_kv = 1.0 * s.batch * s.heads_kv * s.len_kv;
    return 4 * (rows_q + rows_kv) * s.head_dim * element_bytes + rows_q * sizeof(float);
}

// The functions of a step, for one element type.
template <class T> struct BackwardFunctions {
    std::function<void(const ForwardArgs<T>&)> forward;
    std::function<void(const BackwardArgs<T>&)> backward;
    std::function<std::int64_t(const Shape&, bool deterministic)> workspace_bytes;
};

template <class T, template <class> class Buffer> class BackwardProblem {
  public:
    using Functions = BackwardFunctions<T>;

    BackwardProblem(const Shape& shape, const Mask& mask, const Functions& functions)
        : BackwardProblem({"", shape, mask, testing::Storage::kBhnd, testing::Pattern::kZeros, kSeed},
                          functions) {
        host_.q.memory = random_normal<T>(host_.q.elements(), kSeed);
        host_.k.memory = random_normal<T>(host_.k.elements(), kSeed + 1);
        host_.v.memory = random_normal<T>(host_.v.elements(), kSeed + 2);
        host_.d_o.memory = random_normal<T>(host_.d_o.elements(), kSeed + 3);
        run_forward();
    }

    // Q, K and V of one layer of a sentence model on real text, and a random dO.
    static BackwardProblem real(const Functions& functions) {
        const auto& model = testing::real_model();
        const Shape shape{1, model.heads, model.heads, model.tokens, model.tokens, model.head_dim};
        BackwardProblem problem(
            {"", shape, Mask::none(), testing::Storage::kBhnd, testing::Pattern::kRealModel, kSeed},
            functions);
        problem.run_forward();
        return problem;
    }

    // Causal and unmasked calls of the same shape share their tensors, but for O and L.
    void set_mask(const Mask& mask) {
        host_.mask = mask;
        run_forward();
    }

    const Shape& shape() const { return host_.shape; }
    const Mask& mask() const { return host_.mask; }
    BackwardArgs<T> args(bool deterministic) {
        BackwardArgs<T> args{host_.shape,
                             host_.q.view(std::as_const(q_).data()),
                             host_.k.view(std::as_const(k_).data()),
                             host_.v.view(std::as_const(v_).data()),
                             host_.o.view(std::as_const(o_).data()),
                             lse_.data(),
                             host_.d_o.view(std::as_const(d_o_).data()),
                             host_.dq.view(dq_.data()),
                             host_.dk.view(dk_.data()),
                             host_.dv.view(dv_.data()),
                             host_.mask,
                             host_.scale};
        args.workspace = workspace_.data();
        args.workspace_bytes = functions_.workspace_bytes(host_.shape, deterministic);
        args.deterministic = deterministic;
        return args;
    }

    // Runs the backward on outputs and a workspace full of NaN. Empty when dQ, dK and dV are right, else what
    // is wrong.
    std::string failure(bool deterministic) {
        for (const auto& [buffer, tensor] :
             {std::pair{&dq_, &host_.dq}, {&dk_, &host_.dk}, {&dv_, &host_.dv}})
            buffer->copy_from_host(tensor->memory.data());
        const std::vector<std::byte> nan(workspace_.size(), std::byte{0xff});
        workspace_.copy_from_host(nan.data());
        functions_.backward(args(deterministic));
        testing::BackwardCall<T> after = host_;
        dq_.copy_to_host(after.dq.memory.data());
        dk_.copy_to_host(after.dk.memory.data());
        dv_.copy_to_host(after.dv.memory.data());
        for (const auto& [tensor, name] :
             {std::pair{&after.dq, "dQ"}, {&after.dk, "dK"}, {&after.dv, "dV"}}) {
            const std::string unwritten = testing::check_written(*tensor, name);
            if (!unwritten.empty()) return unwritten;
        }
        const testing::BackwardCall<T> some = some_heads(after, kSeed);
        return testing::judge_gradients(some, gradients_of(some, kSeed), pattern_).failure;
    }

  private:
    static constexpr std::uint64_t kSeed = 1;

    BackwardProblem(const testing::ForwardCase& c, const Functions& functions)
        : pattern_(c.pattern),
          functions_(functions),
          host_(testing::make_backward_call<T>({c}, true)),
          q_(host_.q.memory.size()),
          k_(host_.k.memory.size()),
          v_(host_.v.memory.size()),
          o_(host_.o.memory.size()),
          d_o_(host_.d_o.memory.size()),
          dq_(host_.dq.memory.size()),
          dk_(host_.dk.memory.size()),
          dv_(host_.dv.memory.size()),
          lse_(host_.lse.size()),
          workspace_(static_cast<std::size_t>(std::max(functions.workspace_bytes(c.shape, false),
                                                       functions.workspace_bytes(c.shape, true)))) {}

    void run_forward() {
        q_.copy_from_host(host_.q.memory.data());
        k_.copy_from_host(host_.k.memory.data());
        v_.copy_from_host(host_.v.memory.data());
        d_o_.copy_from_host(host_.d_o.memory.data());
        o_.copy_from_host(host_.o.memory.data());
        functions_.forward({host_.shape, host_.q.view(std::as_const(q_).data()),
                            host_.k.view(std::as_const(k_).data()), host_.v.view(std::as_const(v_).data()),
                            host_.o.view(o_.data()), lse_.data(), host_.mask, host_.scale});
        o_.copy_to_host(host_.o.memory.data());
        lse_.copy_to_host(host_.lse.data());
    }

    testing::Pattern pattern_;
    Functions functions_;
    testing::BackwardCall<T> host_;
    Buffer<T> q_, k_, v_, o_, d_o_, dq_, dk_, dv_;
    Buffer<float> lse_;
    Buffer<std::byte> workspace_;
};

}  // namespace flash::bench
