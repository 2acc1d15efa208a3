#include "engine/hf/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/hf/json_events.h"

namespace engine::hf {
namespace {

constexpr std::int64_t kLengthBytes = 8;  // of the header's length, in front of it
constexpr std::int64_t kMostNumber = std::numeric_limits<std::int64_t>::max();
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kMetadataName = "__metadata__";

struct TypeRow {
  StoredType type;
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};
constexpr std::array<TypeRow, 22> kTypes = {{{StoredType::kBool, "BOOL", 8, std::nullopt},
                                             {StoredType::kF4, "F4", 4, std::nullopt},
                                             {StoredType::kF6E2M3, "F6_E2M3", 6, std::nullopt},
                                             {StoredType::kF6E3M2, "F6_E3M2", 6, std::nullopt},
                                             {StoredType::kU8, "U8", 8, DType::kU8},
                                             {StoredType::kI8, "I8", 8, std::nullopt},
                                             {StoredType::kF8E5M2, "F8_E5M2", 8, DType::kE5M2},
                                             {StoredType::kF8E4M3, "F8_E4M3", 8, DType::kE4M3},
                                             {StoredType::kF8E8M0, "F8_E8M0", 8, std::nullopt},
                                             {StoredType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8, std::nullopt},
                                             {StoredType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8, std::nullopt},
                                             {StoredType::kI16, "I16", 16, std::nullopt},
                                             {StoredType::kU16, "U16", 16, DType::kU16},
                                             {StoredType::kF16, "F16", 16, DType::kF16},
                                             {StoredType::kBF16, "BF16", 16, DType::kBF16},
                                             {StoredType::kI32, "I32", 32, DType::kI32},
                                             {StoredType::kU32, "U32", 32, std::nullopt},
                                             {StoredType::kF32, "F32", 32, DType::kF32},
                                             {StoredType::kC64, "C64", 64, std::nullopt},
                                             {StoredType::kF64, "F64", 64, DType::kF64},
                                             {StoredType::kI64, "I64", 64, DType::kI64},
                                             {StoredType::kU64, "U64", 64, std::nullopt}}};
static_assert(static_cast<std::size_t>(StoredType::kU64) + 1 == kTypes.size());

const TypeRow& RowOf(StoredType type) { return kTypes[static_cast<std::size_t>(type)]; }

// A header's events. Where it stands is what it expects next.
class HeaderEvents : public JsonEvents {
 public:
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t /*size*/) override;
  bool end_object() override;
  bool start_array(std::size_t size) override;
  bool end_array() override;
  bool key(std::string& name) override;
  bool string(std::string& value) override;
  bool number_unsigned(std::uint64_t value) override;

 protected:
  std::string Expected() const override;

 private:
  enum class At : std::uint8_t {
    kHeader,
    kName,
    kTensor,
    kField,
    kType,
    kShape,
    kDim,
    kOffsets,
    kOffset,
    kMetadata,
    kMetadataName,
    kMetadataValue,
  };
  std::string Tensor() const { return fmt::format("tensor \"{}\"", Shown(tensors.back().name)); }
  bool NewTensor(const std::string& name);
  bool NewField(std::string_view name);
  bool EndOfTensor();

  At at_ = At::kHeader;
  absl::flat_hash_map<std::string, bool> names_;
  bool has_metadata_ = false, has_type_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<std::int64_t> offsets_;  // of the tensor at hand
  std::string metadata_name_;
};

std::string HeaderEvents::Expected() const {
  switch (at_) {
    case At::kHeader:
      return "the header must be an object";
    case At::kTensor:
      return Tensor() + R"( must be an object {"dtype": …, "shape": […], "data_offsets": [begin, end]})";
    case At::kType:
      return fmt::format("the dtype of {} must be a name as \"BF16\"", Tensor());
    case At::kShape:
      return fmt::format("the shape of {} must be a list of whole numbers", Tensor());
    case At::kDim:
      return fmt::format("each number in the shape of {} must be a whole one from 0 to 2^63 - 1", Tensor());
    case At::kOffsets:
      return fmt::format("data_offsets of {} must be a list of two whole numbers", Tensor());
    case At::kOffset:
      return fmt::format("data_offsets of {} must be two whole numbers from 0 to 2^63 - 1", Tensor());
    case At::kMetadata:
      return "__metadata__ must be an object of strings";
    case At::kMetadataValue:
      return fmt::format("\"{}\" of __metadata__ must be a string", Shown(metadata_name_));
    case At::kName:
    case At::kField:
    case At::kMetadataName:
      return "there must be a name";  // JSON has nothing else here
  }
  return "";
}

bool HeaderEvents::start_object(std::size_t /*size*/) {
  switch (at_) {
    case At::kHeader:
      at_ = At::kName;
      return true;
    case At::kTensor:
      at_ = At::kField;
      return true;
    case At::kMetadata:
      at_ = At::kMetadataName;
      return true;
    default:
      return Unexpected("an object");
  }
}

bool HeaderEvents::end_object() {
  if (at_ == At::kField) return EndOfTensor();
  at_ = At::kName;
  return true;
}

bool HeaderEvents::start_array(std::size_t /*size*/) {
  if (at_ != At::kShape && at_ != At::kOffsets) return Unexpected("a list");
  at_ = at_ == At::kShape ? At::kDim : At::kOffset;
  return true;
}

bool HeaderEvents::end_array() {
  at_ = At::kField;
  return true;
}

bool HeaderEvents::key(std::string& name) {
  if (at_ == At::kField) return NewField(name);
  if (at_ == At::kMetadataName) {
    if (metadata.contains(name)) return Fail("\"{}\" is in __metadata__ twice", Shown(name));
    metadata_name_ = name;
    at_ = At::kMetadataValue;
    return true;
  }
  if (name != kMetadataName) return NewTensor(name);
  if (std::exchange(has_metadata_, true)) return Fail("__metadata__ is there twice");
  at_ = At::kMetadata;
  return true;
}

bool HeaderEvents::NewTensor(const std::string& name) {
  if (static_cast<std::int64_t>(tensors.size()) >= kMostTensors)
    return Fail("more than {} tensors", kMostTensors);
  if (name.find('\0') != std::string::npos)
    return Fail("the name \"{}\" of a tensor has a zero byte", Shown(name));
  if (!names_.emplace(name, true).second) return Fail("tensor \"{}\" is there twice", Shown(name));
  tensors.emplace_back().name = name;
  has_type_ = has_shape_ = has_offsets_ = false;
  offsets_.clear();
  at_ = At::kTensor;
  return true;
}

bool HeaderEvents::NewField(std::string_view name) {
  struct Field {
    std::string_view name;
    bool* is_there;
    At at;
  };
  for (const Field& field : {Field{"dtype", &has_type_, At::kType}, Field{"shape", &has_shape_, At::kShape},
                             Field{"data_offsets", &has_offsets_, At::kOffsets}}) {
    if (name != field.name) continue;
    if (std::exchange(*field.is_there, true)) return Fail("{} has \"{}\" twice", Tensor(), name);
    at_ = field.at;
    return true;
  }
  return Fail("{} has a field \"{}\", and the format knows dtype, shape and data_offsets alone", Tensor(),
              Shown(name));
}

bool HeaderEvents::EndOfTensor() {
  if (!has_type_) return Fail("{} has no dtype", Tensor());
  if (!has_shape_) return Fail("{} has no shape", Tensor());
  if (!has_offsets_) return Fail("{} has no data_offsets", Tensor());
  if (offsets_.size() != 2) {
    return Fail("data_offsets of {} must be two numbers, and there are {}", Tensor(), offsets_.size());
  }
  tensors.back().begin = offsets_[0];
  tensors.back().end = offsets_[1];
  at_ = At::kName;
  return true;
}

bool HeaderEvents::string(std::string& value) {
  if (at_ == At::kMetadataValue) {
    metadata.emplace(metadata_name_, std::move(value));
    at_ = At::kMetadataName;
    return true;
  }
  if (at_ != At::kType) return JsonEvents::string(value);
  const auto* row =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& type) { return type.name == value; });
  if (row == kTypes.end()) {
    return Fail(
        "the dtype of {} is \"{}\", which the format does not know: \"BF16\", \"F32\" and the like are right",
        Tensor(), Shown(value));
  }
  tensors.back().type = row->type;
  at_ = At::kField;
  return true;
}

bool HeaderEvents::number_unsigned(std::uint64_t value) {
  if ((at_ != At::kDim && at_ != At::kOffset) || value > static_cast<std::uint64_t>(kMostNumber)) {
    return JsonEvents::number_unsigned(value);
  }
  const auto number = static_cast<std::int64_t>(value);
  if (at_ == At::kDim) {
    if (tensors.back().shape.rank() == kMostDims)
      return Fail("{} has more than {} dims", Tensor(), kMostDims);
    tensors.back().shape.push_back(number);
    return true;
  }
  if (offsets_.size() == 2)
    return Fail("data_offsets of {} must be two numbers, and there are more", Tensor());
  offsets_.push_back(number);
  return true;
}

std::string Offsets(const StoredTensor& tensor) { return fmt::format("[{}, {}]", tensor.begin, tensor.end); }

// That each tensor's data is as long as its shape and type say. A dim of 0 must not hide an overflow of the others, which
// strides are made of.
absl::Status CheckSize(const StoredTensor& tensor) {
  const std::string name = Shown(tensor.name), type(Name(tensor.type));
  if (tensor.end < tensor.begin) {
    return InvalidArgument("data_offsets {} of tensor \"{}\" end before they begin", Offsets(tensor), name);
  }
  std::int64_t elements = 1, bits = 0;
  bool is_empty = false, overflows = false;
  for (const std::int64_t size : tensor.shape) {
    is_empty = is_empty || size == 0;
    overflows = overflows || __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements);
  }
  if (overflows || __builtin_mul_overflow(elements, std::int64_t{BitsOf(tensor.type)}, &bits)) {
    return InvalidArgument("the shape {} of tensor \"{}\" in {} takes more bits than 63 bits can count",
                           tensor.shape.ToString(), name, type);
  }
  if (is_empty) bits = 0;
  if (bits % 8 != 0) {
    return InvalidArgument("the shape {} of tensor \"{}\" in {} takes {} bits, which are no whole bytes",
                           tensor.shape.ToString(), name, type, bits);
  }
  if (tensor.end - tensor.begin != bits / 8) {
    return InvalidArgument(
        "the shape {} of tensor \"{}\" in {} takes {} bytes, and its data_offsets {} are {} bytes",
        tensor.shape.ToString(), name, type, bits / 8, Offsets(tensor), tensor.end - tensor.begin);
  }
  return absl::OkStatus();
}

// That the tensors, in the order of their data, fill all of it.
absl::Status CheckPlaces(const std::vector<StoredTensor>& tensors, std::int64_t data_bytes) {
  std::int64_t end = 0;
  std::string before = "it is the first, which begins at 0";
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != end) {
      return InvalidArgument("tensor \"{}\" begins at byte {} of the data, and {}: the format allows no {}",
                             Shown(tensor.name), tensor.begin, before,
                             tensor.begin < end ? "overlaps" : "holes");
    }
    end = tensor.end;
    before = fmt::format("the one before it, \"{}\", ends at {}", Shown(tensor.name), end);
  }
  if (end == data_bytes) return absl::OkStatus();
  return InvalidArgument("the header describes {} bytes of data, and {} follow: {}", end, data_bytes,
                         end > data_bytes ? "the file was cut short" : "something was added to the file");
}

// What else a file may be that begins like this; empty if that is not known.
std::string_view OtherKind(std::string_view text) {
  if (text.starts_with("version https://git-lfs")) {
    return ": it is a pointer of Git LFS to the data, which `git lfs pull` fetches";
  }
  if (text.starts_with("PK\3\4")) return ": it is a zip file, as PyTorch's pickles are, which are never read";
  if (text.starts_with("\x89HDF\r\n")) return ": it is an HDF5 file";
  if (text.starts_with("GGUF")) return ": it is a GGUF file";
  if (text.starts_with("<")) return ": it may be a page in HTML or XML, which a server sent in its place";
  if (text.starts_with("{")) return ": it is a text in JSON";
  return "";
}

// The length of the header that a file of these bytes begins with.
absl::StatusOr<std::int64_t> HeaderBytes(std::string_view file) {
  const auto bytes = static_cast<std::int64_t>(file.size());
  if (bytes < kLengthBytes) {
    return InvalidArgument("the file has {} bytes, and the header's length alone takes {}", bytes,
                           kLengthBytes);
  }
  std::uint64_t length = 0;
  for (int byte = kLengthBytes - 1; byte >= 0; --byte)
    length = length << 8 | static_cast<unsigned char>(file[byte]);
  if (length > static_cast<std::uint64_t>(kMostHeaderBytes)) {
    return InvalidArgument(
        "the file's first 8 bytes say that its header has {} bytes, and it can have {} at most{}", length,
        kMostHeaderBytes, OtherKind(file));
  }
  const auto header = static_cast<std::int64_t>(length);
  if (header > bytes - kLengthBytes) {
    const std::string_view other = OtherKind(file);
    return InvalidArgument("the file's header has {} bytes, and {} follow{}", header, bytes - kLengthBytes,
                           other.empty() ? ": the file was cut short" : other);
  }
  return header;
}

absl::Status CheckHeader(std::string_view file, std::int64_t* data_begin, HeaderEvents* events) {
  ASSIGN_OR_RETURN(const std::int64_t header_bytes, HeaderBytes(file));
  const std::string_view header = file.substr(kLengthBytes, static_cast<std::size_t>(header_bytes));
  const std::size_t first = header.find_first_not_of(kBlanks);
  if (first == std::string_view::npos || header[first] != '{') {
    return InvalidArgument("the header must be an object in JSON, and it {}",
                           first == std::string_view::npos ? "is empty" : "does not begin with \"{\"");
  }
  RETURN_IF_ERROR(ReadJson(header, "the header", events));
  for (const StoredTensor& tensor : events->tensors) RETURN_IF_ERROR(CheckSize(tensor));
  // Tensors without elements come before the one that begins where they do.
  std::sort(events->tensors.begin(), events->tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  *data_begin = kLengthBytes + header_bytes;
  return CheckPlaces(events->tensors, static_cast<std::int64_t>(file.size()) - *data_begin);
}

}  // namespace

std::string_view Name(StoredType type) { return RowOf(type).name; }

int BitsOf(StoredType type) { return RowOf(type).bits; }

std::optional<DType> DTypeOf(StoredType type) { return RowOf(type).dtype; }

std::optional<StoredType> StoredTypeOf(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.type;
  }
  return std::nullopt;
}

struct SafetensorsFile::Map {
  std::span<const std::byte> bytes;

  explicit Map(std::span<const std::byte> mapped) : bytes(mapped) {}
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;
  ~Map() {
    if (!bytes.empty()) munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  }
};

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path, O_RDONLY));
  struct stat info = {};
  void* address = nullptr;
  std::size_t size = 0;
  if (fstat(descriptor, &info) == 0) {
    size = static_cast<std::size_t>(info.st_size);
    if (size > 0) address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  } else {
    address = MAP_FAILED;
  }
  const int error = errno;
  close(descriptor);
  if (address == MAP_FAILED) return SystemError("map", path, error);

  SafetensorsFile file;
  file.path_ = path;
  file.map_ = std::make_shared<const Map>(std::span(static_cast<const std::byte*>(address), size));
  // No MADV_SEQUENTIAL: with it Linux 6.18 read a cold file at a twentieth of the rate that it reads without.
  HeaderEvents events;
  if (const absl::Status status =
          CheckHeader({static_cast<const char*>(address), size}, &file.data_begin_, &events);
      !status.ok()) {
    return absl::Status(status.code(), fmt::format("{}: {}", ShownPath(path), Message(status)));
  }
  file.tensors_ = std::move(events.tensors);
  file.metadata_ = std::move(events.metadata);
  file.index_.reserve(file.tensors_.size());
  for (std::size_t i = 0; i < file.tensors_.size(); ++i)
    file.index_.emplace(file.tensors_[i].name, static_cast<int>(i));
  return file;
}

const StoredTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[static_cast<std::size_t>(found->second)];
}

std::span<const std::byte> SafetensorsFile::DataOf(const StoredTensor& tensor) const {
  return map_->bytes.subspan(static_cast<std::size_t>(data_begin_ + tensor.begin),
                             static_cast<std::size_t>(tensor.end - tensor.begin));
}

std::span<std::byte> SafetensorsFile::PagesOf(std::int64_t begin, std::int64_t end) const {
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  const std::int64_t first = (data_begin_ + begin) / page * page;
  return {const_cast<std::byte*>(map_->bytes.data()) + first,
          static_cast<std::size_t>(data_begin_ + end - first)};
}

void SafetensorsFile::Prefetch(const StoredTensor& tensor, std::int64_t begin, std::int64_t bytes) const {
  const std::int64_t end = std::min(bytes, tensor.end - tensor.begin - begin) + tensor.begin + begin;
  if (end <= tensor.begin + begin) return;
  const std::span<std::byte> pages = PagesOf(tensor.begin + begin, end);
#ifdef MADV_POPULATE_READ  // of Linux 5.14
  if (madvise(pages.data(), pages.size(), MADV_POPULATE_READ) == 0) return;
#endif
  madvise(pages.data(), pages.size(), MADV_WILLNEED);
}

void SafetensorsFile::Release(const StoredTensor& tensor) const {
  if (tensor.begin == tensor.end) return;
  const std::span<std::byte> pages = PagesOf(tensor.begin, tensor.end);
  madvise(pages.data(), pages.size(), MADV_DONTNEED);
}

}  // namespace engine::hf
