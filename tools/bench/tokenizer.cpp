// The CPU time that a tokenizer takes for texts, once, with nothing cached: for tools/bench-tokenizer.
// usage: bench_tokenizer TOKENIZER TEXTS [THREADS]     TEXTS: a file of texts, each with a zero byte behind it
// Prints tokens, CPU seconds of all threads for them, CPU seconds of loading. Text i is of thread i modulo THREADS.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_files.h"

namespace engine::tokenizer {
namespace {

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

absl::Status Encode(const Pipeline& pipeline, const std::vector<std::string_view>& texts, std::size_t first, std::size_t step,
                    std::int64_t* tokens) {
  std::vector<std::int32_t> ids;
  std::int64_t count = 0;
  for (std::size_t i = first; i < texts.size(); i += step) {
    ids.clear();
    RETURN_IF_ERROR(pipeline.Encode(texts[i], {.special_tokens = true}, &ids));
    count += static_cast<std::int64_t>(ids.size());
  }
  *tokens = count;
  return absl::OkStatus();
}

absl::Status Bench(const std::string& path, const std::string& all, std::size_t threads) {
  std::vector<std::string_view> texts;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\0', at), all.size());
    texts.push_back(std::string_view(all).substr(at, end - at));
    at = end + 1;
  }
  const double begin = CpuSeconds();
  ASSIGN_OR_RETURN(Description description, ReadTokenizer(path));
  ASSIGN_OR_RETURN(const std::unique_ptr<Pipeline> pipeline, Pipeline::Make(std::move(description)));
  const double loaded = CpuSeconds();
  std::vector<std::int64_t> tokens(threads);
  std::vector<absl::Status> statuses(threads);
  std::vector<std::thread> workers;
  for (std::size_t t = 1; t < threads; ++t) {
    workers.emplace_back([&, t] { statuses[t] = Encode(*pipeline, texts, t, threads, &tokens[t]); });
  }
  statuses[0] = Encode(*pipeline, texts, 0, threads, &tokens[0]);
  for (std::thread& worker : workers) worker.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  const std::int64_t sum = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  fmt::print("{} {:.4f} {:.4f}\n", sum, CpuSeconds() - loaded, loaded - begin);
  return absl::OkStatus();
}

}  // namespace
}  // namespace engine::tokenizer

int main(int argc, char** argv) {
  const int threads = argc == 4 ? std::atoi(argv[3]) : 1;
  if (argc < 3 || argc > 4 || threads < 1) {
    fmt::print(stderr, "usage: bench_tokenizer TOKENIZER TEXTS [THREADS]\n");
    return 2;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::string texts{std::istreambuf_iterator<char>(file), {}};
  const absl::Status status = engine::tokenizer::Bench(argv[1], texts, static_cast<std::size_t>(threads));
  if (!status.ok()) fmt::print(stderr, "{}\n", engine::Message(status));
  return status.ok() ? 0 : 1;
}
