// Calls that must be refused: one change to a good call each.
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "common/testing/conformance.hpp"

namespace flash::testing {
namespace {

template <class T> struct BadArgument {
    std::string what;
    std::string named;  // what the sentence must contain
    Edit<T> edit;
    bool applies = true;
};

template <class P> P shifted(P pointer, std::intptr_t bytes) {
    return reinterpret_cast<P>(reinterpret_cast<std::intptr_t>(pointer) + bytes);
}

template <class T> std::vector<BadArgument<T>> changes(const Capabilities& can) {
    using Args = ForwardArgs<T>;
    constexpr float kInf = std::numeric_limits<float>::infinity();
    constexpr int kMaxInt = std::numeric_limits<int>::max();
    return {
        {"a negative batch", "shape.batch is -1", [](Args& a) { a.shape.batch = -1; }},
        {"negative query heads", "shape.heads_q is -4", [](Args& a) { a.shape.heads_q = -4; }},
        {"negative key heads", "shape.heads_kv is -2", [](Args& a) { a.shape.heads_kv = -2; }},
        {"a negative query length", "shape.len_q is -1", [](Args& a) { a.shape.len_q = -1; }},
        {"a negative key length", "shape.len_kv is -1", [](Args& a) { a.shape.len_kv = -1; }},
        {"a negative head dimension", "shape.head_dim is -8", [](Args& a) { a.shape.head_dim = -8; }},
        {"key heads that do not divide the query heads", "shape.heads_kv is 3",
         [](Args& a) { a.shape.heads_kv = 3; }},
        {"no key heads for some query heads", "shape.heads_kv is 0", [](Args& a) { a.shape.heads_kv = 0; }},
        {"a head dimension that is too large", "shape.head_dim is",
         [can](Args& a) { a.shape.head_dim = can.max_head_dim + can.head_dim_multiple; }},
        {"a head dimension of the wrong multiple", "shape.head_dim is", [](Args& a) { --a.shape.head_dim; },
         can.head_dim_multiple > 1},
        {"A10: scale 0", "scale is 0", [](Args& a) { a.scale = 0; }},
        {"A10: scale -1", "scale is -1", [](Args& a) { a.scale = -1; }},
        {"a scale of NaN", "scale is", [](Args& a) { a.scale = std::numeric_limits<float>::quiet_NaN(); }},
        {"an infinite scale", "scale is inf", [](Args& a) { a.scale = kInf; }},
        {"null Q", "q.data is null", [](Args& a) { a.q.data = nullptr; }},
        {"null K", "k.data is null", [](Args& a) { a.k.data = nullptr; }},
        {"null V", "v.data is null", [](Args& a) { a.v.data = nullptr; }},
        {"null O", "o.data is null", [](Args& a) { a.o.data = nullptr; }},
        {"null L", "lse.data is null", [](Args& a) { a.lse = nullptr; }},
        {"Q between two elements", "q.data is not aligned", [](Args& a) { a.q.data = shifted(a.q.data, 1); }},
        {"O between two elements", "o.data is not aligned", [](Args& a) { a.o.data = shifted(a.o.data, 1); }},
        {"L between two elements", "lse.data is not aligned", [](Args& a) { a.lse = shifted(a.lse, 2); }},
        {"K off its 16-byte alignment", "k.data is not aligned", [](Args& a) { a.k.data += 1; }, can.aligned},
        {"V's rows off their 16-byte alignment", "v.stride_row is", [](Args& a) { a.v.stride_row += 1; },
         can.aligned},
        {"a negative stride", "q.stride_row is -1", [](Args& a) { a.q.stride_row = -1; }},
        {"O's rows overlap", "o's strides", [](Args& a) { a.o.stride_row = a.o.stride_head; }},
        {"all heads of O in one place", "o's strides", [](Args& a) { a.o.stride_head = 0; }},
        {"all batch entries of O in one place", "o's strides", [](Args& a) { a.o.stride_batch = 0; }},
        {"O in the place of Q", "o overlaps q", [](Args& a) { a.o.data = const_cast<T*>(a.q.data); }},
        // O is longer than V, and on a GPU the next tensor may lie right behind V.
        {"O in the place of V", "o overlaps", [](Args& a) { a.o.data = const_cast<T*>(a.v.data); }},
        {"L inside K", "lse overlaps k",
         [](Args& a) { a.lse = const_cast<float*>(reinterpret_cast<const float*>(a.k.data)); }},
        {"L inside O", "o overlaps lse", [](Args& a) { a.lse = reinterpret_cast<float*>(a.o.data); }},
        {"strides whose span overflows", "k spans more than 2^63 bytes",
         [](Args& a) { a.k.stride_batch = std::int64_t{1} << 62; }},
        {"more queries and keys than 32-bit indices reach", "shape.len_q + shape.len_kv is",
         [](Args& a) { a.shape.len_q = a.shape.len_kv = kMaxInt - 8; }},
        {"sizes whose product overflows", "o spans more than 2^63 bytes",
         [](Args& a) {
             a.shape.batch = a.shape.heads_q = a.shape.heads_kv = kMaxInt;
             a.shape.len_q = kMaxInt / 2;
             a.o.stride_row = a.shape.head_dim;
             a.o.stride_head = a.o.stride_row * kMaxInt;
             a.o.stride_batch = std::numeric_limits<std::int64_t>::max() / 8 * 8;
         }},
        {"an L whose size overflows", "lse spans more than 2^63 bytes",
         [](Args& a) {
             a.shape.batch = a.shape.heads_q = a.shape.heads_kv = kMaxInt;
             a.shape.len_q = kMaxInt / 2;
             a.shape.head_dim = 0;
         }},
    };
}

template <class T> bool all_canary(const ForwardCall<T>& call) {
    for (const T x : call.o.memory)
        if (bits_of(x) != bits_of(canary<T>())) return false;
    for (const float x : call.lse)
        if (bits_of(x) != bits_of(canary<float>())) return false;
    return true;
}

// What is wrong with the step's answer to one bad call; empty when it refuses as it should.
template <class T>
std::string answer_to(const BadArgument<T>& bad, ForwardCall<T>& call, const Execute<T>& execute) {
    std::string failure = "was accepted";
    try {
        execute(call, bad.edit);
    } catch (const std::invalid_argument& refusal) {
        const std::string sentence = refusal.what();
        failure = sentence.find(bad.named) != std::string::npos
                      ? std::string()
                      : "was refused by a sentence without \"" + bad.named + "\": " + sentence;
    } catch (const std::exception& error) {
        failure = std::string("threw something else than std::invalid_argument: ") + error.what();
    }
    if (failure.empty() && !all_canary(call)) failure = "was refused, but something was written first";
    return failure;
}

}  // namespace

template <class T> std::vector<NamedCheck> bad_arguments(const Capabilities& can, const Execute<T>& execute) {
    const int head_dim = can.head_dim_multiple > 1 ? can.head_dim_multiple : 8;
    const ForwardCase good{"", {2, 4, 2, 5, 6, head_dim}};
    std::vector<NamedCheck> checks;
    for (const auto& change : changes<T>(can)) {
        if (!change.applies) continue;
        checks.push_back({change.what + " is refused", [=] {
                              auto call = make_call<T>(good, can.aligned);
                              return answer_to(change, call, execute);
                          }});
    }
    return checks;
}

template std::vector<NamedCheck> bad_arguments(const Capabilities&, const Execute<float>&);
template std::vector<NamedCheck> bad_arguments(const Capabilities&, const Execute<fp16>&);
template std::vector<NamedCheck> bad_arguments(const Capabilities&, const Execute<bf16>&);

}  // namespace flash::testing
