// The measuring harness itself: what it refuses to report, what it leaves out of a time, what a row looks
// like.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/bench/inputs.hpp"
#include "common/bench/memory.hpp"
#include "common/bench/results.hpp"
#include "common/bench/session.hpp"
#include "common/bench/timing.hpp"

namespace {

using namespace flash;
using namespace flash::bench;

// A clock that the test moves: every call advances it by what the test says a run takes.
class FakeStopwatch final : public Stopwatch {
  public:
    void flush() override {
        ++flushes;
        is_cold = true;
    }
    void start() override { begin_ = now; }
    double stop() override { return now - begin_; }

    double now = 0;
    int flushes = 0;
    bool is_cold = false;

  private:
    double begin_ = 0;
};

Case some_case() {
    return {"tiled", "cpu", "forward", "fp32", {1, 8, 2, 100, 200, 64}, Mask::causal(100)};
}

std::filesystem::path fresh_file(const std::string& name) {
    const auto path = std::filesystem::temp_directory_path() / ("flash_bench_test_" + name);
    std::filesystem::remove(path);
    return path;
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

std::vector<std::string> fields_of(const std::string& row) {
    std::vector<std::string> fields(1);
    bool is_quoted = false;
    for (const char c : row) {
        if (c == '"') {
            is_quoted = !is_quoted;
        } else if (c == ',' && !is_quoted) {
            fields.emplace_back();
        } else {
            fields.back() += c;
        }
    }
    return fields;
}

// Runs a bench program's main function with these options; returns its exit status.
int run(std::vector<std::string> options, const std::function<void(Session&)>& body) {
    options.insert(options.begin(), "step99_bench");
    std::vector<char*> argv;
    for (auto& option : options) argv.push_back(option.data());
    return run_bench(static_cast<int>(argv.size()), argv.data(), {"99", "nothing"}, "cpu", "", body);
}

// A compiler may leave out an allocation that nobody can see; here its address is seen.
[[maybe_unused]] const void* volatile seen = nullptr;

void hold(std::size_t bytes) {
    std::vector<char> block(bytes);
    seen = block.data();
}

class CommaDecimal final : public std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
};

}  // namespace

TEST_CASE("the median and the 10th and 90th percentile of eleven samples are the 6th, 2nd and 10th") {
    const Summary s = summarize({11, 1, 10, 2, 9, 3, 8, 4, 7, 5, 6});
    CHECK(s.median == 6);
    CHECK(s.p10 == 2);
    CHECK(s.p90 == 10);
    CHECK(s.reps == 11);
}

TEST_CASE("a rate's low percentile comes from the time's high one") {
    const Summary rate = transform({2, 1, 4, 5}, [](double seconds) { return 8 / seconds; });
    CHECK(rate.median == 4);
    CHECK(rate.p10 == 2);
    CHECK(rate.p90 == 8);
}

TEST_CASE("F1: a time that implies more than the measured peak is refused and leaves no row") {
    // A matrix product of 1.36 ms at a peak of 100 TFLOP/s, seen by a clock that did not wait for it: 0.03
    // ms.
    const Work work{136e9, 0};
    const Peaks peaks{100e12, 0};
    CHECK(measuring_error(exactly(1.36e-3), work, peaks).empty());
    CHECK_FALSE(measuring_error(exactly(0.03e-3), work, peaks).empty());
    CHECK_FALSE(measuring_error(exactly(0), work, peaks).empty());
    CHECK_FALSE(measuring_error(exactly(std::nan("")), work, peaks).empty());

    const auto path = fresh_file("f1.csv");
    const int status = run({"--csv", path.string()}, [&](Session& session) {
        FakeStopwatch watch;
        const auto launch_without_waiting = [&] { watch.now += 0.03e-3; };
        const auto wait_for_it = [&] { watch.now += 1.36e-3; };
        session.measure(some_case(), watch,
                        {{"not awaited", launch_without_waiting, work}, {"awaited", wait_for_it, work}},
                        peaks, {1, 5, 5, 1.0});
        CHECK(session.measuring_errors() == 1);
    });
    CHECK(status == 0);
    const auto rows = lines_of(path);
    REQUIRE(rows.size() == 4);  // header, and time, rate and share of peak of the other variant
    for (std::size_t i = 1; i < rows.size(); ++i) CHECK(fields_of(rows[i])[1] == "awaited");
    std::filesystem::remove(path);
}

TEST_CASE("F1: bytes are held against the measured bandwidth in the same way") {
    CHECK(measuring_error(exactly(1e-3), {0, 1e9}, {0, 2e12}).empty());
    CHECK_FALSE(measuring_error(exactly(1e-4), {0, 1e9}, {0, 2e12}).empty());
}

TEST_CASE("F2: every timed run starts from flushed caches") {
    FakeStopwatch watch;
    // A run from warm caches is quick, and warms them for the next.
    const auto call = [&] {
        watch.now += watch.is_cold ? 16 : 10;
        watch.is_cold = false;
    };
    const Summary s = time_interleaved(watch, {call}, {3, 5, 5, 1e9})[0];
    CHECK(s.p10 == 16);
    CHECK(s.p90 == 16);
    CHECK(watch.flushes == 5);
}

TEST_CASE("F2: the flush of the CPU stopwatch makes the next read slower") {
    const auto watch = cpu_stopwatch();
    std::vector<float> data(1 << 16, 1.0f);
    volatile float sink = 0;
    std::vector<double> warm, cold;
    const auto timed_read = [&] {
        watch->start();
        float sum = 0;
        for (std::size_t i = 0; i < data.size(); i += 16) sum += data[i];  // one read per cache line
        sink = sum;
        return watch->stop();
    };
    for (int rep = 0; rep < 21; ++rep) {
        timed_read();
        warm.push_back(timed_read());
        watch->flush();
        cold.push_back(timed_read());
    }
    CHECK(summarize(cold).median > 1.2 * summarize(warm).median);
}

TEST_CASE("F3: inputs are standard normal, the same for the same seed and different for another") {
    const auto x = random_normal(100'000, 7);
    double mean = 0, variance = 0;
    for (const float value : x) mean += value;
    mean /= static_cast<double>(x.size());
    for (const float value : x) variance += (value - mean) * (value - mean);
    variance /= static_cast<double>(x.size());
    CHECK(std::abs(mean) < 0.02);
    CHECK(std::abs(variance - 1) < 0.03);
    CHECK(x == random_normal(100'000, 7));
    CHECK(x != random_normal(100'000, 8));
    // Zeroed low bits of the significand would run faster than real data.
    const auto short_ones = std::count_if(
        x.begin(), x.end(), [](float value) { return (std::bit_cast<std::uint32_t>(value) & 0xffu) == 0; });
    CHECK(short_ones < 5'000);
}

TEST_CASE("F4: variants take turns, so a clock that falls during the run does not decide between them") {
    FakeStopwatch watch;
    int runs = 0;
    // Two equal calls on a device that slows down by a fifth over the 100 runs.
    const auto call = [&] { watch.now += 1.0 + 0.2 * (runs++) / 100; };
    const auto s = time_interleaved(watch, {call, call}, {0, 50, 50, 1e9});
    CHECK(std::abs(s[1].median / s[0].median - 1) < 0.005);
    CHECK(runs == 100);
}

TEST_CASE("F7: the cold first call is not part of any time") {
    FakeStopwatch watch;
    bool is_first = true;
    const auto call = [&] {
        watch.now += is_first ? 100 : 1;
        is_first = false;
    };
    const Summary s = time_interleaved(watch, {call}, {1, 5, 5, 1e9})[0];
    CHECK(s.p90 == 1);
    CHECK(s.reps == 5);
}

TEST_CASE("a slow call is run at least min_reps times and a quick one at most max_reps") {
    FakeStopwatch watch;
    const auto slow = [&] { watch.now += 10; };
    const auto quick = [&] { watch.now += 1e-6; };
    const auto s = time_interleaved(watch, {slow, quick}, {0, 3, 20, 1.0});
    CHECK(s[0].reps == 3);
    CHECK(s[1].reps == 20);
}

TEST_CASE("F6: peak memory counts one call and nothing before it") {
    CHECK(peak_extra_host_bytes([] { hold(1'000'000); }) == 1'000'000);
    CHECK(peak_extra_host_bytes([] { hold(1'000); }) == 1'000);  // the larger call before it left no trace
    std::vector<char> outside(500'000);
    CHECK(peak_extra_host_bytes([] {}) == 0);
}

TEST_CASE("F6: the peak is what is held at one moment, not the sum of what was allocated") {
    const std::int64_t peak = peak_extra_host_bytes([] {
        for (int i = 0; i < 10; ++i) hold(1'000);
    });
    CHECK(peak == 1'000);
    struct alignas(64) Line {
        std::array<char, 64> bytes;
    };
    const std::int64_t aligned = peak_extra_host_bytes([] {
        std::vector<Line> lines(10);
        seen = lines.data();
    });
    CHECK(aligned == 640);
}

TEST_CASE("a results row has the columns of the header, in its order") {
    const auto columns = fields_of(std::string(kColumns));
    Environment e{"a-machine", "cpu, \"fast\"", "g++ 12", "-O2", "abc", "2026-01-02"};
    const auto row = fields_of(csv_row("03", some_case(), {"time", "ms", {1.5, 1.25, 2, 7}}, e));
    REQUIRE(row.size() == columns.size());
    const std::vector<std::string> expected = {
        "03",  "tiled",     "cpu",       "forward", "fp32", "1",   "8",         "2",    "100",
        "200", "64",        "causal",    "100",     "time", "ms",  "1.5",       "1.25", "2",
        "7",   "a-machine", "cpu, fast", "g++ 12",  "-O2",  "abc", "2026-01-02"};
    CHECK(row == expected);
}

TEST_CASE("whole numbers are written exactly, others with six significant digits") {
    CHECK(format_number(4'756'736) == "4756736");
    CHECK(format_number(0) == "0");
    CHECK(format_number(1234.56789) == "1234.57");
    CHECK(format_number(3e20) == "3e+20");
    CHECK(readable(3'412'992, "elements") == "3412992 elements");
}

TEST_CASE("E11: numbers have '.' as the decimal mark whatever the locale") {
    const std::locale before = std::locale::global(std::locale(std::locale::classic(), new CommaDecimal));
    std::ostringstream stream;
    stream << 1234.5;
    const std::string number = format_number(1234.5);
    const std::string row =
        csv_row("03", some_case(), {"time", "ms", {1234.5, 0.25, 2e-7, 10}}, current_environment(""));
    const std::string shown = readable(1.25, "ms");
    std::locale::global(before);
    CHECK(stream.str() == "1.234,5");  // the locale is really in force
    CHECK(number == "1234.5");
    CHECK(shown == "1.25 ms");
    CHECK(fields_of(row).size() == fields_of(std::string(kColumns)).size());
    CHECK(row.find(",1234.5,0.25,2e-07,10,") != std::string::npos);
}

TEST_CASE("a results file gets its header once") {
    const auto path = fresh_file("header.csv");
    for (int run = 0; run < 2; ++run) ResultsFile(path.string()).append("row");
    CHECK(lines_of(path) == std::vector<std::string>{std::string(kColumns), "row", "row"});
    std::filesystem::remove(path);
}

TEST_CASE("rows are added to a results file only: a foreign header or an unfinished last line is refused") {
    const auto path = fresh_file("foreign.csv");
    const std::string header(kColumns), named = "'" + path.string() + "'";
    const std::pair<std::string, std::string> foreign[] = {
        {"name,value\na,1\n", named + " is no results file: its first line is not the header of one"},
        {"\n", named + " is no results file: its first line is not the header of one"},
        {header + ",more\n", named + " is no results file: its first line is not the header of one"},
        {header, named + " ends within a line; complete or remove that line first"},
        {header + "\nrow\nhalf a r", named + " ends within a line; complete or remove that line first"}};
    for (const auto& contents_and_message : foreign) {
        const std::string &text = contents_and_message.first, &message = contents_and_message.second;
        CAPTURE(text);
        std::ofstream(path) << text;
        CHECK_THROWS_WITH_AS(ResultsFile(path.string()), message.c_str(), std::runtime_error);
        std::ostringstream after;
        after << std::ifstream(path).rdbuf();
        CHECK(after.str() == text);
    }
    std::filesystem::remove(path);
    for (const std::string& no_file :
         {std::filesystem::temp_directory_path().string(), std::string("/dev/zero")})
        CHECK_THROWS_WITH_AS(ResultsFile{no_file},
                             ("'" + no_file + "' is no file that results can be appended to").c_str(),
                             std::runtime_error);
}

TEST_CASE("a failing check ends the program with status 1 before anything is measured") {
    bool is_measured = false;
    const int status = run({"--tour"}, [&](Session& session) {
        session.check("a right case", "");
        session.check("a wrong case", "off by 1");
        is_measured = true;
    });
    CHECK(status == 1);
    CHECK_FALSE(is_measured);
}

TEST_CASE("an unknown option, a missing value and an unwritable results file are errors") {
    const auto nothing = [](Session&) {};
    CHECK(run({"--fast"}, nothing) == 2);
    CHECK(run({"--csv"}, nothing) == 2);
    CHECK(run({"--csv", "/no/such/directory/x.csv"}, nothing) == 1);
    CHECK(run({"--help"}, nothing) == 0);
}
