// The kernel built for head dimensions 32 and 96, which the option FLASH_STEPS_HEAD_DIMS can add.
#include "common/gpu/device.hpp"
#include "common/testing/conformance.hpp"
#include "common/testing/needs_device.hpp"
#include "doctest/doctest.h"

namespace flash::step08_other {
template <class T> void attention_forward(const ForwardArgs<T>& args);
}  // namespace flash::step08_other

using namespace flash;
using flash::gpu::DeviceBuffer;

namespace {

constexpr flash::testing::Capabilities kCapabilities{
    .step = "step 08", .max_head_dim = 96, .head_dim_multiple = 8, .aligned = true, .max_work = 300'000};

}  // namespace

TEST_CASE_TEMPLATE("attention with head dimensions 32 and 96 fulfils the contract", T, fp16, bf16) {
    flash::testing::run_forward_conformance<T, DeviceBuffer>(kCapabilities,
                                                             &step08_other::attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention with head dimensions 32 and 96 is right on random shapes", T, fp16, bf16) {
    flash::testing::run_forward_fuzz<T, DeviceBuffer>(kCapabilities, &step08_other::attention_forward<T>);
}
TEST_CASE_TEMPLATE("a build without a head dimension refuses it by name", T, fp16, bf16) {
    flash::testing::run_bad_arguments<T, DeviceBuffer>(kCapabilities, &step08_other::attention_forward<T>);
}
