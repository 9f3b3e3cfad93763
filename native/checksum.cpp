#include "checksum.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <thread>

namespace ridgeline {
namespace {

constexpr size_t kPiece = 4 << 20;
constexpr int kStreams = 8;  // independent chains, since a multiplication takes several cycles
constexpr size_t kAhead = 4096;  // bytes: the memory is asked for what comes next, across the edge of a page
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;

// For one `word` a bijection of `sum`, and for one `sum` a bijection of `word`: a single changed word always shows.
inline uint64_t mixed(uint64_t sum, uint64_t word) { return std::rotl((sum ^ word) * kOdd, 29); }

uint64_t piece_checksum(const uint8_t* data, size_t bytes) {
  uint64_t sums[kStreams] = {}, words[kStreams];
  const size_t tail = bytes % sizeof words;
  const uint8_t* const end = data + bytes - tail;
  for (; data < end; data += sizeof words) {
    __builtin_prefetch(data + kAhead);
    std::memcpy(words, data, sizeof words);
    for (int i = 0; i < kStreams; ++i) sums[i] = mixed(sums[i], words[i]);
  }
  uint64_t last[kStreams] = {};
  if (tail) std::memcpy(last, data, tail);
  uint64_t sum = bytes;
  for (uint64_t word : last) sum = mixed(sum, word);
  for (uint64_t stream : sums) sum = mixed(sum, stream);
  return sum;
}

}  // namespace

std::vector<uint64_t> checksums(const std::vector<std::span<const uint8_t>>& sections, int num_threads) {
  std::vector<std::span<const uint8_t>> pieces;
  for (const auto& section : sections)
    for (size_t at = 0; at < section.size(); at += kPiece)
      pieces.push_back(section.subspan(at, std::min(kPiece, section.size() - at)));

  std::vector<uint64_t> of_piece(pieces.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < pieces.size();)
      of_piece[i] = piece_checksum(pieces[i].data(), pieces[i].size());
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < num_threads; ++i) helpers.emplace_back(work);
    work();
  }

  std::vector<uint64_t> sums;
  size_t piece = 0;
  for (const auto& section : sections) {
    uint64_t sum = section.size();
    for (size_t at = 0; at < section.size(); at += kPiece) sum = mixed(sum, of_piece[piece++]);
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace ridgeline
