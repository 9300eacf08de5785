// Mixtures of experts on a device: choosing experts, the lists of a layer's work, products of each row with its
// expert's matrix, and the sum of what the chosen return. The lists are made on the device, so that one recorded graph
// serves any routing. All pointers are the device's; strides are in elements; `rows` and `max_rows` as in
// elementwise.h.
//
// A pair is a row and one of its choices. Pairs sorted by expert, those of one expert by row, are "places": what goes
// into the experts' products lies in that order.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "formats/operation_forms.h"
#include "formats/routing.h"
#include "gpu/device.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/packed.h"

namespace loramux::gpu {

// The most experts of a layer, and the most that a row chooses.
inline constexpr std::int32_t kMostExperts = 1024, kMostChosen = 32;
// Places that one item of the products covers at most.
inline constexpr std::int32_t kExpertTileRows = 64;

// What one adapter does to experts.
struct ExpertLoraOnDevice {
  const LoraModule* modules;  // [experts][layers][3]: gate, up, down
  std::int32_t experts;       // experts of each layer that it may change: the first ones
  std::int32_t max_rank;
  DType dtype;  // type of the rows, as LoraItem::dtype
};

// Adjacent places of one expert.
struct ExpertTile {
  std::int32_t expert, first, rows;  // rows: 1 ... kExpertTileRows
};

// The lists of a layer's work, which RouteRows and ListChosen write.
struct ExpertLists {
  std::int32_t* experts;    // [rows, per_token]: the chosen, best first
  float* weights;           // [rows, per_token]: the weights of the chosen
  std::int32_t* begins;     // [experts + 1]: where each expert's places begin; the last is the number of places
  std::int32_t* place_row;  // by place: the row
  std::int32_t* places;     // [rows, per_token]: the place
  ExpertTile* tiles;
  LoraItem* shrink;  // items for adapters that change experts; their rows are places
  LoraItem* expand;
  std::int32_t* counts;  // [experts, 3]: for the kernels alone
  std::int32_t* totals;  // how many tiles, shrink items and expand items there are
};
// What bounds the counts, and sizes arrays and grids.
struct ExpertBounds {
  std::int32_t places = 0, tiles = 0, shrink = 0, expand = 0;
};
// Bounds for `rows` rows in at most `ranges` ranges of one adapter. max_rank 0: no adapter changes experts.
ExpertBounds MaxExpertWork(const RouteForm& form, std::int64_t rows, std::int64_t ranges, std::int32_t max_rank);

// Chooses experts for each row of logits, as RouteRows of kernels/experts.h does. One instance: f32.
// REQUIRES: at most kMostExperts experts, kMostChosen for each token.
struct RouteRowsArguments {
  const float* logits;  // [rows, experts]
  std::int64_t stride;
  const float* bias;  // [experts], added to the scores that choose but not to the weights, or null
  const std::int32_t* rows;
  RouteForm form;
  std::int32_t* experts;  // [rows, per_token]
  float* weights;
};
void RouteRows(DeviceStream& stream, std::int64_t max_rows, const RouteRowsArguments& arguments);

// Sorts the pairs by expert and lists the layer's work: two launches. An item never spans a multiple of
// kExpertTileRows places from its expert's begin. One instance: f32.
struct ListChosenArguments {
  ExpertLists lists;  // `experts` is read
  const std::int32_t* rows;
  std::int32_t per_token, experts;
  const ExpertLoraOnDevice* const* adapters;  // [rows]: what the row's adapter does to experts, or null; null: none
  std::int32_t modules;                       // LoraModules of one expert: 3 for each layer
};
void ListChosen(DeviceStream& stream, const ListChosenArguments& arguments);

// y[p, :] = x[p, :] W_e^T + bias_e for the places p of each expert e. Instance: the type of x, and of w if it has
// floats. The weights of an expert are read once for each of its tiles, those without places not at all. Sums are f32;
// k is divided among the threads in one way, so a row's bits depend on itself alone.
// REQUIRES: IsSkinny(dtype, max_rows, k); x and w are 16-byte aligned, x_stride is a multiple of 8.
struct ExpertMatMulArguments {
  const void* x;  // [places, k]
  std::int64_t x_stride, k;
  const void* w;  // [experts, n, k], contiguous; or the codes of `form`, of which n is then a multiple of kPackedTile
  PackedForm form;
  const float* bias;  // [experts, n], or null
  std::int64_t n;
  float* y;  // [places, n]
  std::int64_t y_stride;
  const ExpertTile* tiles;
  const std::int32_t* tile_count;
  std::int32_t max_rows;  // most rows of a tile
};
// `max_tiles` bounds their number.
void ExpertMatMul(DeviceStream& stream, DType dtype, int multiprocessors, std::int64_t max_tiles,
                  const ExpertMatMulArguments& arguments);

// y[i, :] = factor(i) * y[i, :] + the sum over the choices c, best first, of weights[i, c] * x[places[i, c], :].
// One instance: f32.
struct CombineChosenArguments {
  const float* x;  // [places, width]
  const std::int32_t* places;
  const float* weights;
  const std::int32_t* rows;
  float* y;  // [rows, width]
  std::int64_t width, x_stride, y_stride;
  CombineForm form;
};
void CombineChosen(DeviceStream& stream, std::int64_t max_rows, const CombineChosenArguments& arguments);

}  // namespace loramux::gpu
