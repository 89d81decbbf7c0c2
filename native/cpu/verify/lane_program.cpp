#include "cpu/verify/lane_program.h"

#include <array>
#include <cctype>
#include <sstream>

namespace lpq::verify {
namespace {

struct Known {
  const char* name;
  size_t arguments;  // behind the tensor of a load
};
constexpr std::array<Known, 17> kFunctions{{{"word", 1},
                                            {"half", 1},
                                            {"byte", 1},
                                            {"scale", 1},
                                            {"min", 2},
                                            {"number", 1},
                                            {"pair", 2},
                                            {"numbers2", 1},
                                            {"sub2", 2},
                                            {"mul2", 2},
                                            {"fma2", 3},
                                            {"mma_a", 6},
                                            {"mma_b", 4},
                                            {"mma_sp", 8},
                                            {"mma_884", 4},
                                            {"scale_a", 3},
                                            {"scale_b", 3}}};

// Operators, as Python binds them: comparisons the least, then | ^ & and shifts.
struct Sign {
  const char* text;
  int binds;
  Operator is;
};
constexpr std::array<Sign, 12> kSigns{{{"==", 1, Operator::equal},
                                       {"<<", 5, Operator::left},
                                       {">>", 5, Operator::right},
                                       {"<", 1, Operator::less},
                                       {"|", 2, Operator::bit_or},
                                       {"^", 3, Operator::bit_xor},
                                       {"&", 4, Operator::bit_and},
                                       {"+", 6, Operator::add},
                                       {"-", 6, Operator::sub},
                                       {"*", 7, Operator::mul},
                                       {"/", 7, Operator::div},
                                       {"%", 7, Operator::mod}}};

}  // namespace

void refuse_line(int line, const std::string& what) {
  throw Failure("LPQ_NATIVE_ARGUMENT", "line " + std::to_string(line) + " of the lanes' program: " + what);
}

const LaneProgram::Name& LaneProgram::named(const std::string& text, bool array, int line) {
  for (const Name& each : names_)
    if (each.text == text) {
      if (each.array != array) refuse_line(line, "'" + text + (array ? "' is no array" : "' is an array"));
      return each;
    }
  names_.push_back({text, array, slots});
  slots += array ? kArray : 1;
  return names_.back();
}

uint32_t LaneProgram::given(const std::string& name) { return named(name, false, 0).slot; }

class LaneParser {
 public:
  LaneParser(LaneProgram& program, const std::string& text) : program_(program) {
    std::istringstream in(text);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      line = line.substr(0, line.find('#'));
      const size_t first = line.find_first_not_of(' ');
      if (first == std::string::npos) continue;
      if (first % 4 != 0) refuse_line(number, "it is not indented by fours");
      lines_.push_back({number, first / 4, line.substr(first, line.find_last_not_of(" \r") + 1 - first)});
    }
    while (row_ < lines_.size()) {
      const std::string& line = lines_[row_].text;
      if (line == "tile:" || line == "finish:") {
        ++row_;
        block(1, line == "tile:" ? program.tile : program.finish);
      } else {
        program.header.push_back(statement(0));
      }
    }
  }

 private:
  struct Line {
    int number;
    size_t level;
    std::string text;
  };

  void block(size_t level, std::vector<Statement>& into) {
    const size_t first = row_;
    if (level > kDeepest) refuse_line(lines_[row_ - 1].number, "it is nested too deep");
    while (row_ < lines_.size() && lines_[row_].level == level) into.push_back(statement(level));
    if (row_ == first) refuse_line(lines_[row_ - 1].number, "a block is missing");
  }

  Statement statement(size_t level) {
    const Line& line = lines_[row_++];
    if (line.level != level) refuse_line(line.number, "it belongs to no block");
    text_ = &line.text, number_ = line.number, at_ = nested_ = 0;
    Statement made;
    if (take("for ")) {
      made.kind = Statement::loop;
      made.target = primary();
      expect("in ");
      made.value = expression(0);
    } else if (take("if ")) {
      made.kind = Statement::choice;
      made.value = expression(0);
    } else {
      made.value = primary();
      if (take("=")) {
        made.kind = Statement::assignment;
        made.target = made.value;
        made.value = expression(0);
      }
      const bool runs = made.value.kind == Expression::call && made.value.value >= uint32_t(kFirstStatement);
      if (runs == (made.kind == Statement::assignment)) refuse_line(number_, "it is no statement");
    }
    const bool assigns = made.kind == Statement::assignment || made.kind == Statement::loop;
    if (assigns && made.target.kind != Expression::variable && made.target.kind != Expression::element)
      refuse_line(number_, "only a variable can be assigned");
    const bool opens = made.kind == Statement::loop || made.kind == Statement::choice;
    if (opens) expect(":");
    if (at_ != text_->size()) refuse_line(number_, "'" + text_->substr(at_) + "' is too much");
    if (!opens) return made;
    block(level + 1, made.body);
    if (made.kind == Statement::choice && row_ < lines_.size() && lines_[row_].level == level &&
        lines_[row_].text == "else:") {
      ++row_;
      block(level + 1, made.otherwise);
    }
    return made;
  }

  Expression expression(int binds) {
    if (++nested_ > kDeepest) refuse_line(number_, "it is nested too deep");
    Expression left = primary();
    for (;;) {
      const Sign* sign = nullptr;
      for (const Sign& each : kSigns)
        if (!sign && each.binds > binds &&
            text_->compare(at_, std::char_traits<char>::length(each.text), each.text) == 0)
          sign = &each;
      if (!sign) {
        --nested_;
        return left;
      }
      expect(sign->text);
      Expression whole{Expression::operation, uint32_t(sign->is), number_, {}};
      whole.inside.push_back(std::move(left));
      whole.inside.push_back(expression(sign->binds));
      left = std::move(whole);
    }
  }

  Expression primary() {
    if (take("(")) {
      Expression inside = expression(0);
      expect(")");
      return inside;
    }
    const std::string word = identifier();
    if (std::isdigit(static_cast<unsigned char>(word[0]))) {
      char* end = nullptr;
      const unsigned long long value = std::strtoull(word.c_str(), &end, 0);
      if (*end || value > 0xffffffffull) refuse_line(number_, "'" + word + "' is no number of 32 bits");
      return {Expression::constant, static_cast<uint32_t>(value), number_, {}};
    }
    if (take("(")) return call(word);
    if (!take("[")) return {Expression::variable, program_.named(word, false, number_).slot, number_, {}};
    Expression element{Expression::element, program_.named(word, true, number_).slot, number_, {}};
    element.inside.push_back(expression(0));
    expect("]");
    return element;
  }

  Expression call(const std::string& name) {
    for (size_t i = 0; i < kFunctions.size(); ++i) {
      if (name != kFunctions[i].name) continue;
      Expression made{Expression::call, static_cast<uint32_t>(i), number_, {}};
      if (i <= size_t(kLastLoad)) {
        made.inside.push_back(tensor());
        expect(",");
      }
      do made.inside.push_back(expression(0));
      while (take(","));
      expect(")");
      if (made.inside.size() != kFunctions[i].arguments + (i <= size_t(kLastLoad)))
        refuse_line(number_, name + " takes another number of arguments");
      return made;
    }
    refuse_line(number_, "there is no function '" + name + "'");
  }

  // The place of a tensor among those that are given, or their number for one that is not.
  Expression tensor() {
    const std::string name = identifier();
    size_t i = 0;
    while (i < program_.tensors_.size() && program_.tensors_[i] != name) ++i;
    return {Expression::constant, static_cast<uint32_t>(i), number_, {}};
  }

  std::string identifier() {
    const size_t first = at_;
    while (at_ < text_->size() && (std::isalnum(static_cast<unsigned char>((*text_)[at_])) || (*text_)[at_] == '_'))
      ++at_;
    const std::string word = text_->substr(first, at_ - first);
    if (word.empty()) refuse_line(number_, "'" + text_->substr(first) + "' is no value");
    spaces();
    return word;
  }

  void spaces() {
    while (at_ < text_->size() && (*text_)[at_] == ' ') ++at_;
  }
  bool take(const char* what) {
    const size_t length = std::char_traits<char>::length(what);
    if (text_->compare(at_, length, what) != 0) return false;
    at_ += length;
    spaces();
    return true;
  }
  void expect(const char* what) {
    if (!take(what)) refuse_line(number_, std::string("'") + what + "' is missing");
  }

  static constexpr size_t kDeepest = 16;
  LaneProgram& program_;
  std::vector<Line> lines_{};
  size_t row_ = 0, at_ = 0, nested_ = 0;
  const std::string* text_ = nullptr;
  int number_ = 0;
};

LaneProgram::LaneProgram(const std::string& text, const std::string& tensors) {
  std::istringstream in(tensors);
  for (std::string name; in >> name;) tensors_.push_back(name);
  LaneParser(*this, text);
}

}  // namespace lpq::verify
