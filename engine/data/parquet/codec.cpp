#include "engine/data/parquet/codec.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>
#include <limits>

#include "engine/base/status.h"

namespace engine::parquet {
namespace {

// The members that the data has, one behind the other.
bool Gunzip(std::string_view compressed, char* out, std::size_t size) {
  z_stream stream = {};
  constexpr int kGzip = 16;  // beside the window's bits: a header and a checksum as RFC 1952 has them
  if (inflateInit2(&stream, kGzip + MAX_WBITS) != Z_OK) return false;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  char none = 0;  // zlib takes no null
  stream.next_out = reinterpret_cast<Bytef*>(size == 0 ? &none : out);
  stream.avail_out = static_cast<uInt>(size);
  int code = Z_STREAM_END;
  while (code == Z_STREAM_END && stream.avail_in > 0) {
    code = inflate(&stream, Z_FINISH);
    if (code == Z_STREAM_END && stream.avail_in > 0) inflateReset(&stream);
  }
  const bool whole = code == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole;
}

bool Unbrotli(std::string_view compressed, char* out, std::size_t size) {
  std::size_t made = size;
  return BrotliDecoderDecompress(compressed.size(), reinterpret_cast<const std::uint8_t*>(compressed.data()),
                                 &made,
                                 reinterpret_cast<std::uint8_t*>(out)) == BROTLI_DECODER_RESULT_SUCCESS &&
         made == size;
}

bool Unsnappy(std::string_view compressed, char* out, std::size_t size) {
  std::size_t made = 0;
  if (snappy_uncompressed_length(compressed.data(), compressed.size(), &made) != SNAPPY_OK || made != size)
    return false;
  return snappy_uncompress(compressed.data(), compressed.size(), out, &made) == SNAPPY_OK && made == size;
}

bool Unzstd(std::string_view compressed, char* out, std::size_t size) {
  const std::size_t made = ZSTD_decompress(out, size, compressed.data(), compressed.size());
  return !ZSTD_isError(made) && made == size;
}

bool Unlz4(std::string_view compressed, char* out, std::size_t size) {
  const int made = LZ4_decompress_safe(compressed.data(), out, static_cast<int>(compressed.size()),
                                       static_cast<int>(size));
  return made >= 0 && static_cast<std::size_t>(made) == size;
}

}  // namespace

std::string_view Name(Codec codec) {
  constexpr std::string_view kNames[] = {"uncompressed", "snappy",      "gzip", "LZO",
                                         "brotli",       "the old LZ4", "zstd", "lz4_raw"};
  const auto index = static_cast<std::size_t>(codec);
  return index < std::size(kNames) ? kNames[index] : "an unknown codec";
}

absl::Status Decompress(Codec codec, std::string_view compressed, char* out, std::size_t size) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  if (compressed.size() > kMost || size > kMost) return InvalidArgument("more than 2 GiB");
  bool whole = false;
  switch (codec) {
    case Codec::kUncompressed:
      whole = compressed.size() == size;
      if (whole) std::memcpy(out, compressed.data(), size);
      break;
    case Codec::kSnappy:
      whole = Unsnappy(compressed, out, size);
      break;
    case Codec::kGzip:
      whole = Gunzip(compressed, out, size);
      break;
    case Codec::kBrotli:
      whole = Unbrotli(compressed, out, size);
      break;
    case Codec::kZstd:
      whole = Unzstd(compressed, out, size);
      break;
    case Codec::kLz4Raw:
      whole = Unlz4(compressed, out, size);
      break;
    default:
      return Unimplemented(
          "compressed by {}, which is not read: uncompressed, snappy, gzip, brotli, zstd and lz4_raw are",
          Name(codec));
  }
  return whole ? absl::OkStatus()
               : InvalidArgument("{} data of {} bytes is damaged", Name(codec), compressed.size());
}

}  // namespace engine::parquet
