// As much of HTTP/1.1 (RFC 9112) as a server of one page needs.
#pragma once

#include <string>
#include <string_view>

namespace engine::metrics {

// The answer to a request: `metrics` to GET /metrics, its head alone to HEAD, else what is wrong. The connection ends with it.
std::string HttpAnswer(std::string_view request, std::string_view metrics);

}  // namespace engine::metrics
