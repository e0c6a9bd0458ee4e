#include "lab/studies/worker/run_try.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <new>

#include "base/error.h"
#include "lab/records/files.h"
#include "lab/studies/worker/machine_facts.h"
#include "lab/studies/worker/offload.h"
#include "lab/studies/worker/timeline.h"
#include "lab/studies/worker/workload.h"

// Last: from here on, `torch` within this namespace is lms::torch.
#include <lms/torch.h>

namespace lms::studies {
namespace {

using Clock = std::chrono::steady_clock;
using Stats = std::map<std::string, std::int64_t>;

constexpr std::size_t kMostSpans = 2000;
/// Steps that take longer than this are warmed up and timed less often.
constexpr double kLongStep = 3;
constexpr std::size_t kLeastSteps = 2;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::int64_t of(const Stats& stats, const std::string& key) {
  const auto found = stats.find(key);
  return found == stats.end() ? 0 : found->second;
}

/// Which memory an error of PyTorch is about: of some, only the words tell.
const char* outcome_of(const std::string& message, bool out_of_memory) {
  const auto has = [&](const char* part) { return message.find(part) != std::string::npos; };
  // Pinned memory that the system refuses, and memory that it does not have.
  if (has("cudaHostRegister") || has("not enough memory: you tried to allocate")) {
    return Outcome::kHost;
  }
  const bool device = out_of_memory || has("out of memory") || has("ALLOC_FAILED");
  return device ? Outcome::kOom : Outcome::kFailed;
}

/// The first lines say what happened; the rest is where.
std::string short_text(const std::string& message) {
  constexpr std::size_t kMost = 500;
  const std::size_t trace = message.find("\nException raised from");
  std::string text = message.substr(0, std::min(trace, kMost));
  std::ranges::replace(text, '\n', ' ');
  return text;
}

/// Of an error of LMS more is known than words.
void add_need(Record& record, const std::string& message) {
  const auto need = lms::torch::need_of(message);
  if (!need) return;
  record.outcome = need->below ? Outcome::kHost : Outcome::kOom;
  if (need->op.empty()) return;
  record.need = records::Need{need->op, static_cast<double>(need->bytes),
                              static_cast<double>(need->least_limit)};
}

class Try {
 public:
  Try(const TrySpec& spec, Record& record, std::FILE* log)
      : spec_(spec), record_(record), log_(log) {}

  /// `measured` is called when the timed steps are over, and the record has all of them.
  void run(const std::function<void()>& measured) {
    const std::int64_t host_budget =
        spec_.host_budget > 0 ? spec_.host_budget : usual_host_budget();
    record_.classes = class_count(spec_);
    const train::Settings settings = training_settings(spec_);
    machine_.emplace(settings);
    const ::torch::Device& device = machine_->device();
    record_.machine = machine_facts(device);
    if (const auto rates = best_copies(device)) {
      record_.to_host_rate = rates->to_host;
      record_.to_device_rate = rates->to_device;
    }
    release_caches(device);
    cap_device(device, spec_.cap);
    if (spec_.slack >= 0 && spec_.cap > 0) take_all_but(device, spec_.cap + spec_.slack);
    if (managed()) {
      enable(host_budget);
    } else if (!spec_.link.empty()) {
      throw BadSetting("link: only LMS's own copies can be made slower");
    }
    workload_.emplace(spec_, settings, *machine_, host_budget);
    say("built");
    if (managed()) {
      settle();
    } else {
      for (std::int64_t i = 0; i < spec_.warmup; ++i) {
        const double took = warm_step();
        if (took > kLongStep && i >= 1) break;
      }
    }
    measure();
    measured();
    after();
  }

 private:
  [[nodiscard]] bool managed() const { return spec_.method.rfind("lms", 0) == 0; }

  void enable(std::int64_t host_budget) {
    lms::torch::Options options;
    options.device = machine_->device().str();
    options.limit = spec_.cap > 0 ? spec_.cap - spec_.reserve : -1;
    options.host_limit = host_budget;
    if (machine_->device().is_cpu()) options.host_limit = -1;  // a file
    if (spec_.min_block > 0) options.min_block = spec_.min_block;
    options.plan_seconds = spec_.plan_seconds;
    if (spec_.method == "lms-swap") options.recompute = false;
    // Every try plans for itself.
    options.plan_cache = "off";
    // As plain PyTorch does: the largest size is to be that of the tensors, not of a workspace.
    options.other_algorithms = true;
    lms_.emplace(options);
    record_.limit = of(stats(), "limit");
    if (spec_.link.empty()) return;
    const double rate = records::link_rate(spec_.link).value();
    const double own =
        std::min(record_.to_host_rate.value_or(0), record_.to_device_rate.value_or(0));
    if (own > 0 && rate >= own) {
      add_message("the link is slower than " + spec_.link + ", and ran at its own rate");
      return;
    }
    lms::torch::emulate_link(rate, lms_->device());
    record_.to_host_rate = record_.to_device_rate = rate;
  }

  [[nodiscard]] Stats stats() const { return lms::torch::memory_stats(lms_->device()); }

  /// A step from an idle device to an idle device; its seconds.
  double step() {
    machine_->synchronize();
    const auto begin = Clock::now();
    workload_->step();
    if (lms_) lms::torch::step(lms_->device());
    machine_->synchronize();
    const double took = since(begin);
    record_.losses.push_back(workload_->loss());
    return took;
  }

  double warm_step() {
    const double took = step();
    ++record_.warmup;
    say("warm-up step %lld: %.3f s, loss %.6g", static_cast<long long>(record_.warmup), took,
        record_.losses.back());
    return took;
  }

  /// Steps until some were carried out under a plan that was made with the times of planned ones;
  /// or until nothing moves any more, for all fits.
  void settle() {
    auto begin = Clock::now();
    std::int64_t followed = 0;
    std::int64_t quiet = 0;
    Stats before = stats();
    for (std::int64_t i = 0;; ++i) {
      const double took = warm_step();
      const Stats now = stats();
      const auto grown = [&](const char* key) { return of(now, key) - of(before, key); };
      const bool planned = grown("plan.steps") > 0 && grown("plan.divergences") == 0;
      const bool moved = grown("evictions") > 0 || grown("drops") > 0 || grown("page_ins") > 0;
      followed = planned && of(now, "plan.refined") > 0 ? followed + 1 : 0;
      quiet = !moved ? quiet + 1 : 0;
      const std::int64_t wanted = took > kLongStep ? 1 : std::max<std::int64_t>(1, spec_.warmup);
      if (followed >= wanted || quiet >= wanted + 1) return;
      // The first step also pays for the host's memory: 40 seconds for 100 GiB.
      if (i == 0) begin = Clock::now();
      const bool late = i > 0 && since(begin) + took > spec_.settle_seconds;
      if (i + 1 >= spec_.settle || late) {
        add_message("not settled after " + std::to_string(record_.warmup) +
                    " steps: " + std::to_string(of(now, "plan.planned")) + " plans, " +
                    std::to_string(of(now, "plan.refined")) + " refined, " +
                    std::to_string(of(now, "plan.divergences")) + " divergences");
        return;
      }
      if (of(now, "plan.shapes") > 0) lms::torch::wait_for_plan(lms_->device());
      before = now;
    }
  }

  void measure() {
    const Stats before = lms_ ? stats() : Stats{};
    const OffloadCounts offloaded = offload_counts();
    const Stats sources = allocation_sources(machine_->device());
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < spec_.steps; ++i) {
      record_.steps.push_back(step());
      if (record_.steps.size() >= kLeastSteps && since(begin) > spec_.step_seconds) break;
    }
    const auto count = static_cast<std::int64_t>(record_.steps.size());
    say("%lld timed steps, the last %.3f s", static_cast<long long>(count), record_.steps.back());
    if (lms_) {
      const Stats now = stats();
      const auto grown = [&](const std::string& key) { return of(now, key) - of(before, key); };
      record_.bytes_to_host = grown("bytes_out") / count;
      record_.bytes_to_device = grown("bytes_in") / count;
      std::int64_t elsewhere = grown("blocks.allocated");
      for (const char* source : {"freelist", "driver", "reclaim", "retry"}) {
        record_.allocations[source] = grown(std::string("alloc.") + source);
        elsewhere -= record_.allocations[source];
      }
      // Blocks that lie where a plan wants them.
      record_.allocations["planned"] = std::max<std::int64_t>(0, elsewhere);
      if (of(now, "plan.planned") > 0) {
        record_.predicted = static_cast<double>(of(now, "plan.predicted_us")) * 1e-6;
      }
      record_.stats = now;
      // What each of the timed steps did, beside what the whole process has done.
      for (const char* key : {"bytes_remade", "drops", "remakes", "evictions", "evictions.clean",
                              "page_ins", "plan.steps", "plan.divergences", "arena.misplaced"}) {
        record_.stats["step." + std::string(key)] = grown(key) / count;
      }
      if (const std::int64_t left = grown("plan.divergences"); left > 0) {
        add_message(std::to_string(left) + " times the timed steps left the plan");
      }
      if (const std::int64_t changed = of(now, "op_changes"); changed > 0) {
        add_message(
            std::to_string(changed) +
            " convolutions took another algorithm, for the first one's workspace never fits");
      }
    } else {
      for (const auto& [source, now] : allocation_sources(machine_->device())) {
        record_.allocations[source] = now - of(sources, source);
      }
    }
    if (spec_.method == "save_on_cpu") {
      const OffloadCounts now = offload_counts();
      record_.bytes_to_host = (now.to_host - offloaded.to_host) / count;
      record_.bytes_to_device = (now.to_device - offloaded.to_device) / count;
    } else if (!lms_) {
      record_.bytes_to_host = record_.bytes_to_device = 0;
    }
    add_peaks();
  }

 public:
  /// Also of a try that failed on its way.
  void add_peaks() {
    if (!machine_) return;
    add_memory(record_, machine_->device());
    if (lms_) {
      const Stats now = stats();
      if (record_.stats.empty()) record_.stats = now;
      if (!record_.peak_allocated) record_.peak_allocated = of(now, "device.bytes.peak");
      // Pinned memory is the host's to miss, whether there is something in it or not.
      record_.peak_host = record_.peak_host.value_or(0) +
                          std::max({of(now, "host.bytes.peak"), of(now, "host.bytes.reserved"),
                                    of(now, "file.bytes.peak")});
    } else if (spec_.method == "save_on_cpu" && !record_.peak_host) {
      record_.peak_host = offload_counts().peak;
    }
  }

 private:
  /// What is nice to know besides: none of it makes the try fail.
  void after() {
    if (spec_.timeline && machine_->device().is_cuda()) {
      beside("timeline", [&] {
        auto timeline = profile_step([&] { step(); });
        if (!timeline) return;
        double busy = 0;
        for (const auto& [begin, end] : timeline->kernels) busy += end - begin;
        if (timeline->step > 0) record_.gpu_busy = busy / timeline->step;
        timeline->kernels = merged(std::move(timeline->kernels), kMostSpans);
        record_.timeline = std::move(timeline);
      });
      record_.losses.resize(static_cast<std::size_t>(record_.warmup) + record_.steps.size());
      say("profiled");
    }
    if (lms_ && spec_.trace) {
      beside("trace", [&] {
        std::filesystem::path file = spec_.out;
        file.replace_extension(".trace.json.gz");
        lms::torch::wait_for_plan(lms_->device());
        lms::torch::save_trace(file.string(), lms_->device());
        record_.trace = file.filename().string();
      });
    }
    if (spec_.weights) {
      beside("weights", [&] { record_.weights = workload_->fingerprint(); });
    }
  }

  template <typename Body>
  void beside(const char* what, Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      add_message(std::string("no ") + what + ": " + short_text(error.what()));
    }
  }

  void add_message(const std::string& text) {
    record_.message += (record_.message.empty() ? "" : "; ") + text;
  }

  template <typename... Arguments>
  void say(const char* format, Arguments... arguments) {
    std::fprintf(log_, "[%6.1f s] ", since(begin_));
    if constexpr (sizeof...(Arguments) == 0) {
      std::fputs(format, log_);
    } else {
      std::fprintf(log_, format, arguments...);
    }
    std::fputc('\n', log_);
    std::fflush(log_);
  }

  const TrySpec& spec_;
  Record& record_;
  std::FILE* log_;
  Clock::time_point begin_ = Clock::now();
  std::optional<train::Machine> machine_;
  std::optional<lms::torch::Managed> lms_;
  std::optional<Workload> workload_;
};

}  // namespace

int run_try(const TrySpec& spec, std::FILE* log, bool leave) {
  const auto begin = Clock::now();
  Record record = begun_record(spec);
  std::mutex writing;
  bool written = false;
  const auto write = [&](const Record& what) {
    Record done = what;
    done.wall = since(begin);
    records::write_json(spec.out, to_json(done));
    written = true;
  };
  // What the timed steps said is kept, whatever becomes of the process afterwards.
  const auto measured = [&] {
    Record so_far = record;
    so_far.outcome = Outcome::kOk;
    so_far.partial = true;
    const std::lock_guard lock(writing);
    write(so_far);
  };
  auto attempt = std::make_unique<Try>(spec, record, log);
  const auto fail = [&](const char* outcome, const std::string& message) {
    record.outcome = outcome;
    add_need(record, message);
    record.message += (record.message.empty() ? "" : "; ") + short_text(message);
    try {
      attempt->add_peaks();
    } catch (const std::exception&) {
      // The device is in no state to say anything.
    }
  };
  {
    std::optional<HostWatch> watch;
    const auto full = [&](const std::string& why) {
      const std::lock_guard lock(writing);
      if (!written) {
        Record last = begun_record(spec);
        last.outcome = Outcome::kHost;
        last.message = why;
        write(last);
      }
      std::_Exit(0);
    };
    // Only a process of its own may end like that.
    if (leave) watch.emplace(full);
    try {
      attempt->run(measured);
      record.outcome = Outcome::kOk;
    } catch (const HostFull& error) {
      fail(Outcome::kHost, error.what());
    } catch (const c10::OutOfMemoryError& error) {
      fail(outcome_of(error.what_without_backtrace(), true), error.what_without_backtrace());
    } catch (const c10::Error& error) {
      fail(outcome_of(error.what_without_backtrace(), false), error.what_without_backtrace());
    } catch (const std::bad_alloc& error) {
      fail(Outcome::kHost, error.what());
    } catch (const std::exception& error) {
      fail(outcome_of(error.what(), false), error.what());
    }
    const std::lock_guard lock(writing);
    write(record);
  }
  std::fprintf(log, "%s%s%s\n", record.outcome.c_str(), record.message.empty() ? "" : ": ",
               record.message.c_str());
  std::fflush(log);
  if (leave) (void)attempt.release();
  return record.outcome == Outcome::kFailed ? 1 : 0;
}

}  // namespace lms::studies
