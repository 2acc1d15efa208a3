#include "engine/hf/safetensors.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <random>

#include "tests/hf/raw_files.h"

namespace engine::hf {
namespace {

using data::TempDir;
using data::WriteFile;

constexpr std::string_view kGoodHeader =
    R"({"__metadata__":{"format":"pt","note":"é"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("a.weight":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
    R"("zero":{"dtype":"I64","shape":[4,0],"data_offsets":[22,22]},"one":{"dtype":"BOOL","shape":[],"data_offsets":[22,23]},)"
    R"("nibbles":{"dtype":"F4","shape":[2,3],"data_offsets":[23,26]}})";
const std::string kGoodData = "0123456789abcdefghijklmnop";

// What the reader says of such a file, without the path in front of it; empty of a good one.
std::string Refused(const std::string& content) {
  const TempDir dir;
  const std::string path = dir / "model.safetensors";
  WriteFile(path, content);
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (file.ok()) return "";
  const std::string message = Message(file.status());
  CHECK(absl::IsInvalidArgument(file.status()));
  CHECK(message.starts_with(path + ": "));
  return message.substr(path.size() + 2);
}

std::string OfTensor(std::string_view fields, const std::string& data = std::string(16, 'x')) {
  return Refused(RawFile(fmt::format(R"({{"x":{}}})", fields), data));
}

// All bytes of all tensors, added up: touches every page that the file says it has.
std::uint64_t SumOf(const SafetensorsFile& file) {
  std::uint64_t sum = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    for (const std::byte byte : file.DataOf(tensor)) sum += std::to_integer<std::uint64_t>(byte);
  }
  return sum;
}

TEST_CASE("a file of tensors gives names, types, shapes, data and notes") {
  const TempDir dir;
  // Blanks around the header, and a length that leaves data unaligned: writers differ.
  for (const std::string& header :
       {std::string(kGoodHeader), " \n" + std::string(kGoodHeader) + "\t\r\n   "}) {
    WriteFile(dir / "x", RawFile(header, kGoodData));
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(dir / "x");
    REQUIRE_MESSAGE(file.ok(), Message(file.status()));
    CHECK(file->path() == dir / "x");
    CHECK(file->metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"note", "é"}});
    std::vector<std::string> names;
    for (const StoredTensor& tensor : file->tensors()) names.push_back(tensor.name);
    CHECK(names == std::vector<std::string>{"b", "a.weight", "zero", "one", "nibbles"});
    const StoredTensor* weight = file->Find("a.weight");
    REQUIRE(weight != nullptr);
    CHECK(weight->type == StoredType::kBF16);
    CHECK(weight->shape == Shape{3});
    const std::span<const std::byte> data = file->DataOf(*weight);
    CHECK(std::string(reinterpret_cast<const char*>(data.data()), data.size()) == "ghijkl");
    CHECK(file->Find("zero")->shape == Shape{4, 0});
    CHECK(file->DataOf(*file->Find("zero")).empty());
    CHECK(file->Find("one")->shape == Shape{});
    CHECK(file->Find("a") == nullptr);
    for (const StoredTensor& tensor : file->tensors()) file->Release(tensor);
    CHECK(SumOf(*file) == std::accumulate(kGoodData.begin(), kGoodData.end(), std::uint64_t{0}));
  }
  WriteFile(dir / "empty", RawFile("{}", ""));
  CHECK(SafetensorsFile::Open(dir / "empty")->tensors().empty());
}

// Of this process, in bytes.
std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_CASE("data is brought into memory and released, and is the same") {
  const TempDir dir;
  constexpr std::int64_t kBytes = 64'000'000;
  std::string data(kBytes, 'x');
  data.back() = 'y';
  WriteFile(
      dir / "x",
      RawFile(fmt::format(R"({{"x":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}})", kBytes), data));
  data = std::string();
  const SafetensorsFile file = *SafetensorsFile::Open(dir / "x");
  const StoredTensor& tensor = file.tensors()[0];
  const std::int64_t before = ResidentBytes();
  file.Prefetch(tensor, 0, kBytes / 2);
  file.Prefetch(tensor, kBytes / 2, kBytes);  // no more than there is
  file.Prefetch(tensor, kBytes, 1);
  file.Prefetch(tensor, 5, 0);
  CHECK(ResidentBytes() > before + kBytes / 2);
  CHECK(SumOf(file) == static_cast<std::uint64_t>(kBytes) * 'x' + 1);
  file.Release(tensor);
  CHECK(ResidentBytes() < before + kBytes / 2);
  CHECK(file.DataOf(tensor).back() == std::byte{'y'});
}

TEST_CASE("a copy outlives the first, and the file's name") {
  const TempDir dir;
  WriteFile(dir / "x", RawFile(kGoodHeader, kGoodData));
  std::optional<SafetensorsFile> copy;
  {
    const SafetensorsFile file = *SafetensorsFile::Open(dir / "x");
    copy = file;
  }
  WriteFile(dir / "new", "another");
  std::filesystem::rename(dir / "new", dir / "x");
  CHECK(SumOf(*copy) == std::accumulate(kGoodData.begin(), kGoodData.end(), std::uint64_t{0}));
}

TEST_CASE("types have the format's names and widths, in the order of a writer") {
  int bits = 0;
  for (int type = 0; type <= static_cast<int>(StoredType::kU64); ++type) {
    const auto stored = static_cast<StoredType>(type);
    CAPTURE(Name(stored));
    if (stored != StoredType::kBool) CHECK(BitsOf(stored) >= bits);
    bits = stored == StoredType::kBool ? 0 : BitsOf(stored);
    if (const std::optional<DType> dtype = DTypeOf(stored)) {
      CHECK(SizeOf(*dtype) * 8 == BitsOf(stored));
      CHECK(StoredTypeOf(*dtype) == stored);
    }
  }
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32,
                            DType::kU16, DType::kU8, DType::kE4M3, DType::kE5M2}) {
    CHECK(DTypeOf(StoredTypeOf(dtype).value()) == dtype);
  }
  CHECK(Name(StoredType::kBF16) == "BF16");
  CHECK(Name(StoredType::kF8E4M3) == "F8_E4M3");
}

TEST_CASE("each file that the format does not allow is refused with what is wrong") {
  const std::string good = R"({"dtype":"I32","shape":[2,2],"data_offsets":[0,16]})";
  CHECK(OfTensor(good) == "");
  SUBCASE("too short for a length") {
    CHECK(Refused("") == "the file has 0 bytes, and the header's length alone takes 8");
    CHECK(Refused("1234567") == "the file has 7 bytes, and the header's length alone takes 8");
  }
  SUBCASE("a header's length beyond all bounds") {
    CHECK(Refused(RawFile("{}", "", 100'000'001)) ==
          "the file's first 8 bytes say that its header has 100000001 bytes, and it can have 100000000 at "
          "most");
    CHECK(Refused(RawFile("{}", "", std::numeric_limits<std::int64_t>::max())).find("at most") !=
          std::string::npos);
    CHECK(Refused(std::string(16, '\xFF')).find("18446744073709551615 bytes") != std::string::npos);
    CHECK(Refused("version https://git-lfs.github.com/spec/v1\noid").find("git lfs pull") !=
          std::string::npos);
    CHECK(Refused(std::string("PK\3\4\0\0\0\0\1\1\1\1", 12)).find("pickles are, which are never") !=
          std::string::npos);
    CHECK(Refused("<!DOCTYPE html>").find("HTML") != std::string::npos);
  }
  SUBCASE("a header beyond the file's end") {
    CHECK(Refused(RawFile("{}", "", 3)) ==
          "the file's header has 3 bytes, and 2 follow: the file was cut short");
    CHECK(Refused(RawFile("{}", "", 100'000'000)).find("cut short") != std::string::npos);
  }
  SUBCASE("no JSON") {
    CHECK(Refused(RawFile("", "")) == "the header must be an object in JSON, and it is empty");
    CHECK(Refused(RawFile(" \n\t", "")) == "the header must be an object in JSON, and it is empty");
    for (const char* header : {"\xFF", "[]", "null", "3", "\"x\"", "\xEF\xBB\xBF{}", "\v{}"}) {
      CHECK(Refused(RawFile(header, "")) ==
            "the header must be an object in JSON, and it does not begin with \"{\"");
    }
    for (const char* header :
         {"{", "{}}", "{} x", "{'a':1}", "{\"a\"}", "{\"a\":", "{\"\xFF\":1}", "{\"\xC0\x80\":1}",
          "{\"\xED\xA0\x80\":1}", "{\"a\n\":1}", "{\"a\":NaN}", "{\"\\ud800\":1}"}) {
      CAPTURE(header);
      CHECK(Refused(RawFile(header, "")).starts_with("the header: byte "));
    }
    CHECK(Refused(RawFile(std::string("{}\0{}", 5), "")) ==
          "the header: byte 3 is zero, which JSON has nowhere");
  }
  SUBCASE("fields") {
    CHECK(OfTensor(R"({"dtype":"I33","shape":[2,2],"data_offsets":[0,16]})") ==
          "the header: the dtype of tensor \"x\" is \"I33\", which the format does not know: \"BF16\", "
          "\"F32\" and the "
          "like are right");
    CHECK(OfTensor(R"({"dtype":"i32","shape":[2,2],"data_offsets":[0,16]})").find("does not know") !=
          std::string::npos);
    CHECK(OfTensor(R"({"shape":[2,2],"data_offsets":[0,16]})") == "the header: tensor \"x\" has no dtype");
    CHECK(OfTensor(R"({"dtype":"I32","data_offsets":[0,16]})") == "the header: tensor \"x\" has no shape");
    CHECK(OfTensor(R"({"dtype":"I32","shape":[2,2]})") == "the header: tensor \"x\" has no data_offsets");
    CHECK(OfTensor("{}") == "the header: tensor \"x\" has no dtype");
    CHECK(OfTensor(R"({"dtype":"I32","dtype":"I32"})") == "the header: tensor \"x\" has \"dtype\" twice");
    CHECK(OfTensor(R"({"dtype":"I32","shape":[2,2],"data_offsets":[0,16],"strides":[1,2]})")
              .find("a field \"strides\"") != std::string::npos);
    CHECK(OfTensor("[]").find("must be an object {\"dtype\"") != std::string::npos);
    CHECK(OfTensor("null").ends_with("and it is null"));
    CHECK(OfTensor(R"({"dtype":3})") ==
          "the header: the dtype of tensor \"x\" must be a name as \"BF16\", and it is 3");
    CHECK(OfTensor(R"({"dtype":["I32"]})").ends_with("and it is a list"));
  }
  SUBCASE("numbers") {
    CHECK(OfTensor(R"({"dtype":"I32","shape":4,"data_offsets":[0,16]})") ==
          "the header: the shape of tensor \"x\" must be a list of whole numbers, and it is 4");
    for (const char* number : {"-1", "2.0", "1e1", "18446744073709551616", "9223372036854775808", "\"2\"",
                               "null", "true", "[2]", "{}"}) {
      CAPTURE(number);
      CHECK(OfTensor(fmt::format(R"({{"dtype":"I32","shape":[{}],"data_offsets":[0,16]}})", number))
                .find("in the shape of tensor \"x\" must be a whole one from 0 to 2^63 - 1") !=
            std::string::npos);
      CHECK(OfTensor(fmt::format(R"({{"dtype":"I32","shape":[4],"data_offsets":[0,{}]}})", number))
                .find("data_offsets of tensor \"x\" must be two whole numbers") != std::string::npos);
    }
    CHECK(OfTensor(R"({"dtype":"I32","shape":[1e999],"data_offsets":[0,16]})").find("number overflow") !=
          std::string::npos);
    for (const char* offsets : {"[]", "[0]", "[0,16,16]", "16", "{}"}) {
      CAPTURE(offsets);
      CHECK(OfTensor(fmt::format(R"({{"dtype":"I32","shape":[4],"data_offsets":{}}})", offsets))
                .find("data_offsets of tensor \"x\" must be ") != std::string::npos);
    }
    CHECK(OfTensor(R"({"dtype":"I32","shape":[4],"data_offsets":[0,16,16]})") ==
          "the header: data_offsets of tensor \"x\" must be two numbers, and there are more");
  }
  SUBCASE("metadata") {
    for (const char* value : {"1", "null", "true", "[\"pt\"]", "{\"a\":\"b\"}"}) {
      CAPTURE(value);
      CHECK(Refused(RawFile(fmt::format(R"({{"__metadata__":{{"format":{}}}}})", value), ""))
                .starts_with("the header: \"format\" of __metadata__ must be a string, and it is "));
    }
    CHECK(Refused(RawFile(R"({"__metadata__":["pt"]})", ""))
              .ends_with("must be an object of strings, and it is a list"));
    CHECK(Refused(RawFile(R"({"__metadata__":{"a":"b","a":"b"}})", "")) ==
          "the header: \"a\" is in __metadata__ twice");
    CHECK(Refused(RawFile(R"({"__metadata__":{},"__metadata__":{}})", "")) ==
          "the header: __metadata__ is there twice");
  }
  SUBCASE("offsets") {
    CHECK(OfTensor(R"({"dtype":"I32","shape":[2,2],"data_offsets":[16,0]})") ==
          "data_offsets [16, 0] of tensor \"x\" end before they begin");
    CHECK(OfTensor(R"({"dtype":"I32","shape":[3],"data_offsets":[4,16]})") ==
          "tensor \"x\" begins at byte 4 of the data, and it is the first, which begins at 0: the format "
          "allows no holes");
    const std::string second = R"(,"y":{"dtype":"I8","shape":[4],"data_offsets":[)";
    CHECK(Refused(RawFile("{\"x\":" + good + second + "17,21]}}", std::string(21, 'x'))) ==
          "tensor \"y\" begins at byte 17 of the data, and the one before it, \"x\", ends at 16: the format "
          "allows no holes");
    CHECK(Refused(RawFile("{\"x\":" + good + second + "15,19]}}", std::string(19, 'x'))) ==
          "tensor \"y\" begins at byte 15 of the data, and the one before it, \"x\", ends at 16: the format "
          "allows no "
          "overlaps");
    std::string shared = "{";
    for (int i = 0; i < 10; ++i) shared += fmt::format("{}\"{}\":{}", i == 0 ? "" : ",", i, good);
    CHECK(Refused(RawFile(shared + "}", std::string(16, 'x'))).ends_with("the format allows no overlaps"));
  }
  SUBCASE("sizes") {
    for (const char* shape : {"[2,18446744073709551614]", "[2,9223372036854775807]", "[9223372036854775807]",
                              "[4294967296,4294967296]", "[0,4294967296,4294967296]"}) {
      CAPTURE(shape);
      const std::string why =
          OfTensor(fmt::format(R"({{"dtype":"I32","shape":{},"data_offsets":[0,16]}})", shape));
      CHECK((why.find("more bits than 63 bits can count") != std::string::npos ||
             why.find("from 0 to 2^63 - 1") != std::string::npos));
    }
    CHECK(OfTensor(R"({"dtype":"I32","shape":[2,2],"data_offsets":[0,4]})", "1234") ==
          "the shape [2, 2] of tensor \"x\" in I32 takes 16 bytes, and its data_offsets [0, 4] are 4 bytes");
    CHECK(OfTensor(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})") ==
          "the shape [3] of tensor \"x\" in F4 takes 12 bits, which are no whole bytes");
    CHECK(Refused(RawFile("{\"x\":" + good + "}", std::string(17, 'x'))) ==
          "the header describes 16 bytes of data, and 17 follow: something was added to the file");
    CHECK(Refused(RawFile("{\"x\":" + good + "}", std::string(15, 'x'))) ==
          "the header describes 16 bytes of data, and 15 follow: the file was cut short");
    CHECK(Refused(RawFile("{}", "x")).ends_with("something was added to the file"));
  }
  SUBCASE("names") {
    CHECK(Refused(RawFile("{\"x\":" + good + ",\"x\":" + good + "}", std::string(16, 'x'))) ==
          "the header: tensor \"x\" is there twice");
    CHECK(Refused(RawFile("{\"x\":" + good + ",\"\\u0078\":" + good + "}", std::string(16, 'x'))) ==
          "the header: tensor \"x\" is there twice");
    CHECK(Refused(RawFile("{\"x\\u0000y\":" + good + "}", std::string(16, 'x'))) ==
          "the header: the name \"x\\x00y\" of a tensor has a zero byte");
  }
  SUBCASE("depth and counts") {
    const std::string deep(20'000'000, '[');
    CHECK(Refused(RawFile("{\"x\":" + deep, "")).ends_with("and it is a list"));
    CHECK(Refused(RawFile("{\"x\":{\"shape\":" + deep, "")).ends_with("and it is a list"));
    std::string dims = "1";
    for (int i = 0; i < 64; ++i) dims += ",1";
    CHECK(OfTensor(fmt::format(R"({{"dtype":"I32","shape":[{}],"data_offsets":[0,4]}})", dims)) ==
          "the header: tensor \"x\" has more than 64 dims");
    std::string many = "{";
    for (int i = 0; i <= kMostTensors; ++i) {
      many += fmt::format("{}\"{}\":{{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                          i == 0 ? "" : ",", i);
    }
    CHECK(Refused(RawFile(many + "}", "")) == "the header: more than 1000000 tensors");
  }
}

TEST_CASE("what is no readable file is refused at once") {
  const TempDir dir;
  const auto open = [&](const char* name) { return SafetensorsFile::Open(dir / name).status(); };
  CHECK(absl::IsNotFound(open("absent")));
  Says(open("absent"), (dir / "absent") + ": No such file");
  std::filesystem::create_directory(dir / "folder");
  Says(open("folder"), (dir / "folder") + " is a folder, not a regular file");
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  Says(open("pipe"), "is a named pipe");
  std::filesystem::create_symlink("/dev/zero", dir / "zeros");
  Says(open("zeros"), "is a device");
  std::filesystem::create_symlink("loop", dir / "loop");
  Says(open("loop"), "cannot open");
  WriteFile(dir / "file", RawFile(kGoodHeader, kGoodData));
  std::filesystem::create_symlink("file", dir / "link");
  CHECK(open("link").ok());
  if (geteuid() != 0) {
    REQUIRE(chmod((dir / "file").c_str(), 0) == 0);
    Says(open("file"), "Permission denied");
  }
}

TEST_CASE("a file cut short at any byte is refused") {
  const std::string good = RawFile(kGoodHeader, kGoodData);
  CHECK(Refused(good) == "");
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    CAPTURE(bytes);
    CHECK(Refused(good.substr(0, bytes)) != "");
  }
  for (std::size_t bytes = 0; bytes < kGoodHeader.size(); ++bytes) {  // with a length that fits
    CAPTURE(bytes);
    CHECK(Refused(RawFile(kGoodHeader.substr(0, bytes), kGoodData)) != "");
  }
}

TEST_CASE("of a thousand mutated headers each is refused, or what opens can be read wholly") {
  std::mt19937 random(23);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::vector<std::string> words = {
      "\"",  "{",    "}",       "[",      "]",    ":",         ",",    "0",  "-1", "99999999999999999999",
      "1e9", "null", "\\u0000", "\"a\":", "\xFF", "\"dtype\"", "BF16", "F4", " ",  "\"b\""};
  const TempDir dir;
  int opened = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string header(kGoodHeader);
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
      const std::size_t at = below(header.size());
      switch (below(5)) {
        case 0:
          header[at] = static_cast<char>(header[at] ^ 1 << below(8));
          break;
        case 1:
          header.erase(at, 1 + below(4));
          break;
        case 2:
          header.insert(at, words[below(words.size())]);
          break;
        case 3:
          header.insert(below(header.size()), header.substr(at, below(40)));
          break;
        default:
          header[at] = static_cast<char>('0' + below(10));
      }
    }
    const std::int64_t claimed = below(10) == 0 ? static_cast<std::int64_t>(below(400)) : -1;
    WriteFile(dir / "x", RawFile(header, kGoodData, claimed));
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(dir / "x");
    if (!file.ok()) {
      CHECK(Message(file.status()).starts_with((dir / "x") + ": "));
      continue;
    }
    ++opened;
    CHECK(SumOf(*file) > 0);
  }
  CHECK(opened > 10);
  CHECK(opened < 500);
}

}  // namespace
}  // namespace engine::hf
