// libFuzzer on files of tensors and on indexes of shards: any bytes are either refused with a located error, or every tensor
// of the file can be read wholly, and what is written of them again is the same tensors. Built with ENGINE_FUZZ only
// (docs/ci.md). The first byte of an input says how the rest is used: as a whole file, as a header to which a length and
// data are added, or as an index beside one file.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/hf/folder.h"
#include "engine/hf/safetensors.h"
#include "engine/hf/safetensors_writer.h"

namespace {

using engine::hf::Folder;
using engine::hf::SafetensorsFile;
using engine::hf::StoredTensor;

void Require(bool condition) {
  if (!condition) std::abort();
}

// In memory, one a process. Its name is never freed, since it is needed when the process ends.
const std::string& Scratch() {
  static const std::string& folder = *[] {
    auto* name = new std::string("/dev/shm/fuzz-safetensors-XXXXXX");
    Require(mkdtemp(name->data()) != nullptr);
    std::atexit([] { std::filesystem::remove_all(Scratch()); });
    return name;
  }();
  return folder;
}

void WriteInput(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::string WithLength(const std::string& header) {
  std::string file;
  for (int byte = 0; byte < 8; ++byte) file += static_cast<char>(header.size() >> (8 * byte) & 0xFF);
  return file + header;
}

std::string DataOf(const SafetensorsFile& file, const StoredTensor& tensor) {
  const std::span<const std::byte> data = file.DataOf(tensor);
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

void CheckFile(const std::string& path) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    Require(absl::IsInvalidArgument(file.status()));
    Require(std::string(file.status().message()).starts_with(path + ": "));
    return;
  }
  std::vector<engine::hf::TensorDeclaration> tensors;
  bool has_parts_of_bytes = false;
  for (const StoredTensor& tensor : file->tensors()) {
    Require(file->Find(tensor.name) == &tensor);
    Require(static_cast<std::int64_t>(DataOf(*file, tensor).size()) == tensor.end - tensor.begin);
    Require(tensor.shape.elements() * engine::hf::BitsOf(tensor.type) == (tensor.end - tensor.begin) * 8);
    has_parts_of_bytes = has_parts_of_bytes || engine::hf::BitsOf(tensor.type) < 8;
    tensors.push_back({tensor.name, tensor.type, tensor.shape});
    file->Release(tensor);
  }
  const std::string again_path = path + ".again";
  const absl::Status written = engine::hf::WriteSafetensors(
      again_path, tensors, file->metadata(),
      [&](const engine::hf::TensorDeclaration& tensor, std::int64_t row, std::int64_t rows,
          std::span<std::byte> out) {
        const std::span<const std::byte> data = file->DataOf(*file->Find(tensor.name));
        const auto row_bytes = static_cast<std::int64_t>(data.size()) / tensor.rows();
        Require(static_cast<std::int64_t>(out.size()) == rows * row_bytes);
        std::copy_n(data.begin() + row * row_bytes, out.size(), out.begin());
        return absl::OkStatus();
      });
  Require(written.ok() || has_parts_of_bytes);
  if (!written.ok()) return;
  const absl::StatusOr<SafetensorsFile> again = SafetensorsFile::Open(again_path);
  Require(again.ok() && again->metadata() == file->metadata() && again->tensors().size() == tensors.size());
  for (const StoredTensor& tensor : file->tensors()) {
    const StoredTensor* other = again->Find(tensor.name);
    Require(other != nullptr && other->type == tensor.type && other->shape == tensor.shape);
    Require(DataOf(*again, *other) == DataOf(*file, tensor));
  }
}

void CheckIndex(const std::string& index) {
  const std::string folder = Scratch() + "/model";
  if (std::filesystem::create_directory(folder)) {
    WriteInput(folder + "/one.safetensors",
               WithLength(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})") + "a");
  }
  WriteInput(folder + "/model.safetensors.index.json", index);
  const absl::StatusOr<Folder> opened = Folder::Open(folder);
  if (!opened.ok()) {
    Require(std::string(opened.status().message()).find(folder) != std::string::npos);
    return;
  }
  Require(opened->names() == std::vector<std::string>{"a"} && opened->bytes() == 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string path = Scratch() + "/x.safetensors";
  switch (data[0] % 4) {
    case 0:
      WriteInput(path, rest);
      CheckFile(path);
      break;
    case 3:
      CheckIndex(rest);
      break;
    default: {  // data of up to 255 bytes behind a header, as many as the second byte says
      const std::size_t bytes = rest.empty() ? 0 : static_cast<unsigned char>(rest[0]);
      WriteInput(path, WithLength(rest.substr(rest.empty() ? 0 : 1)) + std::string(bytes, 'd'));
      CheckFile(path);
    }
  }
  return 0;
}
