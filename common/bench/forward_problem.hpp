// One forward call for a bench: its tensors on the host and in a Buffer (host memory for CPU steps, device
// memory for GPU steps), and the check of its result by the tests' rule.
#pragma once

#include <functional>
#include <string>

#include "common/bench/inputs.hpp"
#include "common/testing/forward_case.hpp"
#include "common/testing/real_model.hpp"

namespace flash::bench {

// Floating-point operations of the two matrix products, 4 D per visible pair of query and key: with a causal
// mask half of 4 B Hq Nq Nk D, up to the diagonal.
inline double forward_flops(const Shape& shape, const Mask& mask) {
    double pairs = 0;
    for (int i = 0; i < shape.len_q; ++i) pairs += static_cast<double>(mask.visible_keys(i, shape.len_kv));
    return 4.0 * shape.batch * shape.heads_q * shape.head_dim * pairs;
}

// Bytes that have to move at least: every tensor once.
inline double forward_bytes(const Shape& s, int element_bytes) {
    const double rows_q = 1.0 * s.batch * s.heads_q * s.len_q,
                 rows_kv = 1.0 * s.batch * s.heads_kv * s.len_kv;
    return (2 * rows_q + 2 * rows_kv) * s.head_dim * element_bytes + rows_q * sizeof(float);
}

template <class T, template <class> class Buffer> class ForwardProblem {
  public:
    ForwardProblem(const Shape& shape, const Mask& mask)
        : ForwardProblem({"", shape, mask, testing::Storage::kBhnd, testing::Pattern::kZeros, kSeed}) {
        host_.q.memory = random_normal<T>(host_.q.elements(), kSeed);
        host_.k.memory = random_normal<T>(host_.k.elements(), kSeed + 1);
        host_.v.memory = random_normal<T>(host_.v.elements(), kSeed + 2);
        upload();
    }

    // Q, K and V of one layer of a sentence model on real text.
    static ForwardProblem real() {
        const auto& model = testing::real_model();
        const Shape shape{1, model.heads, model.heads, model.tokens, model.tokens, model.head_dim};
        return ForwardProblem(
            {"", shape, Mask::none(), testing::Storage::kBhnd, testing::Pattern::kRealModel, kSeed});
    }

    // Causal and unmasked calls of the same shape share their tensors.
    void set_mask(const Mask& mask) { host_.mask = mask; }

    const Shape& shape() const { return host_.shape; }
    const Mask& mask() const { return host_.mask; }
    ForwardArgs<T> args() { return host_.args(q_.data(), k_.data(), v_.data(), o_.data(), lse_.data()); }

    // Runs forward on outputs full of NaN. Empty when O and L are right, else what is wrong.
    std::string failure(const std::function<void(const ForwardArgs<T>&)>& forward) {
        upload();
        forward(args());
        testing::ForwardCall<T> after = host_;
        q_.copy_to_host(after.q.memory.data());
        k_.copy_to_host(after.k.memory.data());
        v_.copy_to_host(after.v.memory.data());
        o_.copy_to_host(after.o.memory.data());
        lse_.copy_to_host(after.lse.data());
        return testing::judge(host_, after, pattern_, kSeed).failure;
    }

  private:
    static constexpr std::uint64_t kSeed = 1;

    explicit ForwardProblem(const testing::ForwardCase& c)
        : pattern_(c.pattern),
          host_(testing::make_call<T>(c, false)),
          q_(host_.q.memory.size()),
          k_(host_.k.memory.size()),
          v_(host_.v.memory.size()),
          o_(host_.o.memory.size()),
          lse_(host_.lse.size()) {
        upload();
    }

    void upload() {
        q_.copy_from_host(host_.q.memory.data());
        k_.copy_from_host(host_.k.memory.data());
        v_.copy_from_host(host_.v.memory.data());
        o_.copy_from_host(host_.o.memory.data());
        lse_.copy_from_host(host_.lse.data());
    }

    testing::Pattern pattern_;
    testing::ForwardCall<T> host_;
    Buffer<T> q_, k_, v_, o_;
    Buffer<float> lse_;
};

}  // namespace flash::bench
