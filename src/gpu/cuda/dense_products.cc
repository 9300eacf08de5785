#include "gpu/cuda/dense_products.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"

namespace loramux::gpu {
namespace {

// The m that the batch-invariant algorithm is chosen for.
constexpr std::int64_t kInvariantRows = 64;
constexpr int kMaxChoices = 32;

cudaDataType_t CudaType(DType dtype) {
  CHECK(IsWeightDType(dtype));
  return dtype == DType::kBF16 ? CUDA_R_16BF : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// The largest power of two, at most 256, that divides the address.
std::uint32_t AlignmentOf(const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address) | 256;
  return std::uint32_t{1} << std::countr_zero(value);
}

Status Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return Ok{};
  return Unavailable(std::string("cuBLASLt: ") + what + ": " + cublasLtGetStatusString(status));
}

template <typename Value>
Status SetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  return Check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)), "an attribute");
}

// Whether all of a sum is done by one block, in one order.
bool SumsAtOnce(const cublasLtMatmulAlgo_t& algorithm) {
  std::int32_t splits = 1;
  std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits), &written);
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof(reduction),
                                       &written);
  return splits <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

// What a call of cublasLtMatmul describes. cuBLASLt's matrices have contiguous columns, so a row-major y [m, n] is its
// y^T [n, m] = w x^T, with w [n, k] as the transpose of a k x n matrix.
struct Description {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;

  Description() = default;
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  ~Description() {
    for (cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }

  Status Make(const DenseProduct& p, std::int64_t m) {
    const cudaDataType_t type = CudaType(p.dtype);
    const auto n = static_cast<std::uint64_t>(p.n), k = static_cast<std::uint64_t>(p.k);
    const auto rows = static_cast<std::uint64_t>(m);
    // f32 products are f32 throughout: TF32 has other compute types.
    RETURN_IF_ERROR(Check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a description"));
    RETURN_IF_ERROR(SetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
    if (p.bias != nullptr) {
      RETURN_IF_ERROR(SetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
      RETURN_IF_ERROR(SetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F));
    }
    RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&w, type, k, n, p.k), "a matrix"));
    RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&x, type, k, rows, p.x_stride), "a matrix"));
    return Check(cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, n, rows, p.y_stride), "a matrix");
  }
};

// Algorithms that fit, fastest first by cuBLASLt's own estimate.
Result<int> Choose(cublasLtHandle_t handle, const Description& description, const DenseProduct& p,
                   std::span<cublasLtMatmulHeuristicResult_t> choices) {
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(Check(cublasLtMatmulPreferenceCreate(&preference), "preferences"));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, DenseProducts::kWorkspaceBytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.w));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.x));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(p.y));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(p.y));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, description.operation, description.w, description.x, description.y, description.y, preference,
      static_cast<int>(choices.size()), choices.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return 0;
  RETURN_IF_ERROR(Check(status, "choosing an algorithm"));
  return found;
}

Error NoAlgorithm(const DenseProduct& p) {
  return Unavailable("cuBLASLt has no algorithm for the product of " + std::to_string(p.m) + " x " +
                     std::to_string(p.k) + " and " + std::to_string(p.n) + " x " + std::to_string(p.k) + " in " +
                     DTypeName(p.dtype));
}

}  // namespace

// A shape and what is chosen for it. The bias of the description changes from call to call, so each call copies it.
struct DenseProducts::Plan {
  Description description;
  cublasLtMatmulAlgo_t algorithm;
};

Result<std::unique_ptr<DenseProducts>> DenseProducts::Create(bool batch_invariant) {
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(Check(cublasLtCreate(&handle), "it does not start"));
  return std::unique_ptr<DenseProducts>(new DenseProducts(handle, batch_invariant));
}

DenseProducts::DenseProducts(cublasLtHandle_t handle, bool batch_invariant)
    : handle_(handle), batch_invariant_(batch_invariant) {}

DenseProducts::~DenseProducts() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

Result<cublasLtMatmulAlgo_t> DenseProducts::InvariantAlgorithm(const DenseProduct& product, const Key& key) {
  Key shared = key;
  std::get<1>(shared) = kInvariantRows;
  if (const auto found = invariant_.find(shared); found != invariant_.end()) return found->second;
  Description description;
  RETURN_IF_ERROR(description.Make(product, kInvariantRows));
  std::array<cublasLtMatmulHeuristicResult_t, kMaxChoices> choices;
  ASSIGN_OR_RETURN(const int found, Choose(handle_, description, product, choices));
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& choice = choices[static_cast<std::size_t>(i)];
    if (choice.state != CUBLAS_STATUS_SUCCESS || !SumsAtOnce(choice.algo)) continue;
    invariant_.emplace(shared, choice.algo);
    return choice.algo;
  }
  return NoAlgorithm(product);
}

Result<std::unique_ptr<DenseProducts::Plan>> DenseProducts::MakePlan(const DenseProduct& product, const Key& key) {
  auto plan = std::make_unique<Plan>();
  RETURN_IF_ERROR(plan->description.Make(product, product.m));
  if (batch_invariant_) {
    ASSIGN_OR_RETURN(plan->algorithm, InvariantAlgorithm(product, key));
    return plan;
  }
  std::array<cublasLtMatmulHeuristicResult_t, 1> choice;
  ASSIGN_OR_RETURN(const int found, Choose(handle_, plan->description, product, choice));
  if (found == 0) return NoAlgorithm(product);
  plan->algorithm = choice[0].algo;
  return plan;
}

Result<const DenseProducts::Plan*> DenseProducts::PlanFor(const DenseProduct& p) {
  const Key key = {p.dtype,
                   p.m,
                   p.n,
                   p.k,
                   p.x_stride,
                   p.y_stride,
                   AlignmentOf(p.w),
                   AlignmentOf(p.x),
                   AlignmentOf(p.y),
                   p.bias != nullptr,
                   p.accumulate};
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Plan>& plan = plans_[key];
  if (plan == nullptr) {
    ASSIGN_OR_RETURN(plan, MakePlan(p, key));
  }
  return static_cast<const Plan*>(plan.get());
}

Status DenseProducts::Enqueue(const DenseProduct& product, void* workspace, cudaStream_t stream) {
  ASSIGN_OR_RETURN(const Plan* plan, PlanFor(product));
  cublasLtMatmulDescOpaque_t copy = *plan->description.operation;
  if (product.bias != nullptr) RETURN_IF_ERROR(SetAttribute(&copy, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
  const float one = 1, beta = product.accumulate ? 1 : 0;
  const Description& d = plan->description;
  return Check(cublasLtMatmul(handle_, &copy, &one, product.w, d.w, product.x, d.x, &beta, product.y, d.y, product.y,
                              d.y, &plan->algorithm, workspace, kWorkspaceBytes, stream),
               "a product");
}

}  // namespace loramux::gpu
