#include "common/testing/conformance.hpp"

#include <algorithm>
#include <exception>

#include "common/testing/random.hpp"
#include "common/whole_number.hpp"

namespace flash::testing {
namespace {

// One case: makes the tensors, calls the step, judges, adds to the report.
template <class T>
void run_case(Report& report, const ForwardCase& c, const Capabilities& can, const Execute<T>& execute) {
    ++report.cases;
    std::string failure;
    try {
        auto call = make_call<T>(c, can.aligned);
        const auto before = call;
        execute(call, {});
        const auto judgement = judge(before, call, c.pattern, c.seed);
        report.compared += judgement.compared;
        report.worst_error_share = std::max(report.worst_error_share, judgement.worst_error_share);
        report.worst_twin_share = std::max(report.worst_twin_share, judgement.worst_twin_share);
        failure = judgement.failure;
    } catch (const std::exception& error) {
        failure = std::string("threw: ") + error.what();
    }
    if (!failure.empty()) report.failures.push_back(describe(c, dtype_name<T>()) + "\n    " + failure);
}

// The forward is bitwise deterministic: the same call gives the same bits, run after run.
template <class T>
void check_determinism(Report& report, const Capabilities& can, const Execute<T>& execute) {
    ForwardCase c{"equal bits in three runs", {2, 4, 2, 70, 90, supported_head_dim(32, can)}};
    c.mask = Mask::causal_bottom_right(c.shape);
    if (work_of(c.shape) > can.max_work) c.shape.batch = 1;
    ++report.cases;
    std::string failure;
    try {
        const auto call = make_call<T>(c, can.aligned);
        auto first = call;
        execute(first, {});
        for (int run = 1; run < 3; ++run) {
            auto again = call;
            execute(again, {});
            if (!same_bits(first.o.memory, again.o.memory) || !same_bits(first.lse, again.lse))
                failure = "run " + std::to_string(run + 1) + " differs from the first";
        }
    } catch (const std::exception& error) {
        failure = std::string("threw: ") + error.what();
    }
    if (!failure.empty()) report.failures.push_back(describe(c, dtype_name<T>()) + "\n    " + failure);
}

}  // namespace

int supported_head_dim(int head_dim, const Capabilities& can) {
    const int multiple = can.head_dim_multiple;
    return std::min((head_dim + multiple - 1) / multiple * multiple, can.max_head_dim / multiple * multiple);
}

std::vector<ForwardCase> forward_cases(const Capabilities& can) {
    std::vector<ForwardCase> cases;
    const auto add = [&](const std::string& name, Shape shape, Mask mask, Storage storage, Pattern pattern,
                         float scale = 0) {
        shape.head_dim = supported_head_dim(shape.head_dim, can);
        if (work_of(shape) > can.max_work) return;
        cases.push_back({name, shape, mask, storage, pattern, cases.size() + 1, scale});
    };
    const auto bottom_right = [](int len_q, int len_kv) { return Mask::causal(len_kv - len_q); };
    using enum Storage;
    using enum Pattern;
    const auto none = Mask::none();
    const auto top_left = Mask::causal_top_left();

    // Sizes that are no multiple of anything, both ways round, with every mask and storage.
    add("ragged on both axes", {1, 1, 1, 37, 53, 32}, none, kBhnd, kNormal);
    add("ragged, causal top-left", {1, 2, 2, 37, 53, 32}, top_left, kBnhd, kNormal);
    add("ragged, every tensor in another order", {2, 4, 2, 37, 53, 16}, top_left, kMixed, kNormal);
    add("ragged, causal bottom-right", {2, 2, 1, 37, 53, 16}, bottom_right(37, 53), kPadded, kIncreasing);
    add("more queries than keys", {1, 2, 2, 71, 29, 16}, bottom_right(71, 29), kBhnd, kNormal);
    add("more queries than keys, top-left", {1, 2, 1, 71, 29, 16}, top_left, kBnhd, kVeryNegative);
    add("prime lengths", {1, 1, 1, 113, 203, 24}, none, kPadded, kTimes10);
    add("a diagonal between the two", {1, 4, 2, 45, 70, 16}, Mask::causal(7), kMixed, kDecreasing);
    add("rows that see no key", {1, 2, 1, 50, 50, 16}, Mask::causal(-20), kBnhd, kNormal);
    add("no row sees a key", {1, 1, 1, 20, 30, 16}, Mask::causal(-20), kBhnd, kNormal);
    add("a diagonal beyond every key", {1, 1, 1, 20, 30, 16}, Mask::causal(std::int64_t{1} << 40), kBhnd,
        kNormal);

    // One, and one more and one less than the usual tile sizes.
    add("one query, one key", {2, 2, 2, 1, 1, 16}, top_left, kPadded, kNormal);
    add("one query", {2, 4, 2, 1, 97, 32}, none, kMixed, kNormal);
    add("one key", {1, 2, 2, 33, 1, 16}, none, kBnhd, kNormal);
    add("tile edges at 16", {1, 1, 1, 15, 17, 16}, top_left, kBhnd, kLargestFirst);
    add("tile edges at 32", {1, 1, 1, 33, 31, 16}, bottom_right(33, 31), kPadded, kLargestLast);
    add("tile edges at 64", {1, 1, 1, 63, 65, 16}, none, kBnhd, kLargestLast);
    add("tile edges at 64, causal", {1, 1, 1, 65, 63, 16}, top_left, kBhnd, kIncreasing);
    add("tile edges at 128", {1, 1, 1, 129, 127, 16}, none, kBhnd, kIncreasing);
    add("tile edges at 128, causal", {1, 1, 1, 127, 129, 16}, bottom_right(127, 129), kPadded, kDecreasing);
    add("whole tiles", {1, 2, 1, 128, 128, 16}, top_left, kBnhd, kIncreasing);

    // Head dimensions below, at and above the usual instantiated sizes.
    for (const int head_dim : {1, 8, 40, 59, 64, 72, 80, 111, 128, 136, 192, 256}) {
        const bool odd = cases.size() % 2 == 1;
        add("head dimension " + std::to_string(head_dim), {1, 2, 1, 19, 35, head_dim}, odd ? none : top_left,
            odd ? kPadded : kBhnd, odd ? kLargestLast : kNormal);
    }

    // Value patterns, on a shape with several tiles each way.
    for (const Pattern pattern : {kTimes10, kTimes100, kAllEqual, kLargestLast, kIncreasing, kLargestFirst,
                                  kDecreasing, kVeryNegative, kOutlierChannels, kOneKeyDominates, kZeros}) {
        const bool odd = cases.size() % 2 == 1;
        add("pattern", {1, 2, 1, 61, 119, 16}, odd ? bottom_right(61, 119) : none, odd ? kBnhd : kPadded,
            pattern);
    }
    add("pattern at a wide head", {1, 1, 1, 40, 70, 128}, none, kBhnd, kTimes10);
    add("pattern at a wide head, causal", {1, 1, 1, 40, 70, 128}, top_left, kBhnd, kIncreasing);
    add("non-finite rows", {2, 2, 1, 40, 70, 16}, none, kBhnd, kNonFinite);
    add("non-finite rows, causal", {2, 2, 2, 70, 70, 16}, top_left, kPadded, kNonFinite);
    add("a given scale", {1, 2, 2, 33, 44, 16}, none, kBhnd, kNormal, 0.7f);
    add("real model", {1, 2, 2, 134, 134, 32}, none, kBhnd, kRealModel);
    add("real model, causal", {1, 12, 12, 134, 134, 32}, top_left, kBnhd, kRealModel);

    // Heads, batches and shared keys.
    add("grouped heads", {2, 6, 2, 21, 45, 16}, top_left, kBnhd, kNormal);
    add("one key head for all", {2, 5, 1, 21, 45, 16}, none, kPadded, kNormal);
    add("shared keys by stride 0", {3, 4, 2, 21, 65, 16}, bottom_right(21, 65), kSharedKv, kNormal);
    add("one key row by stride 0", {2, 2, 2, 21, 65, 16}, none, kSharedRow, kNormal);
    add("more than 65,535 heads", {257, 256, 256, 1, 1, 8}, none, kBhnd, kNormal);

    // Zero sizes.
    add("no batch", {0, 2, 1, 5, 6, 16}, none, kBhnd, kNormal);
    add("no heads", {2, 0, 0, 5, 6, 16}, none, kBhnd, kNormal);
    add("no queries", {2, 2, 1, 0, 6, 16}, none, kBnhd, kNormal);
    add("no keys", {2, 2, 1, 5, 0, 16}, none, kBhnd, kNormal);
    add("no keys, causal", {2, 2, 1, 5, 0, 16}, bottom_right(5, 0), kPadded, kNormal);
    add("no channels", {2, 2, 1, 5, 6, 0}, top_left, kBhnd, kNormal);

    // Sizes for steps that are fast enough.
    add("full size", {2, 4, 4, 128, 128, 64}, none, kBhnd, kNormal);
    add("100 queries and keys", {1, 2, 2, 100, 100, 64}, none, kBnhd, kNormal);
    add("96 of 200 queries", {1, 1, 1, 200, 96, 128}, top_left, kBhnd, kNormal);
    add("1024", {1, 2, 2, 1024, 1024, 64}, none, kBnhd, kNormal);
    add("1024, causal", {1, 2, 1, 1023, 1024, 64}, bottom_right(1023, 1024), kBhnd, kIncreasing);
    add("2048, causal", {2, 4, 2, 2048, 2048, 128}, top_left, kBnhd, kNormal);
    add("many heads", {1024, 65, 65, 3, 5, 64}, top_left, kBhnd, kNormal);
    return cases;
}

template <class T> Report check_forward_conformance(const Capabilities& can, const Execute<T>& execute) {
    Report report;
    for (const ForwardCase& c : forward_cases(can)) run_case(report, c, can, execute);
    check_determinism(report, can, execute);
    return report;
}

ForwardCase fuzz_case(const Capabilities& can, std::uint64_t seed) {
    std::uint64_t draw = 0;
    const auto below = [&](int limit) { return static_cast<int>(random_below(seed, draw++, limit)); };
    ForwardCase c{"fuzz", {}, Mask::none(), Storage::kBhnd, Pattern::kNormal, seed};
    c.shape.batch = 1 + below(3);
    c.shape.heads_kv = 1 + below(3);
    c.shape.heads_q = c.shape.heads_kv * (1 + below(3));
    c.shape.len_q = 1 + below(150);
    c.shape.len_kv = 1 + below(200);
    c.shape.head_dim = supported_head_dim(1 + below(can.max_head_dim), can);
    while (work_of(c.shape) > std::min<std::int64_t>(can.max_work, 600'000)) {
        // Too large: halve the largest factor.
        int* sizes[] = {&c.shape.batch, &c.shape.len_q, &c.shape.len_kv};
        int* largest = *std::max_element(sizes, sizes + 3, [](int* a, int* b) { return *a < *b; });
        *largest = std::max(1, *largest / 2);
        if (*largest == 1) break;
    }
    switch (below(4)) {
        case 0:
            break;
        case 1:
            c.mask = Mask::causal_top_left();
            break;
        case 2:
            c.mask = Mask::causal_bottom_right(c.shape);
            break;
        default:
            c.mask = Mask::causal(below(c.shape.len_q + c.shape.len_kv + 1) - c.shape.len_q);
    }
    c.storage = static_cast<Storage>(below(static_cast<int>(Storage::kSharedRow) + 1));
    c.pattern = static_cast<Pattern>(below(static_cast<int>(Pattern::kRealModel) + 1));
    return c;
}

template <class T>
Report check_forward_fuzz(const Capabilities& can, const Execute<T>& execute, std::uint64_t seed, int cases) {
    Report report;
    for (int n = 0; n < cases; ++n)
        run_case(report, fuzz_case(can, seed + static_cast<std::uint64_t>(n)), can, execute);
    return report;
}

std::uint64_t fuzz_seed() {
    return whole_number_from_environment("FLASH_STEPS_SEED", 1);
}

int fuzz_cases() {
    return static_cast<int>(whole_number_from_environment("FLASH_STEPS_FUZZ", 16, 1, 1'000'000));
}

template Report check_forward_conformance<float>(const Capabilities&, const Execute<float>&);
template Report check_forward_conformance<fp16>(const Capabilities&, const Execute<fp16>&);
template Report check_forward_conformance<bf16>(const Capabilities&, const Execute<bf16>&);
template Report check_forward_fuzz<float>(const Capabilities&, const Execute<float>&, std::uint64_t, int);
template Report check_forward_fuzz<fp16>(const Capabilities&, const Execute<fp16>&, std::uint64_t, int);
template Report check_forward_fuzz<bf16>(const Capabilities&, const Execute<bf16>&, std::uint64_t, int);

}  // namespace flash::testing
