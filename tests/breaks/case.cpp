// Runs one step on one input and judges the answer, so that a broken variant can be held to single inputs:
//   step05_case bf16 1 1 1 64 64 64 none bhnd normal
// The arguments are dtype, B, Hq, Hkv, Nq, Nk, D, mask (none, top-left, bottom-right or a diagonal), storage,
// pattern and, if wanted, the scale; of a backward, which runs in both modes, also `fresh` for a workspace
// that holds zeros and not NaN. Says what is wrong and exits 1, or exits 0; 2 for arguments it does not know.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.hpp"
#if STEP_HAS_BACKWARD
#include "common/testing/backward_conformance.hpp"
#else
#include "common/testing/conformance.hpp"
#endif
#if STEP_ON_DEVICE
#include "common/gpu/device.hpp"
#endif

namespace flash {
namespace {

#if STEP_ON_DEVICE
using gpu::DeviceBuffer;
template <class T> using Buffer = DeviceBuffer<T>;
#else
template <class T> using Buffer = testing::HostBuffer<T>;
#endif

// In the order of their enumerations.
constexpr const char* kStorages[] = {"bhnd", "bnhd", "padded", "mixed", "shared-kv", "shared-row"};
constexpr const char* kPatterns[] = {
    "normal",     "x10",           "x100",     "all-equal",     "largest-last", "increasing", "largest-first",
    "decreasing", "very-negative", "outliers", "one-dominates", "non-finite",   "zeros",      "real-model"};
static_assert(std::size(kStorages) == static_cast<std::size_t>(testing::Storage::kSharedRow) + 1);
static_assert(std::size(kPatterns) == static_cast<std::size_t>(testing::Pattern::kRealModel) + 1);

template <class Enum> Enum by_name(const std::string& wanted, std::span<const char* const> names) {
    const auto found = std::find(names.begin(), names.end(), wanted);
    if (found == names.end()) throw std::invalid_argument("no storage order or pattern is called " + wanted);
    return static_cast<Enum>(found - names.begin());
}

Mask mask_by_name(const std::string& wanted, const Shape& shape) {
    if (wanted == "none") return Mask::none();
    if (wanted == "top-left") return Mask::causal_top_left();
    if (wanted == "bottom-right") return Mask::causal_bottom_right(shape);
    return Mask::causal(std::stoll(wanted));
}

struct Input {
    testing::ForwardCase problem;
    bool fresh;
};

Input input_from(std::vector<std::string> words) {
    const bool fresh = STEP_HAS_BACKWARD && words.back() == "fresh";
    if (fresh) words.pop_back();
    const auto number = [&](std::size_t i) { return std::stoi(words.at(i)); };
    testing::ForwardCase c{"", {number(1), number(2), number(3), number(4), number(5), number(6)}};
    c.mask = mask_by_name(words.at(7), c.shape);
    c.storage = by_name<testing::Storage>(words.at(8), kStorages);
    c.pattern = by_name<testing::Pattern>(words.at(9), kPatterns);
    if (words.size() > 10) c.scale = std::stof(words[10]);
    return {c, fresh};
}

#if STEP_HAS_BACKWARD
template <class T> std::string failure_of(const Input& input) {
    const testing::ForwardCase& c = input.problem;
    const auto step =
        testing::backward_step<T, Buffer>(&STEP::attention_backward<T>, &STEP::backward_workspace_bytes);
    auto call = testing::make_backward_call<T>({c}, true);
    const auto expected = testing::expect_gradients(call, c.seed);
    for (const bool deterministic : {false, true}) {
        call.choose_mode(deterministic, STEP::backward_workspace_bytes(call.shape, deterministic));
        if (input.fresh)
            std::fill_n(call.workspace.begin() + call.kWorkspaceGuard, call.workspace_bytes, std::byte{0});
        auto run = call;
        std::string failure;
        try {
            step.execute(run, {});
            failure = testing::judge(call, run, expected, c.pattern).failure;
        } catch (const std::exception& error) {
            failure = error.what();
        }
        if (!failure.empty()) return (deterministic ? "deterministic: " : "fast: ") + failure;
    }
    return "";
}
#else
template <class T> std::string failure_of(const Input& input) {
    const testing::ForwardCase& c = input.problem;
    auto call = testing::make_call<T>(c, sizeof(T) == 2);
    const auto before = call;
    try {
        testing::execute_on<T, Buffer> (&STEP::attention_forward)(call, {});
    } catch (const std::exception& error) {
        return error.what();
    }
    return testing::judge(before, call, c.pattern, c.seed).failure;
}
#endif

template <class... T> std::string judge_as(const std::string& dtype, const Input& input) {
    std::string failure = "none";
    const bool known = ((dtype == dtype_name<T>() && (failure = failure_of<T>(input), true)) || ...);
    if (!known) throw std::invalid_argument("the step does not take " + dtype);
    return failure;
}

}  // namespace
}  // namespace flash

int main(int argc, char** argv) {
    std::string failure;
    try {
        const std::vector<std::string> words(argv + 1, argv + argc);
        if (words.empty() || words[0] == "--help") {
            std::puts(
                "case DTYPE B HQ HKV NQ NK D MASK STORAGE PATTERN [SCALE] [fresh]\n\n"
                "Runs the step on one input and says what is wrong, such as: bf16 1 1 1 64 64 64 none bhnd "
                "normal");
            return words.empty() ? 2 : 0;
        }
        failure = flash::judge_as<STEP_TYPES>(words.at(0), flash::input_from(words));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    }
    std::printf("%s\n", failure.c_str());
    return failure.empty() ? 0 : 1;
}
