/// Where the host's time goes: to be preloaded (LD_PRELOAD), asked by lab/bench/host_profile.py.
///
/// Between lms_probe_start and lms_probe_stop it samples the call stacks of the threads that there
/// are, each by its own processor time, and counts and times the calls of the CUDA runtime, and of
/// the driver's calls that map memory. Calls that cuDNN and cuBLAS make by a runtime of their own
/// are not seen.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int kDepth = 48;
constexpr std::size_t kMost = 1 << 16;

std::int64_t now_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

struct Sample {
  std::array<void*, kDepth> frames;
  int depth = 0;
  int thread = 0;
  std::int64_t cpu_ns = 0;  ///< of the thread, since its sample before
};

std::atomic<bool> running{false};
std::unique_ptr<Sample[]> samples;
std::atomic<std::size_t> sampled{0};
std::int64_t period_ns = 0;
std::vector<timer_t> timers;
thread_local std::int64_t cpu_before = 0;
thread_local int started = 0;  ///< the start that cpu_before is of
int starts = 0;

void take_sample(int /*signal*/, siginfo_t* /*info*/, void* context) {
  const int error = errno;
  const std::int64_t before = now_ns(CLOCK_THREAD_CPUTIME_ID);
  const std::size_t index = sampled.fetch_add(1);
  if (index < kMost) {
    Sample& sample = samples[index];
    const auto leaf = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
    std::array<void*, kDepth> found{};
    const int depth = backtrace(found.data(), kDepth);
    int first = 0;
    while (first < depth && reinterpret_cast<greg_t>(found[first]) != leaf) ++first;
    sample.frames[0] = reinterpret_cast<void*>(leaf);
    sample.depth = 1;
    for (int i = first + 1; i < depth; ++i) sample.frames[sample.depth++] = found[i];
    sample.cpu_ns = started == starts ? before - cpu_before : period_ns;
    sample.thread = static_cast<int>(syscall(SYS_gettid));
    started = starts;
    cpu_before = now_ns(CLOCK_THREAD_CPUTIME_ID);  // without what the sample has taken
  }
  errno = error;
}

void start_timer(int thread) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGPROF;
#ifdef sigev_notify_thread_id
  event.sigev_notify_thread_id = thread;
#else
  event._sigev_un._tid = thread;
#endif
  timer_t timer{};
  // Linux's name of a thread's processor time (clock_getcpuclockid knows those of processes alone).
  const auto cpu_time = static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | 6U);
  if (timer_create(cpu_time, &event, &timer) != 0) return;
  itimerspec spec{};
  spec.it_interval.tv_nsec = period_ns;
  spec.it_value.tv_nsec = period_ns;
  timer_settime(timer, 0, &spec, nullptr);
  timers.push_back(timer);
}

struct Calls {
  explicit Calls(const char* what) : name(what) {
    next = first.load();
    while (!first.compare_exchange_weak(next, this)) {
    }
  }
  const char* name;
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> ns{0};
  Calls* next = nullptr;
  static inline std::atomic<Calls*> first{nullptr};
};

class Timed {
 public:
  explicit Timed(Calls& calls)
      : calls_(running.load(std::memory_order_relaxed) ? &calls : nullptr) {
    if (calls_ != nullptr) begin_ = now_ns(CLOCK_MONOTONIC);
  }
  ~Timed() {
    if (calls_ == nullptr) return;
    calls_->ns += now_ns(CLOCK_MONOTONIC) - begin_;
    ++calls_->count;
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Calls* calls_;
  std::int64_t begin_ = 0;
};

void* next_of(const char* name) {
  if (void* found = dlsym(RTLD_NEXT, name)) return found;
  void* runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  if (runtime == nullptr) runtime = dlopen("libcudart.so.12", RTLD_NOW | RTLD_NOLOAD);
  return runtime != nullptr ? dlsym(runtime, name) : nullptr;
}

}  // namespace

#define LMS_COUNTED(name, parameters, arguments)                                \
  cudaError_t name parameters {                                                 \
    static Calls calls(#name);                                                  \
    static const auto real = reinterpret_cast<decltype(&name)>(next_of(#name)); \
    const Timed timed(calls);                                                   \
    return real arguments;                                                      \
  }

extern "C" {

LMS_COUNTED(cudaEventCreate, (cudaEvent_t * event), (event))
LMS_COUNTED(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))
LMS_COUNTED(cudaEventDestroy, (cudaEvent_t event), (event))
LMS_COUNTED(cudaEventQuery, (cudaEvent_t event), (event))
LMS_COUNTED(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
LMS_COUNTED(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned flags),
            (event, stream, flags))
LMS_COUNTED(cudaEventSynchronize, (cudaEvent_t event), (event))
LMS_COUNTED(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
            (stream, event, flags))
LMS_COUNTED(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* status),
            (stream, status))
LMS_COUNTED(cudaStreamSynchronize, (cudaStream_t stream), (stream))
LMS_COUNTED(cudaStreamQuery, (cudaStream_t stream), (stream))
LMS_COUNTED(cudaDeviceSynchronize, (), ())
LMS_COUNTED(cudaMemcpyAsync,
            (void* to, const void* from, size_t count, cudaMemcpyKind kind, cudaStream_t stream),
            (to, from, count, kind, stream))
LMS_COUNTED(cudaMemsetAsync, (void* to, int value, size_t count, cudaStream_t stream),
            (to, value, count, stream))
LMS_COUNTED(cudaMalloc, (void** address, size_t size), (address, size))
LMS_COUNTED(cudaFree, (void* address), (address))
LMS_COUNTED(cudaMemGetInfo, (size_t * free, size_t* total), (free, total))
LMS_COUNTED(cudaGetDevice, (int* device), (device))
LMS_COUNTED(cudaSetDevice, (int device), (device))
LMS_COUNTED(cudaGetLastError, (), ())
LMS_COUNTED(cudaPeekAtLastError, (), ())
LMS_COUNTED(cudaPointerGetAttributes, (cudaPointerAttributes * attributes, const void* address),
            (attributes, address))
LMS_COUNTED(cudaLaunchKernel,
            (const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
             cudaStream_t stream),
            (kernel, grid, block, arguments, shared, stream))
LMS_COUNTED(cudaLaunchKernelExC,
            (const cudaLaunchConfig_t* config, const void* kernel, void** arguments),
            (config, kernel, arguments))
#if CUDART_VERSION >= 13000
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t);
LMS_COUNTED(__cudaLaunchKernel,
            (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
             cudaStream_t stream),
            (kernel, grid, block, arguments, shared, stream))
#endif

}  // extern "C"

// The driver's calls, which LMS asks the runtime for.

#define LMS_COUNTED_DRIVER(name, parameters, arguments) \
  CUresult(*real_##name) parameters = nullptr;          \
  CUresult counted_##name parameters {                  \
    static Calls calls(#name);                          \
    const Timed timed(calls);                           \
    return real_##name arguments;                       \
  }

namespace {

LMS_COUNTED_DRIVER(cuMemMap,
                   (CUdeviceptr address, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags),
                   (address, size, offset, handle, flags))
LMS_COUNTED_DRIVER(cuMemUnmap, (CUdeviceptr address, size_t size), (address, size))
LMS_COUNTED_DRIVER(cuMemSetAccess,
                   (CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count),
                   (address, size, access, count))
LMS_COUNTED_DRIVER(cuMemCreate,
                   (CUmemGenericAllocationHandle * handle, size_t size,
                    const CUmemAllocationProp* properties, unsigned long long flags),
                   (handle, size, properties, flags))
LMS_COUNTED_DRIVER(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))

template <class Function>
bool take_over(const char* asked, const char* name, Function& real, Function counted,
               void** address) {
  if (std::strcmp(asked, name) != 0 || *address == nullptr) return false;
  real = reinterpret_cast<Function>(*address);
  *address = reinterpret_cast<void*>(counted);
  return true;
}

void take_over_driver(const char* name, void** address) {
  (void)(take_over(name, "cuMemMap", real_cuMemMap, &counted_cuMemMap, address) ||
         take_over(name, "cuMemUnmap", real_cuMemUnmap, &counted_cuMemUnmap, address) ||
         take_over(name, "cuMemSetAccess", real_cuMemSetAccess, &counted_cuMemSetAccess, address) ||
         take_over(name, "cuMemCreate", real_cuMemCreate, &counted_cuMemCreate, address) ||
         take_over(name, "cuMemRelease", real_cuMemRelease, &counted_cuMemRelease, address));
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** address, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result) {
  using Function = cudaError_t (*)(const char*, void**, unsigned, unsigned long long,
                                   cudaDriverEntryPointQueryResult*);
  static const auto real = reinterpret_cast<Function>(next_of("cudaGetDriverEntryPointByVersion"));
  const cudaError_t code = real(name, address, version, flags, result);
  if (code == cudaSuccess) take_over_driver(name, address);
  return code;
}

/// Begins: so many samples a second of processor time of every thread that there is (0: none; the
/// kernel may take fewer). Returns how many
/// threads are sampled. What an earlier profile has found is forgotten.
int lms_probe_start(int rate) {
  if (!samples) samples = std::make_unique<Sample[]>(kMost);
  sampled = 0;
  ++starts;
  for (Calls* calls = Calls::first; calls != nullptr; calls = calls->next) {
    calls->count = 0;
    calls->ns = 0;
  }
  if (rate > 0) {
    std::array<void*, 4> loads_the_unwinder{};
    backtrace(loads_the_unwinder.data(), 4);
    period_ns = std::min<std::int64_t>(1'000'000'000LL / rate, 999'999'999);
    struct sigaction action {};
    action.sa_sigaction = &take_sample;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGPROF, &action, nullptr);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      start_timer(std::stoi(entry.path().filename()));
    }
  }
  running = true;
  return static_cast<int>(timers.size());
}

void lms_probe_stop() {
  running = false;
  for (timer_t timer : timers) timer_delete(timer);
  timers.clear();
  signal(SIGPROF, SIG_IGN);
}

/// Writes what was found, as JSON: calls, samples with their nanoseconds and addresses from the
/// leaf outwards, and what is mapped where. Not 0 if that failed.
int lms_probe_write(const char* path) {
  std::ofstream out(path);
  out << "{\"calls\": [";
  const char* separator = "\n ";
  for (const Calls* calls = Calls::first; calls != nullptr; calls = calls->next) {
    if (calls->count == 0) continue;
    out << separator << "{\"name\": \"" << calls->name << "\", \"count\": " << calls->count
        << ", \"ns\": " << calls->ns << "}";
    separator = ",\n ";
  }
  out << "],\n\"samples\": [";
  separator = "\n ";
  for (std::size_t i = 0; i < std::min(sampled.load(), kMost); ++i) {
    const Sample& sample = samples[i];
    out << separator << "[" << sample.thread << ", " << sample.cpu_ns;
    for (int j = 0; j < sample.depth; ++j) {
      out << ", " << reinterpret_cast<std::uintptr_t>(sample.frames[j]);
    }
    out << "]";
    separator = ",\n ";
  }
  out << "],\n\"maps\": [";
  std::ifstream maps("/proc/self/maps");
  separator = "\n ";
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" r-xp ") == std::string::npos || line.find('"') != std::string::npos) continue;
    out << separator << "\"" << line << "\"";
    separator = ",\n ";
  }
  out << "]}\n";
  return out.flush() ? 0 : 1;
}

}  // extern "C"
