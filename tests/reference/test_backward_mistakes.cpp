// Wrong backwards, one mistake each: the backward's cases must report every one of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/testing/backward_conformance.hpp"
#include "forgiving_buffer.hpp"

using namespace flash;
using namespace flash::testing;

namespace {

enum class Mistake {
    kNone,
    kDeltaForgotten,          // dS = P o dP
    kDeltaOfNextRow,          // delta of the query row below
    kDeltaOfFirstHead,        // delta of the same row of head 0
    kDeltaWithoutLastTile,    // delta of the rows of the last, incomplete tile is 0
    kGroupNotSummed,          // dK and dV hold the last query head's part
    kWrongKeyHead,            // query head h reads key head h % Hkv
    kScaleMissingInDk,        // dK = dS^T Q
    kScaleMissingInDq,        // dQ = dS K
    kScaleTwiceInDq,          // dQ is scaled by a kernel that scaled dS already
    kEmptyRowNan,             // exp(-inf - (-inf)) for a row without a key
    kPhantomKeys,             // zeros that fill the last tile count as keys with score 0: P = exp(0 - L)
    kRowsBeyondTheEnd,        // the last tile of queries reads rows of dO that do not exist, with P = 0
    kLseInLogTwo,             // P = 2^(S log2(e) - L)
    kLseOfFirstHead,          // L of the same row of head 0
    kNotNormalised,           // P = exp(S), the L forgotten
    kHiddenScoreZero,         // a hidden score is 0, not -inf
    kWrongDiagonal,           // top-left where another diagonal was asked for
    kDiagonalOffByOne,        // a query does not see its last key
    kDqNotZeroed,             // dQ is added up in a workspace that holds what it held
    kDqOfLastTile,            // dQ holds the part of the last key tile
    kHiddenKeysUnwritten,     // keys that no query sees get no gradient, not even zeros
    kHiddenQueriesUnwritten,  // queries that see no key get none
    kDpFromO,                 // dP = O V^T
    kDsFromDpOfNextKey,       // dP of the neighbouring key
    kDvTransposed,            // dV = P dO of the wrong side: rows of P for columns
    kDqInInputType,           // dQ is rounded to T after every key tile
    kHeadDimension64,         // channels beyond 64 are left out of dP
    kStridesOfOForDo,         // dO is read with O's strides
    kStridesOfKForDk,         // dK is stored with K's strides
    kDenseDq,                 // dQ is stored as if dense
    kChangesInput,            // dO is scaled in place
    kWorkspaceOverrun,        // a row more of the workspace than was asked for
    kOrderOfTheClock,         // the order of the sum changes from run to run, in deterministic mode too
};

constexpr int kTile = 16;

std::int64_t workspace_bytes(const Shape& s, bool /*deterministic*/) {
    return static_cast<std::int64_t>(s.batch) * s.heads_q * s.len_q * s.head_dim * 4;
}

template <class U> const U* row(const TensorView<const U>& view, int b, int h, int n) {
    return view.data + row_offset(view, b, h, n);
}

// The backward by tiles of kTile x kTile: keys outside, queries inside, dQ added up in the workspace.
template <class T, Mistake kMistake> class Backward {
  public:
    explicit Backward(const BackwardArgs<T>& args) : args_(args), s_(args.shape), D_(args.shape.head_dim) {
        if (is(Mistake::kStridesOfOForDo)) {
            args_.d_o = {args.d_o.data, args.o.stride_batch, args.o.stride_head, args.o.stride_row};
        }
        if (is(Mistake::kStridesOfKForDk)) {
            args_.dk = {args.dk.data, args.k.stride_batch, args.k.stride_head, args.k.stride_row};
        }
        if (is(Mistake::kDenseDq)) args_.dq = dense_bhnd(args.dq.data, s_.heads_q, s_.len_q, D_);
    }

    void run() {
        const auto elements = static_cast<std::size_t>(workspace_bytes(s_, false) / 4);
        auto* workspace = static_cast<float*>(args_.workspace);
        if (!is(Mistake::kDqNotZeroed)) std::fill_n(workspace, elements, 0.0f);
        if (is(Mistake::kWorkspaceOverrun) && elements > 0) workspace[elements] = 0;
        for (int b = 0; b < s_.batch; ++b)
            for (int h_kv = 0; h_kv < s_.heads_kv; ++h_kv)
                for (int key = 0; key < s_.len_kv; key += kTile) key_tile(b, h_kv, key);
        for (int b = 0; b < s_.batch; ++b)
            for (int h = 0; h < s_.heads_q; ++h)
                for (int i = 0; i < s_.len_q; ++i) {
                    if (is(Mistake::kHiddenQueriesUnwritten) && args_.mask.visible_keys(i, s_.len_kv) == 0)
                        continue;
                    T* dq = args_.dq.data + row_offset(args_.dq, b, h, i);
                    for (int d = 0; d < D_; ++d) dq[d] = from_float<T>(accumulated_dq(b, h, i)[d]);
                }
        if (is(Mistake::kChangesInput) && args_.d_o.data != nullptr &&
            s_.batch * s_.heads_q * s_.len_q * D_ > 0)
            const_cast<T*>(args_.d_o.data)[0] = from_float<T>(2 * to_float(args_.d_o.data[0]) + 1);
    }

  private:
    static constexpr bool is(Mistake m) { return m == kMistake; }

    float* accumulated_dq(int b, int h, int i) {
        return static_cast<float*>(args_.workspace) +
               ((static_cast<std::int64_t>(b) * s_.heads_q + h) * s_.len_q + i) * D_;
    }
    float dot(const T* x, const T* y, int n) const {
        float sum = 0;
        for (int d = 0; d < n; ++d) sum += to_float(x[d]) * to_float(y[d]);
        return sum;
    }
    float delta(int b, int h, int i) const {
        if (is(Mistake::kDeltaForgotten)) return 0;
        if (is(Mistake::kDeltaWithoutLastTile) && i >= s_.len_q / kTile * kTile) return 0;
        if (is(Mistake::kDeltaOfNextRow)) i = std::min(i + 1, s_.len_q - 1);
        if (is(Mistake::kDeltaOfFirstHead)) h = 0;
        return dot(row(args_.d_o, b, h, i), row(args_.o, b, h, i), D_);
    }
    float lse(int b, int h, int i) const {
        if (is(Mistake::kLseOfFirstHead)) h = 0;
        return args_.lse[(static_cast<std::int64_t>(b) * s_.heads_q + h) * s_.len_q + i];
    }
    std::int64_t visible(int i) const {
        if (!args_.mask.is_causal) return s_.len_kv;
        if (is(Mistake::kWrongDiagonal)) return std::min(i + 1, s_.len_kv);
        const std::int64_t keys = args_.mask.visible_keys(i, s_.len_kv);
        return is(Mistake::kDiagonalOffByOne) ? std::max<std::int64_t>(keys - 1, 0) : keys;
    }
    float probability(float score, float l) const {
        if (is(Mistake::kNotNormalised)) return std::exp(score);
        if (is(Mistake::kLseInLogTwo)) return std::exp2(score * 1.44269504f - l);
        if (l == -std::numeric_limits<float>::infinity() && !is(Mistake::kEmptyRowNan)) return 0;
        return std::exp(score - l);
    }

    void key_tile(int b, int h_kv, int first_key) {
        const int keys = std::min(kTile, s_.len_kv - first_key);
        const auto floats = static_cast<std::size_t>(kTile) * static_cast<std::size_t>(D_);
        std::vector<float> dk(floats), dv(floats);
        bool seen = false;
        const int group = s_.heads_q / s_.heads_kv;
        for (int member = 0; member < group; ++member) {
            const int h = is(Mistake::kWrongKeyHead) ? member * s_.heads_kv + h_kv : h_kv * group + member;
            if (is(Mistake::kGroupNotSummed)) {
                std::fill(dk.begin(), dk.end(), 0.0f);
                std::fill(dv.begin(), dv.end(), 0.0f);
            }
            for (int first_query = 0; first_query < s_.len_q; first_query += kTile)
                seen |= tile(b, h, h_kv, first_query, first_key, dk.data(), dv.data());
        }
        if (is(Mistake::kHiddenKeysUnwritten) && !seen) return;
        for (int j = 0; j < keys; ++j)
            for (int d = 0; d < D_; ++d) {
                const auto at = static_cast<std::size_t>(j * D_ + d);
                const float scale = is(Mistake::kScaleMissingInDk) ? 1 : args_.scale;
                (args_.dk.data + row_offset(args_.dk, b, h_kv, first_key + j))[d] =
                    from_float<T>(scale * dk[at]);
                (args_.dv.data + row_offset(args_.dv, b, h_kv, first_key + j))[d] = from_float<T>(dv[at]);
            }
    }

    // The five products of one tile. True when some query sees some key.
    bool tile(int b, int h, int h_kv, int first_query, int first_key, float* dk, float* dv) {
        bool seen = false;
        for (int q = 0; q < kTile; ++q) {
            const int i = first_query + q;
            if (i >= s_.len_q) {
                if (is(Mistake::kRowsBeyondTheEnd)) {
                    const T* d_o = row(args_.d_o, b, h, i);
                    for (int d = 0; d < D_; ++d) dv[d] += 0.0f * to_float(d_o[d]);
                }
                continue;
            }
            float* dq = accumulated_dq(b, h, i);
            if (is(Mistake::kDqOfLastTile)) std::fill_n(dq, D_, 0.0f);
            for (int t = 0; t < kTile; ++t) {
                const int j = order(t);
                pair(b, h, h_kv, i, first_key + j, j, dq, dk, dv);
                seen |= first_key + j < visible(i);
            }
            if (is(Mistake::kDqInInputType))
                for (int d = 0; d < D_; ++d) dq[d] = to_float(from_float<T>(dq[d]));
        }
        return seen;
    }

    int order(int t) const {
        static int calls = 0;
        return is(Mistake::kOrderOfTheClock) ? (t + ++calls / 12345) % kTile : t;
    }

    void pair(int b, int h, int h_kv, int i, int key, int j, float* dq, float* dk, float* dv) {
        const bool exists = key < s_.len_kv;
        const bool is_visible = key < visible(i);
        if (!exists && !is(Mistake::kPhantomKeys)) return;
        if (!is_visible && exists && !is(Mistake::kHiddenScoreZero) && !is(Mistake::kEmptyRowNan)) return;
        const T* q = row(args_.q, b, h, i);
        const T* d_o = row(args_.d_o, b, h, i);
        const T* k = row(args_.k, b, h_kv, std::min(key, s_.len_kv - 1));
        const T* v = row(args_.v, b, h_kv, std::min(key, s_.len_kv - 1));
        float score = exists ? args_.scale * dot(q, k, D_) : 0;
        if (exists && !is_visible)
            score = is(Mistake::kHiddenScoreZero) ? 0 : -std::numeric_limits<float>::infinity();
        const float p = probability(score, lse(b, h, i));
        float dp = exists ? dot(is(Mistake::kDpFromO) ? row(args_.o, b, h, i) : d_o, v,
                                is(Mistake::kHeadDimension64) ? std::min(D_, 64) : D_)
                          : 0;
        if (is(Mistake::kDsFromDpOfNextKey) && exists)
            dp = dot(d_o, row(args_.v, b, h_kv, std::min(key + 1, s_.len_kv - 1)), D_);
        const float ds = to_float(from_float<T>(p * (dp - delta(b, h, i))));
        const float scale_dq = is(Mistake::kScaleMissingInDq) ? 1
                               : is(Mistake::kScaleTwiceInDq) ? args_.scale * args_.scale
                                                              : args_.scale;
        for (int d = 0; d < D_; ++d) {
            const int from = is(Mistake::kDvTransposed) ? (d + 1) % D_ : d;
            dq[d] += scale_dq * ds * (exists ? to_float(k[d]) : 0.0f);
            dk[j * D_ + d] += ds * to_float(q[d]);
            dv[j * D_ + d] += to_float(from_float<T>(p)) * to_float(d_o[from]);
        }
    }

    BackwardArgs<T> args_;
    Shape s_;
    int D_;
};

template <class T, Mistake kMistake> void backward(const BackwardArgs<T>& args) {
    Backward<T, kMistake>(args).run();
}

const Capabilities kCan{.step = "a backward with a mistake", .max_work = 400'000};

// What reports the mistake: cases, and public faults by id.
struct Found {
    std::size_t cases = 0;
    std::string faults;
};

template <class T, Mistake kMistake> Found find() {
    const auto step = backward_step<T, ForgivingBuffer>(&backward<T, kMistake>, &workspace_bytes);
    Found found;
    found.cases = check_backward_conformance<T>(kCan, step).failures.size();
    for (const auto& fault : backward_public_faults<T>(kCan, step))
        if (!outcome_of(fault).empty()) found.faults += fault.title.substr(0, fault.title.find(':')) + " ";
    return found;
}

template <class T, Mistake kMistake>
void must_be_reported(const std::string& what, const std::string& by = "") {
    const Found found = find<T, kMistake>();
    INFO(what << ", " << std::string(dtype_name<T>()) << ": reported by " << found.cases
              << " cases and by the public faults " << found.faults);
    CHECK((found.cases > 0 || !found.faults.empty()));
    if (!by.empty()) CHECK(found.faults.find(by + " ") != std::string::npos);
}

template <class T> void all_mistakes_must_be_reported() {
    must_be_reported<T, Mistake::kDeltaForgotten>("delta forgotten", "D5");
    must_be_reported<T, Mistake::kDeltaOfNextRow>("delta of the next row", "D5");
    must_be_reported<T, Mistake::kDeltaOfFirstHead>("delta of the first head");
    must_be_reported<T, Mistake::kDeltaWithoutLastTile>("delta of an incomplete tile is 0", "D5");
    must_be_reported<T, Mistake::kGroupNotSummed>("group not summed", "D4");
    must_be_reported<T, Mistake::kWrongKeyHead>("wrong key head", "D4");
    must_be_reported<T, Mistake::kScaleMissingInDk>("scale missing in dK");
    must_be_reported<T, Mistake::kScaleMissingInDq>("scale missing in dQ");
    must_be_reported<T, Mistake::kScaleTwiceInDq>("dQ scaled twice");
    must_be_reported<T, Mistake::kEmptyRowNan>("empty rows are NaN", "D7");
    must_be_reported<T, Mistake::kPhantomKeys>("keys beyond the end enter through exp(0 - L)", "D6");
    must_be_reported<T, Mistake::kRowsBeyondTheEnd>("dO read beyond the end");
    must_be_reported<T, Mistake::kLseInLogTwo>("L taken for a logarithm to base 2");
    must_be_reported<T, Mistake::kLseOfFirstHead>("L of the first head");
    must_be_reported<T, Mistake::kNotNormalised>("L forgotten");
    must_be_reported<T, Mistake::kHiddenScoreZero>("hidden scores are 0");
    must_be_reported<T, Mistake::kWrongDiagonal>("another diagonal");
    must_be_reported<T, Mistake::kDiagonalOffByOne>("diagonal off by one");
    must_be_reported<T, Mistake::kDqNotZeroed>("dQ's accumulator is not zeroed", "C8");
    must_be_reported<T, Mistake::kDqOfLastTile>("dQ of the last key tile only");
    must_be_reported<T, Mistake::kHiddenKeysUnwritten>("keys that no query sees unwritten", "C8");
    must_be_reported<T, Mistake::kHiddenQueriesUnwritten>("queries that see no key unwritten", "A5");
    must_be_reported<T, Mistake::kDpFromO>("dP from O");
    must_be_reported<T, Mistake::kDsFromDpOfNextKey>("dP of the next key");
    must_be_reported<T, Mistake::kDvTransposed>("channels of dV shifted");
    must_be_reported<T, Mistake::kHeadDimension64>("head dimension 64 everywhere");
    must_be_reported<T, Mistake::kStridesOfOForDo>("O's strides for dO");
    must_be_reported<T, Mistake::kStridesOfKForDk>("K's strides for dK");
    must_be_reported<T, Mistake::kDenseDq>("dQ stored as if dense");
    must_be_reported<T, Mistake::kChangesInput>("input changed");
    must_be_reported<T, Mistake::kWorkspaceOverrun>("written beyond the workspace");
}

}  // namespace

TEST_CASE_TEMPLATE("a tiled backward without a mistake is not reported", T, float, fp16, bf16) {
    const auto step = backward_step<T, HostBuffer>(&backward<T, Mistake::kNone>, &workspace_bytes);
    const Report cases = check_backward_conformance<T>(kCan, step);
    for (const auto& failure : cases.failures) FAIL_CHECK(failure);
    for (const auto& fault : backward_public_faults<T>(kCan, step)) {
        const std::string failure = outcome_of(fault);
        if (!failure.empty()) FAIL_CHECK(fault.title << ": " << failure);
    }
    CHECK(cases.cases > 100);
}

TEST_CASE_TEMPLATE("a tiled backward without a mistake is right on random shapes", T, float, fp16, bf16) {
    run_backward_fuzz<T, HostBuffer>({.step = "tiled"}, &backward<T, Mistake::kNone>, &workspace_bytes);
}

TEST_CASE_TEMPLATE("every mistake in a backward is reported", T, float, bf16) {
    all_mistakes_must_be_reported<T>();
}

TEST_CASE("C7: a sum in another order from run to run is reported") {
    must_be_reported<float, Mistake::kOrderOfTheClock>("another order in every run", "C7");
}

TEST_CASE("A16: a dQ that is not accumulated in fp32 is reported") {
    must_be_reported<bf16, Mistake::kDqInInputType>("dQ in the input type", "A16");
}
