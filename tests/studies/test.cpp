// The committed study says what its program computes, and what docs/numerics.md draws from it holds.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "studies.hpp"

namespace {

using namespace flash;

// Everything of a row before its median: which number it is.
std::string label_of(const std::string& row, int fields_from_end) {
    std::size_t end = row.size();
    for (int i = 0; i < fields_from_end; ++i) end = row.rfind(',', end - 1);
    return row.substr(0, end);
}
constexpr int kFieldsFromMedian = 10;  // median, p10, p90, reps and six of the environment

double median_of(const std::string& row) {
    double median = 0;
    std::istringstream in(row.substr(label_of(row, kFieldsFromMedian).size() + 1));
    in.imbue(std::locale::classic());
    in >> median;
    return median;
}

std::map<std::string, double> committed() {
    std::ifstream file(FLASH_STEPS_STUDY);
    REQUIRE_MESSAGE(file.is_open(), FLASH_STEPS_STUDY);
    std::map<std::string, double> medians;
    std::string row;
    std::getline(file, row);
    CHECK(row == std::string(bench::kColumns));
    while (std::getline(file, row)) medians[label_of(row, kFieldsFromMedian)] = median_of(row);
    return medians;
}

void check_against_committed(const studies::Findings& findings) {
    static const auto medians = committed();
    CHECK(findings.size() > 0);
    for (const auto& finding : findings) {
        const std::string row = studies::csv_row(finding);
        const auto known = medians.find(label_of(row, kFieldsFromMedian));
        REQUIRE_MESSAGE(known != medians.end(), row);
        // Another mathematical library may round some exp differently.
        CHECK_MESSAGE(finding.metric.value.median == doctest::Approx(known->second).epsilon(0.02), row);
    }
}

double value_of(const studies::Findings& findings, const std::string& variant, const std::string& metric,
                const std::string& dtype = "") {
    for (const auto& f : findings) {
        if (f.what.variant == variant && f.metric.name == metric && (dtype.empty() || f.what.dtype == dtype))
            return f.metric.value.median;
    }
    FAIL("no finding ", variant, ", ", metric);
    return 0;
}

}  // namespace

TEST_CASE("the committed study is what its program computes") {
    check_against_committed(studies::where_to_scale(64, 4));
    check_against_committed(studies::where_to_scale(128, 4));
    check_against_committed(studies::rounding_of_p(1));
    check_against_committed(studies::rounding_of_small_weights());
    check_against_committed(studies::mask_values());
    check_against_committed(studies::growth(1024, false));
    check_against_committed(studies::growth(1024, true));
    check_against_committed(studies::large_logits(16));
    check_against_committed(studies::large_logits(4096));
    for (const double logit : {1.0, 1e4, 1e7, 1e8}) check_against_committed(studies::equal_keys(logit));
}

TEST_CASE("the committed study has no row but those of its program") {
    std::set<std::string> computed;
    for (const auto& finding : studies::all_findings())
        computed.insert(label_of(studies::csv_row(finding), kFieldsFromMedian));
    for (const auto& row : committed()) CHECK_MESSAGE(computed.count(row.first) == 1, row.first);
    CHECK(committed().size() == computed.size());
}

TEST_CASE("a scale on bf16 Q costs nothing where it is a power of two, and more than P in bf16 elsewhere") {
    const auto at_64 = studies::where_to_scale(64, 16), at_128 = studies::where_to_scale(128, 16);
    const auto error = [](const studies::Findings& findings, const std::string& method) {
        return value_of(findings, method + ": logit size 16", "scale_error");
    };
    CHECK(error(at_64, "scale on bf16 Q") == error(at_64, "scale on fp32 scores"));
    CHECK(error(at_128, "scale on bf16 Q") > 2 * error(at_128, "folded, P and O in bf16"));
    CHECK(error(at_64, "scale log2(e) on bf16 Q") > 2 * error(at_64, "folded, P and O in bf16"));
    CHECK(error(at_128, "scale folded into exp2") < 2e-6);
}

TEST_CASE("dividing at every tile is as exact as dividing once; bf16 between tiles is what grows") {
    const auto some = studies::growth(256, false), many = studies::growth(16384, false);
    const auto grown = [&](const std::string& method) {
        const std::string variant = method + ": random scores";
        return value_of(many, variant, "growth_error") / value_of(some, variant, "growth_error");
    };
    const double once = value_of(many, "divided once, kept in fp32: random scores", "growth_error");
    const double every = value_of(many, "divided at every tile, kept in fp32: random scores", "growth_error");
    CHECK(every == doctest::Approx(once).epsilon(0.1));
    CHECK(once < 1e-5);
    CHECK(grown("divided at every tile, kept in bf16") > 4);
    CHECK(grown("a whole step: P and O rounded to bf16") < 1.5);
}

TEST_CASE("A12: from L in fp32, P of two equal keys at a logit of 1e7 comes back as exp(-1)") {
    const auto at_1e7 = studies::equal_keys(1e7);
    CHECK(value_of(at_1e7, "exp(S - L), L in fp32: logit 1e+07", "rebuilt_p") ==
          doctest::Approx(std::exp(-1.0)).epsilon(1e-6));
    CHECK(value_of(at_1e7, "exp(S - m) / l, m and l in fp32: logit 1e+07", "rebuilt_p") == 0.5);
    for (const double logit : {1.0, 1e2, 1e4, 1e6, 1e7, 1e8}) {
        const auto findings = studies::equal_keys(logit);
        double rebuilt = 0, spacing = 0;
        for (const auto& f : findings) {
            if (f.metric.name == "rebuilt_p" && f.what.variant.starts_with("exp(S - L)"))
                rebuilt = f.metric.value.median;
            if (f.metric.name == "lse_spacing") spacing = f.metric.value.median;
        }
        // The limit that the document states: half a spacing from the sum, the rest from ln 2 itself.
        CHECK(std::abs(std::log(rebuilt / 0.5)) <= 0.5 * spacing + 2e-7);
    }
}
