// Wrong attentions, one mistake each: the conformance cases must report every one of them.
#include <doctest/doctest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/testing/conformance.hpp"
#include "forgiving_buffer.hpp"

using namespace flash;
using namespace flash::testing;

namespace {

enum class Mistake {
    kNone,
    kForgottenRescale,          // acc keeps the scale of an old maximum
    kForgottenRescaleOfSum,     // row_sum does
    kWrongDiagonal,             // top-left where another diagonal was asked for
    kDiagonalOffByOne,          // a query does not see its last key
    kMaskedScoreZero,           // a masked score is 0, not -inf
    kPhantomKeys,               // the keys that fill the last tile count as keys with score 0
    kReadsBeyondTheEnd,         // the last tile reads keys that do not exist
    kUnwrittenRow,              // the last query row is not stored
    kWritesBeyondTheEnd,        // a whole tile of query rows is stored
    kLogTwo,                    // L is a logarithm to base 2
    kLseWithoutMaximum,         // L = ln(row_sum)
    kNanBecomesZero,            // NaN rows are silently zero
    kEmptyRowNan,               // a row without a key is 0 / 0
    kEmptyRowFiniteLse,         // its L is a large negative number
    kNoMaximum,                 // exp without subtracting the maximum
    kFiniteMinusInfinity,       // the running maximum begins at -5e4
    kScaleOfPaddedHead,         // 1 / sqrt of D rounded up to a multiple of 16
    kHeadDimension64,           // channels beyond 64 are left out of the scores
    kWrongKeyHead,              // query head h reads key head h % Hkv
    kStridesOfKForV,            // V is read with K's strides
    kDenseOutput,               // O is stored as if dense
    kStateInInputType,          // the accumulator is rounded to T after every tile
    kStateOfRowSumInInputType,  // row_sum is
    kChangesInput,              // the query is scaled in place
    kLastChannelDropped,        // the last channel of O repeats the one before
};

constexpr int kTile = 16;

// Tiled attention with online softmax over kTile keys, for one query row at a time.
template <class T, Mistake kMistake> void attention(const ForwardArgs<T>& args) {
    constexpr auto is = [](Mistake m) { return m == kMistake; };
    const Shape& s = args.shape;
    const float minus_inf =
        is(Mistake::kFiniteMinusInfinity) ? -5e4f : -std::numeric_limits<float>::infinity();
    const auto D = static_cast<std::size_t>(s.head_dim);
    const float scale = is(Mistake::kScaleOfPaddedHead) && args.scale == default_scale(s.head_dim)
                            ? default_scale((s.head_dim + 15) / 16 * 16)
                            : args.scale;
    for (int b = 0; b < s.batch; ++b)
        for (int h = 0; h < s.heads_q; ++h)
            for (int i = 0; i < s.len_q; ++i) {
                const int h_kv = is(Mistake::kWrongKeyHead) ? h % s.heads_kv : h / (s.heads_q / s.heads_kv);
                std::int64_t visible = args.mask.visible_keys(i, s.len_kv);
                if (args.mask.is_causal && is(Mistake::kWrongDiagonal)) visible = std::min(i + 1, s.len_kv);
                if (args.mask.is_causal && is(Mistake::kDiagonalOffByOne))
                    visible = std::max<std::int64_t>(visible - 1, 0);
                const T* q = args.q.data + row_offset(args.q, b, h, i);
                float row_max = minus_inf, row_sum = 0;
                std::vector<float> acc(D);
                for (int first = 0; first < s.len_kv; first += kTile) {
                    float scores[kTile], tile_max = row_max;
                    for (int t = 0; t < kTile; ++t) {
                        const int j = first + t;
                        const bool exists = j < s.len_kv || is(Mistake::kReadsBeyondTheEnd);
                        float dot = 0;
                        const T* k = args.k.data + row_offset(args.k, b, h_kv, j);
                        for (std::size_t d = 0; d < D && exists; ++d)
                            if (!is(Mistake::kHeadDimension64) || d < 64)
                                dot += to_float(q[d]) * to_float(k[d]);
                        const bool is_visible = is(Mistake::kPhantomKeys) || is(Mistake::kReadsBeyondTheEnd)
                                                    ? j < visible || (j >= s.len_kv && !args.mask.is_causal)
                                                    : j < visible;
                        scores[t] = is_visible ? scale * dot
                                    : is(Mistake::kMaskedScoreZero) && exists
                                        ? 0.0f
                                        : -std::numeric_limits<float>::infinity();
                        tile_max = std::fmax(tile_max, scores[t]);
                    }
                    if (is(Mistake::kNoMaximum)) tile_max = 0;
                    const float shift = tile_max == minus_inf && !is(Mistake::kEmptyRowNan) ? 0 : tile_max;
                    const float rescale = is(Mistake::kNoMaximum) ? 1 : std::exp(row_max - shift);
                    if (!is(Mistake::kForgottenRescaleOfSum)) row_sum *= rescale;
                    if (!is(Mistake::kForgottenRescale))
                        for (float& x : acc) x *= rescale;
                    for (int t = 0; t < kTile; ++t) {
                        const float p = std::exp(scores[t] - shift);
                        row_sum += p;
                        const int j = first + t;
                        if (j >= s.len_kv && !is(Mistake::kReadsBeyondTheEnd)) continue;
                        if (p == 0) continue;
                        const auto& v_view = is(Mistake::kStridesOfKForV)
                                                 ? TensorView<const T>{args.v.data, args.k.stride_batch,
                                                                       args.k.stride_head, args.k.stride_row}
                                                 : args.v;
                        const T* v = v_view.data + row_offset(v_view, b, h_kv, j);
                        for (std::size_t d = 0; d < D; ++d)
                            acc[d] += to_float(from_float<T>(p)) * to_float(v[d]);
                    }
                    if (is(Mistake::kStateInInputType))
                        for (float& x : acc) x = to_float(from_float<T>(x));
                    if (is(Mistake::kStateOfRowSumInInputType)) row_sum = to_float(from_float<T>(row_sum));
                    row_max = is(Mistake::kNoMaximum) ? 0 : tile_max;
                }
                const auto row =
                    (static_cast<std::int64_t>(b) * s.heads_q + h) * s.len_q + static_cast<std::int64_t>(i);
                const bool is_last = i == s.len_q - 1;
                if (is(Mistake::kUnwrittenRow) && is_last) continue;
                const TensorView<T> dense = dense_bhnd(args.o.data, s.heads_q, s.len_q, s.head_dim);
                T* o = args.o.data + row_offset(is(Mistake::kDenseOutput) ? dense : args.o, b, h, i);
                for (std::size_t d = 0; d < D; ++d) {
                    float x = row_sum == 0 && !is(Mistake::kEmptyRowNan) ? 0.0f : acc[d] / row_sum;
                    if (is(Mistake::kNanBecomesZero) && std::isnan(x)) x = 0;
                    o[d] = from_float<T>(x);
                }
                if (is(Mistake::kLastChannelDropped) && D > 1) o[D - 1] = o[D - 2];
                if (is(Mistake::kWritesBeyondTheEnd) && is_last && D > 0)
                    o[args.o.stride_row] = from_float<T>(0.0f);
                float lse =
                    row_sum == 0 ? -std::numeric_limits<float>::infinity() : row_max + std::log(row_sum);
                if (is(Mistake::kLseWithoutMaximum)) lse = std::log(row_sum);
                if (is(Mistake::kLogTwo)) lse *= 1.44269504f;
                if (is(Mistake::kEmptyRowFiniteLse) && row_sum == 0) lse = -1e30f;
                if (is(Mistake::kEmptyRowNan)) lse = row_max + std::log(row_sum);
                args.lse[row] = lse;
                if (is(Mistake::kChangesInput) && D > 0)
                    const_cast<T*>(q)[0] = from_float<T>(scale * to_float(q[0]));
            }
}

const Capabilities kCan{.step = "an attention with a mistake", .max_work = 400'000};

template <class T, Mistake kMistake> void must_be_reported(const std::string& what) {
    const auto execute = execute_on<T, ForgivingBuffer>(&attention<T, kMistake>);
    const Report cases = check_forward_conformance<T>(kCan, execute);
    const auto faults = public_faults<T>(kCan, execute);
    const auto found = std::count_if(faults.begin(), faults.end(),
                                     [](const NamedCheck& fault) { return !outcome_of(fault).empty(); });
    INFO(what << ", " << std::string(dtype_name<T>()) << ": reported by " << cases.failures.size() << " of "
              << cases.cases << " cases and " << found << " of " << faults.size() << " public faults");
    CHECK(cases.failures.size() + static_cast<std::size_t>(found) > 0);
}

// Strides as a kernel with int offsets sees them.
void offsets_in_32_bits(const ForwardArgs<bf16>& args) {
    auto wrapped = args;
    for (auto* stride :
         {&wrapped.q.stride_head, &wrapped.k.stride_head, &wrapped.v.stride_head, &wrapped.o.stride_head})
        *stride = static_cast<std::int32_t>(static_cast<std::uint32_t>(*stride));
    attention<bf16, Mistake::kNone>(wrapped);
}

// Runs what may well crash in a process of its own. False also when it is stopped by a signal.
template <class Check> bool ends_with_success(const Check& check) {
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);  // not doctest's handler
        _exit(check() ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

template <class T> void all_mistakes_must_be_reported() {
    must_be_reported<T, Mistake::kForgottenRescale>("forgotten rescale of the accumulator");
    must_be_reported<T, Mistake::kForgottenRescaleOfSum>("forgotten rescale of the row sum");
    must_be_reported<T, Mistake::kWrongDiagonal>("another diagonal");
    must_be_reported<T, Mistake::kDiagonalOffByOne>("diagonal off by one");
    must_be_reported<T, Mistake::kMaskedScoreZero>("masked scores are 0");
    must_be_reported<T, Mistake::kPhantomKeys>("phantom keys");
    must_be_reported<T, Mistake::kReadsBeyondTheEnd>("reads beyond the end");
    must_be_reported<T, Mistake::kUnwrittenRow>("unwritten row");
    must_be_reported<T, Mistake::kWritesBeyondTheEnd>("writes beyond the end");
    must_be_reported<T, Mistake::kLogTwo>("L in log2");
    must_be_reported<T, Mistake::kLseWithoutMaximum>("L without the maximum");
    must_be_reported<T, Mistake::kNanBecomesZero>("NaN becomes 0");
    must_be_reported<T, Mistake::kEmptyRowNan>("empty rows are NaN");
    must_be_reported<T, Mistake::kEmptyRowFiniteLse>("empty rows have a finite L");
    must_be_reported<T, Mistake::kNoMaximum>("no maximum is subtracted");
    must_be_reported<T, Mistake::kFiniteMinusInfinity>("a finite minus infinity");
    must_be_reported<T, Mistake::kScaleOfPaddedHead>("scale of the padded head dimension");
    must_be_reported<T, Mistake::kHeadDimension64>("head dimension 64 everywhere");
    must_be_reported<T, Mistake::kWrongKeyHead>("wrong key head");
    must_be_reported<T, Mistake::kStridesOfKForV>("K's strides for V");
    must_be_reported<T, Mistake::kDenseOutput>("O stored as if dense");
    must_be_reported<T, Mistake::kChangesInput>("input changed");
    must_be_reported<T, Mistake::kLastChannelDropped>("last channel dropped");
}

}  // namespace

TEST_CASE_TEMPLATE("a tiled attention without a mistake is not reported", T, float, fp16, bf16) {
    const auto execute = execute_on<T, HostBuffer>(&attention<T, Mistake::kNone>);
    const Report cases = check_forward_conformance<T>(kCan, execute);
    for (const auto& failure : cases.failures) FAIL_CHECK(failure);
    for (const auto& fault : public_faults<T>(kCan, execute)) {
        const bool checks_arguments = fault.title.find("A10") == 0;  // this attention does not
        const std::string failure = checks_arguments ? "" : outcome_of(fault);
        if (!failure.empty()) FAIL_CHECK(fault.title << ": " << failure);
    }
    CHECK(cases.cases > 50);
}

TEST_CASE_TEMPLATE("a tiled attention without a mistake is right on random shapes", T, float, fp16, bf16) {
    run_forward_fuzz<T, HostBuffer>({.step = "a tiled attention"}, &attention<T, Mistake::kNone>);
}

TEST_CASE_TEMPLATE("every mistake is reported", T, float, bf16) {
    all_mistakes_must_be_reported<T>();
}

TEST_CASE_TEMPLATE("A16: an accumulator that is not fp32 is reported", T, fp16, bf16) {
    must_be_reported<T, Mistake::kStateInInputType>("accumulator in the input type");
    must_be_reported<T, Mistake::kStateOfRowSumInInputType>("row sum in the input type");
}

TEST_CASE("C4: reading past the end of a HostBuffer stops the program") {
    CHECK_FALSE(ends_with_success([] {
        HostBuffer<float> buffer(3);
        std::fill_n(buffer.data(), 3, 1.0f);
        volatile const float* past = buffer.data() + 3;
        return *past <= 1.0f;
    }));
}

TEST_CASE("B6: offsets in 32 bits do not pass") {
    CHECK(ends_with_success(
        [] { return check_wide_offsets<bf16, HostBuffer>(kCan, &attention<bf16, Mistake::kNone>).empty(); }));
    CHECK_FALSE(ends_with_success(
        [] { return check_wide_offsets<bf16, HostBuffer>(kCan, &offsets_in_32_bits).empty(); }));
}
