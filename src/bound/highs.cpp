// HiGHS through its C API, of which these few functions are declared here: the package that brings
// the library (highspy) has no headers.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "bound/linear_program.h"

namespace lms {
namespace {

using HighsInt = std::int32_t;

constexpr HighsInt kRowWise = 2;
constexpr HighsInt kMinimise = 1;
constexpr HighsInt kError = -1;
constexpr HighsInt kOptimal = 7;
constexpr HighsInt kInfeasible = 8;
/// Nothing here can be unbounded, since every time is at least zero.
constexpr HighsInt kUnboundedOrInfeasible = 9;

class Library {
 public:
  Library() {
    if (const char* named = std::getenv("LMS_HIGHS"); named != nullptr && *named != '\0') {
      if (!open(named)) throw Error("HiGHS, named by LMS_HIGHS, cannot be loaded: " + failure_);
    } else {
      find();
    }
    resolve(create, "Highs_create");
    resolve(destroy, "Highs_destroy");
    resolve(pass_lp, "Highs_passLp");
    resolve(set_bool, "Highs_setBoolOptionValue");
    resolve(set_int, "Highs_setIntOptionValue");
    resolve(set_string, "Highs_setStringOptionValue");
    resolve(run, "Highs_run");
    resolve(model_status, "Highs_getModelStatus");
    resolve(objective, "Highs_getObjectiveValue");
    HighsInt (*size_of_int)(const void*) = nullptr;
    resolve(size_of_int, "Highs_getSizeofHighsInt");
    if (size_of_int(nullptr) != sizeof(HighsInt)) {
      throw Error(
          "this HiGHS is built for 64-bit indices; one for 32-bit indices is needed: pip "
          "install highspy");
    }
  }

  void* (*create)() = nullptr;
  void (*destroy)(void*) = nullptr;
  HighsInt (*pass_lp)(void* highs, HighsInt columns, HighsInt rows, HighsInt terms, HighsInt format,
                      HighsInt sense, double offset, const double* costs,
                      const double* column_least, const double* column_most,
                      const double* row_least, const double* row_most, const HighsInt* begin,
                      const HighsInt* index, const double* value) = nullptr;
  HighsInt (*set_bool)(void* highs, const char* option, HighsInt value) = nullptr;
  HighsInt (*set_int)(void* highs, const char* option, HighsInt value) = nullptr;
  HighsInt (*set_string)(void* highs, const char* option, const char* value) = nullptr;
  HighsInt (*run)(void* highs) = nullptr;
  HighsInt (*model_status)(const void* highs) = nullptr;
  double (*objective)(const void* highs) = nullptr;

 private:
  // Never closed: it stays for the next bound.
  bool open(const char* path) {
    handle_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return true;
    failure_ = dlerror();
    return false;
  }

  void find() {
    for (const char* name : {"libhighs.so.1", "libhighs.so"}) {
      if (open(name)) return;
    }
    std::string_view paths = LMS_HIGHS_PATHS;
    while (!paths.empty()) {
      const std::size_t end = paths.find(':');
      if (open(std::string(paths.substr(0, end)).c_str())) return;
      paths.remove_prefix(end == std::string_view::npos ? paths.size() : end + 1);
    }
    throw Error("HiGHS, the solver of bounds, was not found (" + failure_ +
                "); install it (pip install highspy) and let LMS_HIGHS name its libhighs.so.1");
  }

  template <typename Function>
  void resolve(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) {
      throw Error(std::string("the HiGHS that was found has no ") + name +
                  "; install a newer one (pip install --upgrade highspy)");
    }
  }

  void* handle_ = nullptr;
  std::string failure_;
};

/// One solver.
class Solver {
 public:
  explicit Solver(const Library& library) : library_(library), highs_(library.create()) {
    if (highs_ == nullptr) throw Error("HiGHS could not be started");
  }
  ~Solver() { library_.destroy(highs_); }
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;
  Solver(Solver&&) = delete;
  Solver& operator=(Solver&&) = delete;

  [[nodiscard]] void* get() const { return highs_; }

 private:
  const Library& library_;
  void* highs_;
};

}  // namespace

std::optional<double> minimum(const LinearProgram& program) {
  static const Library library;
  const Solver solver(library);
  void* highs = solver.get();
  const auto check = [](HighsInt status, const char* what) {
    if (status == kError) throw Error(std::string("HiGHS failed to ") + what);
  };
  check(library.set_bool(highs, "output_flag", 0), "keep quiet");
  // Bounds are computed beside training: no pool of threads.
  check(library.set_int(highs, "threads", 1), "keep to one thread");
  // Only the value is wanted, not a vertex that has it.
  check(library.set_string(highs, "run_crossover", "off"), "leave out the crossover");
  check(
      library.pass_lp(highs, static_cast<HighsInt>(program.costs.size()),
                      static_cast<HighsInt>(program.row_least.size()),
                      static_cast<HighsInt>(program.columns.size()), kRowWise, kMinimise, 0,
                      program.costs.data(), program.column_least.data(), program.column_most.data(),
                      program.row_least.data(), program.row_most.data(), program.row_begin.data(),
                      program.columns.data(), program.factors.data()),
      "take the linear program");
  // The interior-point method is several times faster here, but gives up now and then.
  HighsInt status = 0;
  for (const char* method : {"ipm", "simplex"}) {
    check(library.set_string(highs, "solver", method), "choose its method");
    library.run(highs);
    status = library.model_status(highs);
    if (status == kOptimal) return library.objective(highs);
    if (status == kInfeasible || status == kUnboundedOrInfeasible) return std::nullopt;
  }
  throw Error("HiGHS did not solve the linear program (model status " + std::to_string(status) +
              ')');
}

}  // namespace lms
