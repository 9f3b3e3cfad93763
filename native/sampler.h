// Sampling and scoring of logit rows. The numbered steps are those of executors/sampling.py, its slow twin in Python,
// whose docstring specifies them.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels.h"

namespace ridgeline {

constexpr int kNoToken = -1;

struct SamplerSetup {
  double temperature = 0;
  int top_k = 0;
  double top_p = 1;
  double min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int min_tokens = 0;
  int top_logprobs = 0;
  std::vector<int32_t> banned_ids;
  std::vector<std::pair<int32_t, float>> logit_bias;
};

// One running sequence's sampling state, persistent across steps.
class SamplerSlot {
 public:
  void open(SamplerSetup setup, const int32_t* prompt, size_t num_prompt, const int32_t* output, size_t num_output);

  // The token at `position` of the sequence, counted; kNoToken when no adjusted logit is finite.
  int sample(const float* logits, int vocab, uint32_t position);

  int top_logprobs() const { return setup_.top_logprobs; }

 private:
  void adjust(const float* logits, int vocab);
  int choose(uint32_t position);
  void keep_best();
  double sum_in_id_order();

  SamplerSetup setup_;
  std::unordered_set<int32_t> in_prompt_;
  std::unordered_map<int32_t, int> output_counts_;
  int num_outputs_ = 0;
  // scratch:
  std::vector<float> adjusted_;      // [vocab]
  std::vector<double> weights_;      // [vocab]
  std::vector<int32_t> candidates_;
  std::vector<int32_t> ascending_;
};

// What is reported of one row of raw logits.
struct RowStatistics {
  bool finite;          // false: a NaN, a +infinity or nothing but -infinity
  float log_sum_exp;
};
RowStatistics row_statistics(const Kernels& kernels, const float* logits, int padded_vocab);

// Ids of the `count` largest logits, best first, ties to the lowest id.
void top_ids(const float* logits, int vocab, int count, int32_t* out);

}  // namespace ridgeline
