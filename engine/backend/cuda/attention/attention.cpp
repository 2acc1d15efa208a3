#include "engine/backend/cuda/attention/attention.h"

#include <array>
#include <limits>
#include <span>
#include <utility>

namespace engine::backend::cuda {
namespace {

using Sizes = std::array<std::int64_t, 4>;

// Names of the real tensors; virtual ones are numbered from kVirtual.
enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kDO,
  kDQ,
  kDK,
  kDV,
  kRowSums,
  kAccumulator,
  kScale,
  kOne,
  kMinusInfinity,
  kKeyCount,
  kQueryCount,
  kWindow,
  kVirtual = 100,
};

// By-value operands live in host memory that cuDNN reads when an execution is enqueued.
float one = 1.0F;
float minus_infinity = -std::numeric_limits<float>::infinity();

struct Tensor {
  cudnnBackendDescriptor_t descriptor = nullptr;
  Sizes sizes{};
  Sizes strides{};
};

absl::StatusOr<CudnnDescriptor> MakeDescriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t raw = nullptr;
  RETURN_IF_CUDNN_ERROR(cudnnBackendCreateDescriptor(type, &raw));
  return CudnnDescriptor(raw);
}

template <typename T>
absl::Status Set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type, std::span<const T> values) {
  return ToStatus(cudnnBackendSetAttribute(descriptor, name, type, static_cast<std::int64_t>(values.size()),
                                           values.data()),
                  "cudnnBackendSetAttribute");
}

template <typename T>
absl::Status Set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type, const T& value) {
  return Set(descriptor, name, type, std::span<const T>(&value, 1));
}

// Builds an operation graph. The first error stays and ends all further work.
class GraphBuilder {
 public:
  GraphBuilder(const AttentionSpec& spec, std::vector<CudnnDescriptor>* owned)
      : spec_(spec),
        io_(spec.dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF),
        score_sizes_{spec.batch, spec.heads, spec.queries, spec.keys},
        owned_(owned) {}

  void Forward();
  void Backward();
  absl::StatusOr<CudnnDescriptor> Finish(cudnnHandle_t handle);

 private:
  cudnnBackendDescriptor_t New(cudnnBackendDescriptorType_t type) {
    if (!first_error_.ok()) return nullptr;
    absl::StatusOr<CudnnDescriptor> made = MakeDescriptor(type);
    if (!made.ok()) {
      first_error_ = made.status();
      return nullptr;
    }
    owned_->push_back(*std::move(made));
    return owned_->back().get();
  }
  template <typename T>
  void Put(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, const T& value) {
    if (first_error_.ok()) first_error_ = Set(descriptor, name, type, value);
  }
  void Put(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, const Tensor& tensor) {
    Put(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, tensor.descriptor);
  }
  void Finalize(cudnnBackendDescriptor_t descriptor) {
    if (first_error_.ok()) first_error_ = ToStatus(cudnnBackendFinalize(descriptor), "cudnnBackendFinalize");
  }
  void Push(cudnnBackendDescriptor_t operation) {
    Finalize(operation);
    operations_.push_back(operation);
  }

  // Tensors.
  cudnnBackendDescriptor_t Describe(std::int64_t uid, const Sizes& sizes, const Sizes& strides,
                                    cudnnDataType_t type, std::int64_t alignment);
  Tensor Real(Uid uid, const Sizes& sizes, const Sizes& strides, cudnnDataType_t type,
              std::int64_t alignment = 16);
  Tensor Scalar(Uid uid, cudnnDataType_t type = CUDNN_DATA_FLOAT);  // by value
  Tensor Virtual(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor Like(const Tensor& x, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return Virtual(x.sizes, x.strides, type);
  }
  // `head`: the spec's for q and k and their gradients, its value_head for v and o and theirs.
  Tensor Queries(Uid uid, const HeadStrides& strides, std::int64_t head) {
    return Real(uid, QuerySizes(head), {strides.sample, strides.head, strides.token, 1}, io_);
  }
  Tensor Keys(Uid uid, const HeadStrides& strides, std::int64_t head) {
    return Real(uid, KeySizes(head), {strides.sample, strides.head, strides.token, 1}, io_);
  }
  Tensor KeysTransposed(Uid uid, const HeadStrides& strides, std::int64_t head) {
    return Real(uid, {spec_.batch, spec_.kv_heads, head, spec_.keys},
                {strides.sample, strides.head, 1, strides.token}, io_);
  }
  // A head group may begin at any head, so only elements are aligned.
  Tensor Lse() {
    return Real(kLse, RowSizes(), {spec_.lse.sample, spec_.lse.head, spec_.lse.token, 1}, CUDNN_DATA_FLOAT,
                4);
  }
  Tensor Scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return Virtual(score_sizes_, Packed(score_sizes_), type);
  }
  Tensor ScoresTransposed() {
    const std::int64_t scores = spec_.queries * spec_.keys;
    return Virtual({spec_.batch, spec_.heads, spec_.keys, spec_.queries},
                   {spec_.heads * scores, scores, 1, spec_.keys}, io_);
  }
  Tensor Rows() { return Virtual(RowSizes(), Packed(RowSizes())); }

  Sizes QuerySizes(std::int64_t head) const { return {spec_.batch, spec_.heads, spec_.queries, head}; }
  Sizes KeySizes(std::int64_t head) const { return {spec_.batch, spec_.kv_heads, spec_.keys, head}; }
  Sizes RowSizes() const { return {spec_.batch, spec_.heads, spec_.queries, 1}; }
  static Sizes Packed(const Sizes& sizes) {
    return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
  }

  // Operations: y = f(x, …).
  struct PointwiseOptions {
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    std::int64_t axis = -1;
  };
  void Pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor* b, const Tensor* t,
                 const Tensor& y, const PointwiseOptions& options);
  void Unary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y) {
    Pointwise(mode, x, nullptr, nullptr, y, {});
  }
  Tensor Unary(cudnnPointwiseMode_t mode, const Tensor& x) {
    const Tensor y = Like(x);
    Unary(mode, x, y);
    return y;
  }
  void Binary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y) {
    Pointwise(mode, x, &b, nullptr, y, {});
  }
  Tensor Binary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b) {
    const Tensor y = Like(x);
    Binary(mode, x, b, y);
    return y;
  }
  void Product(const Tensor& a, const Tensor& b, const Tensor& c);
  void Reduce(cudnnReduceTensorOp_t op, const Tensor& x, const Tensor& y);
  void Reshape(const Tensor& x, const Tensor& y);
  Tensor Index(const Tensor& x, std::int64_t axis);
  Tensor Shifted(cudnnPointwiseMode_t mode, const Tensor& index, Uid by);  // by adding or subtracting
  // scores where `mode` holds of left and right, else `otherwise`.
  Tensor Where(cudnnPointwiseMode_t mode, const Tensor& left, const Tensor& right, const Tensor& scores,
               const Tensor& otherwise);
  Tensor Mask(const Tensor& scores);
  // d_keys = scoresᵀ · queries, summed over the query heads of a kv head.
  void KeyGradient(const Tensor& scores, const Tensor& queries, const Tensor& d_keys);

  const AttentionSpec& spec_;
  cudnnDataType_t io_;
  Sizes score_sizes_;
  std::vector<CudnnDescriptor>* owned_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  std::int64_t next_virtual_ = kVirtual;
  absl::Status first_error_;
};

cudnnBackendDescriptor_t GraphBuilder::Describe(std::int64_t uid, const Sizes& sizes, const Sizes& strides,
                                                cudnnDataType_t type, std::int64_t alignment) {
  const cudnnBackendDescriptor_t tensor = New(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  Put(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  Put(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(sizes));
  Put(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const std::int64_t>(strides));
  Put(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
  Put(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  return tensor;
}

Tensor GraphBuilder::Real(Uid uid, const Sizes& sizes, const Sizes& strides, cudnnDataType_t type,
                          std::int64_t alignment) {
  const cudnnBackendDescriptor_t tensor = Describe(uid, sizes, strides, type, alignment);
  Finalize(tensor);
  return {tensor, sizes, strides};
}

Tensor GraphBuilder::Scalar(Uid uid, cudnnDataType_t type) {
  const Sizes ones = {1, 1, 1, 1};
  const cudnnBackendDescriptor_t tensor = Describe(uid, ones, ones, type, 4);
  Put(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  Finalize(tensor);
  return {tensor, ones, ones};
}

Tensor GraphBuilder::Virtual(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type) {
  const cudnnBackendDescriptor_t tensor = Describe(next_virtual_++, sizes, strides, type, 16);
  Put(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  Finalize(tensor);
  return {tensor, sizes, strides};
}

void GraphBuilder::Pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor* b, const Tensor* t,
                             const Tensor& y, const PointwiseOptions& options) {
  const cudnnBackendDescriptor_t pointwise = New(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  Put(pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  Put(pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, options.math);
  if (options.axis >= 0) Put(pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, options.axis);
  Finalize(pointwise);
  const cudnnBackendDescriptor_t operation = New(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  Put(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, pointwise);
  Put(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  Put(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b != nullptr) Put(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  if (t != nullptr) Put(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t);
  Push(operation);
}

void GraphBuilder::Product(const Tensor& a, const Tensor& b, const Tensor& c) {
  const cudnnBackendDescriptor_t product = New(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  Put(product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  Finalize(product);
  const cudnnBackendDescriptor_t operation = New(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  Put(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  Put(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  Put(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  Put(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, product);
  Push(operation);
}

void GraphBuilder::Reduce(cudnnReduceTensorOp_t op, const Tensor& x, const Tensor& y) {
  const cudnnBackendDescriptor_t reduction = New(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  Put(reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
  Put(reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  Finalize(reduction);
  const cudnnBackendDescriptor_t operation = New(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  Put(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  Put(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  Put(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, reduction);
  Push(operation);
}

void GraphBuilder::Reshape(const Tensor& x, const Tensor& y) {
  const cudnnBackendDescriptor_t operation = New(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  Put(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  Put(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  Push(operation);
}

Tensor GraphBuilder::Index(const Tensor& x, std::int64_t axis) {
  const Tensor index = Like(x, CUDNN_DATA_INT32);
  Pointwise(CUDNN_POINTWISE_GEN_INDEX, x, nullptr, nullptr, index, {.axis = axis});
  return index;
}

Tensor GraphBuilder::Shifted(cudnnPointwiseMode_t mode, const Tensor& index, Uid by) {
  const Tensor by_value = Scalar(by, CUDNN_DATA_INT32);
  const Tensor shifted = Like(index, CUDNN_DATA_INT32);
  Pointwise(mode, index, &by_value, nullptr, shifted, {.math = CUDNN_DATA_INT32});
  return shifted;
}

Tensor GraphBuilder::Where(cudnnPointwiseMode_t mode, const Tensor& left, const Tensor& right,
                           const Tensor& scores, const Tensor& otherwise) {
  const Tensor seen = Like(scores, CUDNN_DATA_BOOLEAN);
  Pointwise(mode, left, &right, nullptr, seen, {.math = CUDNN_DATA_BOOLEAN});
  const Tensor masked = Like(scores);
  Pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, &otherwise, &seen, masked, {});
  return masked;
}

Tensor GraphBuilder::Mask(const Tensor& scores) {
  Tensor row = Index(scores, 2);
  if (spec_.keys != spec_.queries) {
    row = Shifted(CUDNN_POINTWISE_ADD, row, kKeyCount);
    row = Shifted(CUDNN_POINTWISE_SUB, row, kQueryCount);
  }
  const Tensor nothing = Scalar(kMinusInfinity);
  const Tensor causal = Where(CUDNN_POINTWISE_CMP_GE, row, Index(scores, 3), scores, nothing);
  if (spec_.window == 0) return causal;
  const Tensor column = Shifted(CUDNN_POINTWISE_ADD, Index(causal, 3), kWindow);
  return Where(CUDNN_POINTWISE_CMP_GT, column, row, causal, nothing);
}

void GraphBuilder::Forward() {
  const Tensor q = Queries(kQ, spec_.q, spec_.head);
  const Tensor k = KeysTransposed(kK, spec_.k, spec_.head);
  const Tensor v = Keys(kV, spec_.v, spec_.value_head);
  const Tensor o = Queries(kO, spec_.o, spec_.value_head);
  const Tensor lse = Lse();
  const Tensor raw = Scores();
  Product(q, k, raw);
  const Tensor scores = Mask(Binary(CUDNN_POINTWISE_MUL, raw, Scalar(kScale)));
  const Tensor top = Rows();
  Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, top);
  const Tensor exponentials = Unary(CUDNN_POINTWISE_EXP, Binary(CUDNN_POINTWISE_SUB, scores, top));
  const Tensor sum = Rows();
  Reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
  Binary(CUDNN_POINTWISE_ADD, top, Unary(CUDNN_POINTWISE_LOG, sum), lse);
  const Tensor probabilities = Scores(io_);
  Binary(CUDNN_POINTWISE_DIV, exponentials, sum, probabilities);
  Product(probabilities, v, o);
}

void GraphBuilder::KeyGradient(const Tensor& scores, const Tensor& queries, const Tensor& d_keys) {
  const Tensor transposed = ScoresTransposed();
  Reshape(scores, transposed);
  if (spec_.heads == spec_.kv_heads) {
    Product(transposed, queries, d_keys);
    return;
  }
  const Sizes sizes = {spec_.batch, spec_.heads, spec_.keys, d_keys.sizes[3]};
  const Tensor of_each_head = Virtual(sizes, Packed(sizes), io_);
  Product(transposed, queries, of_each_head);
  Reduce(CUDNN_REDUCE_TENSOR_ADD, of_each_head, d_keys);
}

void GraphBuilder::Backward() {
  const Tensor q = Queries(kQ, spec_.q, spec_.head);
  const Tensor k = KeysTransposed(kK, spec_.k, spec_.head);
  const Tensor v = KeysTransposed(kV, spec_.v, spec_.value_head);
  const Tensor o = Queries(kO, spec_.o, spec_.value_head);
  const Tensor d_o = Queries(kDO, spec_.d_o, spec_.value_head);
  const Tensor lse = Lse();
  const Tensor scale = Scalar(kScale);

  // Σ_U d_o·o; the product with 1 is what makes a real tensor of the sum.
  const Tensor d_o_o = Virtual(o.sizes, Packed(o.sizes));
  Binary(CUDNN_POINTWISE_MUL, d_o, o, d_o_o);
  const Tensor sums = Rows();
  Reduce(CUDNN_REDUCE_TENSOR_ADD, d_o_o, sums);
  const Tensor row_sums = Real(kRowSums, RowSizes(), Packed(RowSizes()), CUDNN_DATA_FLOAT);
  Binary(CUDNN_POINTWISE_MUL, sums, Scalar(kOne), row_sums);

  const Tensor raw = Scores();
  Product(q, k, raw);
  const Tensor shifted = Binary(CUDNN_POINTWISE_SUB, Binary(CUDNN_POINTWISE_MUL, raw, scale), lse);
  const Tensor probabilities = Unary(CUDNN_POINTWISE_EXP, Mask(shifted));
  KeyGradient(probabilities, d_o, Keys(kDV, spec_.dv, spec_.value_head));

  const Tensor d_probabilities = Scores();
  Product(d_o, v, d_probabilities);
  const Tensor centred = Binary(CUDNN_POINTWISE_SUB, d_probabilities, row_sums);
  const Tensor d_scores =
      Binary(CUDNN_POINTWISE_MUL, Binary(CUDNN_POINTWISE_MUL, centred, probabilities), scale);
  KeyGradient(d_scores, q, Keys(kDK, spec_.dk, spec_.head));

  const Tensor keys = Virtual(KeySizes(spec_.head), {spec_.k.sample, spec_.k.head, spec_.k.token, 1}, io_);
  Reshape(k, keys);
  const Tensor dq = Queries(kDQ, spec_.dq, spec_.head);
  if (spec_.deterministic) {
    Product(d_scores, keys, dq);
    return;
  }
  const Tensor accumulator = Real(kAccumulator, dq.sizes, Packed(dq.sizes), CUDNN_DATA_FLOAT);
  Product(d_scores, keys, accumulator);
  Unary(CUDNN_POINTWISE_IDENTITY, accumulator, dq);
}

absl::StatusOr<CudnnDescriptor> GraphBuilder::Finish(cudnnHandle_t handle) {
  RETURN_IF_ERROR(first_error_);
  ASSIGN_OR_RETURN(CudnnDescriptor graph, MakeDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
  RETURN_IF_ERROR(Set(graph.get(), CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      std::span<const cudnnBackendDescriptor_t>(operations_)));
  if (handle != nullptr) {
    RETURN_IF_ERROR(Set(graph.get(), CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle));
  }
  RETURN_IF_CUDNN_ERROR(cudnnBackendFinalize(graph.get()));
  return graph;
}

// −1 if cuDNN does not say.
std::int64_t EngineOf(const CudnnDescriptor& config) {
  absl::StatusOr<CudnnDescriptor> engine = MakeDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (!engine.ok()) return -1;
  cudnnBackendDescriptor_t raw = engine->get();
  std::int64_t count = 0;
  std::int64_t index = -1;
  if (cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                               &count, &raw) != CUDNN_STATUS_SUCCESS ||
      cudnnBackendGetAttribute(raw, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &index) !=
          CUDNN_STATUS_SUCCESS) {
    return -1;
  }
  return index;
}

std::string Text(const HeadStrides& strides) {
  return fmt::format("{}/{}/{}", strides.sample, strides.head, strides.token);
}

}  // namespace

absl::Status ToStatus(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  std::array<char, 1024> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size());
  return Internal("{}: {} {}", what, cudnnGetErrorString(status), detail.data());
}

std::string AttentionSpec::ToString() const {
  std::string text =
      fmt::format("{} B{} S{} T{} H{} K{} E{} U{} window {} {} scale {} q {} k {} v {} o {} lse {}",
                  backward ? "backward" : "forward", batch, queries, keys, heads, kv_heads, head, value_head,
                  window, Name(dtype), scale, Text(q), Text(k), Text(v), Text(o), Text(lse));
  if (!backward) return text;
  return text + fmt::format(" d_o {} dq {} dk {} dv {}{}", Text(d_o), Text(dq), Text(dk), Text(dv),
                            deterministic ? " deterministic" : "");
}

absl::StatusOr<std::shared_ptr<const AttentionPlan>> AttentionPlan::Make(const CudnnTarget& target,
                                                                         const AttentionSpec& spec) {
  std::shared_ptr<AttentionPlan> plan(new AttentionPlan(spec));
  GraphBuilder builder(plan->spec_, &plan->owned_);
  spec.backward ? builder.Backward() : builder.Forward();
  absl::StatusOr<CudnnDescriptor> graph = builder.Finish(target.handle);
  absl::Status status = graph.status();
  if (status.ok()) {
    plan->graph_ = *std::move(graph);
    status = plan->Choose(target);
  }
  if (!status.ok()) return WithContext(status, "attention " + spec.ToString());
  return std::shared_ptr<const AttentionPlan>(std::move(plan));
}

absl::Status AttentionPlan::Choose(const CudnnTarget& target) {
  std::string reasons;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    absl::StatusOr<std::vector<CudnnDescriptor>> configs = EngineConfigs(target, mode);
    if (!configs.ok()) {
      reasons += "; " + Message(configs.status());
      continue;
    }
    for (const CudnnDescriptor& config : *configs) {
      absl::Status status = Finalize(target, config);
      if (status.ok()) return status;
      reasons += fmt::format("; engine {}: {}", EngineOf(config), Message(status));
    }
  }
  return Unimplemented("cuDNN {} has no engine for it{}", cudnnGetVersion(), reasons);
}

absl::StatusOr<std::vector<CudnnDescriptor>> AttentionPlan::EngineConfigs(const CudnnTarget& target,
                                                                          cudnnBackendHeurMode_t mode) {
  ASSIGN_OR_RETURN(CudnnDescriptor heuristic, MakeDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
  RETURN_IF_ERROR(Set(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      graph_.get()));
  RETURN_IF_ERROR(Set(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode));
  if (target.properties != nullptr) {
    RETURN_IF_ERROR(Set(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                        target.properties));
  }
  RETURN_IF_CUDNN_ERROR(cudnnBackendFinalize(heuristic.get()));
  std::int64_t count = 0;
  RETURN_IF_CUDNN_ERROR(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  std::vector<CudnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(CudnnDescriptor config, MakeDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(config.get());
    configs.push_back(std::move(config));
  }
  if (count == 0) return configs;
  RETURN_IF_CUDNN_ERROR(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()));
  configs.resize(static_cast<std::size_t>(count));
  return configs;
}

absl::Status AttentionPlan::Finalize(const CudnnTarget& target, const CudnnDescriptor& config) {
  ASSIGN_OR_RETURN(CudnnDescriptor plan, MakeDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
  RETURN_IF_ERROR(
      Set(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, config.get()));
  if (target.handle != nullptr) {
    RETURN_IF_ERROR(Set(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle));
  } else {
    RETURN_IF_ERROR(Set(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                        target.properties));
  }
  RETURN_IF_CUDNN_ERROR(cudnnBackendFinalize(plan.get()));
  std::int64_t count = 0;
  RETURN_IF_CUDNN_ERROR(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                 CUDNN_TYPE_INT64, 1, &count, &workspace_bytes_));
  plan_ = std::move(plan);
  engine_ = EngineOf(config);
  return absl::OkStatus();
}

absl::StatusOr<AttentionExecution> AttentionPlan::Bind(const AttentionOperands& operands) const {
  std::vector<std::int64_t> uids = {kQ, kK, kV, kO, kLse, kScale, kMinusInfinity};
  std::vector<void*> pointers = {operands.q,     operands.k,   operands.v,
                                 operands.o,     operands.lse, const_cast<float*>(&spec_.scale),
                                 &minus_infinity};
  if (spec_.keys != spec_.queries) {
    uids.insert(uids.end(), {kKeyCount, kQueryCount});
    pointers.insert(pointers.end(),
                    {const_cast<std::int32_t*>(&keys_), const_cast<std::int32_t*>(&queries_)});
  }
  if (spec_.window > 0) {
    uids.push_back(kWindow);
    pointers.push_back(const_cast<std::int32_t*>(&window_));
  }
  if (spec_.backward) {
    uids.insert(uids.end(), {kDO, kDQ, kDK, kDV, kRowSums, kOne});
    pointers.insert(pointers.end(),
                    {operands.d_o, operands.dq, operands.dk, operands.dv, operands.row_sums, &one});
    if (!spec_.deterministic) {
      uids.push_back(kAccumulator);
      pointers.push_back(operands.accumulator);
    }
  }
  AttentionExecution execution;
  execution.plan_ = shared_from_this();
  ASSIGN_OR_RETURN(execution.pack_, MakeDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  const cudnnBackendDescriptor_t pack = execution.pack_.get();
  RETURN_IF_ERROR(
      Set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(uids)));
  RETURN_IF_ERROR(Set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                      std::span<void* const>(pointers)));
  RETURN_IF_ERROR(Set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, operands.workspace));
  RETURN_IF_CUDNN_ERROR(cudnnBackendFinalize(pack));
  return execution;
}

absl::Status AttentionExecution::Run(cudnnHandle_t handle) const {
  return ToStatus(cudnnBackendExecute(handle, plan_->plan_.get(), pack_.get()), "cudnnBackendExecute");
}

absl::StatusOr<std::shared_ptr<const AttentionPlan>> AttentionPlans::Get(cudnnHandle_t handle,
                                                                         const AttentionSpec& spec) {
  std::shared_ptr<const AttentionPlan>& plan = plans_[spec.ToString()];
  if (plan == nullptr) {
    absl::StatusOr<std::shared_ptr<const AttentionPlan>> made = AttentionPlan::Make({.handle = handle}, spec);
    if (!made.ok()) return made.status();
    plan = *std::move(made);
  }
  return plan;
}

}  // namespace engine::backend::cuda
