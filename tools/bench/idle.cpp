// How much of a run a GPU idles: a library that CUDA loads into any program, unchanged, and that records the
// start and end of every kernel, copy and memset on the device (nodes of CUDA graphs one by one). At exit it
// prints to stderr, for each device and the middle 60 % of its span: the time in which anything ran, the gaps
// between, and the kernels that took the most. Recording costs the host some microseconds a launch: judge
// gaps, not speed. A kernel that waits for another rank counts as busy.
//
//   ninja -C build idle        where CMake finds CUDA and cupti.h; `all` does not build it
//   CUDA_INJECTION64_PATH=$PWD/build/libidle.so PROGRAM
//
// Without CMake: g++ -std=c++20 -O2 -shared -fPIC tools/bench/idle.cpp -o libidle.so -I$CUDA/include
// -L$CUDA/lib64 -lcupti, where CUDA is /usr/local/cuda, or its extras/CUPTI where a toolkit keeps CUPTI
// apart. PROGRAM must find libcupti.so.13: where the library was linked, or on LD_LIBRARY_PATH; PyTorch
// brings one.
//
// IDLE_FROM and IDLE_TO, in percent of the span, choose another window than 20 to 80.
#include <cupti.h>
#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kBufferBytes = std::size_t{16} << 20;
constexpr std::size_t kTopKernels = 15;
constexpr std::size_t kTopGaps = 5;

struct Interval {
  std::uint64_t start, end;  // ns
  const char* name;          // one of Recorder::names: the same name is the same pointer
};

struct Recorder {
  std::mutex mutex;
  std::map<std::uint32_t, std::vector<Interval>> devices;
  std::unordered_set<std::string> names;
  std::uint64_t dropped = 0;
};

// Never destroyed: CUPTI may hand over buffers while the process ends.
Recorder& recorder() {
  static auto* const instance = new Recorder;
  return *instance;
}

bool Works(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return true;
  const char* text = "";
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "idle: %s: %s\n", what, text);
  return false;
}

void Append(std::string* text, const char* format, ...) __attribute__((format(printf, 2, 3)));
void Append(std::string* text, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  *text += line;
}

const char* CopyName(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "[copy host to device]";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "[copy device to host]";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "[copy device to device]";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "[copy to a peer]";
    default:
      return "[copy]";
  }
}

template <typename Record>
void Keep(const Record& record, const char* name) {
  if (record.start == 0 || record.end < record.start) return;  // CUPTI has no times for it
  const char* kept = recorder().names.emplace(name).first->c_str();
  recorder().devices[record.deviceId].push_back({record.start, record.end, kept});
}

void KeepRecord(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
      return Keep(kernel, kernel.name);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
      return Keep(copy, CopyName(copy.copyKind));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return Keep(reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record), "[copy to a peer]");
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return Keep(reinterpret_cast<const CUpti_ActivityMemset4&>(record), "[memset]");
    default:
      return;
  }
}

void CUPTIAPI GiveBuffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

void CUPTIAPI TakeBuffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                         std::size_t valid_bytes) {
  const std::lock_guard lock(recorder().mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) KeepRecord(*record);
  std::size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == CUPTI_SUCCESS) recorder().dropped += dropped;
  std::free(buffer);
}

double Percent(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

// As a person would say it, cut to a line.
std::string ShortName(const char* name) {
  int status = -1;
  char* plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 ? plain : name;
  std::free(plain);
  for (const char* noise : {"void ", "engine::backend::cuda::", "(anonymous namespace)::"}) {
    const std::string word = noise;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
      text.erase(at, word.size());
    }
  }
  if (text.size() > 100) text = text.substr(0, 97) + "...";
  return text;
}

struct Sum {
  std::uint64_t count = 0, total = 0;  // total: ns
  void Add(std::uint64_t time) {
    ++count;
    total += time;
  }
};
using Sums = std::unordered_map<const char*, Sum>;

std::vector<std::pair<const char*, Sum>> Largest(const Sums& sums, std::size_t most) {
  std::vector<std::pair<const char*, Sum>> rows(sums.begin(), sums.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.total > b.second.total; });
  if (rows.size() > most) rows.resize(most);
  return rows;
}

void AppendTable(const Sums& sums, std::size_t most, std::uint64_t window, const char* title,
                 std::string* text) {
  Append(text, "  %10s %6s %8s %10s  %s\n", "total ms", "%", "count", "mean us", title);
  for (const auto& [name, sum] : Largest(sums, most)) {
    Append(text, "  %10.3f %6.2f %8llu %10.2f  %s\n", static_cast<double>(sum.total) * 1e-6,
           100.0 * static_cast<double>(sum.total) / static_cast<double>(window),
           static_cast<unsigned long long>(sum.count),
           1e-3 * static_cast<double>(sum.total) / static_cast<double>(sum.count), ShortName(name).c_str());
  }
}

void AppendDevice(std::uint32_t device, std::vector<Interval>* intervals, std::string* text) {
  std::sort(intervals->begin(), intervals->end(),
            [](const Interval& a, const Interval& b) { return a.start < b.start; });
  const std::uint64_t first = intervals->front().start;
  std::uint64_t last = first;
  for (const Interval& interval : *intervals) last = std::max(last, interval.end);
  const auto span = static_cast<double>(last - first);
  const double from_percent = std::clamp(Percent("IDLE_FROM", 20), 0.0, 100.0);
  const double to_percent = std::clamp(Percent("IDLE_TO", 80), from_percent, 100.0);
  const std::uint64_t from = first + static_cast<std::uint64_t>(span * from_percent / 100);
  const std::uint64_t to = first + static_cast<std::uint64_t>(span * to_percent / 100);
  if (to == from) return;

  Sums kernels;
  Sums gaps;  // by the kernel that ends them
  Sum all_gaps;
  std::uint64_t longest = 0;
  std::uint64_t done = from;  // up to here the window is busy, or a gap that is counted
  const auto add_gap = [&](std::uint64_t until, const char* before) {
    if (until <= done) return;
    all_gaps.Add(until - done);
    gaps[before].Add(until - done);
    longest = std::max(longest, until - done);
  };
  for (const Interval& interval : *intervals) {
    if (interval.start >= to) break;
    if (interval.end <= from) continue;
    if (interval.start >= from) kernels[interval.name].Add(interval.end - interval.start);
    add_gap(interval.start, interval.name);
    done = std::max(done, std::min(interval.end, to));
  }
  add_gap(to, "[end of the window]");

  const std::uint64_t window = to - from;
  Append(text,
         "idle: device %u, %.0f to %.0f %% of %.3f s: busy %.2f %%, gaps: %llu of %.2f us mean, longest %.1f "
         "us\n",
         device, from_percent, to_percent, span * 1e-9,
         100.0 * static_cast<double>(window - all_gaps.total) / static_cast<double>(window),
         static_cast<unsigned long long>(all_gaps.count),
         all_gaps.count == 0
             ? 0
             : 1e-3 * static_cast<double>(all_gaps.total) / static_cast<double>(all_gaps.count),
         static_cast<double>(longest) * 1e-3);
  AppendTable(kernels, kTopKernels, window, "kernel", text);
  AppendTable(gaps, kTopGaps, window, "gaps before", text);
}

void Finish() {
  Works(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flush");
  const std::lock_guard lock(recorder().mutex);
  std::string text;
  Append(&text, "idle: process %d", static_cast<int>(getpid()));
  if (recorder().devices.empty()) text += ": nothing ran on a device";
  if (recorder().dropped > 0) {
    Append(&text, ": %llu records were dropped", static_cast<unsigned long long>(recorder().dropped));
  }
  text += '\n';
  for (auto& [device, intervals] : recorder().devices) AppendDevice(device, &intervals, &text);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

// The driver calls it when it initialises; nonzero: all is well.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  static bool started = false;
  if (started) return 1;
  started = true;
  std::size_t bytes = kBufferBytes;
  std::size_t value_bytes = sizeof bytes;
  Works(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, &value_bytes, &bytes),
        "size of buffers on the device");
  if (!Works(cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer), "callbacks")) return 1;
  // Without CUPTI_ACTIVITY_KIND_GRAPH_TRACE a graph's nodes are recorded one by one.
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (!Works(cuptiActivityEnable(kind), "enable")) return 1;
  }
  std::atexit(Finish);
  std::at_quick_exit(Finish);  // how a rank of several ends
  return 1;
}
