#include "engine/storage/remote.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/storage/exchange.h"
#include "engine/storage/xml.h"

namespace engine::storage {
namespace {

std::optional<std::int64_t> Number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

struct ContentRange {
  std::int64_t first = 0;
  std::int64_t total = 0;
};

// "bytes 0-9/1234" (RFC 9110, section 14.4).
absl::StatusOr<ContentRange> RangeOf(const Response& response) {
  const std::string text = response.header("content-range");
  std::string_view rest = text;
  if (rest.starts_with("bytes ")) {
    rest.remove_prefix(6);
    const std::size_t dash = rest.find('-');
    const std::size_t slash = rest.find('/');
    if (dash != std::string_view::npos && slash != std::string_view::npos && dash < slash) {
      const std::optional<std::int64_t> first = Number(rest.substr(0, dash));
      const std::optional<std::int64_t> total = Number(rest.substr(slash + 1));
      if (first && total) return ContentRange{*first, *total};
    }
  }
  return Unavailable("its header Content-Range, \"{}\", does not say which bytes it gives of how many",
                     Shown(text));
}

std::string VersionOf(const Response& response) {
  if (std::string tag = response.header("etag"); !tag.empty()) return tag;
  return response.header("last-modified");
}

std::string RangeHeader(std::int64_t offset, std::int64_t bytes) {
  return fmt::format("bytes={}-{}", offset, offset + bytes - 1);
}

absl::Status NoRanges() {
  return Unimplemented(
      "the server gives the whole file where a range of its bytes is asked for, so that it cannot be read in "
      "place: "
      "download it, or use a server that has ranges");
}

class RemoteObject : public Object {
 public:
  RemoteObject(Exchange exchange, std::int64_t size, std::string version)
      : Object(exchange.location().name, size, std::move(version)), exchange_(std::move(exchange)) {}

  // What has come stays, and a further attempt asks for the rest.
  absl::Status ReadAt(void* data, std::int64_t bytes, std::int64_t offset) const override {
    if (offset < 0 || bytes < 0 || offset > size() || bytes > size() - offset)
      return DataLoss("{} has {} bytes, and not {} from {} on", name(), size(), bytes, offset);
    if (bytes == 0) return absl::OkStatus();
    std::int64_t got = 0;
    Exchange::Deed deed{.what = "read", .ask = {}, .set = {}, .judge = {}};
    deed.ask = [&](int) {
      if (got == bytes) got = 0;  // all came, and yet the answer was not whole: it is not believed
      S3Request asked{
          .query = {}, .headers = {{"range", RangeHeader(offset + got, bytes - got)}}, .body = {}};
      if (CanBeDemanded()) asked.headers.emplace_back("if-match", version());
      return asked;
    };
    deed.set = [&](Request* request) {
      request->on_head = [&](const Response& head) { return CheckHead(head, offset + got); };
      request->on_body = [&](std::string_view piece) -> absl::Status {
        const auto more = static_cast<std::int64_t>(piece.size());
        if (more > bytes - got) return Unavailable("the server gives more bytes than were asked for");
        std::memcpy(static_cast<char*>(data) + got, piece.data(), piece.size());
        got += more;
        return absl::OkStatus();
      };
    };
    deed.judge = [&](const Response&) {
      return got == bytes ? absl::OkStatus() : Unavailable("the answer ends {} bytes too early", bytes - got);
    };
    deed.accepts = kChanged;
    ASSIGN_OR_RETURN(const Answer answer, exchange_.Do(deed));
    if (answer.response.status == kChanged)
      return WithContext(Changed("another"), "cannot read " + ShownPath(name()));
    return absl::OkStatus();
  }

 private:
  static constexpr long kChanged = 412;  // of If-Match

  // Weak ones match nothing (RFC 9110, section 13.1.1), and a time is no ETag.
  bool CanBeDemanded() const { return version().starts_with('"'); }

  absl::Status Changed(const std::string& now) const {
    return DataLoss("it has changed since it was opened: its version was {}, and is {} now", Shown(version()),
                    Shown(now));
  }

  absl::Status CheckHead(const Response& head, std::int64_t offset) const {
    constexpr long kPartialContent = 206;
    if (head.status != kPartialContent) return NoRanges();
    if (const std::string now = VersionOf(head); now != version())
      return Changed(now.empty() ? "not told" : now);
    ASSIGN_OR_RETURN(const ContentRange range, RangeOf(head));
    if (range.total != size()) return Changed(fmt::format("one of {} bytes", range.total));
    if (range.first != offset)
      return Unavailable("the server gives bytes from {} on where those from {} on were asked for",
                         range.first, offset);
    return absl::OkStatus();
  }

  const Exchange exchange_;
};

absl::StatusOr<std::int64_t> SizeByHead(const Exchange& exchange) {
  const Exchange::Deed deed{
      .what = "open",
      .ask = [](int) { return S3Request{.method = "HEAD", .query = {}, .headers = {}, .body = {}}; },
      .set = {},
      .judge = {}};
  ASSIGN_OR_RETURN(const Answer answer, exchange.Do(deed));
  if (const std::optional<std::int64_t> size = Number(answer.response.header("content-length"))) return *size;
  return Unavailable("cannot open {}: the server does not tell how many bytes it has",
                     exchange.location().name);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Object>> OpenRemote(const Location& location) {
  constexpr std::int64_t kProbeBytes = 2;  // "bytes=0-0" is no range to some servers (s3rver 3.7)
  constexpr long kOutside = 416;           // of an empty file no byte can be had
  ASSIGN_OR_RETURN(Exchange exchange, Exchange::With(location));
  std::optional<std::int64_t> size;
  Exchange::Deed deed{.what = "open", .ask = {}, .set = {}, .judge = {}};
  deed.ask = [](int) {
    return S3Request{.query = {}, .headers = {{"range", RangeHeader(0, kProbeBytes)}}, .body = {}};
  };
  deed.set = [&](Request* request) {
    request->on_head = [&](const Response& head) -> absl::Status {
      if (head.status == 206) {
        ASSIGN_OR_RETURN(const ContentRange range, RangeOf(head));
        size = range.total;
        return absl::OkStatus();
      }
      if (head.header("content-length") != "0") return NoRanges();
      size = 0;
      return absl::OkStatus();
    };
  };
  deed.accepts = kOutside;
  ASSIGN_OR_RETURN(const Answer answer, exchange.Do(deed));
  if (answer.response.status == kOutside) {
    ASSIGN_OR_RETURN(size, SizeByHead(exchange));
    if (*size > 0) return Unavailable("cannot open {}: the server has no byte 0 of {}", location.name, *size);
  }
  return std::make_shared<const RemoteObject>(std::move(exchange), *size, VersionOf(answer.response));
}

absl::StatusOr<std::string> ReadAllRemote(const Location& location, std::int64_t most_bytes) {
  ASSIGN_OR_RETURN(const Exchange exchange, Exchange::With(location));
  const Exchange::Deed deed{.what = "read",
                            .ask = [](int) { return S3Request{.query = {}, .headers = {}, .body = {}}; },
                            .set = [&](Request* request) { request->most_bytes = most_bytes; },
                            .judge = {}};
  ASSIGN_OR_RETURN(Answer answer, exchange.Do(deed));
  return std::move(answer.response.body);
}

absl::StatusOr<std::vector<Entry>> ListS3(const Location& location) {
  ASSIGN_OR_RETURN(const Exchange exchange, Exchange::With(location));
  std::vector<Entry> entries;
  for (std::string token;;) {
    Exchange::Deed deed{.what = "list", .ask = {}, .set = {}, .judge = {}};
    deed.ask = [&](int) {
      S3Request asked{.of_bucket = true,
                      .query = {{"list-type", "2"}, {"prefix", location.key}},
                      .headers = {},
                      .body = {}};
      if (!token.empty()) asked.query.emplace_back("continuation-token", token);
      return asked;
    };
    ASSIGN_OR_RETURN(const Answer answer, exchange.Do(deed));
    const std::string_view body = answer.response.body;
    if (XmlElements(body, "ListBucketResult").empty())
      return Unavailable("cannot list {}: {} answers with no list of S3's", location.name, answer.url);
    for (const std::string_view element : XmlElements(body, "Contents")) {
      const std::optional<std::int64_t> bytes = Number(XmlText(element, "Size"));
      if (!bytes) return Unavailable("cannot list {}: an object in the answer has no size", location.name);
      entries.push_back({fmt::format("s3://{}/{}", location.bucket, XmlText(element, "Key")), *bytes});
    }
    if (XmlText(body, "IsTruncated") != "true") return entries;
    std::string next = XmlText(body, "NextContinuationToken");
    if (next.empty() || next == token)
      return Unavailable("cannot list {}: the answer has no end and no continuation", location.name);
    token = std::move(next);
  }
}

absl::Status RemoveS3(const Location& location) {
  ASSIGN_OR_RETURN(const Exchange exchange, Exchange::With(location));
  const Exchange::Deed deed{
      .what = "remove",
      .ask = [](int) { return S3Request{.method = "DELETE", .query = {}, .headers = {}, .body = {}}; },
      .set = {},
      .judge = {}};
  return exchange.Do(deed).status();
}

}  // namespace engine::storage
