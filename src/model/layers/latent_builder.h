// Finds and packs the weights of latent attention; cuts the matrix of the up-projections into heads.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/layers/latent_weights.h"
#include "model/tensor_packer.h"

namespace warpweave {

// Rows [first, first + rows) of a matrix [all rows, cols], transposed: [cols, rows], in the matrix's own type, which
// has one element a block.
inline std::vector<std::byte> transposed_rows(const TensorView& all, int64_t first, int64_t rows) {
  const int64_t cols = all.shape[1];
  const size_t size = dtype_info(all.dtype).block_bytes;
  const auto* from = static_cast<const std::byte*>(all.data) + first * cols * size;
  std::vector<std::byte> out(rows * cols * size);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c)
      std::memcpy(out.data() + (c * rows + r) * size, from + (r * cols + c) * size, size);
  }
  return out;
}

template <typename Target>
class LatentBuilder {
 public:
  using Device = typename Target::Device;

  LatentBuilder(TensorPacker<Target>& pack, const BranchNames& names)
      : pack_(pack), prefix_(names.prefix), latent_(*pack.config.latent) {}

  Result<LatentWeightsOf<Device>> build(const BranchNames& names) {
    WW_ASSIGN_OR_RETURN(out_.norms, pack_.norms(names));
    WW_RETURN_IF_ERROR(down_projections());
    WW_RETURN_IF_ERROR(heads());
    const int64_t values = int64_t{pack_.config.num_q_heads} * latent_.v_dim;
    WW_ASSIGN_OR_RETURN(out_.o, pack_.linear({part("o_proj", pack_.config.hidden_size, pack_.traits.o_bias)}, values));
    return std::move(out_);
  }

 private:
  PartName part(const char* name, int64_t rows, bool bias) const {
    return {prefix_ + name + ".weight", rows, bias ? prefix_ + name + ".bias" : ""};
  }

  // From the hidden state to queries (through their rank, if they have one) and to the cached row.
  Status down_projections() {
    const bool bias = pack_.traits.latent_bias, compressed = latent_.q_rank > 0;
    const int64_t q_rows = int64_t{pack_.config.num_q_heads} * latent_.qk_dim();
    const PartName queries = compressed ? part("q_a_proj", latent_.q_rank, bias) : part("q_proj", q_rows, false);
    WW_ASSIGN_OR_RETURN(out_.in, pack_.linears({queries, part("kv_a_proj_with_mqa", latent_.token_dim(), bias)},
                                               pack_.config.hidden_size));
    WW_ASSIGN_OR_RETURN(out_.latent_norm, pack_.vector(prefix_ + "kv_a_layernorm.weight", latent_.kv_rank));
    if (!compressed) return {};
    WW_ASSIGN_OR_RETURN(out_.q_norm, pack_.vector(prefix_ + "q_a_layernorm.weight", latent_.q_rank));
    WW_ASSIGN_OR_RETURN(out_.q_up, pack_.linear({part("q_b_proj", q_rows, false)}, latent_.q_rank));
    return {};
  }

  // kv_b_proj has for each head nope_dim rows that make its keys of the latent, then v_dim that make its values.
  Status heads() {
    const std::string name = prefix_ + "kv_b_proj.weight";
    if (!pack_.source->has(name) && pack_.source->has(prefix_ + "k_b_proj.weight")) return split_heads();
    const int64_t head_rows = latent_.nope_dim + latent_.v_dim;
    const int64_t shape[] = {pack_.config.num_q_heads * head_rows, latent_.kv_rank};
    WW_ASSIGN_OR_RETURN(TensorView all, pack_.source->find(name, shape));
    const TensorView stored = all;
    std::vector<float> wide;
    if (is_quantized(all.dtype)) {
      wide = widened(all);
      all.data = wide.data();
      all.dtype = DType::f32;
    }
    const Status status = pack_heads(all, stored);
    pack_.source->release(stored);
    return status.ok() ? status : status.with_context(name);
  }

  // Newer GGUF files have k_b_proj [heads, kv_rank, nope_dim], turned over already, and v_b_proj [heads, v_dim,
  // kv_rank].
  Status split_heads() {
    const int64_t heads = pack_.config.num_q_heads;
    const int64_t k_shape[] = {heads, latent_.kv_rank, latent_.nope_dim},
                  v_shape[] = {heads, latent_.v_dim, latent_.kv_rank};
    WW_ASSIGN_OR_RETURN(const TensorView k, pack_.source->find(prefix_ + "k_b_proj.weight", k_shape));
    WW_ASSIGN_OR_RETURN(const TensorView v, pack_.source->find(prefix_ + "v_b_proj.weight", v_shape));
    Status status;
    if constexpr (Target::kStackedHeads) {
      status = joined_heads(k, v);
    } else {
      for (int64_t h = 0; status.ok() && h < heads; ++h) status = head(matrix_of(k, h), matrix_of(v, h));
    }
    pack_.source->release(k);
    pack_.source->release(v);
    return status.ok() ? status : status.with_context(prefix_ + "k_b_proj.weight");
  }

  // Matrix `index` of a stack.
  static TensorView matrix_of(const TensorView& stack, int64_t index) {
    TensorView out = stack;
    out.rank = 2;
    out.shape = {stack.shape[1], stack.shape[2]};
    out.data = static_cast<const std::byte*>(stack.data) + index * out.size_bytes();
    return out;
  }

  // As stacked_heads takes them, in f32.
  Status joined_heads(const TensorView& k, const TensorView& v) {
    const int64_t nope = latent_.nope_dim, rank = latent_.kv_rank, v_rows = latent_.v_dim, head_rows = nope + v_rows;
    const std::vector<float> keys = widened(k), values = widened(v);
    std::vector<float> joined(k.shape[0] * head_rows * rank);
    for (int64_t h = 0; h < k.shape[0]; ++h) {
      float* const out = joined.data() + h * head_rows * rank;
      for (int64_t r = 0; r < nope; ++r) {
        for (int64_t c = 0; c < rank; ++c) out[r * rank + c] = keys[(h * rank + c) * nope + r];
      }
      std::copy_n(values.data() + h * v_rows * rank, v_rows * rank, out + nope * rank);
    }
    return stacked_heads(
        {.data = joined.data(), .dtype = DType::f32, .rank = 2, .shape = {k.shape[0] * head_rows, rank}});
  }

  // `stored`: `all` as it stands in the file, whose rows may be blocks.
  Status pack_heads(const TensorView& all, const TensorView& stored) {
    if constexpr (Target::kStackedHeads) {
      return stacked_heads(all);
    } else {
      const int64_t head_rows = latent_.nope_dim + latent_.v_dim;
      Status status;
      for (int64_t first = 0; status.ok() && first < all.shape[0]; first += head_rows) {
        const std::vector<std::byte> keys = transposed_rows(all, first, latent_.nope_dim);
        TensorView k = all, v = stored;
        k.data = keys.data();
        k.shape = {latent_.kv_rank, latent_.nope_dim};
        const size_t row_bytes = stored.size_bytes() / stored.shape[0];
        v.data = static_cast<const std::byte*>(stored.data) + (first + latent_.nope_dim) * row_bytes;
        v.shape = {latent_.v_dim, latent_.kv_rank};
        status = head(k, v);
      }
      return status;
    }
  }

  // All heads in one matrix each way (GpuLatentHeads).
  Status stacked_heads(const TensorView& all) {
    const int64_t head_rows = latent_.nope_dim + latent_.v_dim;
    const std::vector<std::byte> zeros(latent_.rope_dim * latent_.kv_rank * dtype_info(all.dtype).block_bytes);
    TensorView no_rows = all;
    no_rows.data = zeros.data();
    no_rows.shape = {latent_.rope_dim, latent_.kv_rank};
    std::vector<std::byte> transposed;
    std::vector<LinearPart> parts;
    for (int64_t first = 0; first < all.shape[0]; first += head_rows) {
      const std::vector<std::byte> of_head = transposed_rows(all, first, latent_.nope_dim);
      transposed.insert(transposed.end(), of_head.begin(), of_head.end());
      parts.push_back({.weight = all, .bias = {}, .first_row = first, .rows = latent_.nope_dim});
      parts.push_back({.weight = no_rows, .bias = {}});
      parts.push_back({.weight = all, .bias = {}, .first_row = first + latent_.nope_dim, .rows = latent_.v_dim});
    }
    LinearPart into{.weight = all, .bias = {}};
    into.weight.data = transposed.data();
    into.weight.shape = {pack_.config.num_q_heads * latent_.kv_rank, latent_.nope_dim};
    WW_ASSIGN_OR_RETURN(out_.heads.into_latent, pack_.target.pack({into}, GluActivation::none, false));
    WW_ASSIGN_OR_RETURN(out_.heads.up, pack_.target.pack(parts, GluActivation::none, false));
    return {};
  }

  // From [kv_rank, nope_dim] and [v_dim, kv_rank].
  Status head(const TensorView& into, const TensorView& from) {
    const auto pack = [&](const TensorView& view) {
      return pack_.target.pack({{.weight = view, .bias = {}}}, GluActivation::none, false);
    };
    WW_ASSIGN_OR_RETURN(out_.heads.into_latent.emplace_back(), pack(into));
    WW_ASSIGN_OR_RETURN(out_.heads.from_latent.emplace_back(), pack(from));
    return {};
  }

  TensorPacker<Target>& pack_;
  const std::string prefix_;
  const LatentConfig& latent_;
  LatentWeightsOf<Device> out_;
};

template <typename Target>
auto build_latent(TensorPacker<Target>& pack, const BranchNames& names)
    -> Result<LatentWeightsOf<typename Target::Device>> {
  return LatentBuilder<Target>(pack, names).build(names);
}

}  // namespace warpweave
