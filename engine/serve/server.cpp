#include "engine/serve/server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/serve/client_socket.h"
#include "engine/serve/connection_threads.h"

namespace engine::serve {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr milliseconds kLookAtClient{50};
constexpr const char* kJsonType = "application/json";

// The library's own pool starts all of its threads at once.
class TaskQueue : public httplib::TaskQueue {
 public:
  explicit TaskQueue(std::size_t most) : threads_(most) {}

  // void; in newer releases of the library bool, whether the connection was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>()));
  Taken enqueue(std::function<void()> connection) override {
    threads_.Run(std::move(connection));
    return static_cast<Taken>(true);
  }
  void shutdown() override { threads_.End(); }

 private:
  ConnectionThreads threads_;
};

void AnswerJson(int code, const Json& json, httplib::Response& response) {
  response.status = code;
  response.set_content(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), kJsonType);
}

const char* ErrorType(int code) {
  if (code == 429) return "rate_limit_error";
  return code < 500 ? "invalid_request_error" : "server_error";
}

void AnswerError(int code, const std::string& message, httplib::Response& response) {
  if (code == 429) response.set_header("Retry-After", "1");
  AnswerJson(code, {{"error", {{"message", message}, {"type", ErrorType(code)}, {"code", code}}}}, response);
}

void AnswerStatus(const absl::Status& status, httplib::Response& response) {
  int code = 400;
  if (absl::IsResourceExhausted(status)) code = 429;
  if (absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) code = 503;
  if (absl::IsInternal(status) || absl::IsUnavailable(status)) code = 500;
  AnswerError(code, Message(status), response);
}

// The paths that there are, and the method of each.
struct Path {
  const char* path;
  const char* method;
};
constexpr Path kPaths[] = {{"/health", "GET"},          {"/v1/models", "GET"}, {"/tokenizer_info", "GET"},
                           {"/v1/completions", "POST"}, {"/tokenize", "POST"}, {"/detokenize", "POST"}};

// Nothing more is answered of a connection whose request was not read to its end (EndRefused). A client that asks for it itself gets
// the library's own header.
void CloseAfter(const httplib::Request& request, httplib::Response& response) {
  if (request.get_header_value("Connection") != "close") response.set_header("Connection", "close");
}

// A completion's answer is under way as long as this lives.
class Answering {
 public:
  explicit Answering(std::atomic<int>* count) : count_(*count) { ++count_; }
  ~Answering() { --count_; }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

 private:
  std::atomic<int>& count_;
};

// What the library itself answers: no such path, a body that it cannot read.
std::string MeaningOf(int code) {
  if (code == 404)
    return "there is no such path here; there are GET /health, /v1/models and /tokenizer_info, and POST "
           "/v1/completions, /tokenize and /detokenize";
  if (code == 413) return "the body is longer than the server takes (--max-body)";
  return code < 500 ? "this is no request of HTTP that can be read" : "the server failed";
}

}  // namespace

class Server::Impl {
 public:
  Impl(const ServedModel& model, ServerOptions options) : model_(model), options_(std::move(options)) {}
  ~Impl() {
    Stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    http_.new_task_queue = [count = options_.connections] { return new TaskQueue(count); };
    http_.set_payload_max_length(options_.most_body);
    http_.set_keep_alive_max_count(1 << 20);
    http_.set_keep_alive_timeout(2);
    http_.set_tcp_nodelay(true);
    // An address that is in use is an error: SO_REUSEPORT, the library's default, would share it with another server.
    http_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    AddRoutes();
    port_ = options_.port == 0 ? http_.bind_to_any_port(options_.host)
                               : (http_.bind_to_port(options_.host, options_.port) ? options_.port : -1);
    if (port_ < 0)
      return Unavailable(
          "cannot listen at {}:{}: the port is taken, or the address is none of this machine's",
          options_.host, options_.port);
    http_.LengthenQueue();
    thread_ = std::thread([this] {
      http_.listen_after_bind();
      has_stopped_ = true;
    });
    while (!http_.is_running() && !has_stopped_) std::this_thread::sleep_for(milliseconds(1));
    return absl::OkStatus();
  }

  int port() const { return port_; }
  bool has_stopped() const { return has_stopped_; }
  bool is_answering() const { return answering_ > 0; }
  void Refuse() { stops_ = true; }
  void Stop() {
    stops_ = true;
    http_.stop();
  }

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;

  // The library listens with a queue of five connections, which is few for clients that all begin at once.
  class ListeningServer : public httplib::Server {
   public:
    void LengthenQueue() { ::listen(svr_sock_, SOMAXCONN); }
  };

  void AddRoutes() {
    http_.Get("/health", [this](const Request&, Response& response) { AnswerJson(200, Health(), response); });
    http_.Get("/v1/models",
              [this](const Request&, Response& response) { AnswerJson(200, Models(), response); });
    http_.Get("/tokenizer_info",
              [this](const Request&, Response& response) { AnswerJson(200, TokenizerInfo(), response); });
    Post("/v1/completions", &Impl::Complete);
    Post("/tokenize", &Impl::Tokenize);
    Post("/detokenize", &Impl::Detokenize);
    http_.set_pre_routing_handler([this](const Request& request, Response& response) {
      if (CheckLength(request, response)) return httplib::Server::HandlerResponse::Unhandled;
      CloseAfter(request, response);
      return httplib::Server::HandlerResponse::Handled;
    });
    // A client that asks whether its body is wanted is told before it sends one.
    http_.set_expect_100_continue_handler([this](const Request& request, Response& response) {
      constexpr int kContinue = 100;
      if (CheckLength(request, response)) return kContinue;
      CloseAfter(request, response);
      return response.status;
    });
    http_.set_error_handler([](const Request& request, Response& response) {
      if (!response.body.empty()) return;
      for (const Path& one : kPaths) {
        if (response.status != 404 || request.path != one.path) continue;
        response.set_header("Allow", one.method);
        return AnswerError(405, fmt::format("{} takes {} alone", one.path, one.method), response);
      }
      AnswerError(response.status, MeaningOf(response.status), response);
    });
    // Behind the answer. The library itself goes on with the connection, and takes the rest of a body for a request.
    http_.set_logger([](const Request& request, const Response& response) {
      if (response.status >= 400 && response.get_header_value("Connection") == "close")
        EndRefused(SocketOf(request.remote_addr, request.remote_port));
    });
    http_.set_exception_handler([](const Request&, Response& response, const std::exception_ptr&) {
      AnswerError(500, "the server failed", response);
    });
  }

  // Whether what the request says of its body's length is right; else it is answered. The library takes "-5" for 2^64 − 5 bytes,
  // and waits for them, or for a body that is then refused.
  bool CheckLength(const Request& request, Response& response) const {
    const std::string length = request.get_header_value("Content-Length");
    const std::string transfer = request.get_header_value("Transfer-Encoding");
    constexpr std::size_t kMostDigits = 18;
    if (!transfer.empty() && (transfer != "chunked" || !length.empty())) {
      AnswerError(400,
                  length.empty() ? "Transfer-Encoding may be chunked alone"
                                 : "Transfer-Encoding and Content-Length are there both",
                  response);
    } else if (request.get_header_value_count("Content-Length") > 1) {
      AnswerError(400, "Content-Length is there more than once", response);
    } else if (length.find_first_not_of("0123456789") != std::string::npos) {
      AnswerError(400, fmt::format("Content-Length must be a number of bytes, and is \"{}\"", Shown(length)),
                  response);
    } else if (length.size() > kMostDigits || (!length.empty() && std::stoull(length) > options_.most_body)) {
      AnswerError(413, MeaningOf(413), response);
    } else {
      return true;
    }
    return false;
  }

  // The body is read here, as old releases of the library put no bound to one that comes in chunks.
  using Held = std::shared_ptr<const Answering>;
  using Handler = void (Impl::*)(const std::string&, const Request&, Response&, const Held&);
  void Post(const std::string& path, Handler handler) {
    http_.Post(path, [this, handler](const Request& request, Response& response,
                                     const httplib::ContentReader& read) {
      std::string body;
      bool is_long = false;
      // Without a length there is none, and nothing comes that could be waited for (RFC 9112, 6.3).
      const bool has_body = request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
      const bool is_read = !has_body || read([&](const char* data, std::size_t size) {
        is_long = body.size() + size > options_.most_body;
        if (!is_long) body.append(data, size);
        return !is_long;
      });
      if (!is_read) {
        // The library itself refuses a length that is said beforehand. What is left of the body must not be read as a request.
        const bool is_refused = is_long || response.status == 413;
        CloseAfter(request, response);
        return AnswerError(is_refused ? 413 : 400,
                           is_refused ? MeaningOf(413) : "the body did not come whole", response);
      }
      // First this and then the look at stops_: who stops the server looks the other way round.
      const auto answering = std::make_shared<const Answering>(&answering_);
      if (stops_) return AnswerError(503, "the server stops", response);
      (this->*handler)(body, request, response, answering);
    });
  }

  Json Health() const {
    const generate::Batch::Counts counts = model_.batch->counts();
    return {{"status", "ok"},
            {"waiting", counts.waiting},
            {"running", counts.running},
            {"finished", counts.finished},
            {"dropped", counts.dropped}};
  }

  Json Models() const {
    const Json model = {{"id", model_.name},
                        {"object", "model"},
                        {"created", model_.created},
                        {"owned_by", "engine"},
                        {"max_model_len", model_.context}};
    return {{"object", "list"}, {"data", Json::array({model})}};
  }

  Json TokenizerInfo() const {
    const auto written = [this](std::optional<std::int32_t> id) -> Json {
      const std::string text = id && model_.tokenizer != nullptr ? model_.tokenizer->Written(*id) : "";
      return text.empty() ? Json() : Json(text);
    };
    Json info = {{"eos_token", nullptr}, {"bos_token", nullptr}, {"chat_template", nullptr}};
    if (model_.tokenizer != nullptr) {
      info["eos_token"] = written(model_.tokenizer->end_of_document());
      info["bos_token"] = written(model_.tokenizer->beginning_of_document());
    }
    if (!model_.chat_template.empty()) info["chat_template"] = model_.chat_template;
    return info;
  }

  void Tokenize(const std::string& body, const Request&, Response& response, const Held&) {
    const absl::StatusOr<Json> answer = [&]() -> absl::StatusOr<Json> {
      ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseBody(body));
      std::optional<bool> adds;
      std::string text;
      for (const auto& [key, value] : parsed.items()) {
        if (key == "add_special_tokens" && value.is_boolean()) {
          adds = value.get<bool>();
        } else if (key == "prompt" && value.is_string()) {
          text = value.get<std::string>();
        } else if (key != "model") {
          return InvalidArgument(
              "{} is no key of this call, or has no value for it: prompt is a string, "
              "add_special_tokens true or false",
              nlohmann::json(key).dump());
        }
      }
      if (!parsed.contains("prompt")) return InvalidArgument("there is no prompt");
      ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids, IdsOf(model_, text, adds));
      return Json{{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model_.context}};
    }();
    answer.ok() ? AnswerJson(200, *answer, response) : AnswerStatus(answer.status(), response);
  }

  void Detokenize(const std::string& body, const Request&, Response& response, const Held&) {
    const absl::StatusOr<Json> answer = [&]() -> absl::StatusOr<Json> {
      ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseBody(body));
      const auto tokens = parsed.find("tokens");
      if (tokens == parsed.end()) return InvalidArgument("there are no tokens");
      ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids, ParseIds(*tokens, "tokens"));
      if (model_.tokenizer == nullptr) return FailedPrecondition("the model has no tokenizer here");
      const auto outside =
          std::ranges::find_if(ids, [this](std::int32_t id) { return id >= model_.vocabulary; });
      if (outside != ids.end())
        return InvalidArgument("{} is no token id: there are 0 to {}", *outside, model_.vocabulary - 1);
      ASSIGN_OR_RETURN(const std::string text, model_.tokenizer->Decode(ids));
      return Json{{"prompt", text}};
    }();
    answer.ok() ? AnswerJson(200, *answer, response) : AnswerStatus(answer.status(), response);
  }

  void Complete(const std::string& body, const Request& request, Response& response, const Held& held) {
    const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
    absl::StatusOr<CompletionRequest> parsed = ParseCompletion(body);
    if (!parsed.ok()) return AnswerStatus(parsed.status(), response);
    const bool streams = parsed->stream;
    const absl::StatusOr<std::shared_ptr<Completion>> started =
        Completion::Start(model_, *std::move(parsed), next_number_++, deadline);
    if (!started.ok()) return AnswerStatus(started.status(), response);
    const int client = SocketOf(request.remote_addr, request.remote_port);
    streams ? Stream(*started, client, request, response, held) : Wait(*started, client, response);
  }

  // The client has left, or the server is to stop: nobody waits for the answer.
  bool IsInVain(int client) const { return stops_ || HasLeft(client); }

  void Wait(const std::shared_ptr<Completion>& completion, int client, Response& response) const {
    while (!completion->WaitForEnd(kLookAtClient)) {
      if (IsInVain(client)) completion->Cancel();
    }
    const absl::Status status = completion->status();
    status.ok() ? AnswerJson(200, completion->Answer(), response) : AnswerStatus(status, response);
  }

  void Stream(const std::shared_ptr<Completion>& completion, int client, const Request& request,
              Response& response, const Held& held) const {
    const bool is_old =
        request.version == "HTTP/1.0";  // which knows no chunks: the connection's end is the stream's
    response.set_header("Cache-Control", "no-cache");
    const auto provide = [this, completion, client, is_old, held](std::size_t, httplib::DataSink& sink) {
      const std::string events = completion->NextEvents(kLookAtClient);
      if (IsInVain(client)) completion->Cancel();
      if (!events.empty() && !sink.write(events.data(), events.size())) return false;
      if (!completion->has_ended()) return true;
      sink.done();
      return !is_old;
    };
    const auto end = [completion](bool) { completion->Cancel(); };
    constexpr const char* kEvents = "text/event-stream";
    if (is_old) {
      CloseAfter(request, response);
      response.set_content_provider(kEvents, provide, end);
    } else {
      response.set_chunked_content_provider(kEvents, provide, end);
    }
  }

  const ServedModel& model_;
  const ServerOptions options_;
  ListeningServer http_;
  std::thread thread_;
  int port_ = -1;
  std::atomic<bool> stops_ = false, has_stopped_ = false;
  std::atomic<int> answering_ = 0;  // completions
  std::atomic<std::uint64_t> next_number_ = 0;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServedModel& model,
                                                      const ServerOptions& options) {
  auto impl = std::make_unique<Impl>(model, options);
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

int Server::port() const { return impl_->port(); }
void Server::Refuse() { impl_->Refuse(); }
bool Server::is_answering() const { return impl_->is_answering(); }
void Server::Stop() { impl_->Stop(); }
bool Server::has_stopped() const { return impl_->has_stopped(); }

}  // namespace engine::serve
