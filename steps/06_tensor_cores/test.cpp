#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "common/gpu/device.hpp"
#include "common/testing/conformance.hpp"
#include "common/testing/needs_device.hpp"
#include "doctest/doctest.h"

using namespace flash;
using flash::gpu::DeviceBuffer;

namespace {

constexpr flash::testing::Capabilities kCapabilities{
    .step = "step 06", .max_head_dim = 128, .head_dim_multiple = 8, .aligned = true};

}  // namespace

TEST_CASE_TEMPLATE("attention fulfils the contract", T, fp16, bf16) {
    flash::testing::run_forward_conformance<T, DeviceBuffer>(kCapabilities, &step06::attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention is right on random shapes", T, fp16, bf16) {
    flash::testing::run_forward_fuzz<T, DeviceBuffer>(kCapabilities, &step06::attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention refuses bad arguments and writes nothing", T, fp16, bf16) {
    flash::testing::run_bad_arguments<T, DeviceBuffer>(kCapabilities, &step06::attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention is free of faults others have met", T, fp16, bf16) {
    flash::testing::run_public_faults<T, DeviceBuffer>(kCapabilities, &step06::attention_forward<T>);
}
