// Typed, bounded reading of the fields of a request object.
//
// Every read names its type and range; an absent or null field leaves the target as it is and
// returns false. The first failure is kept and turns later reads into no-ops, so a handler reads
// all its fields and then checks status() once. Messages give field, value, bound and a fix.
// A field is known once something has asked for it; refuse_unknown() refuses the others, so that
// none is accepted and ignored, but where the server is to ignore them. The object and the names must outlive the
// reader. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/request_body.h"

namespace warpweave::server {

struct IntRange {
  int64_t min;
  int64_t max;
  std::string_view hint = {};  // what to do instead, "use -1 for no limit"
};

struct NumberRange {
  double min;
  double max;
  bool above_min = false;      // min itself is not allowed
  std::string_view hint = {};
};

struct TextLimit {
  size_t max_bytes;
  size_t max_items = 1;        // of a list of texts
};

// Each reads one value; `field` is its path for the message ("input_ids[3]").
Status read_bool(const Json& value, std::string_view field, bool* out);
Status read_int(const Json& value, std::string_view field, const IntRange& range, int64_t* out);
Status read_number(const Json& value, std::string_view field, const NumberRange& range, float* out);
Status read_string(const Json& value, std::string_view field, size_t max_bytes, std::string* out);
// A list of integers in [0, vocab_size).
Status read_token_ids(const Json& value, std::string_view field, int vocab_size, size_t max_items,
                      std::vector<int32_t>* out);

// "a string (\"abc\")", "-1", "a list": a value as messages show it, short and printable.
std::string describe_value(const Json& value);
Status wrong_type(std::string_view field, std::string_view expected, const Json& value);

// What becomes of fields that nothing asked for.
enum class UnknownFields { refused, ignored };

class FieldReader {
 public:
  // `prefix` goes before field names in messages: "sampling_params.".
  explicit FieldReader(const Json& object, std::string prefix = {}, UnknownFields unknown = UnknownFields::refused)
      : object_(object), prefix_(std::move(prefix)), unknown_(unknown) {}
  // Of an object within this one's; its unknown fields are treated alike.
  FieldReader inside(const Json& object, std::string prefix) const {
    return FieldReader(object, std::move(prefix), unknown_);
  }

  // Null when the field is absent or null, or after a failure.
  const Json* find(std::string_view name) const;

  bool get(std::string_view name, bool* out);
  bool get(std::string_view name, const IntRange& range, int* out);
  bool get(std::string_view name, const IntRange& range, int64_t* out);
  bool get(std::string_view name, const NumberRange& range, float* out);
  bool get(std::string_view name, const TextLimit& limit, std::string* out);
  // One text or a list of texts.
  bool get(std::string_view name, const TextLimit& limit, std::vector<std::string>* out);
  // The same without empty texts: "" in place of a list is as an absent field, one within a list a failure.
  bool get_filled(std::string_view name, const TextLimit& limit, std::vector<std::string>* out);
  bool get_token_ids(std::string_view name, int vocab_size, size_t max_items,
                     std::vector<int32_t>* out);

  // Call after the last read: a member that nothing asked for, and that is not null or one of
  // `without_effect`, is a failure that names the nearest field, unless such fields are ignored.
  void refuse_unknown(std::span<const std::string_view> without_effect = {});

  std::string path(std::string_view name) const { return prefix_ + std::string(name); }
  // Keeps the first failure.
  void fail(Status status);
  const Status& status() const { return status_; }

 private:
  bool finish(Status status);

  const Json& object_;
  mutable std::vector<std::string_view> asked_;
  std::string prefix_;
  UnknownFields unknown_;
  Status status_;
};

}  // namespace warpweave::server
