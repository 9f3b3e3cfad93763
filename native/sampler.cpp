#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "random.h"

namespace ridgeline {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sorted order: by logit descending, then by id.
struct Better {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

}  // namespace

void SamplerSlot::open(SamplerSetup setup, const int32_t* prompt, size_t num_prompt, const int32_t* output,
                       size_t num_output) {
  setup_ = std::move(setup);
  in_prompt_ = std::unordered_set<int32_t>(prompt, prompt + num_prompt);
  output_counts_.clear();
  for (size_t i = 0; i < num_output; ++i) ++output_counts_[output[i]];
  num_outputs_ = static_cast<int>(num_output);
}

int SamplerSlot::sample(const float* logits, int vocab, uint32_t position) {
  adjust(logits, vocab);
  const int token = choose(position);
  if (token != kNoToken) {
    ++output_counts_[token];
    ++num_outputs_;
  }
  return token;
}

void SamplerSlot::adjust(const float* logits, int vocab) {
  adjusted_.assign(logits, logits + vocab);
  for (const auto& [id, bias] : setup_.logit_bias) adjusted_[id] += bias;  // step 1
  if (num_outputs_ < setup_.min_tokens)                                   // step 2
    for (int32_t id : setup_.banned_ids) adjusted_[id] = -kInfinity;
  if (setup_.repetition_penalty != 1) {  // step 3
    const auto penalize = [&](float& l) {
      l = l > 0 ? l / setup_.repetition_penalty : l * setup_.repetition_penalty;
    };
    for (int32_t id : in_prompt_) penalize(adjusted_[id]);
    for (const auto& [id, count] : output_counts_)
      if (!in_prompt_.contains(id)) penalize(adjusted_[id]);
  }
  if (setup_.presence_penalty != 0 || setup_.frequency_penalty != 0)  // step 4
    for (const auto& [id, count] : output_counts_) {
      const float by_count = setup_.frequency_penalty * static_cast<float>(count);
      adjusted_[id] -= setup_.presence_penalty + by_count;
    }
}

int SamplerSlot::choose(uint32_t position) {
  const int vocab = static_cast<int>(adjusted_.size());
  const auto best = std::max_element(adjusted_.begin(), adjusted_.end());  // the first of equals
  if (!std::isfinite(*best)) return kNoToken;
  const int best_id = static_cast<int>(best - adjusted_.begin());
  if (setup_.temperature == 0) return best_id;

  weights_.resize(vocab);  // step 5
  const double best_scaled = *best / setup_.temperature;
  for (int i = 0; i < vocab; ++i) weights_[i] = std::exp(adjusted_[i] / setup_.temperature - best_scaled);
  candidates_.resize(vocab);
  std::iota(candidates_.begin(), candidates_.end(), 0);
  if (setup_.min_p > 0 || setup_.top_k > 0 || setup_.top_p < 1) keep_best();

  double total = 0;  // step 8
  for (int32_t id : candidates_) total += weights_[id];
  const double threshold = uniform(setup_.seed, setup_.choice, position, Purpose::kTarget) * total;
  double sum = 0;
  int last = best_id;
  for (int32_t id : candidates_) {
    sum += weights_[id];
    if (sum > threshold) return id;
    if (weights_[id] > 0) last = id;
  }
  return last;
}

// The weights that step 6 left, added in id order, which needs no sort of the whole vocabulary.
double SamplerSlot::sum_in_id_order() {
  ascending_ = candidates_;
  if (setup_.top_k > 0) std::sort(ascending_.begin(), ascending_.end());
  double total = 0;
  for (int32_t id : ascending_) total += weights_[id];
  return total;
}

// Steps 6 and 7: candidates_ becomes the kept ones, sorted. Only as many are sorted as can be kept.
void SamplerSlot::keep_best() {
  std::erase_if(candidates_, [&](int32_t id) { return weights_[id] < setup_.min_p || weights_[id] == 0; });
  size_t limit = candidates_.size();
  if (setup_.top_k > 0) limit = std::min(limit, static_cast<size_t>(setup_.top_k));
  size_t sorted = 0;
  const auto sort_up_to = [&](size_t count) {
    std::partial_sort(candidates_.begin() + sorted, candidates_.begin() + count, candidates_.end(), Better{adjusted_.data()});
    sorted = count;
  };
  if (setup_.top_k > 0 || setup_.top_p >= 1) {
    sort_up_to(limit);
    candidates_.resize(limit);
  }
  if (setup_.top_p >= 1) return;

  const double total = sum_in_id_order();
  double sum = 0;
  for (size_t kept = 0; kept < limit; ++kept) {
    if (kept == sorted) sort_up_to(std::min(limit, std::max<size_t>(64, 8 * kept)));
    sum += weights_[candidates_[kept]];
    if (sum >= setup_.top_p * total) {
      candidates_.resize(kept + 1);
      return;
    }
  }
}

RowStatistics row_statistics(const Kernels& kernels, const float* logits, int padded_vocab) {
  float max = -kInfinity;
  bool has_nan = false;
  for (int i = 0; i < padded_vocab; ++i) {
    max = logits[i] > max ? logits[i] : max;
    has_nan |= logits[i] != logits[i];
  }
  if (has_nan || !std::isfinite(max)) return {false, std::numeric_limits<float>::quiet_NaN()};
  return {true, kernels.log_sum_exp(logits, padded_vocab, max)};
}

void top_ids(const float* logits, int vocab, int count, int32_t* out) {
  // A running list of the best: an id enters only when it beats the last of them.
  const Better better{logits};
  if (count == 0) return;
  int filled = 0;
  for (int32_t id = 0; id < vocab; ++id) {
    if (filled == count && !better(id, out[filled - 1])) continue;
    int at = filled < count ? filled++ : filled - 1;
    for (; at > 0 && better(id, out[at - 1]); --at) out[at] = out[at - 1];
    out[at] = id;
  }
}

}  // namespace ridgeline
