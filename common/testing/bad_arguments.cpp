// Forward calls that must be refused: one change to a good call each.
#include "common/testing/bad_arguments.hpp"

namespace flash::testing {
namespace {

template <class T> std::vector<BadArgument<ForwardArgs<T>>> bad_tensors(const Capabilities& can) {
    using Args = ForwardArgs<T>;
    constexpr int kMaxInt = std::numeric_limits<int>::max();
    return {
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

template <class T>
std::string answer_to(const BadArgument<ForwardArgs<T>>& bad, ForwardCall<T>& call,
                      const Execute<T>& execute) {
    const std::string failure = refusal_failure(bad.named, [&] { execute(call, bad.edit); });
    if (failure.empty() && !all_canary(call)) return "was refused, but something was written first";
    return failure;
}

}  // namespace

std::string refusal_failure(const std::string& named, const std::function<void()>& call) {
    try {
        call();
    } catch (const std::invalid_argument& refusal) {
        const std::string sentence = refusal.what();
        if (sentence.find(named) != std::string::npos) return {};
        return "was refused by a sentence without \"" + named + "\": " + sentence;
    } catch (const std::exception& error) {
        return std::string("threw something else than std::invalid_argument: ") + error.what();
    }
    return "was accepted";
}

template <class T> std::vector<NamedCheck> bad_arguments(const Capabilities& can, const Execute<T>& execute) {
    const int head_dim = can.head_dim_multiple > 1 ? can.head_dim_multiple : 8;
    const ForwardCase good{"", {2, 4, 2, 5, 6, head_dim}};
    auto changes = bad_sizes<ForwardArgs<T>>(can);
    append(changes, bad_tensors<T>(can));
    std::vector<NamedCheck> checks;
    for (const auto& change : changes) {
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
