#include "attention.hpp"
#include "common/gpu/device.hpp"
#include "common/testing/conformance.hpp"
#include "common/testing/needs_device.hpp"
#include "doctest/doctest.h"
using namespace flash;
constexpr flash::testing::Capabilities kCapabilities{.step = "step 04"};
TEST_CASE_TEMPLATE("fulfils the contract", T, float, fp16, bf16) {
    flash::testing::run_forward_conformance<T, gpu::DeviceBuffer>(kCapabilities, step04::attention_forward<T>);
}
