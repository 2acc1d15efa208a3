#include "engine/storage/exchange.h"

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/storage/xml.h"

namespace engine::storage {
namespace {

absl::StatusCode CodeOf(long status) {
  switch (status) {
    case 401:
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
    case 410:
      return absl::StatusCode::kNotFound;
    case 412:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::StatusOr<Exchange> Exchange::With(const Location& location) {
  Exchange exchange(location);
  if (location.kind != Kind::kS3) return exchange;
  absl::StatusOr<S3Settings> settings = S3FromEnvironment();
  if (!settings.ok()) return WithContext(settings.status(), ShownPath(location.name));
  exchange.settings_ = *std::move(settings);
  return exchange;
}

absl::StatusOr<Answer> Exchange::Do(const Deed& deed) const {
  const std::string what = fmt::format("{} {}", deed.what, ShownPath(location_.name));
  std::string method;
  const auto make = [&](int attempt) -> absl::StatusOr<Request> {
    const S3Request asked = deed.ask(attempt);
    method = asked.method;
    Request request;
    if (location_.kind == Kind::kS3) {
      request = Sign(asked, location_, settings_);
    } else {
      request.method = asked.method;
      request.url = location_.name;
      for (const auto& [name, value] : asked.headers)
        request.headers.push_back(fmt::format("{}: {}", name, value));
      request.follow_redirects = true;
    }
    if (deed.set) deed.set(&request);
    return request;
  };
  const auto judge = [&](const Response& response) {
    const bool judged = deed.judge && response.status >= 200 && response.status < 300;
    return judged ? deed.judge(response) : absl::OkStatus();
  };
  ASSIGN_OR_RETURN(Answer answer, Send(what, make, judge));
  const long status = answer.response.status;
  if ((status >= 200 && status < 300) || status == deed.accepts) return answer;
  return ErrorOf(what, method, answer);
}

absl::Status Exchange::ErrorOf(const std::string& what, const std::string& method,
                               const Answer& answer) const {
  const Response& response = answer.response;
  const bool is_s3 = location_.kind == Kind::kS3;
  const std::string code = is_s3 ? XmlText(response.body, "Code") : "";
  const std::string message = is_s3 ? XmlText(response.body, "Message") : "";
  std::string text = fmt::format("cannot {}: {} {}: the server answers {}", what, method,
                                 ShownPath(answer.url), response.status);
  if (!code.empty()) text += " " + Shown(code);
  if (!message.empty()) text += fmt::format(": {}", Shown(message, 300));
  if (answer.attempts > 1) text += fmt::format(" ({} attempts)", answer.attempts);
  if (const std::string hint = HintFor(response, code); !hint.empty()) text += "; " + hint;
  return absl::Status(CodeOf(response.status), text);
}

std::string Exchange::HintFor(const Response& response, const std::string& code) const {
  const long status = response.status;
  if (location_.kind == Kind::kHttp) {
    if (status == 401 || status == 403)
      return "http(s):// sends no credentials: it is for what everyone may read";
    return status == 404 ? "is the address right?" : "";
  }
  std::string region = response.header("x-amz-bucket-region");
  if (region.empty()) region = XmlText(response.body, "Region");
  if (!region.empty() && region != settings_.region && (status == 301 || status == 400 || status == 403))
    return fmt::format("AWS_REGION is {}, and the bucket is in {}", settings_.region, Shown(region));
  if (code == "SignatureDoesNotMatch") return "AWS_SECRET_ACCESS_KEY is not that of AWS_ACCESS_KEY_ID";
  if (code == "InvalidAccessKeyId") return "the server does not know AWS_ACCESS_KEY_ID";
  if (code == "ExpiredToken" || code == "InvalidToken") return "AWS_SESSION_TOKEN has to be made anew";
  if (code == "RequestTimeTooSkewed") return "this machine's clock is wrong";
  if (code == "NoSuchBucket") return "is the bucket's name right, and AWS_ENDPOINT_URL?";
  if (status == 403)
    return "these credentials have no right to it, or, where they may not list the bucket, it is not there";
  return status == 404 ? "is the key right?" : "";
}

}  // namespace engine::storage
