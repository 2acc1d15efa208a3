#include "engine/hf/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/file_io.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/base/write_file.h"

namespace engine::hf {
namespace {

constexpr std::int64_t kHeaderMultiple = 8;
constexpr std::int64_t kBlockBytes = std::int64_t{16} << 20;

absl::Status CheckDeclaration(const TensorDeclaration& tensor) {
  const std::string name = Shown(tensor.name);
  if (tensor.name.find('\0') != std::string::npos || tensor.name == "__metadata__") {
    return InvalidArgument("\"{}\" is no name of a tensor", name);
  }
  if (BitsOf(tensor.type) % 8 != 0) {
    return InvalidArgument("tensor \"{}\" is of {}, and types of less than a byte are not written", name,
                           Name(tensor.type));
  }
  if (tensor.shape.rank() > kMostDims)
    return InvalidArgument("tensor \"{}\" has more than {} dims", name, kMostDims);
  std::int64_t bytes = BitsOf(tensor.type) / 8;
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
      return InvalidArgument("the shape {} of tensor \"{}\" is no size of a file", tensor.shape.ToString(),
                             name);
    }
  }
  return absl::OkStatus();
}

// A string as JSON has it, in UTF-8.
absl::StatusOr<std::string> Quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return InvalidArgument("\"{}\" is not in UTF-8", Shown(text));
  }
}

// The file's first bytes, up to the data. `tensors` are in its order.
absl::StatusOr<std::string> HeaderOf(const std::vector<TensorDeclaration>& tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     std::int64_t* data_bytes) {
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    ASSIGN_OR_RETURN(const std::string quoted_key, Quoted(key));
    ASSIGN_OR_RETURN(const std::string quoted_value, Quoted(value));
    header += fmt::format("{}{}:{}", header.back() == '{' ? "" : ",", quoted_key, quoted_value);
  }
  if (!metadata.empty()) header += "}";
  std::int64_t begin = 0;
  for (const TensorDeclaration& tensor : tensors) {
    std::int64_t end = 0;
    if (__builtin_add_overflow(begin, tensor.bytes(), &end))
      return InvalidArgument("more than 2^63 bytes of tensors");
    ASSIGN_OR_RETURN(const std::string name, Quoted(tensor.name));
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.size() == 1 ? "" : ",", name, Name(tensor.type),
                          fmt::join(tensor.shape.begin(), tensor.shape.end(), ","), begin, end);
    begin = end;
  }
  header += "}";
  header.resize(static_cast<std::size_t>(RoundUp(static_cast<std::int64_t>(header.size()), kHeaderMultiple)),
                ' ');
  if (static_cast<std::int64_t>(header.size()) > kMostHeaderBytes ||
      static_cast<std::int64_t>(tensors.size()) > kMostTensors) {
    return InvalidArgument("{} tensors with a header of {} bytes: a file can have {} and {}", tensors.size(),
                           header.size(), kMostTensors, kMostHeaderBytes);
  }
  *data_bytes = begin;
  std::string length;
  for (int byte = 0; byte < 8; ++byte) length += static_cast<char>(header.size() >> (8 * byte) & 0xFF);
  return length + header;
}

// Bytes that go to a file together. What is made room for is not set to zeros first.
struct Block {
  std::unique_ptr<std::byte[]> data;
  std::int64_t room = 0, used = 0;

  void MakeRoom(std::int64_t bytes) {  // of an empty block
    if (bytes <= room) return;
    data = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    room = bytes;
  }
};

// Writes blocks one after another, in a thread of its own, while the next one is filled.
class BlockWriter {
 public:
  BlockWriter(const File& file, std::int64_t offset)
      : file_(file), offset_(offset), thread_([this] { Run(); }) {}
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;
  ~BlockWriter() {
    if (thread_.joinable()) Close().IgnoreError();
  }

  // Takes what is in *block and gives back an empty one, when the block before is written.
  absl::Status Write(Block* block) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !is_full_; });
    std::swap(*block, block_);
    block->used = 0;
    is_full_ = true;
    changed_.notify_all();
    return status_;
  }

  // Waits for all; the first error.
  absl::Status Close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
      changed_.notify_all();
    }
    thread_.join();
    return status_;
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_full_ || is_closed_; });
      if (!is_full_) return;
      lock.unlock();
      absl::Status status = status_;  // which this thread alone changes
      const std::int64_t bytes = block_.used;
      if (status.ok()) status = file_.WriteAt(block_.data.get(), bytes, offset_);
      // The disk begins at once, and the sync at the end has little left to wait for.
      if (status.ok()) sync_file_range(file_.fd(), offset_, bytes, SYNC_FILE_RANGE_WRITE);
      lock.lock();
      offset_ += bytes;
      status_ = status;
      is_full_ = false;
      changed_.notify_all();
    }
  }

  const File& file_;
  std::int64_t offset_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Block block_;
  bool is_full_ = false, is_closed_ = false;
  absl::Status status_;
  std::thread thread_;
};

absl::Status WriteData(const File& file, std::int64_t offset, const std::vector<TensorDeclaration>& tensors,
                       const FillRows& fill) {
  BlockWriter writer(file, offset);
  Block block;
  for (const TensorDeclaration& tensor : tensors) {
    if (tensor.bytes() == 0) continue;
    const std::int64_t row_bytes = tensor.bytes() / tensor.rows(), most = std::max(kBlockBytes, row_bytes);
    for (std::int64_t row = 0; row < tensor.rows();) {
      if (block.used > 0 && block.used + row_bytes > most) RETURN_IF_ERROR(writer.Write(&block));
      if (block.used == 0) block.MakeRoom(most);
      const std::int64_t rows = std::min(tensor.rows() - row, (most - block.used) / row_bytes);
      const std::span<std::byte> out(block.data.get() + block.used,
                                     static_cast<std::size_t>(rows * row_bytes));
      RETURN_IF_ERROR(fill(tensor, row, rows, out));
      block.used += rows * row_bytes;
      row += rows;
    }
  }
  if (block.used > 0) RETURN_IF_ERROR(writer.Write(&block));
  return writer.Close();
}

absl::Status WriteContent(const File& file, const std::string& header, std::int64_t data_bytes,
                          const std::vector<TensorDeclaration>& tensors, const FillRows& fill) {
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  RETURN_IF_ERROR(file.Reserve(header_bytes + data_bytes));
  RETURN_IF_ERROR(file.WriteAt(header.data(), header_bytes, 0));
  return WriteData(file, header_bytes, tensors, fill);
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, std::vector<TensorDeclaration> tensors,
                              const std::map<std::string, std::string>& metadata, const FillRows& fill) {
  RETURN_IF_ERROR(CheckRegularOrAbsent(path));
  std::sort(tensors.begin(), tensors.end(), [](const TensorDeclaration& a, const TensorDeclaration& b) {
    return std::tie(b.type, a.name) < std::tie(a.type, b.name);
  });
  std::set<std::string> names;
  for (const TensorDeclaration& tensor : tensors) {
    absl::Status status = CheckDeclaration(tensor);
    if (status.ok() && !names.insert(tensor.name).second) {
      status = InvalidArgument("tensor \"{}\" is there twice", Shown(tensor.name));
    }
    if (!status.ok())
      return absl::Status(status.code(), fmt::format("{}: {}", ShownPath(path), Message(status)));
  }
  std::int64_t data_bytes = 0;
  const absl::StatusOr<std::string> header = HeaderOf(tensors, metadata, &data_bytes);
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        fmt::format("{}: {}", ShownPath(path), Message(header.status())));
  }
  RETURN_IF_ERROR(ReplaceFile(path, Synced::kYes, [&](const File& file) {
    return WriteContent(file, *header, data_bytes, tensors, fill);
  }));
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

}  // namespace engine::hf
