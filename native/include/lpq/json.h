// A reader of JSON (RFC 8259) for the files that native code opens by itself: strict, with a limit on depth, and
// refusing names that occur twice in an object. No writer.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lpq/failure.h"

namespace lpq {

class Json {
 public:
  enum class Kind : uint8_t { null, boolean, number, string, list, object };

  // Throws Failure("LPQ_JSON") with the byte where it breaks a rule.
  static Json parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool boolean() const { return text_ == "true"; }
  const std::string& text() const { return text_; }  // of a string; a number as it is written
  double number() const { return std::strtod(text_.c_str(), nullptr); }
  // A number that is written as an integer from 0 to 2^53 - 1.
  std::optional<int64_t> natural() const;
  const std::vector<Json>& items() const { return items_; }  // of a list; an object's values
  const std::vector<std::string>& names() const { return names_; }
  // The value of a name of an object; null where there is none, or this is no object.
  const Json* find(std::string_view name) const;

 private:
  struct Reader;
  Kind kind_ = Kind::null;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::string> names_;
};

struct Json::Reader {
  std::string_view text;
  size_t at = 0;
  static constexpr int kDeepest = 64;

  [[noreturn]] void fail(const std::string& what) const {
    throw Failure("LPQ_JSON", what + " at byte " + std::to_string(at));
  }
  void blanks() {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r')) ++at;
  }
  char peek() const { return at < text.size() ? text[at] : '\0'; }
  void expect(char c) {
    if (at >= text.size()) fail("the text ends too early");
    if (text[at] != c) fail(std::string("there is no '") + c + "'");
    ++at;
  }

  Json value(int depth) {
    if (depth > kDeepest) fail("it is nested too deeply");
    blanks();
    Json v;
    const char c = peek();
    if (c == '{') {
      object(v, depth);
    } else if (c == '[') {
      v.kind_ = Kind::list;
      ++at;
      blanks();
      while (peek() != ']') {
        v.items_.push_back(value(depth + 1));
        blanks();
        if (peek() == ']') break;
        expect(',');
        blanks();
        if (peek() == ']') fail("a list ends with a comma");
      }
      expect(']');
    } else if (c == '"') {
      v.kind_ = Kind::string;
      v.text_ = string();
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      v.kind_ = Kind::number;
      v.text_ = number();
    } else {
      for (const std::string_view word : {"true", "false", "null"})
        if (text.substr(at, word.size()) == word) {
          at += word.size();
          v.kind_ = word == "null" ? Kind::null : Kind::boolean;
          v.text_ = word;
          return v;
        }
      fail(at < text.size() ? "there is no value" : "the text ends too early");
    }
    return v;
  }

  void object(Json& v, int depth);

  std::string number() {
    const size_t from = at;
    const auto digits = [&] {
      const size_t first = at;
      while (peek() >= '0' && peek() <= '9') ++at;
      if (at == first) fail("a number lacks digits");
      return at - first;
    };
    if (peek() == '-') ++at;
    const bool zero = peek() == '0';
    if (digits() > 1 && zero) fail("a number begins with 0");
    if (peek() == '.') ++at, digits();
    if (peek() == 'e' || peek() == 'E') {
      ++at;
      if (peek() == '+' || peek() == '-') ++at;
      digits();
    }
    return std::string(text.substr(from, at - from));
  }

  uint32_t hex4() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("\\u lacks four hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    return value;
  }

  std::string string() {
    expect('"');
    std::string out;
    for (;;) {
      if (at >= text.size()) fail("the text ends inside a string");
      const auto c = static_cast<unsigned char>(text[at]);
      if (c == '"') break;
      if (c < 0x20) fail("a string holds a control character");
      if (c != '\\') {
        out += text[at++];
        continue;
      }
      ++at;
      const char escape = peek();
      ++at;
      static constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
      if (escape == 'u') {
        uint32_t code = hex4();
        if (code >= 0xd800 && code < 0xdc00) {
          if (text.substr(at, 2) != "\\u") fail("half a surrogate pair");
          at += 2;
          const uint32_t low = hex4();
          if (low < 0xdc00 || low >= 0xe000) fail("half a surrogate pair");
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        } else if (code >= 0xdc00 && code < 0xe000) {
          fail("half a surrogate pair");
        }
        const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
        if (code < 0x80) put(code);
        else if (code < 0x800) put(0xc0 | code >> 6), put(0x80 | (code & 63));
        else if (code < 0x10000) put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
        else
          put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 63)), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
      } else if (const size_t which = from.find(escape); which != std::string_view::npos && escape != '\0') {
        out += to[which];
      } else {
        fail("an unknown escape");
      }
    }
    ++at;
    return out;
  }
};

inline void Json::Reader::object(Json& v, int depth) {
  v.kind_ = Kind::object;
  ++at;
  blanks();
  if (peek() == '}') {
    ++at;
    return;
  }
  std::unordered_set<std::string> seen;
  for (;;) {
    blanks();
    std::string name = string();
    if (!seen.insert(name).second) fail("the name '" + name + "' occurs twice");
    blanks();
    expect(':');
    v.names_.push_back(std::move(name));
    v.items_.push_back(value(depth + 1));
    blanks();
    if (peek() == '}') break;
    expect(',');
  }
  ++at;
}

inline Json Json::parse(std::string_view text) {
  Reader reader{text};
  Json value = reader.value(0);
  reader.blanks();
  if (reader.at != text.size()) reader.fail("there is more after the value");
  return value;
}

inline std::optional<int64_t> Json::natural() const {
  if (kind_ != Kind::number || text_.empty() || text_.size() > 16) return std::nullopt;
  int64_t value = 0;
  for (const char c : text_) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  if (value >= int64_t{1} << 53) return std::nullopt;
  return value;
}

inline const Json* Json::find(std::string_view name) const {
  if (kind_ != Kind::object) return nullptr;
  for (size_t i = 0; i < names_.size(); ++i)
    if (names_[i] == name) return &items_[i];
  return nullptr;
}

}  // namespace lpq
