// The weights of a base model, in whatever form a device keeps them.
#pragma once

#include <vector>

namespace loramux {

// Weights of one decoder layer; q|k|v share one matrix, gate|up another. Matrices are [outputs, inputs].
template <typename Matrix, typename Vector>
struct LayerWeightsOf {
  Matrix qkv;                                        // [QDim + 2 KvDim, hidden]
  Matrix o;                                          // [hidden, QDim]
  Matrix gate_up;                                    // [2 intermediate, hidden]
  Matrix down;                                       // [hidden, intermediate]
  Vector qkv_bias, o_bias, gate_up_bias, down_bias;  // empty if none
  Vector input_norm, post_attention_norm;            // [hidden]
  Vector q_norm, k_norm;                             // [head_dim], Qwen3
};

// All weights of a base model. Matrix::n() is the number of outputs, 0 of an empty matrix.
template <typename MatrixType, typename VectorType>
struct ModelWeightsOf {
  using Matrix = MatrixType;
  using Vector = VectorType;
  using Layer = LayerWeightsOf<Matrix, Vector>;

  Matrix embedding;  // [vocab, hidden]; empty if tied to lm_head
  Matrix lm_head;    // [vocab, hidden]; with tied weights it serves both
  std::vector<Layer> layers;
  Vector final_norm;  // [hidden]
  Vector no_bias;     // always empty: the bias of lm_head
  // False: the files hold no output layer. lm_head then is the embedding, and logits mean nothing.
  bool generates = true;

  // The matrix with the tokens' embeddings as rows.
  const Matrix& EmbeddingRows() const { return embedding.n() > 0 ? embedding : lm_head; }
};

}  // namespace loramux
