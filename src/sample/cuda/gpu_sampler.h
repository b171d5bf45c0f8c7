// Sampling on the GPU: the choices of sample_row() (row_sampler.h) for rows of logits that stay there.
//
// Greedy rows give the CPU's token. Others keep the same candidates (temperature, top_k, top_p,
// min_p, ties to the lower id) and take one draw, but walk them by id where the CPU walks heaviest
// first, so that the same draw may give another token of the same distribution. Results do not depend on the other
// rows. As there, a row with a NaN, or of only -inf, gives -1 (kNoToken).
#pragma once

#include <cstdint>

namespace warpweave::gpu {

struct alignas(16) SampleRowParams {
  double draw = 0;          // in [0, 1)
  double accept_draw = 0;   // RowGuesses::draw
  int32_t logits_row = -1;  // -1: padding, gives token 0
  float temperature = 0;    // 0: greedy
  int32_t top_k = -1;       // < 1: all
  float top_p = 1;
  float min_p = 0;
  int32_t token_slot = -1;  // of `out`, where its token goes; -1: as its row in `rows`
  // RowGuesses: those of SampleCall::guesses from `guesses` on.
  int32_t guesses = 0, num_guesses = 0;
  float accept_single = 1, accept_acc = 1;
};

// What the CTAs that share a row tell each other. Zero before and after every launch.
struct alignas(16) SharedMaximum {
  unsigned long long key = 0;
  int32_t arrived = 0;
};

// Arrays in GPU memory.
struct SampleCall {
  const SampleRowParams* rows = nullptr;  // [num_rows]
  int num_rows = 0;
  const int32_t* guesses = nullptr;       // null where no row has any
  const float* logits = nullptr;          // [.., vocab_size]
  int vocab_size = 0;
  int32_t* out = nullptr;                 // by token slot
  SharedMaximum* maxima = nullptr;        // [num_rows]; null: no rows are shared
};
// Only enqueues. Calls that run at once need maxima of their own.
void sample_rows(const SampleCall& call, void* stream);

// Rows whose logits are edited before they are sampled, or whose log-probabilities are wanted (edit_kernel.cuh). As in
// SamplerState::edit_logits() and row_logprobs(): repetition penalties first, then what counts subtract, what biases
// add, and masks; log-probabilities are those of the raw logits.
struct LogitEdit {
  int32_t id = 0;   // within the vocabulary, at most once of a kind in a row
  float value = 0;  // a penalty to multiply or divide by, what to subtract, or what to add
};
inline constexpr int kEditKinds = 3;  // in the order of that sentence

struct EditedRow {
  int32_t logits_row = 0;
  int32_t token_slot = 0;                    // of the sampled tokens
  int32_t mask = -1;                         // its row of the masks; -1: none
  int32_t edits[kEditKinds + 1] = {};        // where in the edits those of each kind begin, and where the last end
  int32_t top_num = -1;                      // so many best ones; -1: no log-probabilities
  int32_t wanted_begin = 0, wanted_end = 0;  // of the wanted ids
  int32_t scores = 0;  // where its log-probabilities go: the chosen token's, the best ones', the wanted ones'
};

struct TokenScore {
  float logprob = 0;
  int32_t id = -1;
};

// Arrays in GPU memory.
struct EditCall {
  const EditedRow* rows = nullptr;  // [num_rows]
  int num_rows = 0;
  const uint32_t* masks = nullptr;  // [num_masks, mask_words]: bit i % 32 of word i / 32: id i is allowed
  int num_masks = 0, mask_words = 0;
  const LogitEdit* edits = nullptr;  // [num_edits]
  float* old_values = nullptr;       // [num_edits] what was there before each edit
  int num_edits = 0;
  const int32_t* wanted = nullptr;  // ids; those beyond the vocabulary have -inf
  double* log_sums = nullptr;       // [num_rows]
  TokenScore* scores = nullptr;     // [num_scores]
  int num_scores = 0;
  const int32_t* tokens = nullptr;  // by token slot
  float* logits = nullptr;          // [.., vocab_size], edited in place
  int vocab_size = 0;
};
// Before the sampling: all log-probabilities but those of the chosen tokens, then the edits. Only enqueues; so does the
// next.
void edit_logits(const EditCall& call, void* stream);
// After the sampling: those of the chosen tokens. What a row without a token gets means nothing.
void score_chosen(const EditCall& call, void* stream);

}  // namespace warpweave::gpu
