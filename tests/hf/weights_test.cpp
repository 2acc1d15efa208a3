// Rows of a family against loops over indices: reading theirs as ours, and making theirs of ours.
#include "engine/hf/weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/hf/exported_tensors.h"
#include "engine/hf/safetensors_writer.h"
#include "tests/hf/raw_files.h"

namespace engine::hf {
namespace {

using checkpoint::Box;
using checkpoint::TensorInfo;
using Index = std::vector<std::int64_t>;

// Bytes of a tensor of a file.
struct FileTensor {
  StoredType type = StoredType::kF32;
  Shape shape;
  std::string bytes;
};
using FileTensors = std::map<std::string, FileTensor>;

template <typename T>
FileTensor TensorOf(StoredType type, const Shape& shape, const std::vector<T>& values) {
  REQUIRE(static_cast<std::int64_t>(values.size()) == shape.elements());
  FileTensor tensor{.type = type, .shape = shape, .bytes = std::string(values.size() * sizeof(T), '\0')};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

Folder FolderOf(const data::TempDir& folder, const FileTensors& tensors) {
  std::vector<TensorDeclaration> declarations;
  for (const auto& [name, tensor] : tensors)
    declarations.push_back({.name = name, .type = tensor.type, .shape = tensor.shape});
  const absl::Status written = WriteSafetensors(
      folder / "model.safetensors", declarations, kPtMetadata,
      [&](const TensorDeclaration& tensor, std::int64_t row, std::int64_t rows, std::span<std::byte> out) {
        const std::string& bytes = tensors.at(tensor.name).bytes;
        const std::size_t width =
            bytes.size() / static_cast<std::size_t>(std::max<std::int64_t>(tensor.rows(), 1));
        REQUIRE(out.size() == width * static_cast<std::size_t>(rows));
        std::memcpy(out.data(), bytes.data() + width * static_cast<std::size_t>(row), out.size());
        return absl::OkStatus();
      });
  REQUIRE_MESSAGE(written.ok(), Message(written));
  absl::StatusOr<Folder> opened = Folder::Open(folder.path());
  REQUIRE_MESSAGE(opened.ok(), Message(opened.status()));
  return *std::move(opened);
}

std::int64_t OffsetOf(const Shape& shape, const Index& index) {
  REQUIRE(shape.rank() == static_cast<int>(index.size()));
  std::int64_t offset = 0;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const std::int64_t i = index[static_cast<std::size_t>(dim)];
    REQUIRE(i >= 0);
    REQUIRE(i < shape[dim]);
    offset = offset * shape[dim] + i;
  }
  return offset;
}

void ForEachIndex(const Box& box, const std::function<void(const Index&)>& body) {
  Index index(box.start.begin(), box.start.end());
  while (true) {
    body(index);
    int dim = box.count.rank() - 1;
    for (; dim >= 0; --dim) {
      std::int64_t& i = index[static_cast<std::size_t>(dim)];
      if (++i < box.start[dim] + box.count[dim]) break;
      i = box.start[dim];
    }
    if (dim < 0) return;
  }
}

// The engine's side, in memory. It remembers how many elements were asked of it at once.
class MemorySource : public checkpoint::TensorSource {
 public:
  void Add(const std::string& name, const Shape& shape, std::vector<float> values) {
    tensors_.push_back({.name = name, .shape = shape, .dtype = DType::kF32});
    values_[name] = std::move(values);
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(const std::string& tensor) const override {
    for (const TensorInfo& info : tensors_) {
      if (info.name == tensor) return &info;
    }
    return nullptr;
  }
  absl::Status Read(const std::string& tensor, const Box& box, void* out) const override {
    REQUIRE(checkpoint::IsInside(box, Find(tensor)->shape));
    largest = std::max(largest, box.count.elements());
    auto* to = static_cast<float*>(out);
    ForEachIndex(box, [&](const Index& index) {
      *to++ = values_.at(tensor)[static_cast<std::size_t>(OffsetOf(Find(tensor)->shape, index))];
    });
    return absl::OkStatus();
  }
  mutable std::int64_t largest = 0;

 private:
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::vector<float>> values_;
};

// Sizes that are all different, so that no exchange of two goes unnoticed; some are larger than a piece of a copy and no
// multiples of it.
constexpr std::int64_t kD = 45, kF = 37, kH = 6, kK = 3, kE = 5, kX = 4, kRope = 2, kN = 7, kU = 3, kC = 8;
const Sizes kSizes = {.hidden = kD,
                      .vocab = 11,
                      .heads = kH,
                      .kv_heads = kK,
                      .head_dim = kE,
                      .ffn = kF,
                      .experts = kX,
                      .rope_dim = kRope,
                      .nope_dim = kN,
                      .value_dim = kU};

std::string Numbered(const std::string& head, std::int64_t number, const std::string& tail) {
  return head + std::to_string(number) + tail;
}

// Where an element of ours is in theirs.
struct TheirPlace {
  std::string tensor;
  Index index;
};
struct CaseParameter {
  WeightRow row;
  std::string name;
  Shape shape;
  std::function<TheirPlace(const Index& ours)> place;
};
struct WeightCase {
  std::string name;
  std::map<std::string, Shape> theirs;
  std::vector<CaseParameter> parameters;
  Sizes sizes = kSizes;
};

std::vector<WeightCase> WeightCases() {
  std::vector<WeightCase> cases;
  const Shape qkv = {kK, kH / kK + 2, kE, kD}, qkv_bias = {kK, kH / kK + 2, kE};
  // The row of all queries, all keys and all values of row (group, which, feature) of ours.
  const auto fused_row = [](const Index& i) {
    const std::int64_t queries = kH / kK;
    const std::int64_t head = i[1] < queries    ? i[0] * queries + i[1]
                              : i[1] == queries ? kH + i[0]
                                                : kH + kK + i[0];
    return head * kE + i[2];
  };
  cases.push_back(
      {"a table",
       {{"wte", {11, kD}}},
       {{{.ours = "embedding.tokens", .theirs = {"wte"}}, "embedding.tokens", {11, kD}, [](const Index& i) {
           return TheirPlace{"wte", i};
         }}}});
  cases.push_back(
      {"heads before the inputs",
       {{"o", {kD, kH * kE}}},
       {{{.ours = "proj.weight", .theirs = {"o"}}, "proj.weight", {kD, kH, kE}, [](const Index& i) {
           return TheirPlace{"o", {i[0], i[1] * kE + i[2]}};
         }}}});
  cases.push_back({"vectors",
                   {{"n", {kH * kE}}, {"b", {kH * kE}}},
                   {{{.ours = "q_norm.weight", .theirs = {"n"}},
                     "q_norm.weight",
                     {kH, kE},
                     [](const Index& i) {
                       return TheirPlace{"n", {i[0] * kE + i[1]}};
                     }},
                    {{.ours = "q.bias", .theirs = {"b"}}, "q.bias", {kH, kE}, [](const Index& i) {
                       return TheirPlace{"b", {i[0] * kE + i[1]}};
                     }}}});
  cases.push_back(
      {"rows of one tensor",
       {{"layers.4.down", {kC + kRope, kD}}},
       {{{.ours = "layers.{l}.latent", .theirs = {"layers.{l}.down"}, .slice = {0, kC}, .first_layer = 3},
         "layers.1.latent",
         {kC, kD},
         [](const Index& i) {
           return TheirPlace{"layers.4.down", i};
         }},
        {{.ours = "layers.{l}.shared", .theirs = {"layers.{l}.down"}, .slice = {kC, kRope}, .first_layer = 3},
         "layers.1.shared",
         {kRope, kD},
         [](const Index& i) {
           return TheirPlace{"layers.4.down", {kC + i[0], i[1]}};
         }}}});
  cases.push_back({"transposed",
                   {{"fc", {kD, 70}}, {"proj", {kH * kE, kD}}},
                   {{{.ours = "fc1.weight", .theirs = {"fc"}, .how = How::kTransposed},
                     "fc1.weight",
                     {70, kD},
                     [](const Index& i) {
                       return TheirPlace{"fc", {i[1], i[0]}};
                     }},
                    {{.ours = "proj.weight", .theirs = {"proj"}, .how = How::kTransposed},
                     "proj.weight",
                     {kD, kH, kE},
                     [](const Index& i) {
                       return TheirPlace{"proj", {i[1] * kE + i[2], i[0]}};
                     }}}});
  cases.push_back({"stacked",
                   {{"l.7.gate", {kF, kD}}, {"l.7.up", {kF, kD}}, {"gate.b", {kF}}, {"up.b", {kF}}},
                   {{{.ours = "l.{l}.fc1.weight", .theirs = {"l.{l}.gate", "l.{l}.up"}, .how = How::kStacked},
                     "l.7.fc1.weight",
                     {2, kF, kD},
                     [](const Index& i) {
                       return TheirPlace{i[0] == 0 ? "l.7.gate" : "l.7.up", {i[1], i[2]}};
                     }},
                    {{.ours = "fc1.bias", .theirs = {"gate.b", "up.b"}, .how = How::kStacked},
                     "fc1.bias",
                     {2, kF},
                     [](const Index& i) {
                       return TheirPlace{i[0] == 0 ? "gate.b" : "up.b", {i[1]}};
                     }}}});
  cases.push_back({"halves",
                   {{"gate_up", {2 * kF, kD}}},
                   {{{.ours = "fc1.weight", .theirs = {"gate_up"}, .how = How::kHalves},
                     "fc1.weight",
                     {2, kF, kD},
                     [](const Index& i) {
                       return TheirPlace{"gate_up", {i[0] * kF + i[1], i[2]}};
                     }}}});
  const auto of_three = [](const Index& i, bool bias) {
    const std::int64_t queries = kH / kK;
    const std::int64_t head = i[1] < queries ? i[0] * queries + i[1] : i[0];
    TheirPlace place{i[1] < queries ? "q" : i[1] == queries ? "k" : "v", {head * kE + i[2]}};
    if (bias)
      place.tensor += ".b";
    else
      place.index.push_back(i[3]);
    return place;
  };
  cases.push_back({"queries, keys and values",
                   {{"q", {kH * kE, kD}},
                    {"k", {kK * kE, kD}},
                    {"v", {kK * kE, kD}},
                    {"q.b", {kH * kE}},
                    {"k.b", {kK * kE}},
                    {"v.b", {kK * kE}}},
                   {{{.ours = "qkv.weight", .theirs = {"q", "k", "v"}, .how = How::kQkv},
                     "qkv.weight",
                     qkv,
                     [=](const Index& i) { return of_three(i, false); }},
                    {{.ours = "qkv.bias", .theirs = {"q.b", "k.b", "v.b"}, .how = How::kQkv},
                     "qkv.bias",
                     qkv_bias,
                     [=](const Index& i) { return of_three(i, true); }}}});
  for (const bool columns : {false, true}) {
    const How how = columns ? How::kQkvColumns : How::kQkvRows;
    constexpr std::int64_t kRows = (kH + 2 * kK) * kE;
    cases.push_back(
        {columns ? "columns of queries, keys and values" : "rows of queries, keys and values",
         {{"qkv", columns ? Shape{kD, kRows} : Shape{kRows, kD}}, {"qkv.b", {kRows}}},
         {{{.ours = "qkv.weight", .theirs = {"qkv"}, .how = how},
           "qkv.weight",
           qkv,
           [=](const Index& i) {
             const std::int64_t row = fused_row(i);
             return TheirPlace{"qkv", columns ? Index{i[3], row} : Index{row, i[3]}};
           }},
          {{.ours = "qkv.bias", .theirs = {"qkv.b"}, .how = how}, "qkv.bias", qkv_bias, [=](const Index& i) {
             return TheirPlace{"qkv.b", {fused_row(i)}};
           }}}});
  }
  Sizes one = kSizes;
  one.heads = one.kv_heads = one.head_dim = 1;
  cases.push_back({"columns of one head of one feature",
                   {{"qkv", {kD, 3}}},
                   {{{.ours = "qkv.weight", .theirs = {"qkv"}, .how = How::kQkvColumns},
                     "qkv.weight",
                     {1, 3, 1, kD},
                     [](const Index& i) {
                       return TheirPlace{"qkv", {i[3], i[1]}};
                     }}},
                   one});
  constexpr std::int64_t kHead = kRope + kN;
  cases.push_back({"rotated features last",
                   {{"q_b", {kH * kHead, kC}}},
                   {{{.ours = "q.weight", .theirs = {"q_b"}, .how = How::kRopeLast},
                     "q.weight",
                     {kH, kHead, kC},
                     [](const Index& i) {
                       const std::int64_t feature = i[1] < kRope ? kN + i[1] : i[1] - kRope;
                       return TheirPlace{"q_b", {i[0] * kHead + feature, i[2]}};
                     }}}});
  cases.push_back({"rows of each head",
                   {{"kv_b", {kH * (kN + kU), kC}}},
                   {{{.ours = "k.weight", .theirs = {"kv_b"}, .how = How::kHeadRows, .slice = {0, kN}},
                     "k.weight",
                     {kH, kN, kC},
                     [](const Index& i) {
                       return TheirPlace{"kv_b", {i[0] * (kN + kU) + i[1], i[2]}};
                     }},
                    {{.ours = "v.weight", .theirs = {"kv_b"}, .how = How::kHeadRows, .slice = {kN, kU}},
                     "v.weight",
                     {kH, kU, kC},
                     [](const Index& i) {
                       return TheirPlace{"kv_b", {i[0] * (kN + kU) + kN + i[1], i[2]}};
                     }}}});
  WeightCase experts{"experts one by one", {}, {}};
  for (std::int64_t e = 0; e < kX; ++e) {
    experts.theirs[Numbered("l.2.", e, ".gate")] = experts.theirs[Numbered("l.2.", e, ".up")] = {kF, kD};
    experts.theirs[Numbered("l.2.", e, ".down")] = {kD, kF};
  }
  experts.parameters = {
      {{.ours = "l.{l}.fc1.weight", .theirs = {"l.{l}.{e}.gate", "l.{l}.{e}.up"}, .how = How::kStacked},
       "l.2.fc1.weight",
       {kX, 2, kF, kD},
       [](const Index& i) {
         return TheirPlace{Numbered("l.2.", i[0], i[1] == 0 ? ".gate" : ".up"), {i[2], i[3]}};
       }},
      {{.ours = "l.{l}.fc2.weight", .theirs = {"l.{l}.{e}.down"}},
       "l.2.fc2.weight",
       {kX, kD, kF},
       [](const Index& i) {
         return TheirPlace{Numbered("l.2.", i[0], ".down"), {i[1], i[2]}};
       }}};
  cases.push_back(experts);
  cases.push_back({"all experts in one",
                   {{"gate_up", {kX, 2 * kF, kD}}, {"down", {kX, kD, kF}}},
                   {{{.ours = "fc1.weight", .theirs = {"gate_up"}, .how = How::kAllExperts},
                     "fc1.weight",
                     {kX, 2, kF, kD},
                     [](const Index& i) {
                       return TheirPlace{"gate_up", {i[0], i[1] * kF + i[2], i[3]}};
                     }},
                    {{.ours = "fc2.weight", .theirs = {"down"}, .how = How::kAllExperts},
                     "fc2.weight",
                     {kX, kD, kF},
                     [](const Index& i) {
                       return TheirPlace{"down", i};
                     }}}});
  return cases;
}

std::vector<Mapping> MappingsOfCase(const WeightCase& c) {
  std::vector<WeightRow> rows;
  std::vector<TensorInfo> parameters;
  for (const CaseParameter& parameter : c.parameters) {
    rows.push_back(parameter.row);
    parameters.push_back({.name = parameter.name, .shape = parameter.shape, .dtype = DType::kF32});
  }
  absl::StatusOr<std::vector<Mapping>> mappings = MappingsOf(rows, c.sizes, parameters);
  REQUIRE_MESSAGE(mappings.ok(), Message(mappings.status()));
  return *std::move(mappings);
}

// Theirs, in which every element of all tensors is another number.
std::map<std::string, std::vector<float>> CountedValues(const WeightCase& c) {
  std::map<std::string, std::vector<float>> values;
  float next = 1;
  for (const auto& [name, shape] : c.theirs) {
    values[name].resize(static_cast<std::size_t>(shape.elements()));
    for (float& value : values[name]) value = next++;
  }
  return values;
}

std::vector<float> ReadBox(const checkpoint::TensorSource& source, const std::string& name, const Box& box) {
  // Behind the end stands a number that must stay.
  std::vector<float> values(static_cast<std::size_t>(box.count.elements()) + 1, -1);
  const absl::Status read = source.Read(name, box, values.data());
  REQUIRE_MESSAGE(read.ok(), Message(read));
  CHECK(values.back() == -1);
  values.pop_back();
  return values;
}

Box RandomBox(const Shape& shape, std::mt19937& random) {
  Box box = checkpoint::WholeBox(shape);
  for (int dim = 0; dim < shape.rank(); ++dim) {
    box.count[dim] = std::uniform_int_distribution<std::int64_t>(1, shape[dim])(random);
    box.start[dim] = std::uniform_int_distribution<std::int64_t>(0, shape[dim] - box.count[dim])(random);
  }
  return box;
}

Mapping MappingOfOne(const WeightRow& row, const Shape& shape) {
  absl::StatusOr<std::vector<Mapping>> mappings =
      MappingsOf({row}, kSizes, {{.name = row.ours, .shape = shape, .dtype = DType::kF32}});
  REQUIRE_MESSAGE(mappings.ok(), Message(mappings.status()));
  return (*mappings)[0];
}

std::unique_ptr<checkpoint::TensorSource> MustOpen(const data::TempDir& folder, const FileTensors& tensors,
                                                   std::vector<Mapping> mappings,
                                                   const std::vector<std::string>& ignored = {}) {
  absl::StatusOr<std::unique_ptr<checkpoint::TensorSource>> source =
      OpenWeights(FolderOf(folder, tensors), std::move(mappings), ignored);
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  return *std::move(source);
}

absl::Status WhyNotOpened(const FileTensors& tensors, std::vector<Mapping> mappings,
                          const std::vector<std::string>& ignored = {}) {
  const data::TempDir folder;
  return OpenWeights(FolderOf(folder, tensors), std::move(mappings), ignored).status();
}

absl::Status WhyNotMapped(const WeightRow& row, const Shape& shape, const Sizes& sizes = kSizes) {
  return MappingsOf({row}, sizes, {{.name = "p", .shape = shape, .dtype = DType::kF32}}).status();
}

// A whole tensor of theirs, made in chunks of so many rows.
absl::StatusOr<std::string> Filled(ExportedTensors& tensors, const TensorDeclaration& tensor,
                                   std::int64_t chunk) {
  std::string bytes(static_cast<std::size_t>(tensor.bytes()), '\xEE');
  const std::int64_t width = tensor.bytes() / tensor.rows();
  for (std::int64_t row = 0; row < tensor.rows(); row += chunk) {
    const std::int64_t rows = std::min(chunk, tensor.rows() - row);
    const std::span<std::byte> all = std::as_writable_bytes(std::span(bytes.data(), bytes.size()));
    RETURN_IF_ERROR(tensors.Fill(
        tensor, row, rows,
        all.subspan(static_cast<std::size_t>(row * width), static_cast<std::size_t>(rows * width))));
  }
  return bytes;
}

// Half of IEEE 754, digit by digit.
float NaiveHalf(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = 0;
  if (exponent == 31)
    value = fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  else if (exponent == 0)
    value = static_cast<float>(fraction * std::pow(2.0, -24));
  else
    value = static_cast<float>((1 + fraction / 1024.0) * std::pow(2.0, exponent - 15));
  return bits >> 15 != 0 ? -value : value;
}
float NaiveE4M3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  double value =
      exponent == 0 ? fraction / 8.0 * std::pow(2.0, -6) : (1 + fraction / 8.0) * std::pow(2.0, exponent - 7);
  if ((bits & 127) == 127) value = std::numeric_limits<double>::quiet_NaN();
  return static_cast<float>(bits >> 7 != 0 ? -value : value);
}

bool SameFloat(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

}  // namespace

TEST_CASE("weights: each kind of row reads what loops over indices say, whole and in any box") {
  std::mt19937 random(7);
  for (const WeightCase& c : WeightCases()) {
    CAPTURE(c.name);
    const std::map<std::string, std::vector<float>> values = CountedValues(c);
    FileTensors files;
    for (const auto& [name, shape] : c.theirs)
      files[name] = TensorOf(StoredType::kF32, shape, values.at(name));
    const data::TempDir folder;
    const auto source = MustOpen(folder, files, MappingsOfCase(c));
    CHECK(source->tensors().size() == c.parameters.size());
    for (const CaseParameter& parameter : c.parameters) {
      CAPTURE(parameter.name);
      REQUIRE(source->Find(parameter.name) != nullptr);
      CHECK(source->Find(parameter.name)->shape == parameter.shape);
      for (int round = 0; round < 60; ++round) {
        const Box box =
            round == 0 ? checkpoint::WholeBox(parameter.shape) : RandomBox(parameter.shape, random);
        CAPTURE(checkpoint::ToString(box));
        std::vector<float> expected;
        ForEachIndex(box, [&](const Index& index) {
          const TheirPlace place = parameter.place(index);
          expected.push_back(values.at(
              place.tensor)[static_cast<std::size_t>(OffsetOf(c.theirs.at(place.tensor), place.index))]);
        });
        CHECK(ReadBox(*source, parameter.name, box) == expected);
      }
    }
  }
}

TEST_CASE("weights: theirs made of ours is what was read, in chunks of any number of rows") {
  for (const WeightCase& c : WeightCases()) {
    CAPTURE(c.name);
    const std::map<std::string, std::vector<float>> values = CountedValues(c);
    // Ours is made by loops, so that a mistake of reading does not hide one of writing.
    MemorySource source;
    std::int64_t largest = 0;
    for (const CaseParameter& parameter : c.parameters) {
      std::vector<float> ours;
      ForEachIndex(checkpoint::WholeBox(parameter.shape), [&](const Index& index) {
        const TheirPlace place = parameter.place(index);
        ours.push_back(values.at(
            place.tensor)[static_cast<std::size_t>(OffsetOf(c.theirs.at(place.tensor), place.index))]);
      });
      largest = std::max(largest, parameter.shape.elements());
      source.Add(parameter.name, parameter.shape, std::move(ours));
    }
    absl::StatusOr<ExportedTensors> tensors =
        ExportedTensors::Create(source, MappingsOfCase(c), StoredType::kF32, true);
    REQUIRE_MESSAGE(tensors.ok(), Message(tensors.status()));
    CHECK(tensors->declarations().size() == c.theirs.size());
    for (const TensorDeclaration& tensor : tensors->declarations()) {
      CAPTURE(tensor.name);
      REQUIRE(c.theirs.contains(tensor.name));
      CHECK(tensor.shape == c.theirs.at(tensor.name));
      const std::string expected = TensorOf(StoredType::kF32, tensor.shape, values.at(tensor.name)).bytes;
      for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, tensor.rows()}) {
        CAPTURE(chunk);
        source.largest = 0;
        const absl::StatusOr<std::string> made = Filled(*tensors, tensor, chunk);
        REQUIRE_MESSAGE(made.ok(), Message(made.status()));
        CHECK(*made == expected);
        // No more is read at once than the rows that are made, and of heads that reach into them, the whole ones.
        const std::int64_t width = tensor.shape.elements() / tensor.rows();
        CHECK(source.largest <= std::min(largest, 2 * (chunk + kE) * width));
      }
    }
  }
}

TEST_CASE("weights: numbers of every type become the same numbers in f32") {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  const Shape shape = {256, 256};
  const data::TempDir folder;
  std::mt19937 random(3);
  std::vector<float> singles;
  std::vector<double> doubles;
  std::normal_distribution<double> normal;
  for (int i = 0; i < 65536; ++i) {
    doubles.push_back(normal(random));
    singles.push_back(static_cast<float>(normal(random)));
  }
  doubles[0] = 1 + std::pow(2.0, -24);  // halfway: to the even one
  doubles[1] = 1 + 3 * std::pow(2.0, -24);
  const FileTensors files = {{"bf16", TensorOf(StoredType::kBF16, shape, all)},
                             {"f16", TensorOf(StoredType::kF16, shape, all)},
                             {"f32", TensorOf(StoredType::kF32, shape, singles)},
                             {"f64", TensorOf(StoredType::kF64, shape, doubles)}};
  std::vector<Mapping> mappings;
  for (const auto& [name, tensor] : files) {
    mappings.push_back(MappingOfOne({.ours = name, .theirs = {name}}, shape));
  }
  const auto source = MustOpen(folder, files, mappings);
  // The same tensors, transposed: elements one by one.
  for (Mapping& mapping : mappings)
    mapping.parts =
        MappingOfOne({.ours = "t", .theirs = {mapping.parameter}, .how = How::kTransposed}, shape).parts;
  const data::TempDir other;
  const auto transposed = MustOpen(other, files, mappings);
  const auto expected = [&](const std::string& name, std::size_t i) {
    if (name == "bf16") return std::bit_cast<float>(static_cast<std::uint32_t>(all[i]) << 16);
    if (name == "f16") return NaiveHalf(all[i]);
    return name == "f32" ? singles[i] : static_cast<float>(doubles[i]);
  };
  for (const auto& [name, tensor] : files) {
    CAPTURE(name);
    const std::vector<float> values = ReadBox(*source, name, checkpoint::WholeBox(shape));
    const std::vector<float> turned = ReadBox(*transposed, name, checkpoint::WholeBox(shape));
    int wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += SameFloat(values[i], expected(name, i)) ? 0 : 1;
      wrong += SameFloat(turned[i % 256 * 256 + i / 256], expected(name, i)) ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
  const std::vector<float> f64 = ReadBox(*source, "f64", {{0, 0}, {1, 2}});
  CHECK(f64[0] == 1.0F);
  CHECK(f64[1] == 1.0F + std::ldexp(1.0F, -22));
}

TEST_CASE("weights: FP8 is multiplied by the scales of its blocks, in any box and order") {
  // Neither dim is a multiple of a block.
  const Shape shape = {300, 200}, blocks = {3, 2};
  std::vector<std::uint8_t> bits(300 * 200);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  const std::vector<float> scales = {0.5F, 3, 0.001F, 7, 11, 1e-6F};
  const FileTensors files = {{"w", TensorOf(StoredType::kF8E4M3, shape, bits)},
                             {"w_scale_inv", TensorOf(StoredType::kF32, blocks, scales)}};
  const auto expected = [&](std::int64_t row, std::int64_t column) {
    const float scale = scales[static_cast<std::size_t>(row / 128 * 2 + column / 128)];
    return NaiveE4M3(bits[static_cast<std::size_t>(row * 200 + column)]) * scale;
  };
  // From the table of the format (arXiv:2209.05433): 1, the largest, the smallest normal and subnormal ones.
  CHECK(NaiveE4M3(0x38) == 1.0F);
  CHECK(NaiveE4M3(0x7E) == 448.0F);
  CHECK(NaiveE4M3(0x88) == -std::ldexp(1.0F, -6));
  CHECK(NaiveE4M3(0x01) == std::ldexp(1.0F, -9));
  CHECK(std::isnan(NaiveE4M3(0xFF)));
  std::mt19937 random(5);
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    const Shape ours = transposed ? Shape{200, 300} : shape;
    const data::TempDir folder;
    const auto source = MustOpen(
        folder, files,
        {MappingOfOne({.ours = "p", .theirs = {"w"}, .how = transposed ? How::kTransposed : How::kSame},
                      ours)});
    for (int round = 0; round < 20; ++round) {
      const Box box = round == 0 ? checkpoint::WholeBox(ours) : RandomBox(ours, random);
      const std::vector<float> values = ReadBox(*source, "p", box);
      std::size_t at = 0;
      int wrong = 0;
      ForEachIndex(box, [&](const Index& i) {
        const float value = transposed ? expected(i[1], i[0]) : expected(i[0], i[1]);
        wrong += SameFloat(values[at++], value) ? 0 : 1;
      });
      CHECK(wrong == 0);
    }
  }
  const std::vector<Mapping> mappings = {MappingOfOne({.ours = "p", .theirs = {"w"}}, shape)};
  FileTensors bare = files, wrong = files, other = files;
  bare.erase("w_scale_inv");
  Says(WhyNotOpened(bare, mappings), "w is of type F8_E4M3, and w_scale_inv is not there");
  wrong["w_scale_inv"] = TensorOf(StoredType::kF32, Shape{2, 3}, scales);
  Says(WhyNotOpened(wrong, mappings),
       "w_scale_inv is F32 [2, 3], and blocks of 128 × 128 have scales F32 [3, 2]");
  other["w_scale_inv"] = TensorOf(StoredType::kBF16, blocks, std::vector<std::uint16_t>(6));
  Says(WhyNotOpened(other, mappings), "w_scale_inv is BF16 [3, 2]");
}

TEST_CASE("weights: data of no alignment, tensors of one number, and reads by many threads") {
  const data::TempDir folder;
  std::string data = "x";  // a byte first, so that all others are at odd places
  const std::array<float, 6> values = {1, -2, 0.5F, 4, 3, -8};
  for (const float value : values) {
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    data += static_cast<char>(bits & 255);
    data += static_cast<char>(bits >> 8);
  }
  data.append(std::string(4, '\0'));
  data::WriteFile(folder / "model.safetensors",
                  RawFile(R"({"odd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                          R"("w":{"dtype":"BF16","shape":[2,3],"data_offsets":[1,13]},)"
                          R"("one":{"dtype":"F32","shape":[],"data_offsets":[13,17]}})",
                          data));
  absl::StatusOr<Folder> opened = Folder::Open(folder.path());
  REQUIRE_MESSAGE(opened.ok(), Message(opened.status()));
  const auto source = OpenWeights(*std::move(opened),
                                  {MappingOfOne({.ours = "p", .theirs = {"w"}}, {2, 3}),
                                   MappingOfOne({.ours = "s", .theirs = {"one"}}, {1})},
                                  {"odd"});
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  CHECK(ReadBox(**source, "p", checkpoint::WholeBox({2, 3})) ==
        std::vector<float>(values.begin(), values.end()));
  CHECK(ReadBox(**source, "s", checkpoint::WholeBox({1})) == std::vector<float>{0});
  float out[6];
  Says((*source)->Read("p", {{0, 0}, {2, 4}}, out), "is no part of [2, 3]");
  Says((*source)->Read("p", {{0, -1}, {2, 3}}, out), "is no part of [2, 3]");
  Says((*source)->Read("p", {{0}, {2}}, out), "is no part of [2, 3]");
  CHECK((*source)->Read("q", {{0}, {2}}, out).code() == absl::StatusCode::kNotFound);
  std::vector<std::thread> threads;
  std::array<int, 4> wrong{};
  for (int& count : wrong) {
    threads.emplace_back([&count, &values, &source = **source] {
      for (int round = 0; round < 100; ++round) {
        std::array<float, 6> read{};
        if (!source.Read("p", checkpoint::WholeBox({2, 3}), read.data()).ok() || read != values) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::array<int, 4>{});
}

TEST_CASE("weights: runs that are longer than what is asked of the disk at once") {
  const std::int64_t rows = (std::int64_t{1} << 22) + 3;  // a piece, and a few elements of the next
  std::vector<std::uint16_t> numbers(static_cast<std::size_t>(2 * rows));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(i % 30011);
  const data::TempDir folder;
  const auto source =
      OpenWeights(FolderOf(folder, {{"w", TensorOf(StoredType::kBF16, Shape{rows, 2}, numbers)}}),
                  {MappingOfOne({.ours = "p", .theirs = {"w"}, .how = How::kTransposed}, {2, rows})});
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  // Columns of theirs, so that a run's elements are two apart there and neighbours here.
  for (const std::int64_t column : {0, 1}) {
    const std::vector<float> read = ReadBox(**source, "p", {{column, 0}, {1, rows}});
    std::int64_t wrong = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::uint16_t bits = numbers[static_cast<std::size_t>(2 * row + column)];
      if (read[static_cast<std::size_t>(row)] != std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16))
        ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("weights: what does not fit is named, five at most, with both shapes") {
  const auto vector = [](std::int64_t size) {
    return TensorOf(StoredType::kF32, Shape{size}, std::vector<float>(static_cast<std::size_t>(size), 1));
  };
  const std::vector<Mapping> mappings = {MappingOfOne({.ours = "a.weight", .theirs = {"a"}}, {2, 2}),
                                         MappingOfOne({.ours = "b.bias", .theirs = {"b"}}, {3})};
  FileTensors right = {{"a", TensorOf(StoredType::kF32, Shape{2, 2}, std::vector<float>(4))},
                       {"b", vector(3)}};
  CHECK(WhyNotOpened(right, mappings).ok());
  FileTensors files = right;
  files["a"] = TensorOf(StoredType::kF32, Shape{4, 1}, std::vector<float>(4));
  Says(WhyNotOpened(files, mappings), "a is [4, 1], and the config asks for [2, 2]");
  files = right;
  files["b"] = TensorOf(StoredType::kI32, Shape{3}, std::vector<std::int32_t>(3));
  Says(WhyNotOpened(files, mappings), "b is of type I32, and weights are F64, F32, F16, BF16 or F8_E4M3");
  files = right;
  files.erase("b");
  Says(WhyNotOpened(files, mappings), "b [3] is not there");
  files = right;
  // The bytes of one that is used don't make another one of the model's.
  files["c"] = vector(3);
  Says(WhyNotOpened(files, mappings), "c [3] is no tensor of this model");
  CHECK(WhyNotOpened(files, mappings, {"?"}).ok());
  CHECK(WhyNotOpened(files, mappings, {"c*"}).ok());
  Says(WhyNotOpened(files, mappings, {"d*"}), "c [3] is no tensor of this model");
  for (int i = 0; i < 6; ++i) files[Numbered("extra", i, "")] = vector(1);
  files.erase("a");
  const std::string message = Message(WhyNotOpened(files, mappings));
  CAPTURE(message);
  CHECK(message.find("a [2, 2] is not there; c [3] is no tensor of this model; extra0 [1]") !=
        std::string::npos);
  CHECK(message.find("extra2 [1] is no tensor of this model; and 3 more") != std::string::npos);
}

TEST_CASE("weights: a head beside a tied table of tokens is read over if it has the table's bytes") {
  const std::vector<Mapping> mappings = {
      MappingOfOne({.ours = "embedding.tokens", .theirs = {"wte"}}, {2, 3})};
  const auto table = TensorOf(StoredType::kF32, Shape{2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  for (const std::string head : {"lm_head.weight", "embed_out.weight", "language_model.lm_head.weight"})
    CHECK(WhyNotOpened({{"wte", table}, {head, table}}, mappings).ok());
  // Other numbers, another type of the same bytes, another name.
  FileTensor other = table;
  other.bytes.back() = '\x7F';
  Says(WhyNotOpened({{"wte", table}, {"lm_head.weight", other}}, mappings),
       "lm_head.weight [2, 3] is no tensor of this model, whose head is wte [2, 3], and has other values "
       "than that");
  other = table;
  other.type = StoredType::kI32;
  Says(WhyNotOpened({{"wte", table}, {"lm_head.weight", other}}, mappings),
       "lm_head.weight [2, 3] is no tensor");
  Says(WhyNotOpened({{"wte", table}, {"wte2", table}}, mappings), "wte2 [2, 3] is no tensor of this model");
}

TEST_CASE("weights: rows that do not come to a parameter are refused with its name and shape") {
  Says(MappingsOf({{.ours = "q", .theirs = {"q"}}}, kSizes,
                  {{.name = "p", .shape = {2}, .dtype = DType::kF32}})
           .status(),
       "parameter p [2] is none that this family has a tensor for");
  const std::string refused = " is not made of t in this family";
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kTransposed}, {4}),
       "parameter p [4]" + refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .slice = {0, 3}}, {4, 2}), "parameter p [4, 2]" + refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kQkvRows}, {kK, 5, kE, kD}), refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kQkvRows}, {kK, 1, kE, kD}), refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kQkvRows}, {kK, 4}), refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kRopeLast}, {kH, 1, 4}), refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kHeadRows, .slice = {kN, kU}}, {kH, kN, kC}),
       refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kHeadRows, .slice = {kN + 1, kU}},
                    {kH, kU, kC}),
       refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kAllExperts}, {kX, kD}), refused);
  Says(WhyNotMapped({.ours = "p", .theirs = {"t{e}"}}, {kX}), "is not made of t{e}");
  Says(WhyNotMapped({.ours = "p", .theirs = {"s", "t"}, .how = How::kStacked}, {3, kF, kD}),
       "not made of s, t");
  Says(WhyNotMapped({.ours = "p", .theirs = {"s", "t"}, .how = How::kQkv}, {kK, 4, kE, kD}),
       "not made of s, t");
  Says(WhyNotMapped({.ours = "p", .theirs = {"s", "t"}}, {3}), "not made of s, t");
  Says(WhyNotMapped({.ours = "p", .theirs = {}}, {3}), "parameter p [3] is not made of");
  // Without heads there is nothing for queries to be.
  Sizes none = kSizes;
  none.heads = 0;
  Says(WhyNotMapped({.ours = "p", .theirs = {"t"}, .how = How::kQkvRows}, {kK, 4, kE, kD}, none), refused);
  // Numbers that are no layers.
  for (const char* name : {"l.-1.p", "l..p", "l.x.p", "l.1x.p", "l.99999999999999999999.p", "l.1.p.q"}) {
    CAPTURE(name);
    Says(MappingsOf({{.ours = "l.{l}.p", .theirs = {"t"}}}, kSizes,
                    {{.name = name, .shape = {2}, .dtype = DType::kF32}})
             .status(),
         "is none that this family has a tensor for");
  }
}

TEST_CASE("weights: parts that overlap, or leave elements of theirs over, are refused") {
  const auto why = [](const std::vector<WeightRow>& rows, const std::vector<Shape>& shapes) {
    std::vector<TensorInfo> parameters;
    for (std::size_t i = 0; i < rows.size(); ++i)
      parameters.push_back({.name = rows[i].ours, .shape = shapes[i], .dtype = DType::kF32});
    const auto mappings = MappingsOf(rows, kSizes, parameters);
    REQUIRE_MESSAGE(mappings.ok(), Message(mappings.status()));
    return TheirTensors(*mappings).status();
  };
  CHECK(
      why({{.ours = "a", .theirs = {"t"}, .slice = {0, 2}}, {.ours = "b", .theirs = {"t"}, .slice = {2, 3}}},
          {{2, 4}, {3, 4}})
          .ok());
  Says(why({{.ours = "a", .theirs = {"t"}, .slice = {0, 2}}, {.ours = "b", .theirs = {"t"}, .slice = {3, 3}}},
           {{2, 4}, {3, 4}}),
       "of the 24 elements of tensor t [6, 4], 20 are parameters of this model");
  Says(why({{.ours = "a", .theirs = {"t"}}, {.ours = "b", .theirs = {"t"}}}, {{2, 4}, {2, 4}}),
       "of the 8 elements of tensor t [2, 4], 16 are parameters");
  Says(why({{.ours = "a", .theirs = {"t"}}, {.ours = "b", .theirs = {"t"}}}, {{2, 4}, {4, 2}}),
       "tensor t is [4, 2] for b, but [2, 4] for a");
  // As many as there are, but rows 0 and 1 twice and 2 and 3 not at all.
  Says(why({{.ours = "a", .theirs = {"t"}, .slice = {0, 2}},
            {.ours = "b", .theirs = {"t"}, .slice = {0, 2}},
            {.ours = "c", .theirs = {"t"}, .slice = {4, 2}}},
           {{2, 4}, {2, 4}, {2, 4}}),
       "of the elements of tensor t [6, 4], some are twice in a, b, c, and some nowhere");
  // Keys and values of the same rows of each head, or of heads of another size.
  const WeightRow k = {.ours = "k", .theirs = {"t"}, .how = How::kHeadRows, .slice = {0, kN}};
  Says(why({k}, {{kH, kN, kC}}), "elements of tensor t [60, 8], 336 are parameters");
}

TEST_CASE("weights: numbers are written to nearest even, or refused where they must be exact") {
  MemorySource source;
  const std::vector<Mapping> mappings = {MappingOfOne({.ours = "p", .theirs = {"t"}}, {2, 4})};
  const float eps = std::ldexp(1.0F, -8);  // half a step of bf16 behind 1
  source.Add("p", {2, 4}, {1, 1 + eps, 1 + 3 * eps, 1 + eps * 1.01F, -1 - eps, 0, -0.0F, 2});
  const auto made = [&](StoredType type, bool exact) -> absl::StatusOr<std::string> {
    absl::StatusOr<ExportedTensors> tensors = ExportedTensors::Create(source, mappings, type, exact);
    REQUIRE_MESSAGE(tensors.ok(), Message(tensors.status()));
    return Filled(*tensors, tensors->declarations()[0], 1);
  };
  const absl::StatusOr<std::string> bf16 = made(StoredType::kBF16, false);
  REQUIRE_MESSAGE(bf16.ok(), Message(bf16.status()));
  CHECK(*bf16 ==
        TensorOf(StoredType::kBF16, Shape{2, 4},
                 std::vector<std::uint16_t>{0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xBF80, 0, 0x8000, 0x4000})
            .bytes);
  Says(made(StoredType::kBF16, true).status(), "t holds 1.0039062, which BF16 cannot say exactly");
  CHECK(made(StoredType::kF32, true).ok());
  Says(made(StoredType::kF16, true).status(), "t holds 1.00394");  // 1.01 half steps of bf16
  const absl::StatusOr<std::string> f16 = made(StoredType::kF16, false);
  REQUIRE_MESSAGE(f16.ok(), Message(f16.status()));
  CHECK(*f16 ==
        TensorOf(StoredType::kF16, Shape{2, 4},
                 std::vector<std::uint16_t>{0x3C00, 0x3C04, 0x3C0C, 0x3C04, 0xBC04, 0, 0x8000, 0x4000})
            .bytes);
  // What a type has no number for is not made an infinity; one that was there stays.
  MemorySource large;
  const float infinity = std::numeric_limits<float>::infinity();
  large.Add("p", {2, 4}, {65504, 65519, -infinity, std::numeric_limits<float>::quiet_NaN(), 0, 0, 0, 0});
  absl::StatusOr<ExportedTensors> tensors = ExportedTensors::Create(large, mappings, StoredType::kF16, false);
  REQUIRE(tensors.ok());
  absl::StatusOr<std::string> bytes = Filled(*tensors, tensors->declarations()[0], 2);
  REQUIRE_MESSAGE(bytes.ok(), Message(bytes.status()));
  CHECK(bytes->substr(0, 6) == std::string("\xFF\x7B\xFF\x7B\x00\xFC", 6));
  CHECK((static_cast<std::uint8_t>((*bytes)[7]) & 0x7E) == 0x7E);
  for (const float value : {65520.0F, -1e6F}) {
    MemorySource beyond;
    beyond.Add("p", {2, 4}, {0, 0, 0, 0, 0, 0, 0, value});
    tensors = ExportedTensors::Create(beyond, mappings, StoredType::kF16, false);
    REQUIRE(tensors.ok());
    Says(Filled(*tensors, tensors->declarations()[0], 2).status(), "which is larger than any number of F16");
  }
  MemorySource most;
  most.Add("p", {2, 4}, std::vector<float>(8, std::numeric_limits<float>::max()));
  tensors = ExportedTensors::Create(most, mappings, StoredType::kBF16, false);
  REQUIRE(tensors.ok());
  Says(Filled(*tensors, tensors->declarations()[0], 2).status(), "larger than any number of BF16");
}

TEST_CASE(
    "weights: a source without a parameter, or with another shape, is refused before anything is made") {
  const std::vector<Mapping> mappings = {MappingOfOne({.ours = "p", .theirs = {"t"}}, {2, 4})};
  const auto why = [&](const MemorySource& source) {
    return ExportedTensors::Create(source, mappings, StoredType::kF32, true).status();
  };
  MemorySource none, other;
  Says(why(none), "parameter p is not there");
  other.Add("p", {4, 2}, std::vector<float>(8));
  Says(why(other), "parameter p is f32 [4, 2], not f32 [2, 4]");
}

}  // namespace engine::hf
