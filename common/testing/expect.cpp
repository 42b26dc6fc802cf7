#include <doctest/doctest.h>

#include <cstdio>
#include <exception>

#include "common/testing/conformance.hpp"

namespace flash::testing {

void expect_clean(const Report& report, const std::string& title) {
    std::printf(
        "%s: %d cases, %lld elements compared; the largest error is %.2f of what is allowed, the twin's %.2f "
        "of its bound\n",
        title.c_str(), report.cases, static_cast<long long>(report.compared), report.worst_error_share,
        report.worst_twin_share);
    CHECK_MESSAGE(report.cases > 0, title << ": no case ran");
    CHECK_MESSAGE(report.compared > 0, title << ": nothing was compared");
    for (const std::string& failure : report.failures) FAIL_CHECK(title << ": " << failure);
}

std::string outcome_of(const NamedCheck& check) {
    try {
        return check.check();
    } catch (const std::exception& error) {
        return std::string("threw: ") + error.what();
    }
}

void expect_all(const std::vector<NamedCheck>& checks, const std::string& title) {
    CHECK_MESSAGE(!checks.empty(), title << ": nothing to check");
    for (const NamedCheck& check : checks) {
        // The title too: doctest runs a subcase of the same name in one test case once only.
        const std::string name = check.title + " (" + title + ")";
        SUBCASE(name.c_str()) {
            const std::string failure = outcome_of(check);
            CHECK_MESSAGE(failure.empty(), name << ": " << failure);
        }
    }
}

}  // namespace flash::testing
