// How a matrix product is cut into tasks for threads.
#pragma once
#include <algorithm>

#include "checks.h"
#include "kernels.h"

namespace ridgeline {

// Panels of rows whose inputs stay in the L2 cache, each by a few output blocks at a time: panel after panel, so that
// threads at work on the same one read the weights once between them.
class ProductTasks {
 public:
  static constexpr int kBlocks = 4;

  ProductTasks(int rows, int blocks, size_t row_bytes) : rows_(rows), blocks_(blocks) {
    const int fitting = static_cast<int>(std::min<size_t>(kPanelBytes / row_bytes, kPanelRows));
    const int panels = ceil_div(rows, std::max(fitting / kRowTile * kRowTile, kRowTile));
    panel_rows_ = round_up(ceil_div(rows, panels), kRowTile);
    block_tasks_ = ceil_div(blocks, kBlocks);
  }

  int count() const { return ceil_div(rows_, panel_rows_) * block_tasks_; }

  template <class Args>
  void run(int task, const Args& args, ProductKernel<Args> kernel) const {
    const int row = task / block_tasks_ * panel_rows_, block = task % block_tasks_ * kBlocks;
    kernel(args, row, std::min(rows_, row + panel_rows_), block, std::min(blocks_, block + kBlocks));
  }

 private:
  static constexpr size_t kPanelBytes = 1 << 20;
  static constexpr int kPanelRows = 512;
  static constexpr int kRowTile = 32;  // of AMX
  int rows_, blocks_, panel_rows_, block_tasks_;
};

}  // namespace ridgeline
