// Results as rows of a long-form CSV: one row per measured number, the columns in the order of kColumns.
#pragma once

#include <string>
#include <string_view>

#include "common/attention.hpp"
#include "common/bench/timing.hpp"

namespace flash::bench {

inline constexpr std::string_view kColumns =
    "step,variant,backend,op,dtype,B,Hq,Hkv,Nq,Nk,D,mask,diagonal,metric,unit,median,p10,p90,reps,"
    "machine,device,compiler,flags,commit,date";

// Where and how a program runs; the same for all its rows.
struct Environment {
    std::string machine;  // processor, vector instructions, cores: "amd-epyc-avx512-2cores", or
                          // $FLASH_STEPS_MACHINE
    std::string device;   // what executed the step: the processor, the GPU or "emulator"
    std::string compiler;
    std::string flags;
    std::string commit;  // of the source tree, "+changes" when it had uncommitted ones
    std::string date;    // UTC, YYYY-MM-DD
};
Environment current_environment(const std::string& device);

// What was run. Row-wise operations (a softmax of Nq rows of Nk numbers) leave the other sizes 1.
struct Case {
    std::string variant;  // which of the step's functions
    std::string backend;  // cpu, cuda or emulator
    std::string op;       // softmax, forward, backward ...
    std::string dtype;
    Shape shape;
    Mask mask;
};

// One number: its name, its unit and its value.
struct Metric {
    std::string name;
    std::string unit;
    Summary value;
};

// Whole numbers exactly, others with six significant digits; '.' as the decimal mark, whatever the locale.
std::string format_number(double value);
// The same for a reader: three significant digits, bytes as KiB, MiB or GiB.
std::string readable(double value, const std::string& unit);
// "B1 H8/2 N1024x4096 D64 causal+3072"
std::string describe(const Shape& shape, const Mask& mask);

std::string csv_row(const std::string& step, const Case& what, const Metric& metric,
                    const Environment& environment);

// Appends rows to a file, creating it with the header. Throws std::runtime_error when it cannot be written
// and when it holds something else than results, which is then left as it is.
class ResultsFile {
  public:
    explicit ResultsFile(const std::string& path);  // empty: rows go nowhere
    void append(const std::string& row) const;

  private:
    std::string path_;
};

}  // namespace flash::bench
