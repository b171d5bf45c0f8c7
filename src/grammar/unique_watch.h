// Elements of an array that must differ: a context-free grammar cannot say so, this can.
//
// It reads the text along with the automaton, remembers the elements of every open array that the
// grammar marks as unique, and names the texts that would complete an element a second time. Inside
// such arrays the grammar allows one spelling per value, so equal values are equal texts.
// A value; copying it is a fork. Not thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace warpweave::grammar {

class UniqueWatch {
 public:
  explicit UniqueWatch(const Grammar* grammar) : grammar_(grammar) {}

  bool active() const { return !levels_.empty(); }
  // `opened`: the unique array that this byte opened, or -1. False: it repeats an element.
  bool read(uint8_t byte, int32_t opened);
  // Texts none of which may come next, not even with more behind them.
  std::vector<std::string> forbidden() const;

 private:
  struct Level {
    int32_t unique;     // -1: any object, or an array whose elements may repeat
    size_t element_at;  // in text_
    std::vector<std::string> elements;
  };
  bool take(uint8_t byte, int32_t opened);
  bool has_way(const Level& level) const;
  bool end_element(bool is_complete);
  bool repeats(const Level& level, std::string_view element) const;
  std::string_view element(const Level& level) const;
  void forbid(const Level& level, std::vector<std::string>* out) const;

  const Grammar* grammar_;
  std::string text_;  // since the outermost unique array opened
  std::vector<Level> levels_;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace warpweave::grammar
