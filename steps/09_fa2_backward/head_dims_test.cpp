// The backward built for head dimensions 32 and 96, which the option FLASH_STEPS_HEAD_DIMS can add.
#include "common/gpu/device.hpp"
#include "common/testing/backward_conformance.hpp"
#include "common/testing/needs_device.hpp"
#include "doctest/doctest.h"

namespace flash::step09_other {
std::int64_t backward_workspace_bytes(const Shape& shape, bool deterministic);
template <class T> void attention_backward(const BackwardArgs<T>& args);
}  // namespace flash::step09_other

using namespace flash;
using flash::gpu::DeviceBuffer;
using step09_other::backward_workspace_bytes;

namespace {

constexpr flash::testing::Capabilities kCapabilities{
    .step = "step 09", .max_head_dim = 96, .head_dim_multiple = 8, .aligned = true, .max_work = 100'000};

}  // namespace

TEST_CASE_TEMPLATE("the backward with head dimensions 32 and 96 fulfils the contract", T, fp16, bf16) {
    flash::testing::run_backward_conformance<T, DeviceBuffer>(
        kCapabilities, &step09_other::attention_backward<T>, &backward_workspace_bytes);
}
TEST_CASE_TEMPLATE("the backward with head dimensions 32 and 96 is right on random shapes", T, fp16, bf16) {
    flash::testing::run_backward_fuzz<T, DeviceBuffer>(kCapabilities, &step09_other::attention_backward<T>,
                                                       &backward_workspace_bytes);
}
TEST_CASE_TEMPLATE("a build without a head dimension refuses its backward by name", T, fp16, bf16) {
    flash::testing::run_backward_bad_arguments<T, DeviceBuffer>(
        kCapabilities, &step09_other::attention_backward<T>, &backward_workspace_bytes);
}
