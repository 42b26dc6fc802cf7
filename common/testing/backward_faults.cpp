// Inputs on which backward kernels of others went wrong. Each case is judged against the reference like every
// other, in both modes, and where a closed form exists against that number too.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "common/testing/backward_conformance.hpp"

namespace flash::testing {
namespace {

using enum Storage;
using enum Pattern;

// The first of some checks that fails.
std::string first_of(std::initializer_list<std::string> failures) {
    for (const auto& failure : failures)
        if (!failure.empty()) return failure;
    return "";
}

template <class T> double element(const HostTensor<T>& t, int b, int h, int n, int d) {
    return static_cast<double>(to_float(t.memory[static_cast<std::size_t>(t.index(b, h, n, d))]));
}

// Every channel of row (0, h, n) is exactly this.
template <class T>
std::string row_equals(const char* name, const HostTensor<T>& t, int h, int n, double want) {
    for (int d = 0; d < t.head_dim; ++d) {
        const double got = element(t, 0, h, n, d);
        if (!(got == want))
            return std::string(name) + "[h=" + std::to_string(h) + ", i=" + std::to_string(n) +
                   ", d=" + std::to_string(d) + "] is " + number(got) + ", want exactly " + number(want);
    }
    return "";
}

template <class T> class BackwardFaults {
  public:
    BackwardFaults(const Capabilities& can, const BackwardStep<T>& step) : can_(can), step_(step) {}
    std::vector<NamedCheck> all() const;

  private:
    using Call = BackwardCall<T>;
    using Value = std::function<float(int h, int n, int d)>;
    // What else must hold of the gradients of a call that has been run.
    using Extra = std::function<std::string(const Call&)>;

    Call make(Shape shape, Mask mask = Mask::none(), Storage storage = kBhnd, Pattern pattern = kNormal,
              Gradient gradient = Gradient::kNormal, float scale = 0) const {
        shape.head_dim = supported_head_dim(shape.head_dim, can_);
        return make_backward_call<T>({{"", shape, mask, storage, pattern, kSeed, scale}, gradient},
                                     can_.aligned);
    }
    bool fits(Shape shape) const {
        shape.head_dim = supported_head_dim(shape.head_dim, can_);
        return work_of(shape) <= can_.max_work;
    }
    // A call in one mode, ready to run.
    Call in_mode(Call call, bool deterministic) const {
        call.choose_mode(deterministic, step_.workspace_bytes(call.shape, deterministic));
        return call;
    }
    // Runs the step in both modes; the gradients must be those of the reference, and `extra` must hold.
    std::string run(Call call, const Extra& extra = {}) const {
        const auto expected = expect_gradients(call, kSeed);
        for (const bool deterministic : {false, true}) {
            const Call before = in_mode(call, deterministic);
            Call after = before;
            step_.execute(after, {});
            std::string failure = judge(before, after, expected, kNormal).failure;
            if (failure.empty() && extra) failure = extra(after);
            if (!failure.empty())
                return describe(call.shape) + ", " + describe(call.mask) +
                       (deterministic ? ", deterministic: " : ", fast: ") + failure;
        }
        return "";
    }
    std::string run_if_fits(Shape shape, Mask mask = Mask::none(), Pattern pattern = kNormal) const {
        return fits(shape) ? run(make(shape, mask, kBhnd, pattern)) : std::string();
    }

    std::string empty_rows() const;
    std::string masked_rows() const;
    std::string huge_logits() const;
    std::string cancelling_keys() const;
    std::string repeated_runs() const;
    std::string one_key_for_many_queries(int len_q, bool bottom_right) const;
    std::string group_of_heads() const;
    std::string delta_of_every_row() const;
    std::string very_negative_scores() const;
    std::string one_empty_row() const;
    std::string many_blocks() const;
    std::string workspace_growth() const;

    static constexpr std::uint64_t kSeed = 11;
    Capabilities can_;
    BackwardStep<T> step_;
};

template <class T> std::string BackwardFaults<T>::empty_rows() const {
    const auto no_keys = make({1, 2, 1, 5, 0, 16});
    const auto causal = make({1, 2, 1, 9, 4, 16}, Mask::causal(4 - 9));
    return first_of({run(no_keys, [](const Call& call) { return row_equals("dQ", call.dq, 1, 4, 0.0); }),
                     run(causal, [](const Call& call) { return row_equals("dQ", call.dq, 1, 4, 0.0); })});
}

template <class T> std::string BackwardFaults<T>::masked_rows() const {
    return run(make({1, 1, 1, 8, 8, 8}, Mask::causal(-4)), [](const Call& call) {
        std::string wrong;
        for (int n = 0; n < 4 && wrong.empty(); ++n) wrong = row_equals("dQ", call.dq, 0, n, 0.0);
        for (int n = 4; n < 8 && wrong.empty(); ++n) wrong = row_equals("dK", call.dk, 0, n, 0.0);
        return wrong;
    });
}

// Two equal keys share the weight: P = 0.5, and dV = P dO. An fp32 L near the logit is off by up to half the
// spacing of fp32 there, and the exponent is computed from numbers of that size: P may be off by a factor of
// up to exp(3 spacings). It may not be NaN, and nor may what is made of it.
template <class T> std::string BackwardFaults<T>::huge_logits() const {
    for (const float logit : {1e5f, 1e6f, 1e7f}) {
        auto call = make({1, 1, 1, 1, 2, 64}, Mask::none(), kBhnd, kNormal, Gradient::kOnes);
        set(call.q, [](int, int, int) { return 1024.0f; });
        set(call.k, [](int, int, int) { return 1024.0f; });
        set(call.v, [](int, int n, int) { return n == 0 ? 1.0f : 3.0f; });
        call.scale = logit / (1024.0f * 1024.0f * static_cast<float>(call.shape.head_dim));
        expect_gradients(call, kSeed);  // fills in O and L
        const double room =
            3 * format_of<float>().ulp(static_cast<double>(logit)) + 2 * format_of<T>().unit_roundoff();
        for (const bool deterministic : {false, true}) {
            Call after = in_mode(call, deterministic);
            step_.execute(after, {});
            for (int n = 0; n < 2; ++n) {
                const double p = element(after.dv, 0, 0, n, 0);
                if (!(std::abs(std::log(p) - std::log(0.5)) <= room))
                    return "at a logit of " + number(static_cast<double>(logit)) + " P is rebuilt as " +
                           number(p);
                if (!std::isfinite(element(after.dk, 0, 0, n, 0)) ||
                    !std::isfinite(element(after.dq, 0, 0, 0, 0)))
                    return "at a logit of " + number(static_cast<double>(logit)) + " dQ or dK is not finite";
            }
        }
    }
    return "";
}

// Equal scores and a rising V: what the keys add to dQ falls, then rises back to a sum of 0. A sum kept in
// anything narrower than fp32 loses what it lost on the way.
template <class T> std::string BackwardFaults<T>::cancelling_keys() const {
    constexpr int kKeys = 4096;
    auto call = make({1, 1, 1, 4, kKeys, 16}, Mask::none(), kBhnd, kAllEqual, Gradient::kOnes);
    set(call.v, [](int, int n, int) {
        const float x = static_cast<float>(n) / kKeys;
        return x * x - 1.0f / 3;
    });
    return run(call);
}

// The largest difference of two tensors of the same layout, element by element.
template <class T> double largest_difference(const HostTensor<T>& a, const HostTensor<T>& b) {
    double largest = 0;
    for (std::size_t at = 0; at < a.memory.size(); ++at) {
        const double difference = std::abs(static_cast<double>(to_float(a.memory[at])) -
                                           static_cast<double>(to_float(b.memory[at])));
        if (!std::isnan(difference)) largest = std::max(largest, difference);  // the guards are NaN
    }
    return largest;
}

// Every key of the first half has a twin in the second with the same weight and the opposite dS: dQ is 0 but
// for the rounding of fp32 sums, so that their order shows in the last bit of T.
template <class T> void cancel_halves(BackwardCall<T>& call) {
    const int half_len = call.shape.len_kv / 2;
    const auto at = [](HostTensor<T>& t, int h, int n, int d) -> T& {
        return t.memory[static_cast<std::size_t>(t.index(0, h, n, d))];
    };
    for (int h = 0; h < call.shape.heads_kv; ++h)
        for (int n = 0; n < half_len; ++n)
            for (int d = 0; d < call.shape.head_dim; ++d) {
                const float v = 64 * to_float(at(call.v, h, n, d));
                at(call.k, h, half_len + n, d) = at(call.k, h, n, d);
                at(call.v, h, n, d) = from_float<T>(v);
                at(call.v, h, half_len + n, d) = from_float<T>(-v);
            }
}

template <class T> std::string BackwardFaults<T>::repeated_runs() const {
    constexpr int kRuns = 30;
    const bool large = fits({2, 8, 4, 1024, 1024, 64});
    // Many key tiles, so that there are sums whose order can differ.
    const Shape shape = large ? Shape{2, 8, 4, 1024, 1024, 64} : Shape{1, 2, 1, 40, 500, 16};
    auto call =
        large ? make(shape, Mask::causal(0)) : make(shape, Mask::none(), kBhnd, kNormal, Gradient::kLarge);
    if (!large) cancel_halves(call);
    const auto expected = expect_gradients(call, kSeed);
    for (const bool deterministic : {false, true}) {
        const Call before = in_mode(call, deterministic);
        Call first = before;
        double spread[3] = {};
        for (int run = 0; run < kRuns; ++run) {
            Call again = before;
            step_.before_run(run);
            step_.execute(again, {});
            if (run == 0) first = again;
            const std::string failure = run == 0 ? judge(before, again, expected, kNormal).failure
                                                 : judge_gradients(again, expected, kNormal).failure;
            if (!failure.empty()) return "run " + std::to_string(run) + ": " + failure;
            const bool same = same_bits(first.dq.memory, again.dq.memory) &&
                              same_bits(first.dk.memory, again.dk.memory) &&
                              same_bits(first.dv.memory, again.dv.memory);
            if (deterministic && !same)
                return "run " + std::to_string(run + 1) + " of the deterministic mode differs from the first";
            spread[0] = std::max(spread[0], largest_difference(first.dq, again.dq));
            spread[1] = std::max(spread[1], largest_difference(first.dk, again.dk));
            spread[2] = std::max(spread[2], largest_difference(first.dv, again.dv));
        }
        step_.before_run(0);
        if (!deterministic && (large || spread[0] + spread[1] + spread[2] > 0))
            std::printf(
                "C7: %s, %d fast runs of %s differ from the first by up to %.2g in dQ (largest %.2g), %.2g "
                "in "
                "dK, %.2g in dV\n",
                dtype_name<T>(), kRuns, describe(call.shape).c_str(), spread[0], largest_element(first.dq),
                spread[1], spread[2]);
    }
    return "";
}

// dO = 1 and one key: dV counts the queries that see it, and dQ = dK = 0 because P = 1 whatever the score. V
// is on a coarse grid, so that dP and delta are exact in any order of summation.
template <class T>
std::string BackwardFaults<T>::one_key_for_many_queries(int len_q, bool bottom_right) const {
    auto call =
        make({1, 3, 3, len_q, 1, 32}, bottom_right ? Mask::causal(1 - len_q) : Mask::causal_top_left(), kBhnd,
             kNormal, Gradient::kOnes);
    for (auto* tensor : {&call.q, &call.k, &call.v})
        set(*tensor, [](int h, int n, int d) { return static_cast<float>((h + n + d) % 9 - 4) / 8; });
    return run(call, [=](const Call& after) {
        std::string wrong;
        for (int h = 0; h < 3 && wrong.empty(); ++h) {
            wrong = first_of({row_equals("dV", after.dv, h, 0, bottom_right ? 1.0 : len_q),
                              row_equals("dK", after.dk, h, 0, 0.0)});
            for (int n = 0; n < len_q && wrong.empty(); ++n) wrong = row_equals("dQ", after.dq, h, n, 0.0);
        }
        return wrong;
    });
}

// With a gradient in one query head only, one key head has gradients and the others have none.
template <class T> std::string BackwardFaults<T>::group_of_heads() const {
    for (const int head : {0, 3, 4, 7}) {
        auto call = make({1, 8, 2, 17, 33, 16});
        for (int h = 0; h < 8; ++h)
            for (int n = 0; n < 17 && h != head; ++n)
                for (int d = 0; d < call.shape.head_dim; ++d)
                    call.d_o.memory[static_cast<std::size_t>(call.d_o.index(0, h, n, d))] =
                        from_float<T>(0.0f);
        const std::string wrong = run(call, [head](const Call& after) {
            const int other = head < 4 ? 1 : 0;
            std::string failure;
            for (int n = 0; n < 33 && failure.empty(); ++n)
                failure = first_of(
                    {row_equals("dV", after.dv, other, n, 0.0), row_equals("dK", after.dk, other, n, 0.0)});
            return failure;
        });
        if (!wrong.empty()) return "dO in query head " + std::to_string(head) + " only: " + wrong;
    }
    return first_of({run(make({2, 6, 2, 17, 33, 16}, Mask::causal_top_left())),
                     run(make({1, 5, 1, 70, 40, 16}, Mask::causal_bottom_right({1, 5, 1, 70, 40, 16}))),
                     run_if_fits({2, 8, 2, 500, 500, 64}, Mask::causal_top_left())});
}

// dO grows by 2^12 from the first query row to the last, so that a delta of another row is not overlooked;
// rows are compared one at a time.
template <class T> std::string BackwardFaults<T>::delta_of_every_row() const {
    for (const int len_q : {1, 63, 65, 97, 129, 191}) {
        auto call = make({1, 1, 1, len_q, 20, 16});
        const auto factor = [len_q](int n) {
            return std::exp2(std::round(12.0f * static_cast<float>(n) / static_cast<float>(len_q) - 6.0f));
        };
        for (int n = 0; n < len_q; ++n)
            for (int d = 0; d < call.shape.head_dim; ++d) {
                T& x = call.d_o.memory[static_cast<std::size_t>(call.d_o.index(0, 0, n, d))];
                x = from_float<T>(factor(n) * to_float(x));
            }
        const auto expected = expect_gradients(call, kSeed);
        const std::string wrong = run(call, [&](const Call& after) {
            for (int n = 0; n < len_q; ++n) {
                double error = 0, size = 0;
                for (int d = 0; d < after.shape.head_dim; ++d) {
                    const auto at = static_cast<std::size_t>(n * after.shape.head_dim + d);
                    error =
                        std::max(error, std::abs(element(after.dq, 0, 0, n, d) - expected.dq.reference[at]));
                    size = std::max(size, expected.dq.magnitude[at]);
                }
                if (!(error <= 8 * format_of<T>().unit_roundoff() * size))
                    return "row " + std::to_string(n) + " of dQ is off by " + number(error / size) +
                           " of the size of its terms";
            }
            return std::string();
        });
        if (!wrong.empty()) return wrong;
    }
    return "";
}

// Scores far below zero: P must be rebuilt to full precision, and keys and queries that fill up a tile must
// not enter through exp(0 - L), which is exp(122) or more here.
template <class T> std::string BackwardFaults<T>::very_negative_scores() const {
    const auto with_scores = [this](Shape shape, const std::function<float(int key)>& score) {
        auto call = make(shape);
        const float scale = call.scale;
        set(call.q, [](int, int, int d) { return d == 0 ? 4.0f : d == 1 ? 0.5f : 0.0f; });
        set(call.k, [&](int, int n, int d) {
            return d == 0 ? score(n) / 4 / scale : d == 1 ? static_cast<float>(n % 7 - 3) : 0.0f;
        });
        return call;
    };
    const auto near_minus_127 = [](int) { return -127.0f; };  // L = -127 + ln 128 = -122
    const auto spread = [](int n) { return -200.0f - 290.0f * static_cast<float>(n % 30) / 30; };
    return first_of({run(with_scores({1, 2, 2, 1, 128, 64}, near_minus_127)),
                     run(with_scores({1, 2, 1, 1, 100, 64}, near_minus_127)),
                     run(with_scores({1, 1, 1, 37, 100, 64}, spread)),
                     run(with_scores({1, 2, 1, 70, 61, 64}, near_minus_127)),
                     run(make({1, 1, 1, 40, 70, 128}, Mask::causal_top_left(), kBhnd, kVeryNegative))});
}

// Empty rows with huge values in Q and dO: whatever leaks shows.
template <class T> std::string BackwardFaults<T>::one_empty_row() const {
    for (const int empty : {1, 3}) {
        auto call = make({1, 1, 1, 4, 4, 16}, Mask::causal(-empty));
        for (auto* tensor : {&call.q, &call.d_o})
            for (int n = 0; n < empty; ++n)
                for (int d = 0; d < call.shape.head_dim; ++d)
                    tensor->memory[static_cast<std::size_t>(tensor->index(0, 0, n, d))] =
                        from_float<T>(30000.0f);
        const std::string wrong = run(call, [empty](const Call& after) {
            std::string failure;
            for (int n = 0; n < empty && failure.empty(); ++n)
                failure = row_equals("dQ", after.dq, 0, n, 0.0);
            return failure;
        });
        if (!wrong.empty()) return wrong;
    }
    return run(make({2, 2, 1, 150, 140, 16}, Mask::causal(-70), kPadded));
}

template <class T> std::string BackwardFaults<T>::many_blocks() const {
    const Shape large{300, 1, 1, 512, 128, 128};
    const bool is_large = fits(large);
    const int runs = is_large ? 25 : 4;
    auto call = make(is_large ? large : Shape{3, 1, 1, 100, 128, 32});
    const auto expected = expect_gradients(call, kSeed);
    for (const bool deterministic : {false, true}) {
        const Call before = in_mode(call, deterministic);
        for (int run = 0; run < runs; ++run) {
            Call after = before;
            step_.before_run(run);
            step_.execute(after, {});
            const std::string failure = run == 0 ? judge(before, after, expected, kNormal).failure
                                                 : judge_gradients(after, expected, kNormal).failure;
            if (!failure.empty()) return "run " + std::to_string(run + 1) + ": " + failure;
        }
        step_.before_run(0);
    }
    return "";
}

// Twice the tokens may take twice the bytes, and a constant.
template <class T> std::string BackwardFaults<T>::workspace_growth() const {
    const int head_dim = supported_head_dim(64, can_);
    for (const bool deterministic : {false, true}) {
        const auto bytes = [&](int tokens) {
            return step_.workspace_bytes({2, 4, 2, tokens, tokens, head_dim}, deterministic);
        };
        constexpr std::int64_t kConstant = 1 << 16;
        for (int tokens = 1024; tokens <= 1 << 20; tokens *= 2)
            if (bytes(2 * tokens) > 2 * bytes(tokens) + kConstant)
                return std::to_string(2 * tokens) + " tokens need " + std::to_string(bytes(2 * tokens)) +
                       " bytes of workspace, half of them " + std::to_string(bytes(tokens));
        if (bytes(0) < 0 || step_.workspace_bytes({0, 0, 0, 0, 0, 0}, deterministic) < 0)
            return "the workspace of nothing is negative";
    }
    return "";
}

template <class T> std::vector<NamedCheck> BackwardFaults<T>::all() const {
    const auto self = *this;
    const Mask top_left = Mask::causal_top_left();
    return {
        {"A5: the gradient of a query that sees no key is zero", [=] { return self.empty_rows(); }},
        {"A7: rows without a visible key have zero gradients, not NaN, beside rows that see some",
         [=] { return self.masked_rows(); }},
        {"A12: at logits of 1e7 P is rebuilt within the spacing of fp32, and no gradient is NaN",
         [=] { return self.huge_logits(); }},
        {"A16: the error of dQ does not grow with the number of keys, nor that of dK and dV with the queries",
         [=] {
             return first_of({self.cancelling_keys(), self.run(self.make({1, 1, 1, 4, 4096, 16})),
                              self.run(self.make({1, 1, 1, 4096, 4, 16}))});
         }},
        {"B2: lengths and head dimensions that are no multiple of a tile",
         [=] {
             return first_of({self.run(self.make({1, 2, 2, 192, 97, 16}, Mask::none(), kBnhd)),
                              self.run(self.make({1, 1, 1, 97, 192, 63})),
                              self.run_if_fits({1, 8, 8, 192, 192, 16}, top_left),
                              self.run_if_fits({2, 8, 8, 1000, 1000, 63})});
         }},
        {"B3: one query, and fewer keys than a warp",
         [=] {
             return first_of({self.run(self.make({2, 4, 4, 1, 20, 128})),
                              self.run(self.make({1, 2, 2, 1, 1, 32})),
                              self.run(self.make({1, 2, 2, 31, 31, 32}, top_left)),
                              self.run_if_fits({4, 32, 32, 1, 20, 128})});
         }},
        {"C7: 30 runs are bitwise equal in deterministic mode, and each within the tolerance in fast mode",
         [=] { return self.repeated_runs(); }},
        {"C8: no row of a gradient stays unwritten, and nothing outside the gradients is written",
         [=] {
             return first_of({self.run(self.make({2, 2, 1, 100, 3, 16}, Mask::causal(-50), kPadded)),
                              self.run(self.make({2, 3, 3, 67, 66, 16}, top_left)),
                              self.run(self.make({1, 2, 1, 3, 200, 16}, top_left, kPadded)),
                              self.run(self.make({1, 2, 1, 0, 20, 16})),
                              self.run(self.make({1, 2, 1, 20, 0, 16}))});
         }},
        {"C8: the workspace never grows with Nq Nk", [=] { return self.workspace_growth(); }},
        {"D3: causal, 76, 34 and 146 queries on one key: dV = 1 bottom-right, the number of queries "
         "top-left; "
         "dQ = dK = 0",
         [=] {
             std::string wrong;
             for (const int len_q : {76, 34, 146})
                 for (const bool bottom_right : {true, false})
                     if (wrong.empty()) wrong = self.one_key_for_many_queries(len_q, bottom_right);
             return wrong;
         }},
        {"D4: dK and dV sum over the query heads of their group, and over no other",
         [=] { return self.group_of_heads(); }},
        {"D5: delta is that of its own row, whatever tiles the lengths make",
         [=] { return self.delta_of_every_row(); }},
        {"D6: scores from -127 to -490, also for a single query",
         [=] { return self.very_negative_scores(); }},
        {"D7: an empty row has no effect on dK and dV", [=] { return self.one_empty_row(); }},
        {"D8: every one of many runs over many blocks is right", [=] { return self.many_blocks(); }},
    };
}

}  // namespace

template <class T>
std::vector<NamedCheck> backward_public_faults(const Capabilities& can, const BackwardStep<T>& step) {
    return BackwardFaults<T>(can, step).all();
}

template std::vector<NamedCheck> backward_public_faults(const Capabilities&, const BackwardStep<float>&);
template std::vector<NamedCheck> backward_public_faults(const Capabilities&, const BackwardStep<fp16>&);
template std::vector<NamedCheck> backward_public_faults(const Capabilities&, const BackwardStep<bf16>&);

}  // namespace flash::testing
