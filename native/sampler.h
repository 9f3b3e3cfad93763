// Sampling and scoring of logit rows. The numbered steps are those of executors/sampling.py, its slow twin in Python,
// whose docstring specifies them.
//
// The product that writes logits keeps the largest of each block of kTopIds ids beside them, from the cache. The best
// token, or the best few, are then found without reading the row again: they stand in the blocks of the best maxima.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels.h"

namespace ridgeline {

constexpr int kNoToken = -1;
constexpr int kNoLogprobs = -1;

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
  int top_logprobs = 0;  // kNoLogprobs: not even the token's own
  std::vector<int32_t> banned_ids;
  std::vector<std::pair<int32_t, float>> logit_bias;
};

// One row of logits.
struct Logits {
  const Kernels& kernels;
  const float* values;  // [vocab], padded with -infinity to a multiple of 16
  const float* maxima;  // of each kTopIds of them, as Kernels::block_maxima gives them
  int vocab;

  int num_blocks() const { return (vocab + kTopIds - 1) / kTopIds; }
  int padded_vocab() const { return (vocab + kLanes - 1) / kLanes * kLanes; }
  int block_end(int block) const;  // padding counted
  float max() const;               // not finite: a NaN, a +infinity or nothing but -infinity
  int first_of(float max) const;
  float log_sum_exp() const;

  // Ids of the `count` largest, or of all if there are fewer, best first, ties to the lowest id.
  void best_ids(int count, std::vector<int32_t>& ids) const;
};

// One running sequence's sampling state, persistent across steps.
class SamplerSlot {
 public:
  void open(SamplerSetup setup, const int32_t* prompt, size_t num_prompt, const int32_t* output, size_t num_output);

  // The token at `position` of the sequence, counted; kNoToken when no adjusted logit is finite.
  int sample(const Logits& logits, uint32_t position);

  int top_logprobs() const { return setup_.top_logprobs; }

 private:
  struct Candidate {
    int32_t id;
    double weight;
  };

  bool is_adjusted() const;
  Logits adjust(const Logits& logits);
  int choose(const Logits& logits, uint32_t position);
  int draw_from_all(const Logits& logits, double uniform);
  int draw_from_best(const Logits& logits, double uniform);
  double weigh_blocks(const Logits& logits);
  void weigh_best(const Logits& logits, int count);
  void keep_best(const Logits& logits);
  void keep_most_likely(double total);
  double sum_in_id_order() const;
  double scale() const;

  SamplerSetup setup_;
  std::unordered_set<int32_t> in_prompt_;
  std::unordered_map<int32_t, int> output_counts_;
  int num_outputs_ = 0;
  // scratch:
  std::vector<float> adjusted_, adjusted_maxima_;
  std::vector<double> block_sums_;  // of weights
  std::vector<int32_t> ids_;
  std::vector<Candidate> candidates_;  // best first
};

}  // namespace ridgeline
