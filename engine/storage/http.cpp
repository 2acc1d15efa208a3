#include "engine/storage/http.h"

#include <curl/curl.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::storage {
namespace {

constexpr std::size_t kMostErrorBytes = std::size_t{64} << 10;
constexpr long kMostRedirects = 5;

std::mutex patience_mutex;
Patience the_patience;

Patience CurrentPatience() {
  const std::lock_guard lock(patience_mutex);
  return the_patience;
}

struct CloseHandle {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
using Handle = std::unique_ptr<CURL, CloseHandle>;

// Handles that nobody uses, each with the connections that it has. Never destroyed: other threads may still be at work when the
// process ends.
class Handles {
 public:
  static Handles& Get() {
    static Handles* const handles = new Handles;
    return *handles;
  }

  Handle Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return Handle(curl_easy_init());
    Handle handle = std::move(free_.back());
    free_.pop_back();
    curl_easy_reset(handle.get());
    return handle;
  }
  void GiveBack(Handle handle) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(handle));
  }

 private:
  Handles() {
    // Nothing of it is left to the end of the process, when other threads may still be at work.
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
    curl_global_init(CURL_GLOBAL_DEFAULT);
  }
  std::mutex mutex_;
  std::vector<Handle> free_;
};

// What the callbacks of one attempt work on.
struct Transfer {
  const Request& request;
  Response response;
  absl::Status status;     // of the request's own callbacks
  bool head_seen = false;  // on_head was called
  std::size_t sent = 0;    // of the request's body

  bool is_success() const { return response.status >= 200 && response.status < 300; }

  absl::Status See(std::string_view bytes) {
    if (!is_success()) {
      const std::size_t room = kMostErrorBytes - std::min(kMostErrorBytes, response.body.size());
      response.body += bytes.substr(0, room);
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(SeeHead());
    if (request.on_body) return request.on_body(bytes);
    if (static_cast<std::int64_t>(response.body.size() + bytes.size()) > request.most_bytes)
      return ResourceExhausted("the answer has more than {} bytes", request.most_bytes);
    response.body += bytes;
    return absl::OkStatus();
  }
  absl::Status SeeHead() {
    if (head_seen || !request.on_head) return absl::OkStatus();
    head_seen = true;
    return request.on_head(response);
  }
};

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

extern "C" std::size_t EngineSeeHeader(char* data, std::size_t, std::size_t size, void* of) {
  Response& response = static_cast<Transfer*>(of)->response;
  const std::string_view line(data, size);
  if (line.starts_with(
          "HTTP/")) {  // the first line of an answer; of several (100, redirects) the last counts
    response = {};
    const std::size_t blank = std::min(line.find(' '), line.size());
    response.status = std::strtol(std::string(line.substr(blank)).c_str(), nullptr, 10);
    return size;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return size;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  response.headers[name] = Trimmed(line.substr(colon + 1));
  return size;
}

extern "C" std::size_t EngineSeeBody(char* data, std::size_t, std::size_t size, void* of) {
  auto* transfer = static_cast<Transfer*>(of);
  transfer->status = transfer->See({data, size});
  return transfer->status.ok() ? size : 0;
}

extern "C" std::size_t EngineGiveBody(char* data, std::size_t, std::size_t size, void* of) {
  auto* transfer = static_cast<Transfer*>(of);
  const std::string_view rest = transfer->request.body.substr(transfer->sent).substr(0, size);
  std::copy(rest.begin(), rest.end(), data);
  transfer->sent += rest.size();
  return rest.size();
}

extern "C" int EngineSeekBody(void* of, curl_off_t offset, int origin) {
  auto* transfer = static_cast<Transfer*>(of);
  if (origin != SEEK_SET || offset < 0 || static_cast<std::size_t>(offset) > transfer->request.body.size())
    return CURL_SEEKFUNC_CANTSEEK;
  transfer->sent = static_cast<std::size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

bool MayPass(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SEND_FAIL_REWIND:
      return true;
    default:
      return false;
  }
}

// The variables that name a file of certificates to trust instead of the system's, those of AWS's programs, of curl and of OpenSSL;
// the first that is set counts.
constexpr std::array<const char*, 3> kCertificateVariables = {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE",
                                                              "SSL_CERT_FILE"};

// Null: none is set.
const char* CertificateVariable() {
  for (const char* variable : kCertificateVariables) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return variable;
  }
  return nullptr;
}

// libcurl's words, what it found out in this case, and what may help.
std::string Reason(CURLcode code, const char* detail) {
  std::string text = curl_easy_strerror(code);
  if (*detail != '\0' && text != detail) text += fmt::format(" ({})", Shown(detail, 200));
  const char* variable = CertificateVariable();
  if (code == CURLE_SSL_CACERT_BADFILE && variable != nullptr) {
    text += fmt::format("; {} has to name a file of certificates in PEM", variable);
  } else if (code == CURLE_PEER_FAILED_VERIFICATION) {
    text += variable != nullptr ? fmt::format("; trusted are the certificates of {}, which {} names",
                                              ShownPath(std::getenv(variable)), variable)
                                : fmt::format("; {} names a file of certificates to trust, in PEM",
                                              fmt::join(kCertificateVariables, " or "));
  }
  return text;
}

void SetBody(CURL* handle, Transfer* transfer) {
  const std::string& method = transfer->request.method;
  const auto bytes = static_cast<curl_off_t>(transfer->request.body.size());
  if (method == "GET") return;
  if (method == "HEAD") {
    curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
    return;
  }
  if (method == "PUT" || method == "POST") {
    curl_easy_setopt(handle, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(handle, CURLOPT_INFILESIZE_LARGE, bytes);
    curl_easy_setopt(handle, CURLOPT_READFUNCTION, EngineGiveBody);
    curl_easy_setopt(handle, CURLOPT_READDATA, transfer);
    curl_easy_setopt(handle, CURLOPT_SEEKFUNCTION, EngineSeekBody);
    curl_easy_setopt(handle, CURLOPT_SEEKDATA, transfer);
  }
  curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, method.c_str());
}

void SetOptions(CURL* handle, Transfer* transfer, curl_slist* headers, char* detail) {
  const Request& request = transfer->request;
  const Patience patience = CurrentPatience();
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, EngineSeeHeader);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, transfer);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, EngineSeeBody);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, transfer);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "engine");
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);    // several threads
  curl_easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);  // keys may hold "..": what is signed is what is sent
  curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, static_cast<long>(patience.connect.count()));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(patience.slowest_bytes_per_s));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(request.slow.value_or(patience.slow).count()));
  if (const char* variable = CertificateVariable()) {
    curl_easy_setopt(handle, CURLOPT_CAINFO, std::getenv(variable));
    curl_easy_setopt(handle, CURLOPT_CAPATH,
                     nullptr);  // the system's folder of them, which would count as well
  }
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  // What was asked for over a secure connection does not come over another.
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR,
                   request.url.starts_with("https:") ? "https" : "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, request.follow_redirects ? 1L : 0L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, kMostRedirects);
  curl_easy_setopt(handle, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);  // a proxy's answer is none of the server's
  SetBody(handle, transfer);
}

bool MayPass(long status) {
  constexpr std::array<long, 5> kPassing = {429, 500, 502, 503, 504};
  return std::find(kPassing.begin(), kPassing.end(), status) != kPassing.end();
}

void WaitBefore(int attempt, const Patience& patience) {
  thread_local std::minstd_rand random(std::random_device{}());
  const std::chrono::milliseconds longest =
      std::min(patience.first_wait * (1L << std::min(attempt - 1, 20)), patience.longest_wait);
  std::uniform_int_distribution<std::int64_t> draw(longest.count() / 2, longest.count());
  std::this_thread::sleep_for(std::chrono::milliseconds(draw(random)));
}

}  // namespace

std::string Response::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

void SetPatience(const Patience& patience) {
  const std::lock_guard lock(patience_mutex);
  the_patience = patience;
}

Attempt Try(const Request& request) {
  Handle handle = Handles::Get().Take();
  if (handle == nullptr)
    return {.response = {}, .failed = Internal("libcurl does not start"), .may_pass = false};
  curl_slist* headers = curl_slist_append(nullptr, "Expect:");  // no waiting for leave to send a body
  for (const std::string& header : request.headers) headers = curl_slist_append(headers, header.c_str());
  std::array<char, CURL_ERROR_SIZE> detail{};
  Transfer transfer{.request = request, .response = {}, .status = {}};
  SetOptions(handle.get(), &transfer, headers, detail.data());
  const CURLcode code = curl_easy_perform(handle.get());
  curl_slist_free_all(headers);
  if (code == CURLE_OK && transfer.is_success())
    transfer.status.Update(transfer.SeeHead());  // of an empty body
  Attempt attempt;
  if (!transfer.status.ok()) {
    attempt.failed = transfer.status;
    attempt.may_pass = absl::IsUnavailable(transfer.status);
  } else if (code != CURLE_OK) {
    attempt.failed = Unavailable("{}", Reason(code, detail.data()));
    attempt.may_pass = MayPass(code);
  }
  attempt.response = std::move(transfer.response);
  // Its error buffer and callbacks are gone when it is used next; Take resets it.
  Handles::Get().GiveBack(std::move(handle));
  return attempt;
}

absl::StatusOr<Answer> Send(const std::string& what,
                            const std::function<absl::StatusOr<Request>(int attempt)>& make,
                            const std::function<absl::Status(const Response&)>& judge) {
  const Patience patience = CurrentPatience();
  for (int number = 1;; ++number) {
    ASSIGN_OR_RETURN(const Request request, make(number));
    Attempt attempt = Try(request);
    absl::Status status = attempt.failed;
    bool may_pass = attempt.may_pass;
    if (status.ok() && MayPass(attempt.response.status)) {
      may_pass = true;
    } else if (status.ok()) {
      if (judge) status = judge(attempt.response);
      if (status.ok()) return Answer{std::move(attempt.response), request.url, number};
      may_pass = absl::IsUnavailable(status);
    }
    if (may_pass && number < patience.attempts) {
      WaitBefore(number, patience);
      continue;
    }
    if (status.ok()) return Answer{std::move(attempt.response), request.url, number};
    const std::string tried = number > 1 ? fmt::format(", {} times", number) : "";
    return absl::Status(status.code(), fmt::format("cannot {}: {} {}{}: {}", what, request.method,
                                                   ShownPath(request.url), tried, Message(status)));
  }
}

}  // namespace engine::storage
