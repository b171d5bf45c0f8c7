// The kinds of tiles of the experts' GEMMs (expert_gemm.cu): how many places they have, what a stage holds, CTAs of an SM.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/expert_sharing.cuh"

namespace warpweave::gpu {

constexpr int kRowBytes = kExpertRowBytes;
constexpr int kSmBytes = 228 * 1024, kReservedBytes = 1024;  // these of each CTA
constexpr int kFewTilePlaces = 64;
constexpr int kCrowdedNarrowPlaces = 48, kCrowdedFewPlaces = 128;  // in their place, where rows crowd into few experts
constexpr int kGroupThreads = 128, kGroupRows = 64;  // of a warpgroup, weight rows of a tile
constexpr int kBoxColumns = 64;
constexpr int kCtas = 2;                        // of an SM, where tiles may have many places or share their depth
constexpr int64_t kNarrowPlaces = 8;            // an expert, up to where hardly one has more than a narrow tile
constexpr int64_t kSharingExperts = 33;         // of fewer, CTAs may have to share tiles' depth
constexpr int kManyCtas = 3;                    // where so many run all tiles of shared rows at once
constexpr int kLeastSharedChunks = 4;           // of the depth, for each CTA that shares it

// Tiles of up to kMostPlaces places: where these are few, more weights are on their way.
template <class Element_, bool kFp8_, Glu kGlu_, int kMostPlaces_>
struct Tiles {
  using Element = Element_;     // of y, and of 16-bit operands
  static constexpr int kMostPlaces = kMostPlaces_;
  static constexpr bool kFp8 = kFp8_;
  static constexpr Glu kGlu = kGlu_;
  static constexpr bool kNarrow = kMostPlaces == kNarrowTilePlaces;
  static constexpr int kUsualCtas = kNarrow ? 4 : kCtas;  // of an SM
  // Where boxes have several blocks. Tiles of shared rows are short in 8 bits, so that more of them begin while others end.
  static constexpr int kCtasOfBlocks = (kNarrow && !kFp8) || (kMostPlaces == kSharedRows && kFp8) ? 3 : kCtas;
};

template <class T, bool kSplit_ = false, int kResident_ = kSplit_ ? kCtas : T::kUsualCtas, int kGroups_ = 1, int kBlocks_ = 1>
struct Config : T {
  static constexpr bool kSplit = kSplit_;
  // Of kBoxColumns columns, of a box and stage: a CTA gets its bytes faster by fewer, larger boxes, where columns fill them.
  static constexpr int kBlocks = kBlocks_;
  // Stages asked for at once: their bytes of a weight row are neighbours.
  static constexpr int kTogether = kBlocks == 1 && !T::kFp8 && T::kMostPlaces == kFewTilePlaces ? 2 : 1;
  static constexpr int kResident = kResident_;  // CTAs of an SM
  static constexpr int kGroups = kGroups_;      // warpgroups, which share places
  static constexpr int kRows = kGroups * kGroupRows;  // weight rows of a tile
  static constexpr int kConsumers = kGroups * kGroupThreads, kThreads = kConsumers + 32;
  static constexpr int kWeightBytes = kBlocks * kRows * kRowBytes, kPlaceBytes = T::kMostPlaces * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kBlocks * kPlaceBytes;
  static constexpr bool kCrowded = false;
  static constexpr bool kEarly = !kSplit && !T::kFp8 && T::kMostPlaces == kFewTilePlaces;  // and wide boxes
  static constexpr bool kByGroup = T::kFp8 && T::kGlu == Glu::none && T::kMostPlaces == kSharedRows;
  static constexpr int kGroupScaleBytes = kByGroup ? kGroupThreads * 16 : 0;  // behind a staging area
  static constexpr int kStagingBytes = (T::kMostPlaces <= kPassPlaces ? kPassBytes : 2 * kPassBytes) + kGroupScaleBytes;
  static constexpr int kRoomBytes = kSmBytes / kResident - kReservedBytes;
  static constexpr int kSumsBytes = kSplit ? (kMostSharers - 1) * kRunBytes : 0;  // with fewer sharers, no more
  static constexpr int kStages = (kRoomBytes - kGroups * kStagingBytes - kSumsBytes - 8) / (kStageBytes + kBarrierBytes);
  static_assert(kStages >= 3 && (!kSplit || kGroups == 1) && (kBlocks == 1 || kGroups == 1));
};

// Two kinds with the same threads, of which a kernel has the code of both. Barriers stand at one place, and the crowded kind has no more
// stages than fit before them, so that the kernel leaves other kernels as much shared memory as the usual kind alone.
template <class C, int kBarriersAt_, bool kCrowded_>
struct KindOfTwo : C {
  static constexpr int kBarriersAt = kBarriersAt_;
  static constexpr bool kCrowded = kCrowded_;
  static constexpr int kStages = std::min(C::kStages, (kBarriersAt - C::kGroups * C::kStagingBytes) / C::kStageBytes);
  static_assert(kStages >= 3);
};
template <class Usual_, class Crowded_>
struct EitherKind {
  static_assert(Usual_::kThreads == Crowded_::kThreads && Usual_::kResident == Crowded_::kResident && !Usual_::kSplit);
  static constexpr int kBarriersAt = ExpertRing<Usual_>::kBarriersAt;
  using Usual = KindOfTwo<Usual_, kBarriersAt, false>;
  using Crowded = KindOfTwo<Crowded_, kBarriersAt, true>;
  using More = std::conditional_t<(Usual::kStages >= Crowded::kStages), Usual, Crowded>;  // stages
  static constexpr int kSmemBytes = ExpertRing<More>::kSmemBytes;
  static_assert(kSmemBytes <= Usual::kRoomBytes);
};

}  // namespace warpweave::gpu
