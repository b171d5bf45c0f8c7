#include "attention/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "base/json_file.h"
#include "base/mapped_file.h"

namespace warpweave {
namespace {

constexpr int kVersion = 1;
constexpr size_t kMaxBytes = 16 << 20;

// The files of tuned/, put in by the build.
constexpr std::string_view kTunedTables[] = {
#include "tuned_tables.inc"
    ""};

using Json = nlohmann::ordered_json;
using Bucket = std::tuple<int, int, int>;  // batch size, q_len, kv_len

std::string time_text(double us) {
  return us < 1000 ? fmt::format("{:.0f} us", us) : fmt::format("{:.2f} ms", us / 1000);
}

std::string bucket_text(const Bucket& bucket) {
  const auto [batch, q_len, kv_len] = bucket;
  return q_len == 1 ? fmt::format("b{} kv {}", batch, kv_len)
                    : fmt::format("b{} q {} kv {}", batch, q_len, kv_len);
}

KvFormat kv_format_from(const Json& json) {
  const std::string name = json.at("kv_format");
  if (const std::optional<KvFormat> format = parse_kv_format(name)) return *format;
  throw std::invalid_argument("unknown kv_format " + name);
}

TuningPoint point_from(const Json& json) {
  TuningPoint point;
  point.shape = {json.at("num_q_heads"), json.at("num_kv_heads"), json.at("head_dim"),
                 kv_format_from(json), json.value("v_head_dim", 0)};
  point.phase = json.at("phase") == "prefill" ? AttentionPhase::prefill : AttentionPhase::decode;
  point.batch_size = json.at("batch_size");
  point.q_len = json.at("q_len");
  point.kv_len = json.at("kv_len");
  point.backend = json.at("backend");
  point.time_us = json.at("time_us");
  point.page_size = json.value("page_size", 0);
  if (!(point.time_us > 0)) throw std::invalid_argument("time_us must be above 0");
  return point;
}

Json point_json(const TuningPoint& p) {
  Json json = {{"num_q_heads", p.shape.num_q_heads},
          {"num_kv_heads", p.shape.num_kv_heads},
          {"head_dim", p.shape.head_dim},
          {"kv_format", std::string(kv_format_name(p.shape.kv_format))},
          {"phase", p.phase == AttentionPhase::prefill ? "prefill" : "decode"},
          {"batch_size", p.batch_size},
          {"q_len", p.q_len},
          {"kv_len", p.kv_len},
          {"backend", p.backend},
          {"time_us", p.time_us}};
  if (p.page_size > 0) json["page_size"] = p.page_size;
  if (p.shape.v_head_dim > 0) json["v_head_dim"] = p.shape.v_head_dim;
  return json;
}

// [requests, new tokens, prefix, absorbed us, expanded us]
LatentFormPoint latent_point_from(const Json& json) {
  if (json.size() != 5) throw std::invalid_argument("a point of latent_forms has five numbers");
  const LatentFormPoint point = {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4)};
  if (point.requests < 1 || point.new_tokens < 1 || point.prefix < 0)
    throw std::invalid_argument("requests and new tokens must be above 0, prefixes at least 0");
  if (!(point.absorbed_us > 0 && point.expanded_us > 0))
    throw std::invalid_argument("times of latent_forms must be above 0");
  return point;
}

LatentFormSet latent_set_from(const Json& json) {
  LatentFormSet set;
  set.shape = {json.at("num_heads"), json.at("kv_rank"), json.at("nope_dim"),
               json.at("rope_dim"), json.at("v_dim"), kv_format_from(json)};
  if (set.shape.num_heads < 1) throw std::invalid_argument("num_heads must be above 0");
  set.date = json.at("date");
  for (const Json& point : json.at("points")) set.points.push_back(latent_point_from(point));
  if (!LatentFormTimes::of(set.points)) {
    throw std::invalid_argument(
        "latent_forms need one request of every number of new tokens behind every prefix, and crowds of requests");
  }
  return set;
}

Json latent_set_json(const LatentFormSet& set) {
  Json json;
  json["num_heads"] = set.shape.num_heads;
  json["kv_rank"] = set.shape.kv_rank;
  json["nope_dim"] = set.shape.nope_dim;
  json["rope_dim"] = set.shape.rope_dim;
  json["v_dim"] = set.shape.v_dim;
  json["kv_format"] = std::string(kv_format_name(set.shape.kv_format));
  json["date"] = set.date;
  Json& points = json["points"] = Json::array();
  for (const LatentFormPoint& p : set.points)
    points.push_back({p.requests, p.new_tokens, p.prefix, p.absorbed_us, p.expanded_us});
  return json;
}

KvFormat in_16_bits_as_bf16(KvFormat format) { return format == KvFormat::f16 ? KvFormat::bf16 : format; }

// Rows of absorbed prompts stand in tiles that hold the heads of whole tokens (attention/cuda/mla/mla_backend.cc): they
// take as long as so many heads would that fill the tiles.
double heads_with_idle_rows(int heads) {
  constexpr int kTileRows = 128;
  return heads > kTileRows ? heads : static_cast<double>(kTileRows) / (kTileRows / heads);
}

bool differ_in_heads_alone(LatentFormShape a, LatentFormShape b) {
  a.num_heads = b.num_heads;
  a.kv_format = in_16_bits_as_bf16(a.kv_format);
  b.kv_format = in_16_bits_as_bf16(b.kv_format);
  return a == b;
}

}  // namespace

TuningShape tuning_shape(const ModelFacts& model, KvFormat kv_format) {
  return {model.num_q_heads, model.num_kv_heads, model.head_dim, kv_format,
          model.kind == AttentionKind::mla ? model.v_head_dim : 0};
}

Result<TuningTable> TuningTable::parse(std::string_view text) {
  try {
    WW_ASSIGN_OR_RETURN(const Json json, read_json<Json>(text, {"the tuning file", StatusCode::data_loss}));
    if (json.at("version") != kVersion) {
      return Status::data_loss(fmt::format("version is {}; this program reads {}",
                                           json.at("version").dump(), kVersion));
    }
    TuningTable table(json.at("device"), json.at("date"));
    for (const Json& point : json.at("measurements")) table.add(point_from(point));
    if (json.contains("latent_forms")) {
      for (const Json& set : json.at("latent_forms")) table.add(latent_set_from(set));
    }
    return table;
  } catch (const std::exception& e) {
    return Status::data_loss(fmt::format("not a tuning file: {}; write one with: warpweave tune",
                                         e.what()));
  }
}

Result<TuningTable> TuningTable::read(const std::string& path) {
  const Result<std::string> text = read_text_file(path, kMaxBytes);
  if (!text.ok()) {
    const char* fix =
        text.status().code() == StatusCode::not_found ? "; write one with: warpweave tune --output FILE" : "";
    return Status(text.status().code(), text.status().message() + fix, "--attention-tuning-file");
  }
  Result<TuningTable> table = parse(*text);
  if (table.ok()) return table;
  const Status failed = table.status().with_context(path);
  return Status(failed.code(), failed.message(), "--attention-tuning-file");
}

std::string TuningTable::to_json() const {
  Json points = Json::array();
  for (const TuningPoint& point : points_) points.push_back(point_json(point));
  Json json = {{"version", kVersion}, {"device", device_}, {"date", date_},
               {"measurements", points}};
  if (!latent_sets_.empty()) {
    Json latent = Json::array();
    for (const LatentFormSet& set : latent_sets_) latent.push_back(latent_set_json(set));
    json["latent_forms"] = std::move(latent);
  }
  return json.dump(1, ' ') + "\n";
}

TuningTable::LatentForms TuningTable::latent_forms(const HardwareFacts& hardware, const LatentFormShape& shape) const {
  if (device_ != hardware.name) return {};
  const LatentFormSet *fewer = nullptr, *more = nullptr;  // or as many
  for (const LatentFormSet& set : latent_sets_) {
    if (!differ_in_heads_alone(set.shape, shape) || !LatentFormTimes::of(set.points)) continue;
    const int heads = set.shape.num_heads;
    if (heads <= shape.num_heads && (fewer == nullptr || heads > fewer->shape.num_heads)) fewer = &set;
    if (heads >= shape.num_heads && (more == nullptr || heads < more->shape.num_heads)) more = &set;
  }
  if (fewer == nullptr && more == nullptr) return {};
  const LatentFormSet& low = fewer != nullptr ? *fewer : *more;
  const LatentFormSet& high = more != nullptr ? *more : low;
  const int from = low.shape.num_heads, to = high.shape.num_heads;
  LatentForms out = {.times = *LatentFormTimes::of(low.points), .measurements = {}};
  if (to > from) {
    const auto share = [&](double heads) { return std::min(1.0, (heads - from) / (to - from)); };
    const LatentFormTimes::Shares shares = {.absorbed = share(heads_with_idle_rows(shape.num_heads)),
                                            .expanded = share(shape.num_heads)};
    out.times = LatentFormTimes::between(out.times, *LatentFormTimes::of(high.points), shares);
  } else if (shape.num_heads > from) {
    out.times = out.times.scaled(static_cast<double>(shape.num_heads) / from);
  }
  const std::string heads = to > from ? fmt::format("{} and {} heads", from, to) : fmt::format("{} heads", from);
  out.measurements =
      fmt::format("on {}, {}, {}, {} KV", device_, low.date, heads, kv_format_name(low.shape.kv_format));
  return out;
}

std::vector<TuningTable::Ranked> TuningTable::ranking(const HardwareFacts& hardware,
                                                      const TuningShape& shape,
                                                      AttentionPhase phase,
                                                      std::string& why_not) const {
  if (device_ != hardware.name) {
    why_not = fmt::format("the tuning file measured {}, this is {}", device_, hardware.name);
    return {};
  }
  std::map<Bucket, double> best;
  std::map<std::string, std::map<Bucket, double>> times;
  for (const TuningPoint& p : points_) {
    if (p.phase != phase || !(p.shape == shape)) continue;
    const Bucket bucket = {p.batch_size, p.q_len, p.kv_len};
    times[p.backend][bucket] = p.time_us;
    const auto [entry, added] = best.emplace(bucket, p.time_us);
    if (!added) entry->second = std::min(entry->second, p.time_us);
  }
  std::vector<Ranked> ranked;
  for (const auto& [backend, buckets] : times) {
    if (buckets.size() != best.size()) continue;
    double log_sum = 0;
    std::string text;
    for (const auto& [bucket, us] : buckets) {
      log_sum += std::log(us / best[bucket]);
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", bucket_text(bucket), time_text(us));
    }
    ranked.push_back({backend, std::exp(log_sum / static_cast<double>(buckets.size())), text});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    return a.relative_time < b.relative_time;
  });
  if (ranked.empty()) {
    why_not = fmt::format("the tuning file has no measurement of {}/{} heads, head dim {}, {} KV",
                          shape.num_q_heads, shape.num_kv_heads, shape.head_dim,
                          kv_format_name(shape.kv_format));
  }
  return ranked;
}

const TuningTable* builtin_tuning(std::string_view device) {
  static const std::vector<TuningTable> tables = [] {
    std::vector<TuningTable> all;
    for (const std::string_view text : kTunedTables) {
      if (text.empty()) continue;
      Result<TuningTable> table = TuningTable::parse(text);
      if (!table.ok()) throw std::bad_alloc();  // tuning_test reads them all: only memory can lack
      all.push_back(std::move(*table));
    }
    return all;
  }();
  for (const TuningTable& table : tables) {
    if (table.device() == device) return &table;
  }
  return nullptr;
}

}  // namespace warpweave
