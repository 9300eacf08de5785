#include "gpu/kernels/assist.h"

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/assist_kernels.h"

namespace loramux::gpu {

void DecideLayer(DeviceStream& stream, const DecideLayerArguments& arguments) {
  if (arguments.work.max_segments == 0) return;
  const std::int64_t blocks = CeilDivide(arguments.work.max_segments, 32);
  Launch(stream, Kernel::kDecideLayer, DType::kF32, {.x = static_cast<std::uint32_t>(blocks)}, 32, 0, arguments);
}

void SendActivations(DeviceStream& stream, DType x_dtype, const SendActivationsArguments& arguments) {
  if (arguments.work.max_pieces == 0) return;
  Launch(stream, Kernel::kSendActivations, x_dtype, {.x = static_cast<std::uint32_t>(arguments.work.max_pieces)},
         kAssistThreads, sizeof(SendActivationsKernel<float>::Memory), arguments);
}

void AddAnswers(DeviceStream& stream, const AddAnswersArguments& arguments) {
  CHECK(arguments.slices >= 1 && arguments.slices <= kMaxAssistSlices);
  if (arguments.work.max_pieces == 0) return;
  const std::int64_t parts = CeilDivide(arguments.width, kAssistPart);
  CHECK_LE(parts, 65535);  // CUDA's limit
  Launch(stream, Kernel::kAddAnswers, DType::kF32,
         {.x = static_cast<std::uint32_t>(arguments.work.max_pieces), .y = static_cast<std::uint32_t>(parts)},
         kAssistThreads, sizeof(AddAnswersKernel<float>::Memory), arguments);
}

void PublishLayers(DeviceStream& stream, const PublishLayersArguments& arguments) {
  Launch(stream, Kernel::kPublishLayers, DType::kF32, {}, 32, 0, arguments);
}

}  // namespace loramux::gpu
