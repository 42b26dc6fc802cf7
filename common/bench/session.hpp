// One run of a step's bench program: options, checks, measurements, results rows.
//
//   stepNN_bench [--tour] [--csv FILE] [--describe] [--help]
//
// A program whose step needs a device that is not there says why and exits with status 77.
// A check stands before every measurement; the first that fails ends the program with exit status 1 and a
// line naming step and case. A measuring error is printed and leaves no row.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/bench/results.hpp"

namespace flash::bench {

struct StepInfo {
    const char* number;  // "03"
    const char* shows;   // one line: what the step shows
};

// Thrown by a bench whose device is missing; what() says why.
struct DeviceMissing : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// One function to be timed, and what a call of it does at least.
struct Variant {
    std::string name;
    std::function<void()> call;
    Work work;                       // for the plausibility check and, where flops are given, the rate
    double counted_bytes = 0;        // bytes for the GB/s that is reported; 0 = not reported
    std::vector<Metric> extra = {};  // further numbers for the same row group, such as memory
};

class Session {
  public:
    struct Options {
        bool tour = false;  // a few quick rows
        std::string csv;    // where rows go; empty: nowhere
    };

    Session(const StepInfo& step, const Options& options, const std::string& backend,
            const std::string& device);

    bool tour() const { return options_.tour; }
    const std::string& backend() const { return backend_; }

    // `failure` is empty when the check passed; otherwise it says what was wrong, and the program ends.
    void check(const std::string& what, const std::string& failure);

    // One line on the terminal, one row per metric.
    void record(const Case& what, const std::vector<Metric>& metrics);

    // Times the variants in turns and records each: time, rate, share of peak, and what the variant adds.
    // The case's variant is filled in from each variant.
    void measure(Case what, Stopwatch& watch, const std::vector<Variant>& variants, const Peaks& peaks,
                 const Plan& plan);

    int measuring_errors() const { return measuring_errors_; }

  private:
    struct OwnedStep {
        std::string number, shows;
    };
    OwnedStep step_;
    Options options_;
    std::string backend_;
    Environment environment_;
    ResultsFile results_;
    int measuring_errors_ = 0;
};

// The main function of every bench program. `device` is what executes the step: "" for the processor.
int run_bench(int argc, char** argv, const StepInfo& step, const std::string& backend,
              const std::string& device, const std::function<void(Session&)>& body);

}  // namespace flash::bench
