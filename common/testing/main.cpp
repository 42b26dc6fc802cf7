// main() of every test program.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <exception>

#include "common/testing/conformance.hpp"
#include "common/testing/skip.hpp"

namespace flash::testing {
namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of flash_add_test
std::string (*why_skipped)() = nullptr;

// Counts the test cases that pass the filters: a program whose filter matches nothing has tested nothing.
int cases_run = 0;
struct CaseCounter : doctest::IReporter {
    explicit CaseCounter(const doctest::ContextOptions&) {}
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats& stats) override {
        cases_run = static_cast<int>(stats.numTestCasesPassingFilters);
    }
    void test_case_start(const doctest::TestCaseData&) override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("case_counter", 1, CaseCounter);

}  // namespace

bool skip_program_when(std::string (*why)()) {
    why_skipped = why;
    return true;
}

}  // namespace flash::testing

int main(int argc, char** argv) {
    using namespace flash::testing;
    try {  // before any test, and in programs that do not look at these
        fuzz_seed();
        fuzz_cases();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    doctest::Context context(argc, argv);
    const std::string why = why_skipped == nullptr ? "" : why_skipped();
    if (!why.empty()) {
        std::printf("SKIP: %s\n", why.c_str());
        return kSkipped;
    }
    const int failed = context.run();
    if (context.shouldExit()) return failed;  // a query such as --list-test-cases
    if (failed == 0 && cases_run == 0) {
        std::fprintf(stderr, "no test case ran: the program has none, or its filter matches none\n");
        return 1;
    }
    return failed;
}
