// The shapes of AMX tiles.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace ridgeline::RIDGELINE_ISA {

constexpr int kTileRows = 16;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int num_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }

  void load() const {
    // gcc 12's _tile_loadconfig declares 8 of the 64 bytes as its input, and drops stores to the others
    asm volatile("" : : "r"(this) : "memory");
    _tile_loadconfig(this);
  }
};

}  // namespace ridgeline::RIDGELINE_ISA
