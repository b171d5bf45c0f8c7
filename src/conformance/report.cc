#include "conformance/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "attention/select_rules.h"
#include "base/json_file.h"

namespace warpweave::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<Column, 17> kColumns = {{
    {"prefill", "prefill"},
    {"decode", "decode"},
    {"cached prefix", "cached prefix"},
    {"pages > 1", "pages > 1"},
    {"FP8 KV", "KV fp8_e4m3"},
    {"FP8 e5m2 KV", "KV fp8_e5m2"},
    {"FP4 KV", "KV fp4_e2m1"},
    {"FP8 MMA", "fp8 mma"},
    {"topk = 1", "draft chain"},
    {"topk > 1", "draft tree"},
    {"sliding window", "sliding window"},
    {"softcap", "softcap"},
    {"sinks", "sinks"},
    {"not causal", "not causal"},
    {"head dim 256", "head dim 256"},
    {"deterministic", "deterministic"},
    {"graphs", "graph replay"},
}};

constexpr std::string_view kGraphs = "graphs", kVerify = "target verify";
constexpr std::array<Column, 8> kLinearColumns = {{
    {"GDN prefill", "GDN prefill"},
    {"GDN decode", "GDN decode"},
    {"GDN target verify", "GDN target verify"},
    {"KDA prefill", "KDA prefill"},
    {"KDA decode", "KDA decode"},
    {"KDA target verify", "KDA target verify"},
    {"deterministic", "deterministic"},
    {kGraphs, "graph replay"},
}};

constexpr std::array<std::string_view, 4> kStateNames = {"refused", "claimed", "proven", "failed"};

// A plain question that the backend can answer on its own device: what the columns then vary.
struct Question {
  HardwareFacts hardware;
  ModelFacts model;
  SelectionInput input;
  AttentionPhase phase = AttentionPhase::decode;
};

void plain_question(const Caps& caps, Question& q) {
  for (int i = 0; i < kNumDeviceArchs; ++i) {
    const DeviceArch arch = static_cast<DeviceArch>(i);
    if (caps.archs.has(arch)) q.hardware.arch = arch;
  }
  q.hardware.cuda_version = caps.min_cuda_version;
  for (AttentionKind kind : {AttentionKind::sparse, AttentionKind::mla, AttentionKind::mha}) {
    if (caps.kinds.has(kind)) q.model.kind = kind;
  }
  for (int dim : {576, 256, 64, 128}) {
    if (caps.head_dims.accepts(dim)) q.model.head_dim = dim;
  }
  for (KvFormat format : {KvFormat::fp8_e4m3, KvFormat::bf16}) {
    if (caps.kv_formats.has(format)) q.input.kv_format = format;
  }
  q.model.num_q_heads = q.model.num_kv_heads = 1;
  q.model.dual_chunk = caps.dual_chunk;
  q.input.hardware = &q.hardware;
  q.input.model = &q.model;
  if (!caps.phases.has(AttentionPhase::decode)) q.phase = AttentionPhase::prefill;
}

std::span<const Column> columns_of_report(std::string_view kind) {
  return matrix_columns(kind == kind_name(AttentionKind::linear) ? AttentionKind::linear : AttentionKind::mha);
}

std::string linear_refusal_of(const Caps& caps, std::string_view column) {
  if (column == "deterministic") return caps.deterministic ? "" : "promises no bits that do not depend on the batch";
  if (column == kGraphs) return caps.graph_capture ? "" : "does not capture graphs";
  if (column.ends_with(kVerify)) return caps.spec != SpecSupport::none ? "" : "does not verify drafts";
  const auto phase = column.ends_with("prefill") ? AttentionPhase::prefill : AttentionPhase::decode;
  return caps.phases.has(phase) ? "" : fmt::format("does not run {}", phase_name(phase));
}

void count(const CheckResult& result, Cell& cell) {
  if (!result.passed) {
    if (cell.state != CellState::failed) {
      cell = {CellState::failed, 0, fmt::format("{}, {}: {}", result.variant, result.case_name, result.text)};
    }
    ++cell.checks;
  } else if (cell.state == CellState::claimed || cell.state == CellState::proven) {
    cell.state = CellState::proven;
    ++cell.checks;
  }
}

void add_results(std::span<const CheckResult> results, BackendReport& report) {
  for (const CheckResult& result : results) {
    if (std::find(report.variants.begin(), report.variants.end(), result.variant) ==
        report.variants.end()) {
      continue;
    }
    const auto columns = columns_of_report(report.kind);
    for (size_t i = 0; i < columns.size(); ++i) {
      const bool proves = std::find(result.features.begin(), result.features.end(),
                                    columns[i].feature) != result.features.end();
      if (proves) count(result, report.cells[i]);
    }
  }
}

Json cell_json(const Cell& cell) {
  Json json = {{"state", kStateNames[static_cast<size_t>(cell.state)]}};
  if (cell.checks > 0) json["checks"] = cell.checks;
  if (!cell.text.empty()) json["text"] = cell.text;
  return json;
}

Cell cell_from(const Json& json) {
  const std::string state = json.at("state");
  const auto found = std::find(kStateNames.begin(), kStateNames.end(), state);
  if (found == kStateNames.end()) throw std::invalid_argument("unknown state " + state);
  return {static_cast<CellState>(found - kStateNames.begin()), json.value("checks", 0),
          json.value("text", "")};
}

Json kv_errors_json(const std::vector<KvError>& errors) {
  Json json = Json::object();
  for (const KvError& error : errors) {
    // Four digits: what two machines agree on.
    const auto rounded = [](double x) { return std::stod(fmt::format("{:.4g}", x)); };
    json[error.format] = {
        {"cases", error.cases}, {"mean", rounded(error.mean)}, {"largest", rounded(error.largest)}};
  }
  return json;
}

BackendReport backend_from(const Json& json) {
  BackendReport report;
  report.name = json.at("backend");
  report.kind = json.at("kind");
  report.archs = json.at("archs").get<std::vector<std::string>>();
  report.via = json.value("via", "");
  report.variants = json.at("variants").get<std::vector<std::string>>();
  report.page_sizes = json.at("page_sizes");
  report.expands_pages = json.at("expands_pages");
  for (const Column& column : columns_of_report(report.kind)) {
    report.cells.push_back(cell_from(json.at("cells").at(std::string(column.title))));
  }
  return report;
}

}  // namespace

std::span<const Column> matrix_columns(AttentionKind kind) {
  if (kind == AttentionKind::linear) return kLinearColumns;
  return kColumns;
}

std::string linear_column(std::string_view kind, std::string_view phase) { return fmt::format("{} {}", kind, phase); }

std::string refusal_of(const Caps& caps, std::string_view column) {
  if (caps.kinds.has(AttentionKind::linear)) return linear_refusal_of(caps, column);
  Question q;
  plain_question(caps, q);
  if (column == "prefill" || column == "decode") {
    q.phase = column == "prefill" ? AttentionPhase::prefill : AttentionPhase::decode;
  } else if (column == "cached prefix") {
    // A backend of decode alone meets prefixes when it verifies drafts.
    if (!caps.chunked_prefix) return "computes whole prompts only";
  } else if (column == "pages > 1") {
    const bool any = caps.page_sizes.any || caps.expands_pages ||
                     std::any_of(caps.page_sizes.values.begin(), caps.page_sizes.values.end(),
                                 [](int size) { return size > 1; });
    return any ? "" : fmt::format("needs page size {}", page_sizes_text(caps));
  } else if (column == "FP8 KV") {
    q.input.kv_format = KvFormat::fp8_e4m3;
  } else if (column == "FP8 e5m2 KV") {
    q.input.kv_format = KvFormat::fp8_e5m2;
  } else if (column == "FP4 KV") {
    q.input.kv_format = caps.kinds.has(AttentionKind::mla) ? KvFormat::fp4_mla : KvFormat::fp4_e2m1;
  } else if (column == "FP8 MMA") {
    return caps.fp8_mma.kv_formats.bits != 0 ? "" : "multiplies fp8 KV in 16-bit or f32 arithmetic";
  } else if (column == "topk = 1" || column == "topk > 1") {
    q.input.topk = column == "topk = 1" ? 1 : 4;
  } else if (column == "sliding window") {
    q.model.sliding_window = true;
  } else if (column == "softcap") {
    q.model.softcap = true;
  } else if (column == "sinks") {
    q.model.sinks = true;
  } else if (column == "not causal") {
    q.model.non_causal = true;
  } else if (column == "head dim 256") {
    q.model.head_dim = 256;
  } else if (column == "deterministic") {
    q.input.deterministic = true;
  } else if (column == kGraphs) {
    return caps.graph_capture ? "" : "does not capture graphs";
  }
  // A format that one phase alone reads is claimed for that phase.
  if (!caps.reads(q.input.kv_format, q.phase) && caps.reads(q.input.kv_format, AttentionPhase::prefill)) {
    q.phase = AttentionPhase::prefill;
  }
  const auto broken = check_backend(q.input, {&caps, true, nullptr, true}, q.phase);
  return broken ? broken->text : "";
}

BackendReport claims_of(const Caps& caps) {
  BackendReport report;
  report.name = caps.name;
  for (AttentionKind kind : {AttentionKind::mha, AttentionKind::mla, AttentionKind::sparse, AttentionKind::linear}) {
    if (!caps.kinds.has(kind)) continue;
    report.kind += fmt::format("{}{}", report.kind.empty() ? "" : ", ", kind_name(kind));
  }
  for (int i = 0; i < kNumDeviceArchs; ++i) {
    const DeviceArch arch = static_cast<DeviceArch>(i);
    if (caps.archs.has(arch)) report.archs.emplace_back(arch_name(arch));
  }
  report.page_sizes = page_sizes_text(caps);
  report.expands_pages = caps.expands_pages;
  for (const Column& column : columns_of_report(report.kind)) {
    const std::string rule = refusal_of(caps, column.title);
    report.cells.push_back({rule.empty() ? CellState::claimed : CellState::refused, 0, rule});
  }
  return report;
}

std::vector<KvError> kv_errors_of(std::span<const CheckResult> results) {
  std::map<KvFormat, std::map<std::string, double>> by_case;  // variants share a case's pools
  for (const CheckResult& result : results) {
    if (result.kv_error > 0) by_case[result.kv_format][result.case_name] = result.kv_error;
  }
  std::vector<KvError> errors;
  for (const auto& [format, cases] : by_case) {
    KvError error = {std::string(kv_format_name(format)), static_cast<int>(cases.size()), 0, 0};
    for (const auto& [name, value] : cases) {
      error.mean += value / error.cases;
      error.largest = std::max(error.largest, value);
    }
    errors.push_back(std::move(error));
  }
  return errors;
}

DeviceReport make_report(std::span<const Variant> variants, std::span<const CheckResult> results,
                         std::string date, std::string commit) {
  DeviceReport report = {"", "", std::move(date), std::move(commit), {}, kv_errors_of(results)};
  std::vector<const Caps*> listed;
  for (const Variant& variant : variants) {
    report.device = variant.hardware.name;
    report.arch = arch_name(variant.hardware.arch);
    const auto found = std::find(listed.begin(), listed.end(), variant.caps);
    if (found != listed.end()) {
      report.backends[found - listed.begin()].variants.push_back(variant.name);
      continue;
    }
    listed.push_back(variant.caps);
    report.backends.push_back(claims_of(*variant.caps));
    report.backends.back().variants = {variant.name};
    report.backends.back().via = variant.via;
  }
  for (BackendReport& backend : report.backends) add_results(results, backend);
  return report;
}

std::string report_json(const DeviceReport& report) {
  Json backends = Json::array();
  for (const BackendReport& backend : report.backends) {
    Json cells = Json::object();
    const auto columns = columns_of_report(backend.kind);
    for (size_t i = 0; i < columns.size(); ++i) cells[std::string(columns[i].title)] = cell_json(backend.cells[i]);
    Json entry = {{"backend", backend.name}, {"kind", backend.kind}, {"archs", backend.archs}};
    if (!backend.via.empty()) entry["via"] = backend.via;
    entry["variants"] = backend.variants;
    entry["page_sizes"] = backend.page_sizes;
    entry["expands_pages"] = backend.expands_pages;
    entry["cells"] = cells;
    backends.push_back(std::move(entry));
  }
  Json json = {{"device", report.device}, {"arch", report.arch}, {"date", report.date}, {"commit", report.commit}};
  if (!report.kv_errors.empty()) json["kv_rounding_error"] = kv_errors_json(report.kv_errors);
  json["backends"] = backends;
  return json.dump(1, ' ') + "\n";
}

Result<DeviceReport> parse_report(std::string_view text) {
  try {
    WW_ASSIGN_OR_RETURN(const Json json, read_json<Json>(text, {"the report", StatusCode::data_loss}));
    DeviceReport report = {json.at("device"), json.at("arch"), json.at("date"), json.at("commit"), {}, {}};
    const Json errors = json.value("kv_rounding_error", Json::object());
    for (const auto& [format, error] : errors.items()) {
      report.kv_errors.push_back({format, error.at("cases"), error.at("mean"), error.at("largest")});
    }
    for (const Json& backend : json.at("backends")) report.backends.push_back(backend_from(backend));
    return report;
  } catch (const std::exception& e) {
    return Status::data_loss(
        fmt::format("not a conformance report of this version: {}; make one with: warpweave "
                    "conformance --json", e.what()));
  }
}

std::vector<DeviceReport> committed_reports() {
  static constexpr std::string_view kFiles[] = {
#include "report_files.inc"
      ""};
  std::vector<DeviceReport> reports;
  for (std::string_view file : kFiles) {
    if (file.empty()) continue;
    Result<DeviceReport> report = parse_report(file);
    if (report.ok()) reports.push_back(*std::move(report));
  }
  return reports;
}

}  // namespace warpweave::conformance
