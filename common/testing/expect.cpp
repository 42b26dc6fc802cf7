#include <doctest/doctest.h>

#include <cstdio>

#include "common/testing/conformance.hpp"

namespace flash::testing {

void expect_clean(const Report& report, const std::string& title) {
    std::printf(
        "%s: %d cases, %lld elements compared, largest error %.2f of what is allowed, the twin's %.2g\n",
        title.c_str(), report.cases, static_cast<long long>(report.compared), report.worst_error_share,
        report.worst_twin_error);
    CHECK_MESSAGE(report.cases > 0, title << ": no case ran");
    CHECK_MESSAGE(report.compared > 0, title << ": nothing was compared");
    for (const std::string& failure : report.failures) FAIL_CHECK(title << ": " << failure);
}

}  // namespace flash::testing
