// The BPE model: a vocabulary, ranked merges, and the merge loop.
//
// Merges are applied in order of (rank, position). Words up to 32 symbols use a linear scan,
// longer ones a heap: O(n log n). Immutable after build() and thread-safe; each thread brings a
// BpeScratch, which also holds a bounded cache from short words to their ids.
// Sennrich et al. 2016, arXiv:1508.07909; byte fallback and merging by score: SentencePiece.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"
#include "warpweave/status.h"

namespace warpweave {

// The 256 characters that spell bytes in byte-level vocabularies (GPT-2's table).
char32_t byte_to_char(unsigned char byte);
int char_to_byte(char32_t c);  // -1 when it spells none
void append_byte_chars(std::string_view bytes, std::string* out);
// The bytes that `token` spells; its own UTF-8 when a character of it spells none.
void append_token_bytes(std::string_view token, std::string* out);

// Strings with the ids given to them: one arena and an open-addressing table.
class StringTable {
 public:
  void reserve(size_t count, size_t bytes);
  bool insert(std::string_view text, int32_t id);  // false: the text is there already
  int32_t find(std::string_view text) const;       // -1: not there
  std::string_view text(int32_t id) const;         // empty for an id without an entry
  bool has(int32_t id) const;
  int32_t id_limit() const { return static_cast<int32_t>(spans_.size()); }
  size_t size() const { return count_; }

 private:
  struct Span {
    uint32_t begin = 0;
    uint32_t size = UINT32_MAX;  // no entry
  };
  struct Slot {
    uint32_t tag = 0;            // the hash's upper half
    int32_t id = -1;             // -1: free
  };
  void grow();
  std::string arena_;
  std::vector<Span> spans_;      // by id
  std::vector<Slot> slots_;      // a power of two of them, at most half full
  size_t count_ = 0;
};

struct BpeSymbol {
  int32_t id;      // >= 0; kMerged when its left neighbour took it in
  int32_t prev;
  int32_t next;
  uint32_t begin;  // byte offset in the word
};

class BpeScratch {
 public:
  BpeScratch();

  // Frees what long words took; what is known of short ones stays.
  void free_text() noexcept;
  size_t text_bytes() const;  // what free_text() would free

 private:
  friend class BpeModel;
  static constexpr size_t kCacheEntries = 1 << 14;
  static constexpr size_t kCacheWordBytes = 30;
  static constexpr size_t kCacheIds = 8;
  struct CacheEntry {
    uint8_t word_bytes = 0;
    uint8_t id_count = 0;
    char word[kCacheWordBytes];
    int32_t ids[kCacheIds];
  };
  struct Candidate {
    uint64_t order;  // rank, then position
    int32_t new_id;
  };

  std::vector<CacheEntry> cache_;
  std::vector<BpeSymbol> symbols_;
  std::vector<Candidate> heap_;
  std::string spelled_;
};

class BpeModel {
 public:
  // `byte_level`: words come as raw bytes of which each is spelled by its character.
  static Result<BpeModel> build(const BpeSpec& spec, bool byte_level);

  // Appends the ids of one pre-tokenized word, of less than 2^31 bytes.
  void encode_word(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;

  const StringTable& vocab() const { return vocab_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t new_id;
  };
  struct MergeSlot {
    uint64_t pair;
    Merge merge;
  };

  Status add_merges(const BpeSpec& spec);
  void add_scored_merges(const BpeSpec& spec);
  void insert_merge(uint64_t pair, Merge merge);
  void reserve_merges(size_t count);
  const Merge* find_merge(int32_t left, int32_t right) const;
  Status find_unk_and_bytes(const BpeSpec& spec, bool byte_level);
  void find_safe_split();

  void encode_uncached(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  void encode_cached(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  int32_t whole_word_id(std::string_view word, BpeScratch* scratch) const;
  void start_symbols(std::string_view word, std::vector<BpeSymbol>* symbols) const;
  void unknown_symbol(std::string_view text, uint32_t begin, std::vector<BpeSymbol>* symbols,
                      bool* after_unk) const;
  void merge_scan(std::vector<BpeSymbol>* symbols) const;
  void merge_heap(BpeScratch* scratch) const;
  void emit(std::string_view word, const BpeSymbol& symbol, std::vector<int32_t>* ids) const;

  StringTable vocab_;
  // SentencePiece merges may start from characters that are no tokens: their pseudo ids follow the
  // vocabulary's, from pseudo_base_ on.
  StringTable pseudo_;
  int32_t pseudo_base_ = INT32_MAX;
  std::vector<MergeSlot> merges_;
  std::array<int32_t, 256> byte_symbol_{};    // byte_level: the id of each byte's character, or -1
  std::array<int32_t, 256> fallback_{};       // the ids of <0x00>..<0xFF>, or -1
  int32_t unk_id_ = -1;
  bool byte_level_ = false;
  bool by_score_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  bool split_at_meta_ = false;  // no merge crosses from another character to a U+2581
};

}  // namespace warpweave
