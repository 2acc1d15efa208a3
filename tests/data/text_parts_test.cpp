#include "engine/data/text_parts.h"

#include <doctest/doctest.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  REQUIRE_FALSE(ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1)));
  if (window_log > 0) {
    REQUIRE_FALSE(ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log)));
    REQUIRE_FALSE(ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0)));
  }
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer in = {text.data(), text.size(), 0};
  ZSTD_outBuffer to = {out.data(), out.size(), 0};
  // Flushed first, so that the size is not known when the frame begins.
  if (window_log > 0) REQUIRE_FALSE(ZSTD_isError(ZSTD_compressStream2(context, &to, &in, ZSTD_e_flush)));
  REQUIRE(ZSTD_compressStream2(context, &to, &in, ZSTD_e_end) == 0);
  out.resize(to.pos);
  ZSTD_freeCCtx(context);
  return out;
}

std::string Lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}{}\n", i, std::string(i * 37 % 101, 'y'));
  return text;
}

struct Found {
  std::string text;
  int parts = 0;
};
absl::StatusOr<Found> ReadAll(const std::string& path, std::size_t bytes) {
  ASSIGN_OR_RETURN(TextParts parts, TextParts::Open(path));
  Found found;
  std::int64_t line = 1;
  while (true) {
    ASSIGN_OR_RETURN(const TextPart part, parts.Next(bytes, BehindLastLine));
    if (part.text.empty()) return found;
    CHECK(part.first_line == line);
    line += std::count(part.text.begin(), part.text.end(), '\n');
    found.text += part.text;
    ++found.parts;
    if (part.text.back() != '\n') CHECK(parts.Next(bytes, BehindLastLine)->text.empty());
  }
}

}  // namespace

TEST_CASE("compressed text is the text, in parts of whole lines") {
  const TempDir dir;
  const std::string text = Lines(20000) + "the last line has no end";
  const std::string half = text.substr(0, text.size() / 2);
  const std::string other = text.substr(text.size() / 2);
  std::string skipped = std::string("\x53\x2A\x4D\x18\x03\0\0\0abc", 11);
  for (const auto& [name, content] : std::initializer_list<std::pair<std::string, std::string>>{
           {"plain", text},
           {"gzip", Gzip(text)},
           {"two members", Gzip(half) + Gzip(other)},
           {"members and zeros", Gzip(half) + Gzip("") + Gzip(other) + std::string(1000, '\0')},
           {"zstd", Zstd(text)},
           {"two frames", Zstd(half) + skipped + Zstd(other)},
           {"skipped first", skipped + Zstd(text)},
           {"a long window", Zstd(text, 28)}}) {
    INFO(name);
    WriteFile(dir / "f", content);
    for (const std::size_t bytes : {1, 1000, 300000, 1 << 24}) {
      const absl::StatusOr<Found> found = ReadAll(dir / "f", bytes);
      REQUIRE_MESSAGE(found.ok(), Message(found.status()));
      CHECK(found->text == text);
      CHECK((found->parts == 1) == (bytes == 1 << 24));
    }
  }
  for (const std::string& nothing : {std::string(), Gzip(""), Zstd("")}) {
    WriteFile(dir / "f", nothing);
    const absl::StatusOr<Found> found = ReadAll(dir / "f", 100);
    REQUIRE(found.ok());
    CHECK(found->parts == 0);
  }
}

TEST_CASE("compressed text that is cut off or damaged is an error at its file") {
  const TempDir dir;
  const std::string path = dir / "f";
  const std::string text = Lines(20000);
  const auto error = [&](const std::string& content) {
    WriteFile(path, content);
    return Message(ReadAll(path, 1000).status());
  };
  for (const auto& [name, data] : std::initializer_list<std::pair<std::string, std::string>>{
           {"gzip", Gzip(text)}, {"Zstandard", Zstd(text)}}) {
    for (const std::size_t left : {std::size_t{12}, data.size() / 2, data.size() - 1}) {
      CHECK(error(data.substr(0, left)) ==
            fmt::format("{}: error: {} data is cut off after {} bytes", path, name, left));
    }
    CHECK(error(data + "x").starts_with(path + ": error: "));
    int refused = 0;
    for (std::size_t i = 0; i < 100; ++i) {
      std::string changed = data;
      changed[data.size() * i / 100] ^= 0x40;
      WriteFile(path, changed);
      const absl::StatusOr<Found> found = ReadAll(path, 1000);
      if (!found.ok()) ++refused;
    }
    CHECK(refused == 99);  // without its first bytes, a file is plain text
  }
  CHECK(error(Gzip(text) + "x") ==
        fmt::format("{}: error: from byte {} on there is something else than gzip data", path,
                    Gzip(text).size()));
}

}  // namespace engine::data
