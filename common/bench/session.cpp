#include "common/bench/session.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

namespace flash::bench {

namespace {

constexpr std::size_t kTerminalColumns = 98;  // of a line; the tour indents it by two

class CheckFailed : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

void print_line(const std::string& line) {
    std::fputs((line + "\n").c_str(), stdout);
    if (std::fflush(stdout) != 0) throw std::runtime_error("cannot write to standard output");
}

std::string usage(const StepInfo& step, const std::string& program) {
    const std::string name = program.substr(program.rfind('/') + 1);
    return name + ": " + step.shows + "\n\nusage: " + name +
           " [options]\n"
           "  --tour          a few quick measurements\n"
           "  --csv FILE      append the results to FILE as CSV\n"
           "  --describe      print what the step shows, and nothing else\n"
           "  --device        (steps 04 on, alone) print the device's sizes, and nothing else\n"
           "  --help          print this\n";
}

}  // namespace

Session::Session(const StepInfo& step, const Options& options, const std::string& backend,
                 const std::string& device)
    : step_{step.number, step.shows},
      options_(options),
      backend_(backend),
      environment_(current_environment(device)),
      results_(options.csv) {}

void Session::check(const std::string& what, const std::string& failure) {
    if (!failure.empty()) throw CheckFailed("step " + step_.number + ", " + what + ": " + failure);
    print_line("check    " + what);
}

void Session::record(const Case& what, const std::vector<Metric>& metrics) {
    std::string line =
        "measure  " + what.variant + ", " + (what.variant == what.op ? "" : what.op + ", ") + what.dtype;
    if (what.op == "softmax") {
        line += " " + std::to_string(what.shape.len_q) + " x " + std::to_string(what.shape.len_kv);
    } else if (what.shape.batch > 0) {
        line += " " + describe(what.shape, what.mask);
    }
    line += ":";
    for (const auto& metric : metrics) {
        std::string words = metric.name;
        std::replace(words.begin(), words.end(), '_', ' ');
        words += " " + readable(metric.value.median, metric.unit);
        if (metric.value.reps > 1 && metric.name == "time") {
            words += " (" + readable(metric.value.p10, "") + " to " + readable(metric.value.p90, "") + ")";
        }
        if (&metric != &metrics.back()) words += ",";
        if (line.size() + 1 + words.size() > kTerminalColumns) {
            print_line(line);
            line = "        ";
        }
        line += " " + words;
        results_.append(csv_row(step_.number, what, metric, environment_));
    }
    print_line(line);
}

void Session::measure(Case what, Stopwatch& watch, const std::vector<Variant>& variants, const Peaks& peaks,
                      const Plan& plan) {
    std::vector<std::function<void()>> calls;
    for (const auto& variant : variants) calls.push_back(variant.call);
    const std::vector<Summary> times = time_interleaved(watch, calls, plan);
    for (std::size_t i = 0; i < variants.size(); ++i) {
        const Variant& variant = variants[i];
        what.variant = variant.name;
        const std::string error = measuring_error(times[i], variant.work, peaks);
        if (!error.empty()) {
            ++measuring_errors_;
            print_line("MEASURING ERROR  step " + step_.number + ", " + variant.name + ", " +
                       describe(what.shape, what.mask) + ": " + error + "; not recorded");
            continue;
        }
        const auto rate_of = [&](double amount) {
            return transform(times[i], [amount](double seconds) { return amount / seconds / 1e9; });
        };
        std::vector<Metric> metrics = {
            {"time", "ms", transform(times[i], [](double seconds) { return seconds * 1e3; })}};
        if (variant.work.flops > 0) {
            const Summary rate = rate_of(variant.work.flops);
            metrics.push_back({"rate", "GFLOP/s", rate});
            if (peaks.flops_per_second > 0) {
                metrics.push_back({"share_of_peak", "%", transform(rate, [&](double gflops) {
                                       return gflops * 1e9 / peaks.flops_per_second * 100;
                                   })});
            }
        }
        if (variant.counted_bytes > 0) {
            metrics.push_back({"bandwidth", "GB/s", rate_of(variant.counted_bytes)});
        }
        metrics.insert(metrics.end(), variant.extra.begin(), variant.extra.end());
        record(what, metrics);
    }
}

int run_bench(int argc, char** argv, const StepInfo& step, const std::string& backend,
              const std::string& device, const std::function<void(Session&)>& body) {
    Session::Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view option = argv[i];
        if (option == "--help") {
            std::fputs(usage(step, argv[0]).c_str(), stdout);
            return 0;
        }
        if (option == "--describe") {
            std::puts(step.shows);
            return 0;
        }
        if (option == "--tour") {
            options.tour = true;
        } else if (option == "--csv" && i + 1 < argc && *argv[i + 1] != '\0') {
            options.csv = argv[++i];
        } else {
            std::fprintf(stderr, "unknown option or missing value: %s\n\n%s", argv[i],
                         usage(step, argv[0]).c_str());
            return 2;
        }
    }
    try {
        Session session(step, options, backend, device);
        body(session);
        return 0;
    } catch (const DeviceMissing& missing) {
        std::printf("SKIP: %s\n", missing.what());
        return 77;
    } catch (const CheckFailed& failed) {
        std::fprintf(stderr, "FAILED   %s\n", failed.what());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "FAILED   step %s: %s\n", step.number, error.what());
    }
    return 1;
}

}  // namespace flash::bench
