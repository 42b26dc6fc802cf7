// Inputs on which kernels and frameworks of others went wrong. Each case is judged against the reference like
// every other and, where a closed form exists, against that number too.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "common/testing/conformance.hpp"

namespace flash::testing {
namespace {

using enum Storage;
using enum Pattern;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string differs(const char* what, double got, double want, double tolerance) {
    const bool same_kind = std::isnan(want) ? std::isnan(got) : std::isinf(want) && got == want;
    if (same_kind || std::abs(got - want) <= tolerance) return "";
    return std::string(what) + " is " + std::to_string(got) + ", want " + std::to_string(want);
}

template <class T> class Faults {
  public:
    Faults(const Capabilities& can, const Execute<T>& execute) : can_(can), execute_(execute) {}
    std::vector<NamedCheck> all() const;

  private:
    using Call = ForwardCall<T>;
    using Value = std::function<float(int h, int n, int d)>;

    // The multiple of the step's granularity next to d, within its limit.
    int head_dim(int d) const {
        const int m = can_.head_dim_multiple;
        return std::min((d + m - 1) / m * m, can_.max_head_dim / m * m);
    }
    Call make(Shape shape, Mask mask = Mask::none(), Storage storage = kBhnd, Pattern pattern = kNormal,
              float scale = 0) const {
        shape.head_dim = head_dim(shape.head_dim);
        return make_call<T>({"", shape, mask, storage, pattern, 11, scale}, can_.aligned);
    }
    // Runs the step and compares with the reference.
    std::string run(Call& call) const {
        const Call before = call;
        execute_(call, {});
        return judge(before, call, kNormal, 11).failure;
    }
    std::string run_case(Shape shape, Mask mask = Mask::none(), Storage storage = kBhnd,
                         Pattern pattern = kNormal) const {
        auto call = make(shape, mask, storage, pattern);
        const std::string failure = run(call);
        return failure.empty() ? failure : describe(call.shape) + ", " + describe(mask) + ": " + failure;
    }
    bool fits(Shape shape) const {
        shape.head_dim = head_dim(shape.head_dim);
        return work_of(shape) <= can_.max_work;
    }
    std::string run_if_fits(Shape shape, Mask mask = Mask::none(), Pattern pattern = kNormal) const {
        return fits(shape) ? run_case(shape, mask, kBhnd, pattern) : std::string();
    }
    static double o_of(const Call& call, int h, int i, int d) {
        return static_cast<double>(
            to_float(call.o.memory[static_cast<std::size_t>(call.o.index(0, h, i, d))]));
    }
    static double lse_of(const Call& call, int h, int i) {
        return static_cast<double>(
            call.lse[static_cast<std::size_t>(Call::kLseGuard + h * call.shape.len_q + i)]);
    }

    // All of O's channels equal `want` exactly.
    static std::string rows_equal(const Call& call, int h, int i, double want) {
        std::string wrong;
        for (int d = 0; d < call.shape.head_dim && wrong.empty(); ++d)
            wrong = differs("O", o_of(call, h, i, d), want, 0);
        return wrong;
    }
    // One query (1, 0, ...) against keys (scores[j], 0, ...), with scale 1; head 1 is left random.
    Call with_scores(const std::vector<float>& scores) const {
        auto call =
            make({1, 2, 2, 1, static_cast<int>(scores.size()), 16}, Mask::none(), kBhnd, kNormal, 1.0f);
        set_head0(call.q, [](int, int d) { return d == 0 ? 1.0f : 0.0f; });
        set_head0(call.k, [&](int n, int d) { return d == 0 ? scores[static_cast<std::size_t>(n)] : 0.0f; });
        return call;
    }
    static void set_head0(HostTensor<T>& t, const std::function<float(int n, int d)>& value) {
        for (int n = 0; n < t.len; ++n)
            for (int d = 0; d < t.head_dim; ++d)
                t.memory[static_cast<std::size_t>(t.index(0, 0, n, d))] = from_float<T>(value(n, d));
    }

    std::string huge_negative_logit() const;
    std::string empty_rows() const;
    std::string natural_logarithm() const;
    std::string non_finite_scores() const;
    std::string bad_scale() const;
    std::string huge_logits() const;
    std::string masked_at_large_logits() const;
    std::string vanishing_weights() const;
    std::string long_sequences() const;
    std::string upper_channels() const;
    std::string strides() const;
    std::string group_of_heads() const;

    Capabilities can_;
    Execute<T> execute_;
};

// The first of some checks that fails.
std::string first_of(std::initializer_list<std::string> failures) {
    for (const auto& failure : failures)
        if (!failure.empty()) return failure;
    return "";
}

template <class T> std::string Faults<T>::huge_negative_logit() const {
    auto call = make({1, 1, 1, 1, 1, 128});
    set(call.q, [](int, int, int) { return 16.0f; });
    set(call.k, [](int, int, int) { return -256.0f; });
    set(call.v, [](int, int, int) { return 1.0f; });
    const std::string wrong = run(call);
    const double want =
        -4096.0 * std::sqrt(static_cast<double>(call.shape.head_dim));  // -46340.95 at D = 128
    return first_of({wrong, rows_equal(call, 0, 0, 1.0), differs("L", lse_of(call, 0, 0), want, 0.01)});
}

template <class T> std::string Faults<T>::empty_rows() const {
    auto no_keys = make({1, 2, 1, 5, 0, 16});
    auto causal = make({1, 2, 1, 9, 4, 16}, Mask::causal(4 - 9));
    const std::string wrong = first_of({run(no_keys), run(causal)});
    return first_of({wrong, rows_equal(no_keys, 1, 4, 0.0), differs("L", lse_of(no_keys, 1, 4), -kInf, 0),
                     rows_equal(causal, 1, 4, 0.0), differs("L", lse_of(causal, 1, 4), -kInf, 0)});
}

template <class T> std::string Faults<T>::natural_logarithm() const {
    auto zeros = make({2, 1, 1, 1, 1600, 8}, Mask::none(), kBhnd, kZeros);
    const std::string wrong = first_of({run(zeros), run_case({2, 1, 1, 3, 1600, 16})});
    return first_of({wrong, differs("L of 1600 equal scores", lse_of(zeros, 0, 0), std::log(1600.0), 1e-5)});
}

template <class T> std::string Faults<T>::non_finite_scores() const {
    auto two = with_scores({0, kInf}), three = with_scores({-kInf, 0, kInf}), nan = with_scores({0, kNan, 1});
    auto masked = with_scores({-kInf, 0, 1}), all_masked = with_scores({-kInf, -kInf});
    const std::string wrong = first_of({run(two), run(three), run(nan), run(masked), run(all_masked)});
    const double kNotANumber = std::numeric_limits<double>::quiet_NaN();
    return first_of({wrong, rows_equal(two, 0, 0, kNotANumber), rows_equal(three, 0, 0, kNotANumber),
                     rows_equal(nan, 0, 0, kNotANumber), differs("L", lse_of(two, 0, 0), kNotANumber, 0),
                     differs("L", lse_of(masked, 0, 0), std::log(1 + std::exp(1.0)), 1e-6)});
}

template <class T> std::string Faults<T>::bad_scale() const {
    for (const float scale : {0.0f, -1.0f, kNan, kInf}) {
        auto call = make({1, 1, 1, 5, 5, 16}, Mask::causal_top_left());
        try {
            execute_(call, [scale](ForwardArgs<T>& args) { args.scale = scale; });
        } catch (const std::invalid_argument&) {
            continue;
        }
        return "scale " + std::to_string(scale) + " was accepted";
    }
    return "";
}

// At a scaled logit of 1e7 the spacing of fp32 numbers is 1: L = 1e7 + ln 2 cannot be held, and P = exp(S -
// L) rebuilt from it is off by as much as exp(spacing / 2). O must not suffer.
template <class T> std::string Faults<T>::huge_logits() const {
    for (const float logit : {1e7f, 1e8f}) {
        auto call = make({1, 1, 1, 1, 2, 64});
        set(call.q, [](int, int, int) { return 1024.0f; });
        set(call.k, [](int, int, int) { return 1024.0f; });
        set(call.v, [](int, int n, int) { return n == 0 ? 1.0f : 3.0f; });
        call.scale = logit / (1024.0f * 1024.0f * static_cast<float>(call.shape.head_dim));
        const std::string wrong = run(call);
        const double spacing = format_of<float>().ulp(static_cast<double>(logit));
        const double lse = lse_of(call, 0, 0);
        const double rebuilt = std::exp(static_cast<double>(logit) - lse);
        const std::string failure =
            first_of({wrong, rows_equal(call, 0, 0, 2.0),
                      differs("L", lse, static_cast<double>(logit) + std::log(2.0), spacing),
                      differs("ln of the rebuilt P", std::log(rebuilt), std::log(0.5), spacing)});
        if (!failure.empty()) return failure;
    }
    return "";
}

template <class T> std::string Faults<T>::masked_at_large_logits() const {
    auto call = make({1, 1, 1, 40, 40, 64}, Mask::causal(-16));
    set(call.q, [](int, int, int) { return 500.0f; });
    set(call.k, [](int, int, int) { return -500.0f; });  // scaled scores of -2e6 at D = 64
    set(call.v, [](int, int n, int) { return n == 0 ? 1.0f : 512.0f; });
    const std::string wrong = run(call);
    return first_of({wrong, rows_equal(call, 0, 15, 0.0), rows_equal(call, 0, 16, 1.0)});
}

template <class T> std::string Faults<T>::vanishing_weights() const {
    for (const float gap : {90.0f, 104.0f, 200.0f, 1e4f}) {
        auto call = make({1, 1, 1, 1, 40, 16}, Mask::none(), kBhnd, kNormal, 1.0f);
        set(call.q, [](int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
        set(call.k, [gap](int, int n, int d) { return d == 0 && n != 21 ? -gap : 0.0f; });
        set(call.v, [](int, int n, int) { return n == 21 ? 1.0f : 32768.0f; });
        const std::string failure = first_of({run(call), rows_equal(call, 0, 0, 1.0)});
        if (!failure.empty()) return "gap " + std::to_string(gap) + ": " + failure;
    }
    return "";
}

template <class T> std::string Faults<T>::long_sequences() const {
    auto zeros = make({1, 1, 1, 2, 33728, 8}, Mask::none(), kBhnd, kZeros);
    std::string wrong = run(zeros);
    wrong = first_of({wrong, rows_equal(zeros, 0, 1, 0.0), differs("L", lse_of(zeros, 0, 1), 10.4261, 1e-4)});
    return first_of({wrong, run_case({1, 1, 1, 1, 65537, 8}, Mask::causal(65536), kBhnd, kIncreasing),
                     run_case({1, 1, 1, 65537, 2, 8}, Mask::causal_top_left()),
                     run_if_fits({1, 1, 1, 65537, 65537, 64}, Mask::causal_top_left(), kIncreasing)});
}

template <class T> std::string Faults<T>::upper_channels() const {
    auto call = make({1, 2, 2, 40, 40, 128});
    const int half = call.shape.head_dim / 2;
    for (auto* t : {&call.q, &call.k})
        for (int h = 0; h < t->heads; ++h)
            for (int n = 0; n < t->len; ++n)
                for (int d = 0; d < half; ++d)
                    t->memory[static_cast<std::size_t>(t->index(0, h, n, d))] = from_float<T>(0.0f);
    return first_of({run(call), run_case({1, 2, 2, 33, 41, 80}, Mask::none(), kBhnd, kTimes10),
                     run_if_fits({3, 2, 2, 2048, 2048, 128})});
}

template <class T> std::string Faults<T>::strides() const {
    // V is stored as (B, N, H, D) while Q and K are (B, H, N, D).
    auto transposed = make({1, 2, 2, 62, 62, 128});
    transposed.v = make_tensor<T>(kBnhd, Role::kV, 1, 2, 62, transposed.shape.head_dim, can_.aligned);
    fill(transposed.v, kNormal, Role::kV, 11);
    auto row_shared = make({2, 2, 2, 9, 33, 16}, Mask::none(), kSharedRow);
    return first_of({run(transposed), run(row_shared),
                     run_case({3, 2, 2, 9, 33, 16}, Mask::none(), kSharedKv),
                     run_case({2, 3, 3, 17, 33, 16}, Mask::causal_top_left(), kPadded)});
}

template <class T> std::string Faults<T>::group_of_heads() const {
    auto call = make({1, 8, 2, 17, 33, 16});
    set(call.v, [](int h, int, int) { return h == 0 ? 1.0f : 2.0f; });
    std::string wrong = run(call);
    for (int h = 0; h < 8 && wrong.empty(); ++h)
        if (std::abs(o_of(call, h, 0, 0) - (h < 4 ? 1 : 2)) > 0.02)
            wrong = "query head " + std::to_string(h) + " does not read key head " + std::to_string(h / 4);
    return first_of({wrong, run_case({2, 6, 2, 17, 33, 16}, Mask::causal_top_left())});
}

template <class T> std::vector<NamedCheck> Faults<T>::all() const {
    const auto self = *this;
    const Mask top_left = Mask::causal_top_left();
    return {
        {"A1: one key with a scaled logit of -46341 gives O = V", [=] { return self.huge_negative_logit(); }},
        {"A5: a query that sees no key has L = -inf and O = 0", [=] { return self.empty_rows(); }},
        {"A6: L is a natural logarithm", [=] { return self.natural_logarithm(); }},
        {"A7: rows without a visible key are zero, not NaN, beside rows that see some",
         [=] {
             return self.run_case({1, 1, 1, 8, 8, 8}, Mask::causal(-4));
         }},
        {"A9: a +inf or NaN score makes its row NaN and no other; -inf is a masked key",
         [=] { return self.non_finite_scores(); }},
        {"A10: a scale of 0, -1, NaN or inf is refused", [=] { return self.bad_scale(); }},
        {"A12: O is right at logits of 1e7 and 1e8, and L within the spacing of fp32",
         [=] { return self.huge_logits(); }},
        {"A13: masked keys weigh exactly 0 beside logits of -2e6",
         [=] { return self.masked_at_large_logits(); }},
        {"A14: weights below the smallest fp32 number are 0", [=] { return self.vanishing_weights(); }},
        {"A15: scores beyond the range of fp16 stay finite",
         [=] {
             auto call = self.make({1, 1, 1, 20, 33, 80});
             for (auto* t : {&call.q, &call.k}) set(*t, [](int, int, int) { return 30.0f; });
             return self.run(call);
         }},
        {"A16: the error does not grow with the number of keys",
         [=] {
             return first_of({self.run_case({1, 1, 1, 4, 4096, 16}, Mask::none(), kBhnd, kIncreasing),
                              self.run_case({1, 1, 1, 4, 4096, 16})});
         }},
        {"B2: lengths and head dimensions that are no multiple of a tile",
         [=] {
             return first_of({self.run_case({1, 2, 2, 192, 192, 16}, Mask::none(), kBnhd),
                              self.run_case({1, 1, 1, 97, 97, 63}),
                              self.run_if_fits({1, 8, 8, 192, 192, 16}, top_left),
                              self.run_if_fits({2, 32, 32, 4096, 4096, 63})});
         }},
        {"B3: one query, and fewer keys than a warp",
         [=] {
             return first_of({self.run_case({4, 32, 32, 1, 20, 128}), self.run_case({1, 2, 2, 1, 1, 32}),
                              self.run_case({1, 2, 2, 31, 31, 32}, top_left)});
         }},
        {"B7: sequences longer than 16-bit indices", [=] { return self.long_sequences(); }},
        {"B9: every channel counts, and the scale is that of the true head dimension",
         [=] { return self.upper_channels(); }},
        {"C4: nothing is read past the last element of an exact allocation",
         [=] {
             return first_of({self.run_case({1, 5, 1, 3, 5, 8}), self.run_case({1, 5, 1, 5, 7, 24}, top_left),
                              self.run_case({1, 1, 1, 7, 3, 40})});
         }},
        {"C5: strides of every kind are followed", [=] { return self.strides(); }},
        {"C8: no row stays unwritten, and nothing outside the outputs is written",
         [=] {
             return first_of({self.run_case({2, 2, 1, 100, 3, 16}, Mask::causal(-50), kPadded),
                              self.run_case({2, 3, 3, 67, 66, 16}, top_left, kBnhd)});
         }},
        {"D4: query heads read their own key head", [=] { return self.group_of_heads(); }},
    };
}

}  // namespace

template <class T> std::vector<NamedCheck> public_faults(const Capabilities& can, const Execute<T>& execute) {
    return Faults<T>(can, execute).all();
}

template std::vector<NamedCheck> public_faults(const Capabilities&, const Execute<float>&);
template std::vector<NamedCheck> public_faults(const Capabilities&, const Execute<fp16>&);
template std::vector<NamedCheck> public_faults(const Capabilities&, const Execute<bf16>&);

}  // namespace flash::testing
