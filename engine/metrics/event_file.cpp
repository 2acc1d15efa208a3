#include "engine/metrics/event_file.h"

#include <array>
#include <bit>
#include <vector>

#include "engine/metrics/protobuf.h"

namespace engine::metrics {
namespace {

constexpr std::uint32_t kCastagnoli = 0x82f63b78;  // reflected
constexpr std::uint32_t kMaskDelta = 0xa282ead8;

constexpr std::array<std::uint32_t, 256> MakeCrcTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kCrcTable = MakeCrcTable();

ProtoMessage Event(double wall, std::int64_t step) {
  ProtoMessage event;
  event.Double(1, wall);
  if (step != 0) event.Varint(2, static_cast<std::uint64_t>(step));
  return event;
}

std::string RecordOf(const ProtoMessage& event) { return TfRecord(event.bytes()); }

// SummaryMetadata of a plugin, with its content.
ProtoMessage Metadata(std::string_view plugin, const ProtoMessage& content = {}) {
  ProtoMessage data;
  data.Bytes(1, plugin);
  if (!content.bytes().empty()) data.Message(2, content);
  return ProtoMessage().Message(1, data);
}

// An Event with one value, a tensor.
std::string TensorEvent(double wall, std::int64_t step, std::string_view tag, const ProtoMessage& metadata,
                        const ProtoMessage& tensor) {
  ProtoMessage value;
  value.Bytes(1, tag).Message(8, tensor).Message(9, metadata);
  return RecordOf(Event(wall, step).Message(5, ProtoMessage().Message(1, value)));
}

// The plugin "hparams" reads its message from the metadata; the value itself is a tensor of no elements.
std::string HParamsEvent(double wall, std::string_view part, int field, const ProtoMessage& message) {
  constexpr std::uint64_t kFloat = 1;
  ProtoMessage tensor;
  tensor.Varint(1, kFloat).Message(2, ProtoMessage().Message(2, ProtoMessage().Varint(1, 0)));
  return TensorEvent(wall, 0, "_hparams_/" + std::string(part),
                     Metadata("hparams", ProtoMessage().Message(field, message)), tensor);
}

// google.protobuf.Value, whose numbers are doubles.
ProtoMessage ValueOf(const Setting& setting) {
  ProtoMessage value;
  if (const auto* integer = std::get_if<std::int64_t>(&setting))
    return value.Double(2, static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&setting)) return value.Double(2, *number);
  if (const auto* text = std::get_if<std::string>(&setting)) return value.Bytes(3, *text);
  return value.Varint(4, std::get<bool>(setting) ? 1 : 0);
}

// hparams.DataType.
std::uint64_t TypeOf(const Setting& setting) {
  if (std::holds_alternative<std::string>(setting)) return 1;
  return std::holds_alternative<bool>(setting) ? 2 : 3;
}

// Doubles one behind the other, as a packed field has them.
std::string Packed(std::span<const double> numbers) {
  std::string bytes;
  for (const double number : numbers) bytes += LittleEndian(std::bit_cast<std::uint64_t>(number), 8);
  return bytes;
}

// tensorflow.HistogramProto, whose limits are where buckets end.
ProtoMessage HistogramProto(const Histogram& histogram) {
  std::vector<double> limits;
  std::vector<double> counts;
  int next = -1;  // behind the last bucket that has elements
  for (const auto& [bucket, count] : histogram.buckets()) {
    if (next >= 0 && bucket > next) {
      limits.push_back(Histogram::LimitOf(bucket - 1));
      counts.push_back(0);
    }
    limits.push_back(Histogram::LimitOf(bucket));
    counts.push_back(static_cast<double>(count));
    next = bucket + 1;
  }
  const bool is_empty = histogram.count() == 0;
  return ProtoMessage()
      .Double(1, is_empty ? 0 : histogram.min())
      .Double(2, is_empty ? 0 : histogram.max())
      .Double(3, static_cast<double>(histogram.count()))
      .Double(4, histogram.sum())
      .Double(5, histogram.sum_of_squares())
      .Bytes(6, Packed(limits))
      .Bytes(7, Packed(counts));
}

}  // namespace

std::uint32_t MaskedCrc32c(std::string_view data) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char c : data) crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ crc >> 8;
  crc = ~crc;
  return (crc >> 15 | crc << 17) + kMaskDelta;
}

std::string TfRecord(std::string_view data) {
  std::string record = LittleEndian(data.size(), 8);
  record += LittleEndian(MaskedCrc32c(record), 4);
  record += data;
  return record + LittleEndian(MaskedCrc32c(data), 4);
}

std::string VersionEvent(double wall) { return RecordOf(Event(wall, 0).Bytes(3, "brain.Event:2")); }

std::string SessionStartEvent(double wall, std::int64_t step) {
  constexpr std::uint64_t kStart = 1;
  return RecordOf(Event(wall, step).Message(7, ProtoMessage().Varint(1, kStart)));
}

std::string ScalarsEvent(double wall, std::int64_t step,
                         std::span<const std::pair<std::string, double>> values) {
  ProtoMessage summary;
  for (const auto& [tag, number] : values) {
    summary.Message(1, ProtoMessage().Bytes(1, tag).Float(2, static_cast<float>(number)));
  }
  return RecordOf(Event(wall, step).Message(5, summary));
}

std::string HistogramsEvent(double wall, std::int64_t step,
                            std::span<const std::pair<std::string, Histogram>> histograms) {
  ProtoMessage summary;
  for (const auto& [tag, histogram] : histograms)
    summary.Message(1, ProtoMessage().Bytes(1, tag).Message(5, HistogramProto(histogram)));
  return RecordOf(Event(wall, step).Message(5, summary));
}

std::string TextEvent(double wall, std::int64_t step, const std::string& tag, const std::string& markdown) {
  constexpr std::uint64_t kString = 7;
  return TensorEvent(wall, step, tag, Metadata("text"),
                     ProtoMessage().Varint(1, kString).Message(2, {}).Bytes(8, markdown));
}

std::string ExperimentEvent(double wall, std::span<const std::pair<std::string, Setting>> settings,
                            std::span<const std::string> metric_tags) {
  ProtoMessage experiment;
  for (const auto& [key, setting] : settings) {
    experiment.Message(4, ProtoMessage().Bytes(1, key).Varint(4, TypeOf(setting)));
  }
  for (const std::string& tag : metric_tags) {
    experiment.Message(5, ProtoMessage().Message(1, ProtoMessage().Bytes(2, tag)));
  }
  return HParamsEvent(wall, "experiment", 2, experiment);
}

std::string HyperParametersEvent(double wall, std::span<const std::pair<std::string, Setting>> settings) {
  ProtoMessage start;
  for (const auto& [key, setting] : settings) {
    start.Message(1, ProtoMessage().Bytes(1, key).Message(2, ValueOf(setting)));
  }
  start.Double(5, wall);
  return HParamsEvent(wall, "session_start_info", 3, start);
}

std::string SessionEndEvent(double wall, bool succeeded) {
  return HParamsEvent(wall, "session_end_info", 4,
                      ProtoMessage().Varint(1, succeeded ? 1 : 2).Double(2, wall));
}

}  // namespace engine::metrics
