// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random numbers as a pure
// function of key and counter, so that a seeded request depends on nothing but itself.
#pragma once
#include <array>
#include <cstdint>

namespace ridgeline {

inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * counter[0], b = 0xCD9E8D57ull * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

enum class Purpose : uint32_t { kTarget = 0 };

// 53 random bits as a number in [0, 1).
inline double uniform(uint64_t seed, uint32_t choice, uint32_t position, Purpose purpose) {
  const auto x = philox({position, choice, static_cast<uint32_t>(purpose), 0},
                        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return ((x[0] >> 5) * 67108864.0 + (x[1] >> 6)) / 9007199254740992.0;
}

}  // namespace ridgeline
