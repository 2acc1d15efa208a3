#include "engine/metrics/http.h"

#include <fmt/format.h>

#include <algorithm>

namespace engine::metrics {
namespace {

constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view kTextType = "text/plain; charset=utf-8";

std::string Answer(std::string_view status, std::string_view type, std::string_view body, bool head_alone,
                   std::string_view more = "") {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n{}",
                     status, type, body.size(), more, head_alone ? "" : body);
}

}  // namespace

std::string HttpAnswer(std::string_view request, std::string_view metrics) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const std::string_view method = line.substr(0, line.find(' '));
  const std::string_view rest = line.substr(std::min(line.size(), method.size() + 1));
  const std::string_view target = rest.substr(0, rest.find(' '));
  const bool head = method == "HEAD";
  if (request.find("\r\n\r\n") == std::string_view::npos ||
      !rest.substr(target.size()).starts_with(" HTTP/1."))
    return Answer("400 Bad Request", kTextType, "this is no request of HTTP/1\n", false);
  if (method != "GET" && !head)
    return Answer("405 Method Not Allowed", kTextType, "GET and HEAD are allowed\n", false,
                  "Allow: GET, HEAD\r\n");
  if (target.substr(0, target.find('?')) != "/metrics")
    return Answer("404 Not Found", kTextType, "metrics are at /metrics\n", head);
  return Answer("200 OK", kMetricsType, metrics, head);
}

}  // namespace engine::metrics
