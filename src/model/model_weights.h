// The weights of a base model, in whatever form a device keeps them.
#pragma once

#include <vector>

namespace loramux {

// The weights of a norm.
template <typename Vector>
struct NormWeightsOf {
  Vector weight;
  Vector bias;  // only with NormKind::kLayer and QkNorm::kLayerOfHeads; else empty
};

// What a recurrent layer has beside matrices; formats/recurrent_config.h has the extents.
template <typename Vector>
struct StateWeightsOf {
  Vector conv;           // [conv_width, Channels()], a row for each position in view, the earliest first
  Vector rate, dt_bias;  // [value_heads]: -exp(A_log), and what is added to a, or to Mamba-2's steps
  Vector norm;           // [value_dim]; of Mamba-2 [Values()]
  Vector conv_bias;      // [Channels()]; empty if there is none
  Vector skip;           // [value_heads]: Mamba-2's D; else empty
};

// Weights of one decoder layer; q|k|v share one matrix, gate|up another. Matrices are [outputs, inputs].
template <typename Matrix, typename Vector>
struct LayerWeightsOf {
  Matrix qkv;      // [QkvDim, hidden]; of a recurrent layer in_proj_qkv|in_proj_z, or in_proj
  Matrix o;        // [hidden, QDim], or out_proj
  Matrix gate_up;  // [2 intermediate, hidden], or up alone
  Matrix down;     // [hidden, intermediate]
  Vector qkv_bias, o_bias, gate_up_bias, down_bias;  // empty if none
  // A mixture of experts; empty if the layer has none, as gate_up and down are if it has nothing else.
  Matrix router;                       // [experts, hidden]
  Matrix shared_gate;                  // [1, hidden], of the shared expert, which gate_up and down are
  std::vector<Matrix> expert_gate_up;  // for each expert: [2 intermediate, hidden]
  std::vector<Matrix> expert_down;     // [hidden, intermediate]
  Vector router_bias;                  // empty if none
  Vector route_bias;                   // [experts], added to the scores that choose alone; empty if none
  std::vector<Vector> expert_gate_up_bias, expert_down_bias;
  // With ExpertsConfig::beside_block; else empty: norms [hidden] of the router's input, of what the layer's own block
  // returns, of the input of the experts, and of what they return together; [experts], factors of what each returns.
  NormWeightsOf<Vector> router_norm, block_output_norm, experts_norm, experts_output_norm;
  Vector expert_scales;
  Vector sinks;  // [heads]; empty if none
  // [hidden] each, of the inputs and the outputs of attention and of the feed-forward block; empty if none
  NormWeightsOf<Vector> input_norm, attention_output_norm, mlp_norm, mlp_output_norm;
  // [head_dim], or [QDim] and [KvDim], as ModelConfig::qk_norm says; empty if none. v_norm: [head_dim], of ones.
  NormWeightsOf<Vector> q_norm, k_norm, v_norm;
  float scale = 1;  // factor of the layer's result (ModelConfig::layer_scales)
  // With n = ModelConfig::layer_input_size: [n, hidden], [hidden, n], and a norm [hidden] of what comes out.
  Matrix input_gate, input_projection;
  NormWeightsOf<Vector> layer_input_norm;
  // In a recurrent layer: [2 value_heads, hidden], in_proj_b|in_proj_a, empty in Mamba-2; the rest.
  Matrix state_gates;
  StateWeightsOf<Vector> states;
  // [InputRows(), hidden] and [hidden, Values()]: in_proj and out_proj of a layer that has attention beside its states.
  Matrix state_in, state_out;
  Vector state_in_bias, state_out_bias;
};

// All weights of a base model. Matrix::n() is the number of outputs, 0 of an empty matrix.
template <typename MatrixType, typename VectorType>
struct ModelWeightsOf {
  using Matrix = MatrixType;
  using Vector = VectorType;
  using Layer = LayerWeightsOf<Matrix, Vector>;
  using Norm = NormWeightsOf<Vector>;

  Matrix embedding;  // [vocab, EmbeddingSize]; empty if tied to lm_head
  Matrix lm_head;    // [vocab, EmbeddingSize]; with tied weights it serves both
  Matrix positions;  // [rows, hidden] of ModelConfig::position_rows_before; empty if there are none
  // [hidden, EmbeddingSize] and back; empty if these are the same.
  Matrix project_in, project_out;
  Norm embedding_norm;  // [hidden] of the embedding; empty if it is not normed
  Vector slopes;        // AlibiSlopes
  // What the layers' own inputs are made of: rows by token, and a matrix of the embedding, both with those of all
  // layers one after the other; the norm of each.
  Matrix layer_embedding, layer_context;
  Norm layer_context_norm;
  std::vector<Layer> layers;
  Norm final_norm;  // [hidden]; empty if there is none
  Vector no_bias;   // always empty: the bias of lm_head
  // False: the files hold no output layer. lm_head then is the embedding, and logits mean nothing.
  bool generates = true;

  // The matrix with the tokens' embeddings as rows.
  const Matrix& EmbeddingRows() const { return embedding.n() > 0 ? embedding : lm_head; }
};

}  // namespace loramux
