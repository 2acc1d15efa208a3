// Objects of S3 that come into being whole: by one PUT, or by parts that are completed at the end.
// Source: docs.aws.amazon.com, "Uploading and copying objects using multipart upload", and the API's CreateMultipartUpload,
// UploadPart, CompleteMultipartUpload, AbortMultipartUpload.
#include <algorithm>
#include <deque>
#include <future>
#include <optional>
#include <utility>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/storage/exchange.h"
#include "engine/storage/remote.h"
#include "engine/storage/xml.h"

namespace engine::storage {
namespace {

constexpr std::int64_t kMostParts = 10'000;
constexpr std::int64_t kLeastPartBytes = std::int64_t{16} << 20;  // S3 asks for 5 MiB
constexpr std::int64_t kMostObjectBytes = std::int64_t{5} << 40;  // S3's own limit
constexpr std::size_t kPartsUnderWay = 3;

class S3Writer : public Writer {
 public:
  S3Writer(Exchange exchange, std::int64_t part_bytes)
      : exchange_(std::move(exchange)), part_bytes_(part_bytes) {}

  ~S3Writer() override {
    for (std::future<PartResult>& part : under_way_) part.wait();
    if (!upload_.empty()) Abort().IgnoreError();
  }

  absl::Status Append(std::string_view bytes) override {
    ENGINE_CHECK(!is_finished_, "{} was finished before", name());
    while (!bytes.empty()) {
      const std::size_t room = static_cast<std::size_t>(part_bytes_) - part_.size();
      part_ += bytes.substr(0, room);
      bytes.remove_prefix(std::min(room, bytes.size()));
      // The last part may be small, and whether one is the last is known when more has come, or Finish.
      if (part_.size() == static_cast<std::size_t>(part_bytes_) && !bytes.empty())
        RETURN_IF_ERROR(SendPart());
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    ENGINE_CHECK(!is_finished_, "{} was finished before", name());
    is_finished_ = true;
    if (upload_.empty()) return PutWhole();
    RETURN_IF_ERROR(SendPart());
    while (!under_way_.empty()) RETURN_IF_ERROR(AwaitPart());
    RETURN_IF_ERROR(Complete());
    upload_.clear();
    return absl::OkStatus();
  }

 private:
  using PartResult = absl::StatusOr<std::string>;  // its ETag

  const std::string& name() const { return exchange_.location().name; }

  absl::Status PutWhole() {
    Exchange::Deed deed{.what = "write", .ask = {}, .set = {}, .judge = {}};
    deed.ask = [&](int) { return S3Request{.method = "PUT", .query = {}, .headers = {}, .body = part_}; };
    return exchange_.Do(deed).status();
  }

  absl::Status Begin() {
    const Exchange::Deed deed{
        .what = "begin to write",
        .ask =
            [](int) {
              return S3Request{.method = "POST", .query = {{"uploads", ""}}, .headers = {}, .body = {}};
            },
        .set = {},
        .judge = {}};
    ASSIGN_OR_RETURN(const Answer answer, exchange_.Do(deed));
    upload_ = XmlText(answer.response.body, "UploadId");
    if (upload_.empty())
      return Unavailable("cannot write {}: {} answers with no UploadId", name(), answer.url);
    return absl::OkStatus();
  }

  // Of bytes that it owns, on a thread of its own.
  PartResult PutPart(std::int64_t number, const std::string& bytes) const {
    Exchange::Deed deed{.what = fmt::format("write part {} of", number), .ask = {}, .set = {}, .judge = {}};
    deed.ask = [&](int) {
      return S3Request{.method = "PUT",
                       .query = {{"partNumber", fmt::format("{}", number)}, {"uploadId", upload_}},
                       .headers = {},
                       .body = bytes};
    };
    ASSIGN_OR_RETURN(const Answer answer, exchange_.Do(deed));
    std::string tag = answer.response.header("etag");
    if (tag.empty()) return Unavailable("cannot write {}: {} answers with no ETag", name(), answer.url);
    return tag;
  }

  absl::Status SendPart() {
    if (upload_.empty()) RETURN_IF_ERROR(Begin());
    const auto number = static_cast<std::int64_t>(tags_.size() + under_way_.size()) + 1;
    if (number > kMostParts) {
      return ResourceExhausted(
          "cannot write {}: it has more than {} parts of {}: the size has to be said beforehand", name(),
          kMostParts, FormatBytes(part_bytes_));
    }
    while (under_way_.size() >= kPartsUnderWay) RETURN_IF_ERROR(AwaitPart());
    bytes_ += static_cast<std::int64_t>(part_.size());
    under_way_.push_back(std::async(
        std::launch::async, [this, number, bytes = std::move(part_)] { return PutPart(number, bytes); }));
    part_.clear();
    return absl::OkStatus();
  }

  absl::Status AwaitPart() {
    PartResult tag = under_way_.front().get();
    under_way_.pop_front();
    RETURN_IF_ERROR(tag.status());
    tags_.push_back(*std::move(tag));
    return absl::OkStatus();
  }

  // S3 may say 200 and then, in the body, that it failed.
  static absl::Status JudgeCompletion(const Response& response) {
    const std::string code = XmlText(response.body, "Code");
    if (XmlElements(response.body, "Error").empty()) {
      return XmlElements(response.body, "CompleteMultipartUploadResult").empty()
                 ? Unavailable("the answer says neither that it is completed nor that it is not")
                 : absl::OkStatus();
    }
    const std::string text =
        fmt::format("{}: {}", Shown(code), Shown(XmlText(response.body, "Message"), 300));
    const bool may_pass = code == "InternalError" || code == "SlowDown" || code == "ServiceUnavailable";
    return may_pass ? Unavailable("{}", text) : FailedPrecondition("{}", text);
  }

  absl::Status Complete() {
    std::string parts = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
    for (std::size_t i = 0; i < tags_.size(); ++i)
      parts +=
          fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, XmlEscape(tags_[i]));
    parts += "</CompleteMultipartUpload>";
    constexpr std::chrono::minutes kJoining{10};  // of many parts takes minutes without a word
    constexpr long kNotFound = 404;
    Exchange::Deed deed{
        .what = "complete", .ask = {}, .set = {}, .judge = JudgeCompletion, .accepts = kNotFound};
    deed.ask = [&](int) {
      return S3Request{.method = "POST", .query = {{"uploadId", upload_}}, .headers = {}, .body = parts};
    };
    deed.set = [&](Request* request) { request->slow = kJoining; };
    ASSIGN_OR_RETURN(const Answer answer, exchange_.Do(deed));
    if (answer.response.status != kNotFound) return absl::OkStatus();
    // Where the answer to an attempt before was lost, the upload was completed by it, and is known no more.
    if (IsThere()) return absl::OkStatus();
    return NotFound("cannot complete {}: {} knows the upload no more ({}): something else has ended it",
                    name(), answer.url, Shown(XmlText(answer.response.body, "Code")));
  }

  // Whether what has the name is what was written, by its size and its ETag.
  bool IsThere() const {
    const Exchange::Deed deed{
        .what = "look for",
        .ask = [](int) { return S3Request{.method = "HEAD", .query = {}, .headers = {}, .body = {}}; },
        .set = {},
        .judge = {}};
    const absl::StatusOr<Answer> answer = exchange_.Do(deed);
    return answer.ok() && answer->response.header("content-length") == fmt::format("{}", bytes_) &&
           answer->response.header("etag") == TagOfParts(tags_);
  }

  absl::Status Abort() {
    Exchange::Deed deed{.what = "give up", .ask = {}, .set = {}, .judge = {}};
    deed.ask = [&](int) {
      return S3Request{.method = "DELETE", .query = {{"uploadId", upload_}}, .headers = {}, .body = {}};
    };
    return exchange_.Do(deed).status();
  }

  const Exchange exchange_;
  const std::int64_t part_bytes_;
  std::string part_;    // what has not been sent
  std::string upload_;  // its id; empty: nothing has been sent
  std::deque<std::future<PartResult>> under_way_;
  std::vector<std::string> tags_;  // of the parts that are there
  std::int64_t bytes_ = 0;         // of all parts
  bool is_finished_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Writer>> CreateS3(const Location& location, std::int64_t most_bytes) {
  if (most_bytes > kMostObjectBytes) {
    return ResourceExhausted("cannot write {}: {} are more than the {} that an object of S3 may have",
                             ShownPath(location.name), FormatBytes(most_bytes),
                             FormatBytes(kMostObjectBytes));
  }
  ASSIGN_OR_RETURN(Exchange exchange, Exchange::With(location));
  const std::int64_t part_bytes =
      std::max(kLeastPartBytes, RoundUp(CeilDiv(most_bytes, kMostParts), std::int64_t{1} << 20));
  return std::make_unique<S3Writer>(std::move(exchange), part_bytes);
}

}  // namespace engine::storage
