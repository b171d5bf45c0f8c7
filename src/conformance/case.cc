#include "conformance/case.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "kv/latent_token.h"

namespace warpweave::conformance {
namespace {

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", where.c_str(), what.c_str());
  std::abort();
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// Of what is more than one number: whether `key` is of these.
bool set_shape(Case& c, const std::string& key, const std::string& value, const std::string& where) {
  if (key == "reqs") {
    for (const std::string& part : split(value, ',')) {
      Case::Request request;
      int times = 1;
      if (std::sscanf(part.c_str(), "%d:%dx%d", &request.q_len, &request.kv_len, &times) < 2) {
        fail(where, "reqs needs Q:KV, has " + part);
      }
      c.requests.insert(c.requests.end(), times, request);
    }
  } else if (key == "heads") {
    if (std::sscanf(value.c_str(), "%d/%d", &c.q_heads, &c.kv_heads) != 2) fail(where, "heads=Q/KV");
  } else if (key == "latent") {
    int rope = 0;
    if (std::sscanf(value.c_str(), "%d+%d", &c.v_head_dim, &rope) != 2) fail(where, "latent=RANK+ROPE");
    c.latent = true;
    c.head_dim = c.v_head_dim + rope;
  } else if (key == "kv") {
    for (const std::string& name : split(value, ',')) {
      const std::optional<KvFormat> format = parse_kv_format(name);
      if (!format) fail(where, "unknown KV format " + name);
      c.kv_formats.push_back(*format);
    }
  } else {
    return false;
  }
  return true;
}

void set(Case& c, const std::string& key, const std::string& value, const std::string& where) {
  if (set_shape(c, key, value, where)) return;
  if (key == "d") {
    c.head_dim = c.v_head_dim = std::stoi(value);
  } else if (key == "dv") {
    c.v_head_dim = std::stoi(value);
  } else if (key == "page") {
    c.page_size = std::stoi(value);
    c.any_page = false;
  } else if (key == "mode") {
    c.decode = value == "decode";
  } else if (key == "window") {
    c.window = std::stoi(value);
  } else if (key == "right") {
    c.window_right = std::stoi(value);
  } else if (key == "softcap") {
    c.softcap = std::stof(value);
  } else if (key == "sinks") {
    c.sinks = value == "1";
  } else if (key == "data") {
    c.data = value == "descending"  ? Data::descending
             : value == "ascending" ? Data::ascending
             : value == "biased"    ? Data::biased
             : value == "constant"  ? Data::constant
                                    : Data::normal;
  } else if (key == "causal") {
    c.causal = value == "1";
  } else if (key == "dual") {
    c.dual_chunk_len = std::stoi(value);
  } else if (key == "tree") {
    c.tree = value == "chain" ? Tree::chain : value == "full" ? Tree::full : Tree::random;
  } else if (key == "shared") {
    c.shared = std::stoi(value);
  } else if (key == "scales") {
    c.head_scales = value != "none";
  } else if (key == "gap") {
    c.gap = std::stoi(value);
  } else if (key == "far") {
    c.far = value == "1";
  } else if (key == "in_order") {
    c.in_order = std::stoi(value);
  } else {
    fail(where, "unknown key " + key);
  }
}

bool fits_fp4(const Case& c) {
  return c.head_dim % kFp4BlockElements == 0 && c.v_head_dim % kFp4BlockElements == 0;
}

bool fits_packed(const Case& c) {
  return c.latent && c.head_dim == kPackedTokenDim && c.v_head_dim == kPackedLatentDim;
}

std::vector<KvFormat> formats_of(const Case& c) {
  std::vector<KvFormat> formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                                   KvFormat::fp8_e5m2};
  if (fits_fp4(c) && !c.latent) formats.push_back(KvFormat::fp4_e2m1);
  if (fits_packed(c)) formats.insert(formats.end(), {KvFormat::fp8_ds_mla, KvFormat::fp4_mla});
  return formats;
}

void check(const Case& c, const std::string& where) {
  if (c.shared > 0 && (c.requests.empty() || c.shared > c.requests[0].kv_len)) {
    fail(where, "the first request is shorter than the shared tokens");
  }
  if (c.window_right >= 0 && c.causal) fail(where, "right= needs causal=0");
  if (c.latent && c.kv_heads != 1) fail(where, "latent attention has one KV head");
  for (const KvFormat format : c.kv_formats) {
    if (format == KvFormat::fp4_e2m1 && !fits_fp4(c)) fail(where, "fp4_e2m1 needs head dims of 16n");
    if (kv_format_is_packed(format) && !fits_packed(c))
      fail(where, "a packed format needs latent attention of 512 + 64 values");
  }
}

}  // namespace

std::vector<Case> parse_cases(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::vector<Case> cases;
  int line_number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = name + ":" + std::to_string(++line_number);
    std::stringstream stream(line);
    Case c;
    if (!(stream >> c.name) || c.name[0] == '#') continue;
    for (std::string word; stream >> word;) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) fail(where, "expected key=value, has " + word);
      set(c, word.substr(0, equals), word.substr(equals + 1), where);
    }
    if (c.kv_formats.empty()) c.kv_formats = formats_of(c);
    check(c, where);
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(path, "cannot be opened (run from the source root)");
  std::stringstream text;
  text << file.rdbuf();
  return parse_cases(text.str(), path);
}

const std::vector<CaseFile>& embedded_case_files() {
  static const std::vector<CaseFile> files = {
#include "case_files.inc"
  };
  return files;
}

}  // namespace warpweave::conformance
