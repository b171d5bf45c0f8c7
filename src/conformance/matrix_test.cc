// docs/matrix.md is what the committed reports say, and they claim what the Caps claim today.
#include "conformance/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "attention/select.h"

namespace warpweave::conformance {
namespace {

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Matrix, TheCommittedOneIsWhatResultsSay) {
  EXPECT_EQ(read_file("docs/matrix.md"), matrix_markdown(committed_reports()))
      << "run: warpweave docs matrix > docs/matrix.md";
}

TEST(Matrix, CommittedResultsAreReadAndNoneFailed) {
  const std::vector<DeviceReport> reports = committed_reports();
  EXPECT_FALSE(reports.empty());
  for (const DeviceReport& report : reports) {
    EXPECT_FALSE(report.device.empty());
    for (const BackendReport& backend : report.backends) {
      for (const Cell& cell : backend.cells) {
        EXPECT_NE(cell.state, CellState::failed) << backend.name << ": " << cell.text;
      }
    }
  }
}

// A backend whose Caps changed must be run again: its recorded claims are not those of today.
TEST(Matrix, RecordedClaimsAreTheCapsOfToday) {
  std::vector<const Caps*> written(written_backends().begin(), written_backends().end());
  for (const KnownBackend& layer : known_layer_backends()) {
    if (layer.written) written.push_back(layer.caps);
  }
  for (const DeviceReport& report : committed_reports()) {
    for (const BackendReport& recorded : report.backends) {
      for (const Caps* caps : written) {
        const BackendReport now = claims_of(*caps);
        if (now.name != recorded.name || now.kind != recorded.kind || now.archs != recorded.archs) continue;
        EXPECT_EQ(now.page_sizes, recorded.page_sizes) << now.name;
        for (size_t i = 0; i < now.cells.size(); ++i) {
          EXPECT_EQ(now.cells[i].state == CellState::refused,
                    recorded.cells[i].state == CellState::refused)
              << now.name << " (" << now.kind << "), column " << i << ": run warpweave conformance --json on "
              << report.device << " again";
        }
      }
    }
  }
}

// A backend for the other phase, that takes whatever is asked.
Caps permissive_caps(AttentionKind kind) {
  Caps caps;
  caps.name = "anything";
  caps.kinds = {kind};
  caps.phases = {AttentionPhase::prefill, AttentionPhase::decode};
  caps.archs.bits = (1u << kNumDeviceArchs) - 1;
  caps.dtypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16};
  caps.kv_formats.bits = ~0u;
  caps.head_dims = caps.page_sizes = IntChoice::any_up_to();
  caps.spec = caps.spec_paged = SpecSupport::tree;
  caps.sliding_window = caps.sinks = caps.softcap = caps.custom_mask = caps.chunked_prefix = caps.non_causal = true;
  caps.graph_capture = caps.deterministic = true;
  return caps;
}

// What a user would write to get this column's feature; nullopt for columns that no flag or model asks for.
struct Asked {
  ModelFacts model;
  AttentionFlags flags;
  bool speculates = false;
};
std::optional<Asked> ask_for(std::string_view column, const Caps& caps) {
  Asked asked;
  asked.model.num_q_heads = asked.model.num_kv_heads = 1;
  for (AttentionKind kind : {AttentionKind::sparse, AttentionKind::mla, AttentionKind::mha}) {
    if (caps.kinds.has(kind)) asked.model.kind = kind;
  }
  for (int dim : {576, 256, 64, 128}) {
    if (caps.head_dims.accepts(dim)) asked.model.head_dim = dim;
  }
  asked.model.dual_chunk = caps.dual_chunk;
  asked.flags.kv_cache_dtype = "bf16";
  if (column == "FP8 KV") asked.flags.kv_cache_dtype = "fp8_e4m3";
  if (column == "FP8 e5m2 KV") asked.flags.kv_cache_dtype = "fp8_e5m2";
  if (column == "FP4 KV") {
    asked.flags.kv_cache_dtype = "fp4_e2m1";
    if (asked.model.kind == AttentionKind::mla) {  // the one shape that packed latent rows have
      asked.model.head_dim = 576;
      asked.model.v_head_dim = 512;
    }
  }
  if (column == "topk = 1" || column == "topk > 1") {
    asked.speculates = true;
    asked.flags.speculative_algorithm = "NGRAM";
    asked.flags.speculative_eagle_topk = column == "topk = 1" ? 1 : 4;
    asked.flags.speculative_num_draft_tokens = 2;
  }
  if (column == "sliding window") asked.model.sliding_window = true;
  if (column == "softcap") asked.model.softcap = true;
  if (column == "sinks") asked.model.sinks = true;
  if (column == "not causal") asked.model.non_causal = true;
  if (column == "head dim 256") asked.model.head_dim = 256;
  if (column == "deterministic") asked.flags.enable_deterministic_inference = true;
  if (column == "FP8 MMA" || column == "pages > 1" || column == "cached prefix") return std::nullopt;
  return asked;
}

// Whether selection lets this backend do it, in a pair with one that can do anything.
bool selection_accepts(const Caps& caps, DeviceArch arch, std::string_view column, Asked asked) {
  const Caps partner = permissive_caps(asked.model.kind);
  const bool deterministic = asked.flags.enable_deterministic_inference;
  const bool alone = deterministic || asked.model.dual_chunk;  // one backend in both phases
  const KnownBackend known[] = {{&caps, true, nullptr, true}, {alone ? &caps : &partner, true, nullptr, true}};
  HardwareFacts hardware = {"a device", arch, 13000};
  const auto accepts = [&](AttentionPhase phase) {
    AttentionFlags flags = asked.flags;
    const std::string name(caps.name), other(alone ? name : std::string(partner.name));
    flags.prefill_attention_backend = phase == AttentionPhase::prefill ? name : other;
    flags.decode_attention_backend = phase == AttentionPhase::decode ? name : other;
    flags.speculative_attention_mode = phase == AttentionPhase::prefill ? "prefill" : "decode";
    const auto resolved = select_attention(hardware, asked.model, flags, known);
    return resolved.ok() && (column != "graphs" || resolved->decode_graphs);
  };
  if (column == "prefill") return accepts(AttentionPhase::prefill);
  if (column == "decode" || column == "graphs" || asked.speculates) return accepts(AttentionPhase::decode);
  if (deterministic && !caps.phases.has(AttentionPhase::prefill)) return caps.deterministic;
  return accepts(AttentionPhase::decode) || accepts(AttentionPhase::prefill);
}

// Caps, selection and the matrix say the same: a cell is refused exactly where selection refuses it.
TEST(Matrix, CellsAreWhatSelectionAnswers) {
  int compared = 0, refused = 0;
  std::vector<const Caps*> all(written_backends().begin(), written_backends().end());
  for (const Caps& caps : declared_backends()) all.push_back(&caps);
  for (const Caps* caps : all) {
    for (size_t i = 0; i < matrix_columns().size(); ++i) {
      const std::string_view column = matrix_columns()[i].title;
      const std::string rule = refusal_of(*caps, column);
      const auto asked = ask_for(column, *caps);
      for (int a = 0; asked && a < kNumDeviceArchs; ++a) {
        const auto arch = static_cast<DeviceArch>(a);
        if (!caps->archs.has(arch)) {
          EXPECT_FALSE(selection_accepts(*caps, arch, column, *asked)) << caps->name << " on " << arch_name(arch);
          continue;
        }
        if (column == "prefill" && caps->prefill_archs.bits != 0 && !caps->prefill_archs.has(arch)) continue;
        EXPECT_EQ(rule.empty(), selection_accepts(*caps, arch, column, *asked))
            << caps->name << ", " << kind_name(asked->model.kind) << ", " << column << " on " << arch_name(arch)
            << ": " << rule;
        ++compared;
        refused += !rule.empty();
      }
    }
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(refused, 300);
}

TEST(Matrix, RowsAreTrueToTheirState) {
  const std::vector<DeviceReport> reports = committed_reports();
  int rows = 0;
  bool amx_is_claimed = false;
  for (const MatrixRow& row : make_matrix(reports)) {
    SCOPED_TRACE(row.name + " " + (row.archs.empty() ? "" : row.archs[0]));
    ++rows;
    EXPECT_EQ(row.cells.size(), columns_of(row.kind).size());
    EXPECT_EQ(row.state == RowState::proven, row.device > 0);
    EXPECT_EQ(row.state == RowState::not_written, row.kernels.decode.empty());
    if (row.state == RowState::proven) {
      ASSERT_EQ(row.archs.size(), 1u);
      EXPECT_EQ(row.archs[0], reports[row.device - 1].arch);
    }
    for (const MatrixCell& cell : row.cells) {
      EXPECT_TRUE(row.state == RowState::proven || cell.state != CellState::proven);
      EXPECT_EQ(cell.state == CellState::refused, cell.state == CellState::refused && !cell.rule.empty());
    }
    // On a CPU the portable tile kernels run through OpenCL, and that is all they prove.
    if (row.state == RowState::proven && row.kernels.decode == "tile" && row.archs[0] == "CPU (x86-64)") {
      EXPECT_TRUE(row.via.starts_with("OpenCL")) << row.via;
    }
    EXPECT_FALSE(row.archs[0] == "Intel GPU" && row.state == RowState::proven);
    const bool amx = std::find(row.tiers.begin(), row.tiers.end(), "amx_bf16") != row.tiers.end();
    amx_is_claimed |= amx;
  }
  EXPECT_TRUE(amx_is_claimed) << "a row says which of the CPU's kernels ran";
  EXPECT_GT(rows, 40);
}

// Every kind of layer has rows, written or not.
TEST(Matrix, EveryKindHasRows) {
  std::set<AttentionKind> kinds;
  for (const MatrixRow& row : make_matrix({})) {
    kinds.insert(row.kind);
    EXPECT_NE(row.state, RowState::proven) << "without reports nothing is proven";
  }
  EXPECT_EQ(kinds.size(), 5u);
}

TEST(Matrix, JsonSaysTheSame) {
  const std::vector<DeviceReport> reports = committed_reports();
  const auto json = nlohmann::json::parse(matrix_json(reports));
  const std::vector<MatrixRow> rows = make_matrix(reports);
  ASSERT_EQ(json["rows"].size(), rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(json["rows"][r]["backend"], rows[r].name);
    EXPECT_EQ(json["rows"][r]["cells"].size(), rows[r].cells.size());
    for (const auto& [column, cell] : json["rows"][r]["cells"].items()) {
      const std::string state = cell["state"];
      EXPECT_EQ(cell.contains("rule"), state == "refused") << column;
      EXPECT_TRUE(rows[r].state != RowState::not_written || state == "refused" || state == "not written") << column;
    }
  }
  EXPECT_EQ(json["devices"].size(), reports.size());
}

Variant fake_variant(const Caps& caps) {
  return {std::string(caps.name), "cpu", {"A device", DeviceArch::cpu_x86_64, 0}, &caps, nullptr, {}, 1};
}

CheckResult passed_check(std::vector<std::string> features, bool passed) {
  CheckResult result;
  result.variant = "intel_amx";
  result.case_name = "some_case";
  result.passed = passed;
  result.features = std::move(features);
  result.text = passed ? "" : "output differs";
  return result;
}

TEST(Report, CellsFollowClaimsAndResults) {
  const Caps* caps = nullptr;
  for (const Caps& declared : declared_backends()) {
    if (declared.name == "intel_amx") caps = &declared;
  }
  ASSERT_NE(caps, nullptr);
  const Variant variants[] = {fake_variant(*caps)};
  const CheckResult results[] = {passed_check({"prefill", "pages > 1"}, true),
                                 passed_check({"prefill"}, true), passed_check({"decode"}, false)};
  const DeviceReport report = make_report(variants, results, "2026-01-31", "abc");
  ASSERT_EQ(report.backends.size(), 1u);
  auto state = [&](std::string_view title) {
    for (size_t i = 0; i < matrix_columns().size(); ++i) {
      if (matrix_columns()[i].title == title) return report.backends[0].cells[i].state;
    }
    return CellState::failed;
  };
  EXPECT_EQ(state("prefill"), CellState::proven);
  EXPECT_EQ(state("decode"), CellState::failed);
  EXPECT_EQ(state("cached prefix"), CellState::claimed);
  EXPECT_EQ(state("FP4 KV"), CellState::refused);

  const auto read = parse_report(report_json(report));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(report_json(*read), report_json(report));
  const DeviceReport reports[] = {*read};
  const std::string text = matrix_markdown(reports, "A device");
  EXPECT_NE(text.find("proven here"), std::string::npos);
  EXPECT_NE(text.find("FAILED here"), std::string::npos);
  EXPECT_EQ(parse_report("{}").status().code(), StatusCode::data_loss);
}

// Two variants share the pools of a case, so a case counts once; formats that round nothing are left out.
TEST(Report, KvRoundingErrorPerFormat) {
  CheckResult results[4] = {passed_check({}, true), passed_check({}, true), passed_check({}, true),
                            passed_check({}, true)};
  for (CheckResult& result : results) result.kv_format = KvFormat::fp8_e4m3;
  results[0].kv_error = results[1].kv_error = 0.03;
  results[1].variant = "intel_amx@avx2";
  results[2].kv_error = 0.02;
  results[2].case_name = "another_case";
  results[3].kv_format = KvFormat::f32;
  const DeviceReport report = make_report({}, results, "2026-01-31", "abc");
  ASSERT_EQ(report.kv_errors.size(), 1u);
  EXPECT_EQ(report.kv_errors[0].format, "fp8_e4m3");
  EXPECT_EQ(report.kv_errors[0].cases, 2);
  EXPECT_DOUBLE_EQ(report.kv_errors[0].mean, 0.025);
  EXPECT_DOUBLE_EQ(report.kv_errors[0].largest, 0.03);
  const auto read = parse_report(report_json(report));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(report_json(*read), report_json(report));
}

}  // namespace
}  // namespace warpweave::conformance
