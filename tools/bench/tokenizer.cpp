// The time that a tokenizer takes for texts, once, with nothing cached: for tools/bench-tokenizer.
// usage: bench_tokenizer TOKENIZER TEXTS     TEXTS: a file of texts, each with a zero byte behind it
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_files.h"

namespace engine::tokenizer {
namespace {

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

absl::Status Bench(const std::string& path, const std::string& texts) {
  const double begin = CpuSeconds();
  ASSIGN_OR_RETURN(Description description, ReadTokenizer(path));
  ASSIGN_OR_RETURN(const std::unique_ptr<Pipeline> pipeline, Pipeline::Make(std::move(description)));
  const double loaded = CpuSeconds();
  std::int64_t tokens = 0;
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at < texts.size();) {
    const std::size_t end = std::min(texts.find('\0', at), texts.size());
    ids.clear();
    RETURN_IF_ERROR(pipeline->Encode(std::string_view(texts).substr(at, end - at), {.special_tokens = true}, &ids));
    tokens += static_cast<std::int64_t>(ids.size());
    at = end + 1;
  }
  fmt::print("{} {:.4f} {:.4f}\n", tokens, CpuSeconds() - loaded, loaded - begin);
  return absl::OkStatus();
}

}  // namespace
}  // namespace engine::tokenizer

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: bench_tokenizer TOKENIZER TEXTS\n");
    return 2;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::string texts{std::istreambuf_iterator<char>(file), {}};
  const absl::Status status = engine::tokenizer::Bench(argv[1], texts);
  if (!status.ok()) fmt::print(stderr, "{}\n", engine::Message(status));
  return status.ok() ? 0 : 1;
}
