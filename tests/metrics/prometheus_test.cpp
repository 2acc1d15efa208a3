#include "engine/metrics/prometheus.h"

#include <poll.h>
#include <sys/socket.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "engine/metrics/prometheus_listener.h"
#include "engine/metrics/prometheus_textfile.h"
#include "engine/metrics/sinks.h"
#include "tests/metrics/sinks_testing.h"

namespace engine::metrics::testing {
namespace {

// Samples by name and labels of a text in format 0.0.4, read by its grammar: help and type once before the samples of a
// metric, no metric twice, every line ended.
std::map<std::string, double> Parsed(const std::string& text) {
  static const std::regex kHelp(R"(# HELP ([a-z][a-z0-9_]*) (\S.*))");
  static const std::regex kType(R"(# TYPE ([a-z][a-z0-9_]*) (gauge|counter|histogram))");
  static const std::regex kSample(
      R"(([a-z][a-z0-9_]*)(\{[a-z]+="([^"\\]|\\["\\n])*"(,[a-z]+="([^"\\]|\\["\\n])*")*\}) ([-+.e0-9]+))");
  REQUIRE(text.ends_with('\n'));
  std::map<std::string, double> samples;
  std::set<std::string> seen;
  std::istringstream lines(text);
  std::string helped;
  std::string metric;
  std::string type;
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    std::smatch match;
    if (std::regex_match(line, match, kHelp)) {
      helped = match[1];
      CHECK(seen.insert(helped).second);
    } else if (std::regex_match(line, match, kType)) {
      metric = match[1];
      type = match[2];
      CHECK(metric == helped);
      CHECK(metric.ends_with("_total") == (type == "counter"));
    } else {
      const bool is_sample = std::regex_match(line, match, kSample);
      REQUIRE(is_sample);
      const std::string name = match[1];
      if (type == "histogram") {
        CHECK((name == metric + "_bucket" || name == metric + "_sum" || name == metric + "_count"));
      } else {
        CHECK(name == metric);
      }
      CHECK(samples.emplace(name + match[2].str(), std::stod(match[6])).second);
    }
  }
  return samples;
}

std::string Scrape(int port, const std::string& request) {
  const absl::StatusOr<launch::Descriptor> socket =
      launch::Connect({.host = "127.0.0.1", .port = port}, launch::Clock::now() + std::chrono::seconds(10));
  REQUIRE(socket.ok());
  REQUIRE(send(socket->number(), request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t got = 1; got > 0;) {
    pollfd waiting{socket->number(), POLLIN, 0};
    REQUIRE(poll(&waiting, 1, 10000) == 1);
    got = recv(socket->number(), buffer, sizeof(buffer), 0);
    if (got > 0) answer.append(buffer, static_cast<std::size_t>(got));
  }
  return answer;
}

}  // namespace

TEST_CASE("Prometheus' text: base units, labels, histograms; what is not finite is left out") {
  RunDescription run = TestRun();
  run.name = "a \"b\"\\\n";
  PrometheusMetrics metrics(run);
  metrics.Take(IterationRecord(1, {{&kLoss, 2.5}, {&kElapsed, 30}, {&kConsumedSamples, 8}}));
  metrics.Take(IterationRecord(2, {{&kLoss, std::nan("")},
                                   {&kElapsed, 2500},
                                   {&kConsumedSamples, 16},
                                   {&kMetric, 0.5, "balance"},
                                   {&kRankBusy, 12, "0"},
                                   {&kRankBusy, 13, "1"},
                                   {&kRankClock, 1410, "1"},
                                   {&kRankTemperature, 88, "1"}}));
  metrics.Take(IterationRecord(3, {{&kElapsed, 1e9}}));
  const std::map<std::string, double> samples = Parsed(metrics.Text());
  const std::string label = R"(run="a \"b\"\\\n")";
  const auto value = [&](const std::string& name, const std::string& more = "") {
    const auto found = samples.find(name + "{" + label + more + "}");
    return found == samples.end() ? std::nan("") : found->second;
  };
  CHECK(value("engine_build_info", R"(,version="1.2",plan="abc")") == 1);
  CHECK(value("engine_iteration") == 3);
  CHECK(std::isnan(value("engine_loss")));
  CHECK(value("engine_consumed_samples_total") == 16);
  CHECK(value("engine_metric", R"(,name="balance")") == 0.5);
  CHECK(value("engine_rank_busy_seconds", R"(,rank="1")") == doctest::Approx(0.013));
  CHECK(value("engine_rank_clock_hertz", R"(,rank="1")") == 1.41e9);
  CHECK(value("engine_rank_temperature_celsius", R"(,rank="1")") == 88);
  CHECK(value("engine_iteration_seconds_bucket", R"(,le="0.025")") == 0);
  CHECK(value("engine_iteration_seconds_bucket", R"(,le="0.05")") == 1);
  CHECK(value("engine_iteration_seconds_bucket", R"(,le="1")") == 1);
  CHECK(value("engine_iteration_seconds_bucket", R"(,le="2.5")") == 2);  // a bound is in its bucket
  CHECK(value("engine_iteration_seconds_bucket", R"(,le="1000")") == 2);
  CHECK(value("engine_iteration_seconds_bucket", R"(,le="+Inf")") == 3);
  CHECK(value("engine_iteration_seconds_count") == 3);
  CHECK(value("engine_iteration_seconds_sum") == doctest::Approx(1e6 + 2.53));
}

TEST_CASE("GET /metrics answers while the run goes on, and everything else is refused") {
  PrometheusListener sink({.host = "127.0.0.1", .port = 0}, TestRun());
  REQUIRE(TakeAndWrite(sink, LossRecord(1, 2.5)).ok());
  const std::string answer = Scrape(sink.port(), "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  const std::size_t body = answer.find("\r\n\r\n") + 4;
  CHECK(answer.find(fmt::format("\r\nContent-Length: {}\r\n", answer.size() - body)) != std::string::npos);
  CHECK(Parsed(answer.substr(body)).at("engine_loss{run=\"quick\"}") == 2.5);
  REQUIRE(TakeAndWrite(sink, LossRecord(2, 1.5)).ok());
  CHECK(Scrape(sink.port(), "GET /metrics?x=1 HTTP/1.0\r\n\r\n").find("engine_loss{run=\"quick\"} 1.5\n") !=
        std::string::npos);
  const std::string head = Scrape(sink.port(), "HEAD /metrics HTTP/1.1\r\n\r\n");
  CHECK(head.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(head.ends_with("\r\n\r\n"));
  CHECK(Scrape(sink.port(), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 Not Found\r\n"));
  CHECK(Scrape(sink.port(), "POST /metrics HTTP/1.1\r\n\r\n")
            .starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
  CHECK(Scrape(sink.port(), "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 Bad Request\r\n"));
  CHECK(Scrape(sink.port(), std::string(20000, 'x')).starts_with("HTTP/1.1 400 Bad Request\r\n"));
}

TEST_CASE("a port that another program has is an error until it is free; the port is given back at the end") {
  PrometheusListener first({.host = "127.0.0.1", .port = 0}, TestRun());
  REQUIRE(TakeAndWrite(first, LossRecord(1, 1)).ok());
  const int port = first.port();
  PrometheusListener second({.host = "127.0.0.1", .port = port}, TestRun());
  CHECK(Message(TakeAndWrite(second, LossRecord(1, 1))) ==
        fmt::format("logging.prometheus: port {} of 127.0.0.1 is taken by another program; give another one",
                    port));
  REQUIRE(first.Close(true).ok());
  CHECK(TakeAndWrite(second, LossRecord(2, 1)).ok());
  PrometheusListener nowhere({.host = "192.0.2.1", .port = port}, TestRun());
  CHECK(Message(TakeAndWrite(nowhere, LossRecord(1, 1)))
            .starts_with("logging.prometheus: 192.0.2.1 is no address of this"));
}

TEST_CASE("the textfile is whole, has no other name for long, and is written once more at the end") {
  const TempDir folder;
  const std::string path = folder / "run.prom";
  PrometheusTextfile sink(path, TestRun());
  REQUIRE(TakeAndWrite(sink, LossRecord(1, 2.5)).ok());
  CHECK(Parsed(ReadFile(path)).at("engine_loss{run=\"quick\"}") == 2.5);
  REQUIRE(TakeAndWrite(sink, LossRecord(2, 1.5)).ok());
  REQUIRE(sink.Close(true).ok());
  CHECK(Parsed(ReadFile(path)).at("engine_loss{run=\"quick\"}") == 1.5);
  CHECK_FALSE(std::filesystem::exists(path + ".new"));
  PrometheusTextfile nowhere(folder / "no/run.prom", TestRun());
  CHECK(Message(TakeAndWrite(nowhere, LossRecord(1, 1))) ==
        "cannot open " + folder / "no/run.prom" + ": No such file or directory");
}

TEST_CASE("what waited for a textfile or a port that failed is in its histograms once") {
  const TempDir folder;
  const std::string path = folder / "late/run.prom";
  PrometheusListener first({.host = "127.0.0.1", .port = 0}, TestRun());
  REQUIRE(first.Write({}).ok());
  auto listener = std::make_unique<PrometheusListener>(
      launch::Endpoint{.host = "127.0.0.1", .port = first.port()}, TestRun());
  const PrometheusListener& second = *listener;
  Sinks sinks([](const std::string&) {}, std::chrono::seconds(0));
  sinks.Add(std::make_unique<PrometheusTextfile>(path, TestRun()));
  sinks.Add(std::move(listener));
  for (int i = 1; i <= 3; ++i) sinks.Write(IterationRecord(i, {{&kElapsed, 1000}}));
  std::filesystem::create_directory(folder / "late");
  REQUIRE(first.Close(true).ok());
  sinks.Write(IterationRecord(4, {{&kElapsed, 1000}}));
  const std::string count = "engine_iteration_seconds_count{run=\"quick\"}";
  const std::string answer = Scrape(second.port(), "GET /metrics HTTP/1.0\r\n\r\n");
  CHECK(Parsed(answer.substr(answer.find("\r\n\r\n") + 4)).at(count) == 4);
  sinks.Close(true);
  CHECK(Parsed(ReadFile(path)).at(count) == 4);
}

}  // namespace engine::metrics::testing
