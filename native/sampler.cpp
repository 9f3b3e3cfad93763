#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "checks.h"
#include "random.h"

namespace ridgeline {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2E = 1.44269504088896340736;

// Sorted order: by logit descending, then by id.
struct Better {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

}  // namespace

int Logits::block_end(int block) const { return std::min((block + 1) * kTopIds, padded_vocab()); }

float Logits::max() const { return *std::max_element(maxima, maxima + num_blocks()); }

int Logits::first_of(float max) const {
  const auto block = std::find(maxima, maxima + num_blocks(), max) - maxima;
  return static_cast<int>(std::find(values + block * kTopIds, values + vocab, max) - values);
}

float Logits::log_sum_exp() const { return kernels.log_sum_exp(values, padded_vocab(), max()); }

void Logits::best_ids(int count, std::vector<int32_t>& ids) const {
  ids.clear();
  if (count == 0) return;
  float least = -kInfinity;  // of the best: as many blocks as ids are wanted reach it
  if (count <= num_blocks()) {
    std::vector<float> sorted(maxima, maxima + num_blocks());
    std::nth_element(sorted.begin(), sorted.begin() + count - 1, sorted.end(), std::greater<>());
    least = sorted[count - 1];
  }
  for (int block = 0; block < num_blocks(); ++block) {
    if (maxima[block] < least) continue;
    for (int id = block * kTopIds; id < std::min((block + 1) * kTopIds, vocab); ++id)
      if (values[id] >= least) ids.push_back(id);
  }
  const size_t kept = std::min(ids.size(), static_cast<size_t>(count));
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), Better{values});
  ids.resize(kept);
}

void SamplerSlot::open(SamplerSetup setup, const int32_t* prompt, size_t num_prompt, const int32_t* output,
                       size_t num_output) {
  setup_ = std::move(setup);
  in_prompt_ = std::unordered_set<int32_t>(prompt, prompt + num_prompt);
  output_counts_.clear();
  for (size_t i = 0; i < num_output; ++i) ++output_counts_[output[i]];
  num_outputs_ = static_cast<int>(num_output);
}

int SamplerSlot::sample(const Logits& logits, uint32_t position) {
  const int token = choose(is_adjusted() ? adjust(logits) : logits, position);
  if (token != kNoToken) {
    ++output_counts_[token];
    ++num_outputs_;
  }
  return token;
}

bool SamplerSlot::is_adjusted() const {
  return !setup_.logit_bias.empty() || num_outputs_ < setup_.min_tokens || setup_.repetition_penalty != 1 ||
         setup_.presence_penalty != 0 || setup_.frequency_penalty != 0;
}

Logits SamplerSlot::adjust(const Logits& logits) {
  adjusted_.assign(logits.values, logits.values + logits.padded_vocab());
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
  adjusted_maxima_.resize(logits.num_blocks());
  logits.kernels.block_maxima(adjusted_.data(), logits.padded_vocab(), adjusted_maxima_.data());
  return {logits.kernels, adjusted_.data(), adjusted_maxima_.data(), logits.vocab};
}

int SamplerSlot::choose(const Logits& logits, uint32_t position) {
  const float max = logits.max();
  if (!std::isfinite(max)) return kNoToken;
  if (setup_.temperature == 0) return logits.first_of(max);
  const double drawn = uniform(setup_.seed, setup_.choice, position, Purpose::kTarget);
  const bool keeps_all = setup_.min_p <= 0 && setup_.top_k <= 0 && setup_.top_p >= 1;
  return keeps_all ? draw_from_all(logits, drawn) : draw_from_best(logits, drawn);
}

// Of a weight's exponent to base 2. Finite, so that the best logit has the weight 1 at the smallest temperature too.
double SamplerSlot::scale() const { return std::min(kLog2E / setup_.temperature, 1e300); }

// Steps 5 and 8 for all ids, in their order: the block in which the sum is reached, then the id in it.
int SamplerSlot::draw_from_all(const Logits& logits, double uniform) {
  const double threshold = uniform * weigh_blocks(logits);
  double sum = 0, before = 0;
  int reached = 0;
  for (int block = 0; block < logits.num_blocks() && sum <= threshold; ++block) {
    if (block_sums_[block] == 0) continue;
    reached = block;
    before = sum;
    sum += block_sums_[block];
  }
  double weights[kTopIds];
  const int begin = reached * kTopIds, count = logits.block_end(reached) - begin;
  logits.kernels.weigh(logits.values + begin, count, logits.max(), scale(), weights);
  int last = begin;
  for (int i = 0; i < count; ++i) {
    before += weights[i];
    if (weights[i] > 0) last = begin + i;
    if (before > threshold) break;
  }
  return last;
}

// block_sums_, and the sum of them all.
double SamplerSlot::weigh_blocks(const Logits& logits) {
  block_sums_.resize(logits.num_blocks());
  const float max = logits.max();
  double weights[kTopIds];
  for (int block = 0; block < logits.num_blocks(); ++block) {
    const int begin = block * kTopIds;
    block_sums_[block] =
        logits.kernels.weigh(logits.values + begin, logits.block_end(block) - begin, max, scale(), weights);
  }
  return std::accumulate(block_sums_.begin(), block_sums_.end(), 0.0);
}

// Step 8 for what steps 6 and 7 keep, best first.
int SamplerSlot::draw_from_best(const Logits& logits, double uniform) {
  keep_best(logits);
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const double threshold = uniform * total;
  double sum = 0;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (sum > threshold) return c.id;
  }
  return candidates_.back().id;
}

// Steps 6 and 7: candidates_ becomes the kept ones. Each step keeps a beginning of the sorted order, of which no more is
// sorted than is needed to see where it ends.
void SamplerSlot::keep_best(const Logits& logits) {
  constexpr int kFirst = 64, kGrowth = 8;
  const bool step_6_keeps_all = setup_.min_p <= 0 && setup_.top_k <= 0;
  const double all = step_6_keeps_all && setup_.top_p < 1 ? weigh_blocks(logits) : 0;
  const int limit = setup_.top_k > 0 ? std::min(setup_.top_k, logits.vocab) : logits.vocab;
  for (int count = setup_.top_k > 0 ? limit : std::min(kFirst, limit);; count = std::min(limit, count * kGrowth)) {
    weigh_best(logits, count);
    const bool is_whole = count == limit || static_cast<int>(candidates_.size()) < count;
    if (step_6_keeps_all) keep_most_likely(all);
    if (is_whole || static_cast<int>(candidates_.size()) < count) break;
  }
  if (!step_6_keeps_all && setup_.top_p < 1) keep_most_likely(sum_in_id_order());
}

// candidates_ becomes the `count` best, but for those below min_p and those of no weight.
void SamplerSlot::weigh_best(const Logits& logits, int count) {
  logits.best_ids(count, ids_);
  const size_t padded = round_up(static_cast<int>(ids_.size()), kLanes);
  std::vector<float> values(padded, -kInfinity);
  std::vector<double> weights(padded);
  for (size_t i = 0; i < ids_.size(); ++i) values[i] = logits.values[ids_[i]];
  logits.kernels.weigh(values.data(), static_cast<int>(padded), logits.max(), scale(), weights.data());
  candidates_.clear();
  for (size_t i = 0; i < ids_.size() && weights[i] >= setup_.min_p && weights[i] > 0; ++i)
    candidates_.push_back({ids_[i], weights[i]});
}

// Step 7, as far as candidates_ go.
void SamplerSlot::keep_most_likely(double total) {
  double sum = 0;
  for (size_t kept = 0; kept < candidates_.size(); ++kept) {
    sum += candidates_[kept].weight;
    if (sum >= setup_.top_p * total) return candidates_.resize(kept + 1);
  }
}

double SamplerSlot::sum_in_id_order() const {
  std::vector<Candidate> ascending = candidates_;
  std::sort(ascending.begin(), ascending.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  return std::accumulate(ascending.begin(), ascending.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.weight; });
}

}  // namespace ridgeline
