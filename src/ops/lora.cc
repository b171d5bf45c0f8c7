#include "ops/lora.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "ops/elementwise.h"

namespace warpweave {
namespace {

constexpr int64_t kGatherGrain = 8;  // rows a thread takes at once

void grow(std::vector<float>& values, int64_t size) {
  if (values.size() < static_cast<size_t>(size)) values.resize(size);
}

}  // namespace

void LoraRows::start(std::span<const LoraAdapter* const> adapters, std::span<const int32_t> q_indptr) {
  row_adapters_.clear();
  if (std::any_of(adapters.begin(), adapters.end(), [](const LoraAdapter* adapter) { return adapter != nullptr; })) {
    row_adapters_.resize(q_indptr[adapters.size()], nullptr);
    for (size_t r = 0; r < adapters.size(); ++r) {
      std::fill(row_adapters_.begin() + q_indptr[r], row_adapters_.begin() + q_indptr[r + 1], adapters[r]);
    }
  }
  sort_rows();
}

void LoraRows::keep(std::span<const int32_t> rows) {
  if (row_adapters_.empty()) return;
  for (size_t i = 0; i < rows.size(); ++i) row_adapters_[i] = row_adapters_[rows[i]];
  row_adapters_.resize(rows.size());
  sort_rows();
}

void LoraRows::sort_rows() {
  by_adapter_.clear();
  for (size_t row = 0; row < row_adapters_.size(); ++row) {
    if (row_adapters_[row] != nullptr) by_adapter_.push_back(static_cast<int32_t>(row));
  }
  std::stable_sort(by_adapter_.begin(), by_adapter_.end(), [this](int32_t a, int32_t b) {
    return row_adapters_[a]->id < row_adapters_[b]->id;
  });
}

void LoraRows::take_segments(int layer, LoraSite site) {
  segments_.clear();
  gathered_.clear();
  place_of_.assign(row_adapters_.size(), -1);
  const LoraAdapter* last = nullptr;
  middle_stride_ = 0;
  for (const int32_t row : by_adapter_) {
    const LoraAdapter* const adapter = row_adapters_[row];
    const LoraUpdate& update = adapter->update(layer, site);
    if (update.parts.empty()) continue;
    const auto place = static_cast<int64_t>(gathered_.size());
    if (adapter != last) segments_.push_back({&update, place, 0});
    last = adapter;
    ++segments_.back().rows;
    middle_stride_ = std::max(middle_stride_, update.shrink.out_features());
    place_of_[row] = static_cast<int32_t>(place);
    gathered_.push_back(row);
  }
}

void LoraRows::gather(const LinearInput& input, ThreadTeam& team) {
  const int64_t cols = segments_.front().update->shrink.in_features();
  const auto rows = static_cast<int64_t>(gathered_.size());
  grow(input_, rows * cols);
  team.parallel_for(rows, kGatherGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = gathered_[i] * input.row_stride;
      if (input.dtype == DType::bf16) {
        bf16_to_f32_row(static_cast<const uint16_t*>(input.data) + from, cols, input_.data() + i * cols);
      } else {
        std::memcpy(input_.data() + i * cols, static_cast<const float*>(input.data) + from, cols * sizeof(float));
      }
    }
  });
}

void LoraRows::shrink(int64_t in_features, ThreadTeam& team) {
  grow(middle_, static_cast<int64_t>(gathered_.size()) * middle_stride_);
  tasks_.clear();
  for (const Segment& segment : segments_) {
    tasks_.push_back(
        {.linear = &segment.update->shrink,
         .x = {.data = input_.data() + segment.first * in_features, .rows = segment.rows, .row_stride = in_features},
         .y = {.data = middle_.data() + segment.first * middle_stride_, .row_stride = middle_stride_}});
  }
  PackedLinear::forward_all(tasks_, team);
}

void LoraRows::scale_rows(ThreadTeam& team) {
  const auto scale_row = [&](const LoraUpdate& update, float* row) {
    for (const LoraUpdate::Part& part : update.parts) {
      float* const values = row + part.first_rank;
      const int64_t rank = part.expand.in_features();
      for (int64_t i = 0; i < rank; ++i) values[i] *= part.scale;
    }
  };
  team.parallel_for(static_cast<int64_t>(segments_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const Segment& segment = segments_[s];
      for (int64_t i = 0; i < segment.rows; ++i) {
        scale_row(*segment.update, middle_.data() + (segment.first + i) * middle_stride_);
      }
    }
  });
}

void LoraRows::expand(int64_t columns, ThreadTeam& team) {
  grow(delta_, static_cast<int64_t>(gathered_.size()) * columns);
  tasks_.clear();
  for (const Segment& segment : segments_) {
    float* const delta = delta_.data() + segment.first * columns;
    if (segment.update->columns < columns) std::fill_n(delta, segment.rows * columns, 0.0f);
    for (const LoraUpdate::Part& part : segment.update->parts) {
      tasks_.push_back({.linear = &part.expand,
                        .x = {.data = middle_.data() + segment.first * middle_stride_ + part.first_rank,
                              .rows = segment.rows, .row_stride = middle_stride_},
                        .y = {.data = delta + part.first_column, .row_stride = columns}});
    }
  }
  PackedLinear::forward_all(tasks_, team);
}

LinearAddend LoraRows::addend(int layer, LoraSite site, const LinearInput& input, int64_t columns, ThreadTeam& team) {
  if (by_adapter_.empty()) return {};
  assert(input.rows == static_cast<int64_t>(row_adapters_.size()));
  take_segments(layer, site);
  if (segments_.empty()) return {};
  gather(input, team);
  shrink(segments_.front().update->shrink.in_features(), team);
  scale_rows(team);
  expand(columns, team);
  return {.values = delta_.data(), .row_stride = columns, .rows = place_of_.data()};
}

}  // namespace warpweave
