// The norms around a branch: of what it reads of the residual stream, of what it gives, and of the stream after it.
#pragma once

namespace warpweave {

template <typename Device>
struct RowNormOf {
  typename Device::Vector weight;   // [hidden]
  typename Device::Vector bias;     // [hidden] of a layer norm, or empty
};

template <typename Device>
struct BranchNormsOf {
  RowNormOf<Device> in;             // without a weight: the branch reads the rows as they are
  typename Device::Vector out;      // [hidden] on the branch, before it joins; or empty
  RowNormOf<Device> after;  // of the rows once the branch has joined (BERT); on the host; without a weight: none
};

}  // namespace warpweave
