#include "engine/storage/xml.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

namespace engine::storage {
namespace {

constexpr std::array<std::pair<std::string_view, char>, 5> kEntities = {
    {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};

void AppendUtf8(std::uint32_t c, std::string* text) {
  const auto add = [text](std::uint32_t byte) { *text += static_cast<char>(byte); };
  if (c < 0x80) return add(c);
  if (c < 0x800) {
    add(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3F));
  } else {
    add(0xF0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3F));
    add(0x80 | (c >> 6 & 0x3F));
  }
  add(0x80 | (c & 0x3F));
}

// "amp", "#10" or "#xA"; false: none of these.
bool AppendReference(std::string_view reference, std::string* text) {
  for (const auto& [name, c] : kEntities) {
    if (reference == name) {
      *text += c;
      return true;
    }
  }
  if (!reference.starts_with('#')) return false;
  const bool hex = reference.starts_with("#x");
  const std::string_view digits = reference.substr(hex ? 2 : 1);
  std::uint32_t c = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), c, hex ? 16 : 10);
  if (error != std::errc() || end != digits.data() + digits.size() || c > 0x10FFFF) return false;
  AppendUtf8(c, text);
  return true;
}

}  // namespace

std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name) {
  const std::string open = "<" + std::string(name);
  const std::string close = "</" + std::string(name) + ">";
  std::vector<std::string_view> found;
  for (std::size_t at = xml.find(open); at != std::string_view::npos; at = xml.find(open, at + 1)) {
    const std::size_t tag_end = xml.find('>', at);
    if (tag_end == std::string_view::npos) break;
    const char behind = xml[at + open.size()];
    if ((behind != '>' && behind != ' ') || xml[tag_end - 1] == '/')
      continue;  // another name; an empty element
    const std::size_t end = xml.find(close, tag_end);
    if (end == std::string_view::npos) break;
    found.push_back(xml.substr(tag_end + 1, end - tag_end - 1));
    at = end;
  }
  return found;
}

std::string XmlText(std::string_view xml, std::string_view name) {
  const std::vector<std::string_view> found = XmlElements(xml, name);
  if (found.empty()) return "";
  std::string text;
  std::string_view rest = found.front();
  while (!rest.empty()) {
    const std::size_t end = rest.front() == '&' ? rest.find(';') : std::string_view::npos;
    if (end != std::string_view::npos && AppendReference(rest.substr(1, end - 1), &text)) {
      rest.remove_prefix(end + 1);
    } else {
      text += rest.front();
      rest.remove_prefix(1);
    }
  }
  return text;
}

std::string XmlEscape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    bool is_entity = false;
    for (const auto& [name, of] : kEntities) {
      if (c != of) continue;
      escaped += '&' + std::string(name) + ';';
      is_entity = true;
    }
    if (!is_entity) escaped += c;
  }
  return escaped;
}

}  // namespace engine::storage
