// The C interface: turns C structs into the contract's arguments, refuses what the C++ types cannot express,
// and turns exceptions into codes. Each step checks the rest itself.
#include "steps/library/flash_steps.h"

#include <array>
#include <climits>
#include <cstdio>
#include <exception>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/attention.hpp"
#include "common/types.hpp"
#include "steps/03_tiled_attention/attention.hpp"
#include "steps/04_naive_gpu/attention.hpp"
#include "steps/05_flash_forward/attention.hpp"
#include "steps/06_tensor_cores/attention.hpp"
#include "steps/07_async_pipeline/attention.hpp"
#include "steps/08_fa2_forward/attention.hpp"
#include "steps/09_fa2_backward/attention.hpp"
#include "steps/library/guard.hpp"

namespace flash::library {
namespace {

template <class T> using Forward = void (*)(const ForwardArgs<T>&);
template <class T> using Backward = void (*)(const BackwardArgs<T>&);

struct Gradients {
    Backward<fp16> half;
    Backward<bf16> brain;
    std::int64_t (*workspace_bytes)(const Shape&, bool deterministic);
};

struct Step {
    int number;
    const char* name;
    bool on_device;
    Forward<float> fp32;
    Forward<fp16> half;
    Forward<bf16> brain;
    Gradients gradients = {};  // null where a step has no backward
};

// One line per step that has a forward.
constexpr std::array kSteps = {
    Step{3, "03_tiled_attention", false, step03::attention_forward, nullptr, nullptr},
    Step{4, "04_naive_gpu", true, step04::attention_forward<float>, step04::attention_forward<fp16>,
         step04::attention_forward<bf16>},
    Step{5, "05_flash_forward", true, step05::attention_forward<float>, step05::attention_forward<fp16>,
         step05::attention_forward<bf16>},
    Step{6, "06_tensor_cores", true, nullptr, step06::attention_forward<fp16>,
         step06::attention_forward<bf16>},
    Step{7, "07_async_pipeline", true, nullptr, step07::attention_forward<fp16>,
         step07::attention_forward<bf16>},
    Step{8, "08_fa2_forward", true, nullptr, step08::attention_forward<fp16>,
         step08::attention_forward<bf16>},
    Step{9,
         "09_fa2_backward",
         true,
         nullptr,
         step09::attention_forward<fp16>,
         step09::attention_forward<bf16>,
         {step09::attention_backward<fp16>, step09::attention_backward<bf16>,
          step09::backward_workspace_bytes}},
};

const Step& find_step(int number) {
    std::string known;
    for (const Step& step : kSteps) {
        if (step.number == number) return step;
        known += (known.empty() ? "" : ", ") + std::to_string(step.number);
    }
    throw Unsupported("step " + std::to_string(number) + " has no forward; the steps that have one are " +
                      known);
}

const Gradients& find_gradients(int number) {
    std::string known;
    for (const Step& step : kSteps) {
        if (step.gradients.workspace_bytes == nullptr) continue;
        if (step.number == number) return step.gradients;
        known += (known.empty() ? "" : ", ") + std::to_string(step.number);
    }
    throw Unsupported("step " + std::to_string(number) + " has no backward; the steps that have one are " +
                      known);
}

// Sizes must fit the contract's int before they are narrowed to it.
void check_tensor(const char* name, const FlashTensor& tensor) {
    static constexpr std::array kAxis = {"batch", "head", "row", "element"};
    for (std::size_t d = 0; d < 4; ++d) {
        if (tensor.shape[d] < 0 || tensor.shape[d] > INT_MAX) {
            throw std::invalid_argument(std::string(name) + ".shape[" + std::to_string(d) + "] (" + kAxis[d] +
                                        ") is " + std::to_string(tensor.shape[d]) +
                                        "; sizes must be between 0 and 2147483647");
        }
    }
    if (tensor.shape[3] > 1 && tensor.stride[3] != 1) {
        throw std::invalid_argument(std::string(name) + ".stride[3] is " + std::to_string(tensor.stride[3]) +
                                    "; the last dimension must be contiguous (stride 1)");
    }
}

void check_same(const char* name_a, const FlashTensor& a, const char* name_b, const FlashTensor& b,
                std::initializer_list<std::size_t> dims) {
    for (const std::size_t d : dims) {
        if (a.shape[d] == b.shape[d]) continue;
        const std::string axis = ".shape[" + std::to_string(d) + "]";
        throw std::invalid_argument(name_a + axis + " is " + std::to_string(a.shape[d]) + " but " + name_b +
                                    axis + " is " + std::to_string(b.shape[d]) + "; they must be equal");
    }
}

Shape shape_of(const FlashTensor& q, const FlashTensor& k) {
    const auto size = [](std::int64_t n) { return static_cast<int>(n); };
    return {size(q.shape[0]), size(q.shape[1]), size(k.shape[1]),
            size(q.shape[2]), size(k.shape[2]), size(q.shape[3])};
}

Shape checked_shape(const FlashForward& call) {
    check_tensor("q", call.q);
    check_tensor("k", call.k);
    check_tensor("v", call.v);
    check_tensor("o", call.o);
    check_same("k", call.k, "q", call.q, {0, 3});
    check_same("v", call.v, "k", call.k, {0, 1, 2, 3});
    check_same("o", call.o, "q", call.q, {0, 1, 2, 3});
    return shape_of(call.q, call.k);
}

Shape checked_shape(const FlashBackward& call) {
    const Shape shape = checked_shape(FlashForward{call.q, call.k, call.v, call.o, nullptr, 0, 0, 0, 0});
    for (const auto& [name, tensor] : {std::pair{"d_o", &call.d_o}, std::pair{"dq", &call.dq}}) {
        check_tensor(name, *tensor);
        check_same(name, *tensor, "q", call.q, {0, 1, 2, 3});
    }
    for (const auto& [name, tensor] : {std::pair{"dk", &call.dk}, std::pair{"dv", &call.dv}}) {
        check_tensor(name, *tensor);
        check_same(name, *tensor, "k", call.k, {0, 1, 2, 3});
    }
    return shape;
}

Mask checked_mask(int mask, std::int64_t diagonal, const Shape& shape) {
    switch (mask) {
        case FLASH_MASK_NONE:
            return Mask::none();
        case FLASH_MASK_CAUSAL:
            if (shape.len_q != shape.len_kv) {
                throw std::invalid_argument(
                    "mask is FLASH_MASK_CAUSAL with Nq = " + std::to_string(shape.len_q) +
                    " and Nk = " + std::to_string(shape.len_kv) +
                    "; choose FLASH_MASK_CAUSAL_TOP_LEFT, _BOTTOM_RIGHT or _DIAGONAL when they differ");
            }
            return Mask::causal_top_left();
        case FLASH_MASK_CAUSAL_TOP_LEFT:
            return Mask::causal_top_left();
        case FLASH_MASK_CAUSAL_BOTTOM_RIGHT:
            return Mask::causal_bottom_right(shape);
        case FLASH_MASK_CAUSAL_DIAGONAL:
            return Mask::causal(diagonal);
        default:
            throw std::invalid_argument("mask is " + std::to_string(mask) +
                                        "; it must be one of the FLASH_MASK_ values, 0 to 4");
    }
}

template <class T> TensorView<T> view(const FlashTensor& tensor) {
    return {static_cast<T*>(tensor.data), tensor.stride[0], tensor.stride[1], tensor.stride[2]};
}

template <class T> void run(const Step& step, Forward<T> forward, const FlashForward& call, void* stream) {
    if (forward == nullptr) {
        throw Unsupported(std::string(step.name) + " does not take " + dtype_name<T>());
    }
    const Shape shape = checked_shape(call);
    const Mask mask = checked_mask(call.mask, call.diagonal, shape);
    forward({shape, view<const T>(call.q), view<const T>(call.k), view<const T>(call.v), view<T>(call.o),
             call.lse, mask, call.scale, stream});
}

[[noreturn]] void refuse_dtype(int dtype) {
    throw std::invalid_argument("dtype is " + std::to_string(dtype) +
                                "; it must be FLASH_FP32, FLASH_FP16 or FLASH_BF16");
}

void forward(int number, const FlashForward* call, void* stream) {
    const Step& step = find_step(number);
    if (call == nullptr) throw std::invalid_argument("call is null; it must point to a FlashForward");
    switch (call->dtype) {
        case FLASH_FP32:
            return run(step, step.fp32, *call, stream);
        case FLASH_FP16:
            return run(step, step.half, *call, stream);
        case FLASH_BF16:
            return run(step, step.brain, *call, stream);
        default:
            refuse_dtype(call->dtype);
    }
}

const FlashBackward& checked_struct(const FlashBackward* call) {
    if (call == nullptr) throw std::invalid_argument("call is null; it must point to a FlashBackward");
    if (call->size != sizeof(FlashBackward)) {
        throw std::invalid_argument("size is " + std::to_string(call->size) + "; it must be " +
                                    std::to_string(sizeof(FlashBackward)) +
                                    ", the sizeof(FlashBackward) of this library");
    }
    return *call;
}

template <class T> void run(Backward<T> backward, const FlashBackward& call, void* stream) {
    const Shape shape = checked_shape(call);
    const Mask mask = checked_mask(call.mask, call.diagonal, shape);
    backward({shape, view<const T>(call.q), view<const T>(call.k), view<const T>(call.v),
              view<const T>(call.o), call.lse, view<const T>(call.d_o), view<T>(call.dq), view<T>(call.dk),
              view<T>(call.dv), mask, call.scale, call.workspace, call.workspace_bytes,
              call.deterministic != 0, stream});
}

void backward(int number, const FlashBackward* pointer, void* stream) {
    const Gradients& gradients = find_gradients(number);
    const FlashBackward& call = checked_struct(pointer);
    switch (call.dtype) {
        case FLASH_FP32:
            throw Unsupported("the backward of step " + std::to_string(number) + " does not take fp32");
        case FLASH_FP16:
            return run(gradients.half, call, stream);
        case FLASH_BF16:
            return run(gradients.brain, call, stream);
        default:
            refuse_dtype(call.dtype);
    }
}

std::int64_t workspace_bytes(int number, const FlashBackward* pointer) {
    const Gradients& gradients = find_gradients(number);
    const FlashBackward& call = checked_struct(pointer);
    // The rest of a tensor is not read here.
    for (const auto& [name, tensor] : {std::pair{"q", &call.q}, std::pair{"k", &call.k}}) {
        FlashTensor sizes = *tensor;
        sizes.stride[3] = 1;
        check_tensor(name, sizes);
    }
    check_same("k", call.k, "q", call.q, {0, 3});
    return gradients.workspace_bytes(shape_of(call.q, call.k), call.deterministic != 0);
}

}  // namespace
}  // namespace flash::library

using namespace flash::library;

int flash_steps_forward(int step, const FlashForward* call, void* stream) {
    return guarded([&] { forward(step, call, stream); });
}

int flash_steps_backward(int step, const FlashBackward* call, void* stream) {
    return guarded([&] { backward(step, call, stream); });
}

int64_t flash_steps_backward_workspace_bytes(int step, const FlashBackward* call) {
    int64_t bytes = -1;
    guarded([&] { bytes = workspace_bytes(step, call); });
    return bytes;
}

float flash_steps_default_scale(int64_t head_dim) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

int flash_steps_count(void) {
    return static_cast<int>(kSteps.size());
}

int flash_steps_info(int index, FlashStepInfo* info) {
    return guarded([&] {
        if (index < 0 || index >= flash_steps_count()) {
            throw std::invalid_argument("index is " + std::to_string(index) + "; it must be between 0 and " +
                                        std::to_string(flash_steps_count() - 1));
        }
        if (info == nullptr) throw std::invalid_argument("info is null; it must point to a FlashStepInfo");
        const Step& step = kSteps[static_cast<std::size_t>(index)];
        *info = {step.number,
                 step.name,
                 step.on_device,
                 {step.fp32 != nullptr, step.half != nullptr, step.brain != nullptr},
                 step.gradients.workspace_bytes != nullptr};
    });
}
