// The HTTP server of a model: what evaluation harnesses and front ends ask of OpenAI's completions, and vLLM's calls for its
// tokenizer.
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "engine/serve/completion.h"

namespace engine::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any that is free
  // That are looked after at the same time, each by a thread, idle ones for two seconds; further ones wait.
  std::size_t connections = 1024;
  std::size_t most_body = 16 << 20;                             // bytes; a longer one is 413
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of a request, from its coming to its end
};

// GET /health, /v1/models, /tokenizer_info; POST /v1/completions, /tokenize, /detokenize. Errors are objects of JSON, {"error": {"message",
// "type", "code"}}: 400 for what is wrong with a request, 404, 413, 429 where the queue of the batch is full, 503 where the time is over or
// the server stops, 500. Requests are answered on threads of the server's own, while another one calls Batch::Advance; the model
// outlives this.
class Server {
 public:
  // Begins to listen. Unavailable: the address cannot be had.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServedModel& model,
                                                       const ServerOptions& options);
  // Stops, once requests under way have ended: cancel those of the batch first (Batch::CancelAll, until no thread waits).
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  // From now on new requests are 503, and those that are under way are cancelled. From any thread.
  void Refuse();
  // A completion's answer is under way: after Refuse its error, or the end of a stream.
  bool is_answering() const;
  // Refuse, and no more is read or written. From any thread.
  void Stop();
  // The server's threads have ended; they need the batch to be advanced until then.
  bool has_stopped() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace engine::serve
