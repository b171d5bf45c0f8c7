#include "grammar/char_partition.h"

#include <algorithm>

namespace warpweave::grammar {
namespace {

// Characters between two neighbouring borders of the sets' ranges: no set parts them.
class Intervals {
 public:
  explicit Intervals(const std::vector<CharSet>& sets) : begins_{0} {
    for (const CharSet& set : sets) {
      for (const CharRange& range : set.ranges()) {
        begins_.push_back(range.first);
        if (range.last < kMaxChar) begins_.push_back(range.last + 1);
      }
    }
    std::sort(begins_.begin(), begins_.end());
    begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
  }

  size_t size() const { return begins_.size(); }
  CharRange at(size_t i) const { return {begins_[i], i + 1 < begins_.size() ? begins_[i + 1] - 1 : kMaxChar}; }
  size_t begin_of(const CharRange& range) const { return index(range.first); }
  size_t end_of(const CharRange& range) const { return range.last == kMaxChar ? size() : index(range.last + 1); }

 private:
  size_t index(uint32_t c) const { return std::lower_bound(begins_.begin(), begins_.end(), c) - begins_.begin(); }

  std::vector<uint32_t> begins_;
};

}  // namespace

// Partition refinement: each set parts every class into what it holds and what it does not.
std::optional<CharPartition> partition_chars(const std::vector<CharSet>& sets, WorkBudget* budget) {
  const Intervals intervals(sets);
  std::vector<int> class_of(intervals.size(), 0);
  std::vector<int> part_of = {0};        // by class: the class its part inside the set at hand goes to
  std::vector<size_t> parted_by = {0};   // by class: the set, counted from 1, that made part_of
  for (size_t set = 0; set < sets.size(); ++set) {
    for (const CharRange& range : sets[set].ranges()) {
      const size_t end = intervals.end_of(range);
      for (size_t i = intervals.begin_of(range); i < end; ++i) {
        if (!budget->spend(2)) return std::nullopt;
        const int old = class_of[i];
        if (parted_by[old] != set + 1) {
          parted_by[old] = set + 1;
          part_of[old] = static_cast<int>(part_of.size());
          part_of.push_back(0);
          parted_by.push_back(0);
        }
        class_of[i] = part_of[old];
      }
    }
  }
  CharPartition out;
  std::vector<int> atom_of(part_of.size(), -1);  // classes that lost all their characters have none
  for (size_t i = 0; i < intervals.size(); ++i) {
    const CharRange range = intervals.at(i);
    const CharSet chars = CharSet::of(range.first, range.last);
    if (chars.empty()) continue;  // surrogates
    int& atom = atom_of[class_of[i]];
    if (atom < 0) {
      atom = static_cast<int>(out.atoms.size());
      out.atoms.emplace_back();
    }
    out.atoms[atom].add(range.first, range.last);
  }
  out.atoms_of_set.resize(sets.size());
  std::vector<size_t> seen_by(out.atoms.size(), 0);
  for (size_t set = 0; set < sets.size(); ++set) {
    for (const CharRange& range : sets[set].ranges()) {
      const size_t end = intervals.end_of(range);
      for (size_t i = intervals.begin_of(range); i < end; ++i) {
        const int atom = atom_of[class_of[i]];
        if (atom < 0 || seen_by[atom] == set + 1) continue;
        seen_by[atom] = set + 1;
        out.atoms_of_set[set].push_back(atom);
      }
    }
  }
  return out;
}

}  // namespace warpweave::grammar
