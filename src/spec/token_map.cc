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

// What a pickle's instructions put together, without those that only keep what may be used again: a number ('i'), a
// text
// ('s'; a global is two of them), or an instruction by its code.
struct PickleItem {
  char kind = 0;
  int64_t number = 0;
  std::string_view text = {};
};

// Takes a line, of which the pickle has the module and the name of a global.
std::optional<std::string_view> take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return line;
}

// The number or the text of an instruction, behind which `rest` then begins; none where it ends too early.
template <typename T>
bool take_number(std::string_view& rest, std::vector<PickleItem>& items) {
  const auto number = number_at<T>(rest, 0);
  if (!number) return false;
  items.push_back({'i', *number});
  rest.remove_prefix(sizeof(T));
  return true;
}

template <typename Length>
bool take_text(std::string_view& rest, std::vector<PickleItem>& items) {
  const auto length = number_at<Length>(rest, 0);
  if (!length || rest.size() - sizeof(Length) < *length) return false;
  items.push_back({'s', 0, rest.substr(sizeof(Length), *length)});
  rest.remove_prefix(sizeof(Length) + *length);
  return true;
}

bool take_global(std::string_view& rest, std::vector<PickleItem>& items) {
  const auto module = take_line(rest), name = take_line(rest);
  if (!module || !name) return false;
  items.push_back({'s', 0, *module});
  items.push_back({'s', 0, *name});
  return true;
}

bool skip(std::string_view& rest, size_t bytes) {
  if (rest.size() < bytes) return false;
  rest.remove_prefix(bytes);
  return true;
}

// One instruction; false where it is none that a list or a tensor of numbers needs.
bool take_instruction(std::string_view& rest, std::vector<PickleItem>& items) {
  const char code = rest.front();
  rest.remove_prefix(1);
  switch (code) {
    case '\x80': case 'q': return skip(rest, 1);  // PROTO, BINPUT
    case 'r': return skip(rest, 4);               // LONG_BINPUT
    case '\x95': return skip(rest, 8);            // FRAME
    case '\x94': case '\x93': return true;        // MEMOIZE; STACK_GLOBAL, of the two texts before it
    case 'K': return take_number<uint8_t>(rest, items);
    case 'M': return take_number<uint16_t>(rest, items);
    case 'J': return take_number<int32_t>(rest, items);
    case 'X': return take_text<uint32_t>(rest, items);
    case '\x8c': return take_text<uint8_t>(rest, items);
    case 'c': return take_global(rest, items);
    // EMPTY_LIST, MARK, APPENDS, APPEND; TUPLE, BINPERSID, TUPLE1, NEWFALSE, EMPTY_TUPLE, REDUCE; STOP
    case ']': case '(': case 'e': case 'a': case 't': case 'Q': case '\x85': case '\x89': case ')': case 'R': case '.':
      items.push_back({code});
      return true;
    default: return false;
  }
}

// Nothing is run: the instructions up to the end, or none where another is met or the end is missing.
std::optional<std::vector<PickleItem>> pickle_items(std::string_view pickle) {
  std::vector<PickleItem> items;
  while (!pickle.empty()) {
    if (!take_instruction(pickle, items)) return std::nullopt;
    if (!items.empty() && items.back().kind == '.') return items;
  }
  return std::nullopt;
}

// A pickled list of whole numbers.
Result<std::vector<int64_t>> read_pickled_list(std::string_view pickle) {
  const Status other = refused("the file holds neither a list nor a tensor of whole numbers");
  const auto items = pickle_items(pickle);
  if (!items || items->front().kind != ']') return other;
  std::vector<int64_t> out;
  for (const PickleItem& item : *items) {
    if (item.kind == 'i') {
      out.push_back(item.number);
    } else if (std::string_view("](ea.").find(item.kind) == std::string_view::npos) {
      return other;
    }
  }
  return out;
}

// Which numbers of the archive's storage a tensor is made of.
struct StorageView {
  std::string_view storage_type;
  int64_t offset = 0, size = 0, stride = 0;
};

// What torch pickles of a tensor of one dimension: none where the pickle is of anything else.
std::optional<StorageView> read_tensor_pickle(std::string_view pickle) {
  static constexpr std::string_view kKinds = "ss((sssssitQii\x85i\x85\x89ss)RtR.";
  constexpr size_t kFunction = 1, kStorageType = 6, kKey = 7, kOffset = 12, kSize = 13, kStride = 15;
  const auto items = pickle_items(pickle);
  if (!items || !std::ranges::equal(*items, kKinds, {}, &PickleItem::kind)) return std::nullopt;
  const std::vector<PickleItem>& at = *items;
  if (at[kFunction].text != "_rebuild_tensor_v2" || at[kKey].text != "0") return std::nullopt;
  return StorageView{at[kStorageType].text, at[kOffset].number, at[kSize].number, at[kStride].number};
}

// The numbers of type T in `storage` that the view is made of; none where it reaches out of it.
template <typename T>
std::optional<std::vector<int64_t>> numbers_of(const StorageView& view, std::string_view storage) {
  const auto stored = static_cast<int64_t>(storage.size() / sizeof(T));
  if (view.offset < 0 || view.size < 0 || view.stride < 0) return std::nullopt;
  if (view.offset > stored || view.size > stored || view.stride > stored) return std::nullopt;
  if (view.size > 0 && view.offset + (view.size - 1) * view.stride >= stored) return std::nullopt;
  std::vector<int64_t> out;
  for (int64_t i = 0; i < view.size; ++i) {
    out.push_back(*number_at<T>(storage, static_cast<size_t>(view.offset + i * view.stride) * sizeof(T)));
  }
  return out;
}

Result<std::vector<int64_t>> read_torch(std::string_view zip) {
  const auto pickle = find_entry(zip, "/data.pkl");
  if (!pickle) return refused("the file is a zip archive without a stored data.pkl; write it with torch.save()");
  const auto storage = find_entry(zip, "/data/0");
  if (!storage) return read_pickled_list(*pickle);
  if (find_entry(zip, "/byteorder").value_or("little") != "little") {
    return refused("the tensor was written on a machine of big-endian numbers; write it as a JSON list");
  }
  const auto view = read_tensor_pickle(*pickle);
  if (!view)
    return refused(
        "the file is no torch.save() of one tensor with one dimension; save tensor.flatten(), or a JSON list");
  std::optional<std::vector<int64_t>> numbers;
  if (view->storage_type == "LongStorage") {
    numbers = numbers_of<int64_t>(*view, *storage);
  } else if (view->storage_type == "IntStorage") {
    numbers = numbers_of<int32_t>(*view, *storage);
  } else {
    return refused("the tensor's type is neither torch.int64 nor torch.int32");
  }
  if (!numbers) return refused("the tensor reaches out of the numbers that the file holds");
  return *std::move(numbers);
}

Result<std::vector<int64_t>> read_json_list(std::string_view text) {
  auto parsed = parse_json(text);
  if (!parsed.ok())
    return refused("the file is neither a JSON list of token ids nor a tensor of torch.save(): " +
                   parsed.status().message());
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
  WW_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                      bytes.starts_with("PK\x03\x04") ? read_torch(bytes) : read_json_list(bytes));
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
