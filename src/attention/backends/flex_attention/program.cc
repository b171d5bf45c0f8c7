#include "attention/backends/flex_attention/program.h"

#include <algorithm>
#include <bit>

namespace warpweave::flex_attention {
namespace {

using mods::Cell;
using mods::Node;
using mods::Op;
using mods::ValueType;

int32_t variable(Op op, const Cell& cell) {
  switch (op) {
    case Op::q_idx: return cell.q_idx;
    case Op::request: return cell.request;
    case Op::head: return cell.head;
    case Op::q_len: return cell.q_len;
    case Op::kv_len: return cell.kv_len;
    case Op::num_heads: return cell.num_heads;
    default: return cell.head_dim;
  }
}

int32_t bits_of(const mods::Value& value, ValueType type) {
  switch (type) {
    case ValueType::boolean: return -value.integer;  // true is all ones
    case ValueType::integer: return value.integer;
    case ValueType::real: return std::bit_cast<int32_t>(static_cast<float>(value.real));
  }
  return 0;
}

uint8_t own_variation(Op op) {
  switch (op) {
    case Op::q_idx:
    case Op::head: return Program::row;
    case Op::kv_idx: return Program::column;
    case Op::score: return Program::cell;
    default: return Program::nothing;
  }
}

}  // namespace

Program::Program(mods::Expression expression) : expression_(std::move(expression)) {
  for (const Node& node : expression_.nodes) {
    uint8_t bits = own_variation(node.op);
    const uint16_t parts[] = {node.a, node.b, node.c};
    for (int i = 0; i < operand_count(node.op); ++i) bits |= variation_[parts[i]];
    variation_.push_back(static_cast<Variation>(bits));
  }
  assign_slots();
}

// A slot is free again after the last node that reads it; that node may write it.
void Program::assign_slots() {
  const std::vector<Node>& nodes = expression_.nodes;
  std::vector<size_t> last_use(nodes.size(), 0);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const uint16_t parts[] = {nodes[i].a, nodes[i].b, nodes[i].c};
    for (int k = 0; k < operand_count(nodes[i].op); ++k) last_use[parts[k]] = i;
  }
  std::vector<int> free;
  slot_.assign(nodes.size(), -1);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (variation_[i] != cell || nodes[i].op == Op::score) continue;
    const uint16_t parts[] = {nodes[i].a, nodes[i].b, nodes[i].c};
    for (int k = 0; k < operand_count(nodes[i].op); ++k) {
      if (slot_[parts[k]] < 0 || last_use[parts[k]] != i) continue;
      free.push_back(slot_[parts[k]]);
      last_use[parts[k]] = nodes.size();  // once, also when the node reads it twice
    }
    if (free.empty()) free.push_back(num_slots_++);
    slot_[i] = free.back();
    free.pop_back();
  }
}

void ProgramRun::row_values(const Program& program, const Cell& cell, int row) {
  const std::vector<Node>& nodes = program.expression().nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (program.variation(i) > Program::row) continue;
    const Node& node = nodes[i];
    if (node.op == Op::constant) {
      values_[i] = {node.integer, node.real};
    } else if (operand_count(node.op) == 0) {
      values_[i] = {variable(node.op, cell), 0};
    } else {
      const mods::Value operands[] = {values_[node.a], values_[node.b], values_[node.c]};
      values_[i] = apply(node.op, nodes[node.a].type, node.type, operands);
    }
    row_storage_[i * rows_ + row] = bits_of(values_[i], node.type);
  }
}

void ProgramRun::start_tile(const Program& program, std::span<const Cell> rows) {
  const size_t nodes = program.expression().nodes.size();
  rows_ = static_cast<int>(rows.size());
  const auto grow = [](auto& list, size_t size) { if (list.size() < size) list.resize(size); };
  grow(values_, nodes);
  grow(row_storage_, nodes * rows_);
  grow(column_storage_, nodes * kStripColumns);
  grow(cell_storage_, static_cast<size_t>(program.num_slots()) * rows_ * kStripColumns);
  for (int row = 0; row < rows_; ++row) row_values(program, rows[row], row);
}

StripOperand ProgramRun::operand(const Program& program, size_t node, const float* scores) const {
  switch (program.variation(node)) {
    case Program::nothing: return {row_storage_.data() + node * rows_, 0, false};
    case Program::row: return {row_storage_.data() + node * rows_, 1, false};
    case Program::column: return {column_storage_.data() + node * kStripColumns, 0, true};
    case Program::cell: break;
  }
  if (program.expression().nodes[node].op == Op::score) return {scores, kStripColumns, true};
  const size_t offset = static_cast<size_t>(program.slot(node)) * rows_ * kStripColumns;
  return {cell_storage_.data() + offset, kStripColumns, true};
}

void ProgramRun::compute(const Program& program, const Strips& strips, const Strip& of, void* out) const {
  const std::vector<Node>& nodes = program.expression().nodes;
  const Node& n = nodes[of.node];
  const int operands = operand_count(n.op);
  const StripOperand a = operand(program, n.a, of.scores);
  strips.compute({n.op, nodes[n.a].type, n.type, of.rows, a,
                  operands > 1 ? operand(program, n.b, of.scores) : a,
                  operands > 2 ? operand(program, n.c, of.scores) : a, out});
}

void ProgramRun::start_block(const Program& program, const Strips& strips, const int32_t* kv_idx) {
  const std::vector<Node>& nodes = program.expression().nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (program.variation(i) != Program::column) continue;
    int32_t* out = column_storage_.data() + i * kStripColumns;
    if (nodes[i].op == Op::kv_idx) {
      std::copy_n(kv_idx, kStripColumns, out);
    } else {
      compute(program, strips, {i, 1, nullptr}, out);
    }
  }
}

StripOperand ProgramRun::run(const Program& program, const Strips& strips, float* scores,
                             bool in_place) {
  const std::vector<Node>& nodes = program.expression().nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (program.variation(i) != Program::cell || nodes[i].op == Op::score) continue;
    const size_t offset = static_cast<size_t>(program.slot(i)) * rows_ * kStripColumns;
    const bool to_scores = in_place && i + 1 == nodes.size();
    compute(program, strips, {i, rows_, scores},
            to_scores ? static_cast<void*>(scores) : cell_storage_.data() + offset);
  }
  return operand(program, nodes.size() - 1, scores);
}

StripOperand ProgramRun::mask(const Program& program, const Strips& strips) {
  return run(program, strips, nullptr, false);
}

void ProgramRun::change_scores(const Program& program, const Strips& strips, float* scores) {
  const StripOperand result = run(program, strips, scores, true);
  const size_t last = program.expression().nodes.size() - 1;
  if (program.variation(last) != Program::cell) strips.copy(result, rows_, scores);
}

}  // namespace warpweave::flex_attention
