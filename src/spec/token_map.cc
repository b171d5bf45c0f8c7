#include "spec/token_map.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/json_parse.h"

namespace warpweave {
namespace {

static_assert(std::endian::native == std::endian::little);  // of the zip archive's numbers and of the tensor's

Status refused(const std::string& why) {
  return Status::invalid_argument("--speculative-token-map: " + why, "--speculative-token-map");
}

template <typename T>
std::optional<T> number_at(std::string_view bytes, size_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return std::nullopt;
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof(T));
  return out;
}

// The archive's directory stands at its end, behind a comment of at most 64 KiB.
std::optional<size_t> end_record(std::string_view zip) {
  constexpr size_t kSize = 22, kMostComment = 65535;
  for (size_t back = kSize; back <= std::min(zip.size(), kSize + kMostComment); ++back) {
    if (number_at<uint32_t>(zip, zip.size() - back) == 0x06054b50u) return zip.size() - back;
  }
  return std::nullopt;
}

// The bytes of the entry that the directory describes at `at`.
std::optional<std::string_view> stored_bytes(std::string_view zip, size_t at) {
  constexpr size_t kLocalSize = 30;
  const auto method = number_at<uint16_t>(zip, at + 10);
  const auto size = number_at<uint32_t>(zip, at + 24), local = number_at<uint32_t>(zip, at + 42);
  if (!method || !size || !local || *method != 0) return std::nullopt;
  const auto name = number_at<uint16_t>(zip, *local + 26), extra = number_at<uint16_t>(zip, *local + 28);
  if (!name || !extra || number_at<uint32_t>(zip, *local) != 0x04034b50u) return std::nullopt;
  const size_t begin = size_t{*local} + kLocalSize + *name + *extra;
  if (begin > zip.size() || zip.size() - begin < *size) return std::nullopt;
  return zip.substr(begin, *size);
}

// The stored entry whose name ends so.
std::optional<std::string_view> find_entry(std::string_view zip, std::string_view suffix) {
  constexpr size_t kSize = 46;
  const auto end = end_record(zip);
  if (!end) return std::nullopt;
  const auto entries = number_at<uint16_t>(zip, *end + 10);
  const auto directory = number_at<uint32_t>(zip, *end + 16);
  if (!entries || !directory) return std::nullopt;
  size_t at = *directory;
  for (int i = 0; i < *entries; ++i) {
    const auto name = number_at<uint16_t>(zip, at + 28), extra = number_at<uint16_t>(zip, at + 30);
    const auto comment = number_at<uint16_t>(zip, at + 32);
    if (!comment || number_at<uint32_t>(zip, at) != 0x02014b50u || zip.size() - at < kSize + *name) return std::nullopt;
    if (zip.substr(at + kSize, *name).ends_with(suffix)) return stored_bytes(zip, at);
    at += kSize + *name + *extra + *comment;
  }
  return std::nullopt;
}

template <typename T>
std::vector<int64_t> numbers_of(std::string_view bytes) {
  std::vector<int64_t> out(bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) out[i] = *number_at<T>(bytes, i * sizeof(T));
  return out;
}

// A pickled list of whole numbers.
Result<std::vector<int64_t>> read_pickled_list(std::string_view pickle) {
  const Status other = refused("the file holds neither a list nor a tensor of whole numbers");
  std::vector<int64_t> out;
  for (size_t at = 0; at < pickle.size();) {
    const char instruction = pickle[at++];
    std::optional<int64_t> number;
    size_t operand_bytes = 0;
    switch (instruction) {
      case '\x80': case 'q': case 'h': operand_bytes = 1; break;  // PROTO, BINPUT, BINGET
      case 'r': operand_bytes = 4; break;                         // LONG_BINPUT
      case '\x95': operand_bytes = 8; break;                      // FRAME
      case ']': case '(': case 'e': case 'a': case '\x94': break;  // EMPTY_LIST, MARK, APPENDS, APPEND, MEMOIZE
      case 'K': number = number_at<uint8_t>(pickle, at); operand_bytes = 1; break;
      case 'M': number = number_at<uint16_t>(pickle, at); operand_bytes = 2; break;
      case 'J': number = number_at<int32_t>(pickle, at); operand_bytes = 4; break;
      case '.': return out;
      default: return other;
    }
    if (pickle.size() - at < operand_bytes) return other;
    at += operand_bytes;
    if (number) out.push_back(*number);
  }
  return other;
}

Result<std::vector<int64_t>> read_torch(std::string_view zip) {
  const auto pickle = find_entry(zip, "/data.pkl");
  if (!pickle) return refused("the file is a zip archive without a stored data.pkl; write it with torch.save()");
  const auto tensor = find_entry(zip, "/data/0");
  if (!tensor) return read_pickled_list(*pickle);
  if (pickle->find("LongStorage") != std::string_view::npos) return numbers_of<int64_t>(*tensor);
  if (pickle->find("IntStorage") != std::string_view::npos) return numbers_of<int32_t>(*tensor);
  return refused("the tensor's type is neither torch.int64 nor torch.int32");
}

Result<std::vector<int64_t>> read_json_list(std::string_view text) {
  auto parsed = parse_json(text);
  if (!parsed.ok()) return refused("the file is neither a JSON list of token ids nor a tensor of torch.save(): " + parsed.status().message());
  const OwnedJson list(std::move(*parsed));
  if (!list.value.is_array()) return refused("the file's JSON is no list of token ids");
  std::vector<int64_t> out;
  for (const Json& id : list.value) {
    if (!id.is_number_integer()) return refused("the file's list holds something that is no whole number");
    out.push_back(id.get<int64_t>());
  }
  return out;
}

}  // namespace

Result<std::vector<int32_t>> parse_token_map(std::string_view bytes, int vocab_size) {
  WW_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, bytes.starts_with("PK\x03\x04") ? read_torch(bytes) : read_json_list(bytes));
  if (ids.empty()) return refused("the file lists no token");
  std::vector<int32_t> out;
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return refused(fmt::format("the file lists token {}, and the model has tokens 0 to {}", id, vocab_size - 1));
    }
    out.push_back(static_cast<int32_t>(id));
  }
  std::sort(out.begin(), out.end());
  const auto twice = std::adjacent_find(out.begin(), out.end());
  if (twice != out.end()) return refused(fmt::format("the file lists token {} twice", *twice));
  return out;
}

}  // namespace warpweave
