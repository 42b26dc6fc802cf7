// What the forward's and the backward's lists of bad calls share: one change to a good call each.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/testing/conformance.hpp"

namespace flash::testing {

// Args: ForwardArgs<T> or BackwardArgs<T>.
template <class Args> struct BadArgument {
    std::string what;
    std::string named;  // what the sentence must contain
    std::function<void(Args&)> edit;
    bool applies = true;
};

template <class P> P shifted(P pointer, std::intptr_t bytes) {
    return reinterpret_cast<P>(reinterpret_cast<std::intptr_t>(pointer) + bytes);
}

// Changes to the shape and the scale alone.
template <class Args> std::vector<BadArgument<Args>> bad_sizes(const Capabilities& can) {
    using Limit = std::numeric_limits<float>;
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
        {"more queries and keys than 32-bit indices reach", "shape.len_q + shape.len_kv is",
         [](Args& a) { a.shape.len_q = a.shape.len_kv = kMaxInt - 8; }},
        {"A10: scale 0", "scale is 0", [](Args& a) { a.scale = 0; }},
        {"A10: scale -1", "scale is -1", [](Args& a) { a.scale = -1; }},
        {"a scale of NaN", "scale is", [](Args& a) { a.scale = Limit::quiet_NaN(); }},
        {"an infinite scale", "scale is inf", [](Args& a) { a.scale = Limit::infinity(); }},
    };
}

template <class Item> void append(std::vector<Item>& list, const std::vector<Item>& more) {
    list.insert(list.end(), more.begin(), more.end());
}

// What is wrong with the answer to a call that must be refused by a sentence with `named` in it; empty when
// it is refused so.
std::string refusal_failure(const std::string& named, const std::function<void()>& call);

}  // namespace flash::testing
