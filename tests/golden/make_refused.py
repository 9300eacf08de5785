#!/usr/bin/env python3
"""Makes tests/golden/refused: adapters that a server must refuse, each with expect.json
(README.md describes it). Needs tests/golden/models."""

import argparse
import json
import pathlib
import struct
import tempfile
import warnings

from golden_common import HERE, fresh_dir, read_json, stable_seed, tidy_adapter_config, write_json

import peft
import safetensors
import torch
import transformers
from safetensors.torch import load_file, save

warnings.filterwarnings("ignore")
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.set_grad_enabled(False)

BASE = "llama3_old"          # hidden 32, 2 layers, q 32 wide, k and v 16, ffn 48, vocab 100
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIG_FILE = "adapter_config.json"
TENSOR_FILE = "adapter_model.safetensors"


def plain_config(**changes):
    config = {"base_model_name_or_path": f"loramux-golden/{BASE}", "bias": "none", "fan_in_fan_out": False,
              "inference_mode": True, "lora_alpha": 4, "lora_dropout": 0.0, "modules_to_save": None,
              "peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    config.update(changes)
    return {k: v for k, v in config.items() if v is not ...}


def pair(module=Q0, r=2, fan_in=32, fan_out=32, dtype=torch.float32):
    gen = torch.Generator().manual_seed(stable_seed(module, r, fan_in, fan_out))
    return {f"{module}.lora_A.weight": torch.randn(r, fan_in, generator=gen).to(dtype),
            f"{module}.lora_B.weight": torch.randn(fan_out, r, generator=gen).to(dtype)}


def raw_file(header, body=b"", length=None):
    """The bytes of a safetensors file with any header (dict, str or bytes) and any stated length."""
    if isinstance(header, dict):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


A0, B0 = f"{Q0}.lora_A.weight", f"{Q0}.lora_B.weight"


# --------------------------------------------------------------------------- made by PEFT itself

def by_peft():
    """name -> (model case, LoraConfig arguments, strings the message must hold, why)"""
    q = dict(r=2, lora_alpha=4, target_modules=["q_proj"], layers_to_transform=[0])
    return {
        "layer_replication": (BASE, dict(r=2, lora_alpha=4, target_modules=["q_proj"],
                                         layer_replication=[[0, 2], [1, 2]]), ["layer_replication"],
                              "builds a deeper model out of repeated layers"),
    }


def save_with_peft(out, models_dir, case, lora):
    path = models_dir / case / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.manual_seed(stable_seed(out.name))
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.copy_(0.3 * torch.randn(p.shape))
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp, save_embedding_layers=False)
        config = read_json(pathlib.Path(tmp) / CONFIG_FILE)
        tensors = load_file(pathlib.Path(tmp) / TENSOR_FILE)
    write_json(out / CONFIG_FILE, tidy_adapter_config(config, f"loramux-golden/{case}"))
    (out / TENSOR_FILE).write_bytes(save(tensors, metadata={"format": "pt"}))


# --------------------------------------------------------------------------- made by hand

def by_hand():
    """name -> (config: dict, text or None; tensors: dict, bytes or None; must_mention; why; more files; model case)"""
    good = pair()
    cases = {}

    def add(name, must, why, config=plain_config(), tensors=good, files=None, base=BASE):
        cases[name] = (config, tensors, must, why, files or {}, base)

    # options: the tensors are those of a plain adapter, so only the configuration tells
    add("option_use_dora", ["use_dora"], "use_dora without its tensors", plain_config(use_dora=True))
    add("option_lora_bias", ["lora_bias"], "lora_bias without its tensors", plain_config(lora_bias=True))
    add("option_modules_to_save", ["modules_to_save"], "modules_to_save without its tensors",
        plain_config(modules_to_save=["lm_head"]))
    add("option_layer_replication", ["layer_replication"], "layer_replication",
        plain_config(layer_replication=[[0, 2], [1, 2]]))
    add("option_trainable_token_indices", ["trainable_token_indices"], "in its dictionary form",
        plain_config(trainable_token_indices={"embed_tokens": [1, 2]}))
    add("option_use_qalora", ["use_qalora"], "QALoRA pools the input before lora_A", plain_config(use_qalora=True))
    add("option_use_bdlora", ["use_bdlora"], "block-diagonal LoRA",
        plain_config(use_bdlora={"target_modules_bd_a": ["q_proj"], "nblocks": 2}))
    add("option_arrow_config", ["arrow_config"], "Arrow routes between adapters",
        plain_config(arrow_config={"top_k": 2}))
    add("option_kasa_config", ["kasa_config"], "KaSA changes the base's weights",
        plain_config(kasa_config={"beta": 1e-4, "gamma": 1e-3}))
    add("fan_in_fan_out", ["fan_in_fan_out"], "transposed weights", plain_config(fan_in_fan_out=True))

    # kind of adapter
    add("prefix_tuning", ["PREFIX_TUNING"], "not LoRA",
        {"base_model_name_or_path": f"loramux-golden/{BASE}", "encoder_hidden_size": 32, "inference_mode": True,
         "num_attention_heads": 2, "num_layers": 2, "num_transformer_submodules": 1, "num_virtual_tokens": 3,
         "peft_type": "PREFIX_TUNING", "prefix_projection": False, "revision": None,
         "task_type": "CAUSAL_LM", "token_dim": 32}, {"prompt_embeddings": torch.zeros(3, 8)})
    add("adalora", ["ADALORA"], "not plain LoRA", plain_config(peft_type="ADALORA", target_r=2, init_r=4))
    add("peft_type_missing", ["peft_type"], "no peft_type", plain_config(peft_type=...))

    add("mlx", ["model.layers.1.self_attn.q_proj.lora_a", "lora_B"], "half a pair in an adapter of mlx-lm", files={
        "adapters.safetensors": save({"model.layers.1.self_attn.q_proj.lora_a": torch.zeros(32, 2)})}, tensors=None,
        config={"fine_tune_type": "lora", "lora_parameters": {"rank": 2, "dropout": 0.0, "scale": 20.0}, "model": BASE})

    # numbers
    add("rank_mismatch", [A0, "13", "11"], "the configuration says 13, the tensors 11",
        plain_config(r=13), pair(r=11))
    add("rank_mismatch_pattern", [A0, "17", "13"], "rank_pattern says 17, the tensors 13",
        plain_config(r=13, rank_pattern={"q_proj": 17}), pair(r=13))
    add("rank_a_b_differ", [B0, "13", "11"], "lora_A has rank 13, lora_B rank 11",
        plain_config(r=13), {**pair(r=11), A0: pair(r=13)[A0]})
    add("rank_zero", ["rank"], "r is 0", plain_config(r=0))
    add("rank_negative", ["rank"], "r is -2", plain_config(r=-2))
    add("rank_not_a_number", [CONFIG_FILE], "r is a string", plain_config(r="two"))
    add("rank_missing", [CONFIG_FILE], "no r and no lora_alpha", plain_config(r=..., lora_alpha=...))
    add("alpha_string", ["lora_alpha"], "lora_alpha is a string", plain_config(lora_alpha="sixteen"))
    add("alpha_null", ["lora_alpha"], "lora_alpha is null", plain_config(lora_alpha=None))
    text = json.dumps(plain_config(), indent=1)
    add("alpha_overflow", [CONFIG_FILE], "lora_alpha is 1e999, beyond a double",
        text.replace('"lora_alpha": 4', '"lora_alpha": 1e999'))
    add("alpha_nan", [CONFIG_FILE], "lora_alpha is NaN, which Python's json writes but JSON has not",
        text.replace('"lora_alpha": 4', '"lora_alpha": NaN'))
    add("alpha_pattern_overflow", [CONFIG_FILE], "an alpha_pattern value of 1e999",
        json.dumps(plain_config(alpha_pattern={"q_proj": 77}), indent=1).replace("77", "1e999"))

    # tensors
    norm = "base_model.model.model.layers.0.input_layernorm"
    unknown = "base_model.model.model.layers.0.self_attn.z_proj"
    beyond = "base_model.model.model.layers.2.self_attn.q_proj"
    add("a_without_b", [A0], "lora_A without lora_B", tensors={A0: good[A0]})
    add("b_without_a", [B0], "lora_B without lora_A", tensors={B0: good[B0]})
    add("unknown_module", [unknown], "no such module in the base",
        plain_config(target_modules=["q_proj", "z_proj"]), {**good, **pair(unknown)})
    add("not_linear_module", [norm], "a module that is no linear layer",
        plain_config(target_modules=["q_proj", "input_layernorm"]), {**good, **pair(norm)})
    add("layer_out_of_range", [beyond], "layer 2 of a model with layers 0 and 1", tensors={**good, **pair(beyond)})
    add("layer_number_huge", ["99999999999999999999"], "a layer number beyond 64 bits",
        tensors={**good, **pair(Q0.replace(".0.", ".99999999999999999999."))})
    add("layer_number_negative", ["layers.-1"], "a negative layer number",
        tensors={**good, **pair(Q0.replace(".0.", ".-1."))})
    add("wrong_in", [A0, "31", "32"], "lora_A for an input of 31", tensors=pair(fan_in=31))
    add("wrong_out", [B0, "33", "32"], "lora_B for an output of 33", tensors=pair(fan_out=33))
    add("one_dimension", [A0], "lora_A with one dimension", tensors={**good, A0: torch.zeros(64)})
    add("three_dimensions", [A0], "lora_A with three dimensions", tensors={**good, A0: torch.zeros(2, 32, 1)})
    add("transposed", [A0], "lora_A is [in, r]", tensors={**good, A0: torch.zeros(32, 2)})
    add("unused_tensor", ["stowaway.weight"], "a tensor that belongs to nothing",
        tensors={**good, "stowaway.weight": torch.zeros(2)})
    add("dora_tensor_only", [f"{Q0}.lora_magnitude_vector"], "a DoRA tensor that the configuration hides",
        tensors={**good, f"{Q0}.lora_magnitude_vector": torch.ones(32)})
    add("dora_wrong_out", ["lora_magnitude_vector", "33", "32"], "a magnitude for an output of 33",
        plain_config(use_dora=True), {**good, f"{Q0}.lora_magnitude_vector": torch.ones(33)})
    add("dora_and_lora_bias", ["use_dora", "lora_bias"], "both, which PEFT refuses",
        plain_config(use_dora=True, lora_bias=True),
        {**good, f"{Q0}.lora_magnitude_vector": torch.ones(32), f"{Q0}.lora_B.bias": torch.ones(32)})
    add("bias_without_base_bias", [f"{Q0}.base_layer.bias", "no bias"], "a trained bias where the base has none",
        plain_config(bias="lora_only"), {**good, f"{Q0}.base_layer.bias": torch.ones(32)})
    add("bias_alone", ["lora_A"], "biases without any LoRA", plain_config(bias="all"),
        {f"{Q0}.bias": torch.ones(32)})
    add("full_weight_tensor", ["base_model.model.model.norm.weight"],
        "a whole base weight that the configuration hides",
        tensors={**good, "base_model.model.model.norm.weight": torch.ones(32)})
    add("not_targeted", ["k_proj"], "tensors for k_proj, target_modules only names q_proj",
        tensors={**good, **pair(Q0.replace("q_proj", "k_proj"), fan_out=16)})
    add("named_twice", [Q0], "the same module in two layouts",
        tensors={**good, f"{Q0}.lora_A.default.weight": good[A0].clone(),
                 f"{Q0}.lora_B.default.weight": good[B0].clone()})
    add("resized_vocabulary", ["lm_head.weight", "[104, 32]", "resize"], "copies of matrices with four more tokens",
        tensors={**good, "base_model.model.lm_head.weight": torch.zeros(104, 32)})
    add("embeddings_as_linear", ["unembed_tokens"], "how Tinker's cookbook writes the output layer of a tied model",
        plain_config(target_modules=["q_proj", "embed_tokens"]),
        {**good, **pair("base_model.model.model.embed_tokens", fan_out=100)})
    add("integer_tensors", [A0, "I32"], "integer tensors",
        tensors={k: torch.ones(v.shape, dtype=torch.int32) for k, v in good.items()})
    add("f64_tensors", ["F64"], "double precision tensors", tensors=pair(dtype=torch.float64))
    add("no_tensors", [TENSOR_FILE], "an adapter that changes nothing", tensors={})

    # embedding and output matrix of its own
    embed, head = "base_model.model.model.embed_tokens.", "base_model.model.lm_head."
    delta = embed + "token_adapter.trainable_tokens_delta"

    def tokens(name, must, why, indices, rows, **more):
        add(name, must, why, plain_config(trainable_token_indices=indices, **more), {**good, **rows})

    tokens("tokens_out_of_range", [delta, "0 to 99", "100"], "token 100 of a vocabulary of 100", [3, 100],
           {delta: torch.ones(2, 32)})
    tokens("tokens_negative", ["trainable_token_indices", "-1"], "token -1", [3, -1], {delta: torch.ones(2, 32)})
    tokens("tokens_twice", ["trainable_token_indices", "3 twice"], "token 3 twice", [3, 5, 3], {delta: torch.ones(3, 32)})
    tokens("tokens_too_few", [delta, "[2, 32]", "[1, 32]"], "two tokens, one row", [3, 5], {delta: torch.ones(1, 32)})
    tokens("tokens_wrong_width", [delta, "[1, 32]", "[1, 31]"], "rows of another hidden size", [3],
           {delta: torch.ones(1, 31)})
    tokens("tokens_nan", [delta, "NaN", "[1, 7]"], "a NaN in a row", [3, 5],
           {delta: torch.ones(2, 32).index_put((torch.tensor(1), torch.tensor(7)), torch.tensor(float("nan")))})
    tokens("tokens_unnamed", [delta, "trainable_token_indices"], "rows that the configuration hides", None,
           {delta: torch.ones(1, 32)})
    tokens("tokens_alora", ["alora_invocation_tokens", "trainable_token_indices"], "they would act before the invocation",
           [3], {delta: torch.ones(1, 32)}, alora_invocation_tokens=[7])
    tokens("tokens_and_saved", [embed + "weight", "both"], "rows of a matrix that is of its own as a whole", [3],
           {delta: torch.ones(1, 32), embed + "weight": torch.ones(100, 32)}, modules_to_save=["embed_tokens"])
    add("saved_nan", [head + "weight", "infinity", "[2, 0]"], "an infinite weight", plain_config(modules_to_save=["lm_head"]),
        {**good, head + "weight": torch.ones(100, 32).index_put((torch.tensor(2), torch.tensor(0)), torch.tensor(float("inf")))})
    add("saved_wrong_width", [head + "weight", "[100, 32]", "[100, 31]"], "another hidden size",
        plain_config(modules_to_save=["lm_head"]), {**good, head + "weight": torch.ones(100, 31)})
    add("saved_and_lora", [head + "weight", "LoRA beside it"], "LoRA on a matrix of its own",
        plain_config(modules_to_save=["lm_head"], target_modules=["q_proj", "lm_head"]),
        {**good, **pair("base_model.model.lm_head", fan_out=100), head + "weight": torch.ones(100, 32)})
    add("saved_linear", ["k_proj.weight", "modules_to_save"], "a whole linear layer", plain_config(modules_to_save=["k_proj"]),
        {**good, "base_model.model.model.layers.0.self_attn.k_proj.weight": torch.ones(16, 32)})
    norm = "base_model.model.model.layers.1.input_layernorm.weight"
    add("saved_norm_wrong_width", [norm, "[32]", "[31]"], "a norm of another hidden size",
        plain_config(modules_to_save=["input_layernorm"]), {**good, norm: torch.ones(31)})
    add("saved_norm_nan", [norm, "NaN"], "a NaN in a norm", plain_config(modules_to_save=["input_layernorm"]),
        {**good, norm: torch.full((32,), float("nan"))})
    q_norm = "base_model.model.model.layers.0.self_attn.q_norm.weight"
    add("saved_norm_of_heads", [q_norm, "does not have"], "a norm that the base model lacks",
        plain_config(modules_to_save=["q_norm"]), {**good, q_norm: torch.ones(16)})
    # LoRA of the embedding
    def embedding(name, must, why, tokens=100, tensors=None, **more):
        add(name, must, why, plain_config(**{"target_modules": ["q_proj", "embed_tokens"], **more}),
            {**good, embed + "lora_embedding_A": torch.ones(2, tokens), embed + "lora_embedding_B": torch.ones(32, 2),
             **(tensors or {})})

    a_of_embedding = embed + "lora_embedding_A"
    embedding("embedding_fewer_tokens", [a_of_embedding, "[rank, 100]", "[2, 99]"], "of 99 tokens, where the base has 100", 99)
    embedding("embedding_more_tokens", [a_of_embedding, "[2, 103]", "--adapter-tokens 3"], "of 103 tokens, where the base has 100",
              103)
    embedding("embedding_alora", [a_of_embedding, "activated LoRA"], "in an activated LoRA, which PEFT refuses",
              alora_invocation_tokens=[7])
    embedding("embedding_and_tokens", [delta, "LoRA beside them"], "trained rows of the same matrix", tensors={delta: torch.ones(1, 32)},
              trainable_token_indices=[3])
    embedding("embedding_all_linear", [a_of_embedding, "target_modules"], "all linear layers, of which it is none",
              target_modules="all-linear")
    embedding("embedding_nan", [a_of_embedding, "NaN", "[1, 3]"], "a NaN", tensors={
        a_of_embedding: torch.ones(2, 100).index_put((torch.tensor(1), torch.tensor(3)), torch.tensor(float("nan")))})
    # heads for classes
    score, classifier = "base_model.model.score.", "base_model.model.classifier."
    classes = {score + "weight": torch.ones(2, 32)}

    def head(name, must, why, tensors=classes, task="SEQ_CLS", files=None, **more):
        add(name, must, why, plain_config(task_type=task, **{"modules_to_save": ["classifier", "score"], **more}),
            {**good, **tensors}, files)

    head("head_bias", [score + "bias", "classification head"], "a bias, which the class of transformers lacks",
         {**classes, score + "bias": torch.ones(2)})
    head("head_of_tokens", [score + "weight", "TOKEN_CLS"], "a head for the classes of each token", task="TOKEN_CLS")
    head("head_layers", [classifier + "dense.weight", "classification head"], "a head of two layers",
         {classifier + "dense.weight": torch.ones(32, 32), classifier + "out_proj.weight": torch.ones(2, 32)})
    head("head_lora", [score + "lora_A.weight", "classification head"], "LoRA on a head",
         {**classes, **pair("base_model.model.score", fan_out=2)}, target_modules=["q_proj", "score"])
    head("head_wrong_width", [score + "weight", "[classes, 32]", "[2, 31]"], "a head of another hidden size",
         {score + "weight": torch.ones(2, 31)})
    head("head_empty", [score + "weight", "[0, 32]"], "a head without classes", {score + "weight": torch.ones(0, 32)})
    head("head_one_dimension", [score + "weight", "two dimensions"], "a vector", {score + "weight": torch.ones(32)})
    head("head_unnamed", [score + "weight", "modules_to_save"], "a head that the configuration hides", task="CAUSAL_LM",
         modules_to_save=None)
    head("head_twice", [classifier + "weight", score + "weight"], "two heads", {**classes, classifier + "weight": torch.ones(2, 32)})
    head("head_missing", ["modules_to_save", "classifier", "lacks"], "a head that the file lacks", {})
    head("head_alora", [score + "weight", "activated"], "a head of an activated LoRA", modules_to_save=None,
         alora_invocation_tokens=[7])
    head("head_nan", [score + "weight", "NaN", "[1, 3]"], "a NaN in a head",
         {score + "weight": torch.ones(2, 32).index_put((torch.tensor(1), torch.tensor(3)), torch.tensor(float("nan")))})
    head("head_labels", ["config.json", "id2label", "2 classes"], "three labels for two classes",
         files={"config.json": json.dumps({"id2label": {"0": "a", "1": "b", "2": "c"}}).encode()})
    head("head_labels_named", ["config.json", "id2label"], "labels of other classes",
         files={"config.json": json.dumps({"id2label": {"1": "a", "2": "b"}}).encode()})
    head("head_problem_type", ["config.json", "problem_type"], "a problem that is not known",
         files={"config.json": json.dumps({"problem_type": "ranking"}).encode()})

    # mixtures of experts: mixtral has 8 experts with gate_up_proj [64, 32] and down_proj [32, 32], and 2 layers
    def experts(name, must, why, tensors, base="mixtral", targets=("w1", "gate_proj", "gate", "down_proj"), **more):
        add(name, must, why, plain_config(base_model_name_or_path=f"loramux-golden/{base}", target_modules=list(targets), **more),
            tensors, base=base)

    mlp = "base_model.model.model.layers.0.mlp."
    moe = "base_model.model.model.layers.0.block_sparse_moe."
    experts("experts_of_dense", [f"{mlp[17:]}experts.1.gate_proj", "no experts"], "an expert of a dense model",
            pair(mlp + "experts.1.gate_proj", fan_out=48), base=BASE)
    experts("experts_all_of_dense", [mlp + "experts.lora_A.weight", "none"], "all experts of a dense model",
            pair(mlp + "experts", r=16), base=BASE, target_parameters=["mlp.experts.down_proj"])
    experts("experts_router_of_dense", [f"{mlp[17:]}gate", "no experts"], "a router of a dense model", pair(mlp + "gate", fan_out=8),
            base=BASE)
    experts("experts_router_untargeted", [f"{moe[17:]}gate", "target_modules"], "a router, and target_modules is empty",
            pair(moe + "gate", fan_out=8), targets=())
    experts("experts_out_of_range", [f"{moe[17:]}experts.8.w1", "8 experts"], "expert 8 of 8", pair(moe + "experts.8.w1"))
    experts("experts_number_huge", [moe + "experts.99999999999.w1"], "an expert beyond 32 bits", pair(moe + "experts.99999999999.w1"))
    experts("experts_wrong_part", [moe + "experts.1.w4"], "a part that experts lack", pair(moe + "experts.1.w4"))
    experts("experts_dense_block", [f"{mlp[17:]}gate_proj", "no other feed-forward block"], "a dense block of a layer with experts",
            pair(mlp + "gate_proj"))
    experts("experts_shared_where_none", ["shared_expert.gate_proj", "no other feed-forward block"], "a shared expert of Mixtral",
            pair(mlp + "shared_expert.gate_proj"))
    experts("experts_shared_gate_where_none", ["shared_expert_gate", "no gate of a shared one"], "its gate",
            pair(mlp + "shared_expert_gate", fan_out=1), targets=["shared_expert_gate"])
    both = {**pair(mlp + "experts.base_layer", r=16, fan_out=64), **pair(mlp + "experts", r=16)}
    experts("experts_ranks_not_whole", [mlp + "experts.lora_A.weight", "[15, 32]", "8 experts"], "15 rows for 8 experts",
            pair(mlp + "experts", r=15), target_parameters=["mlp.experts.down_proj"])
    experts("experts_no_rows", [mlp + "experts.lora_A.weight", "[0, 32]"], "no rows", pair(mlp + "experts", r=0),
            target_parameters=["mlp.experts.down_proj"])
    experts("experts_wrong_width", [mlp + "experts.lora_A.weight", "[16, 31]"], "another hidden size", pair(mlp + "experts", r=16, fan_in=31),
            target_parameters=["mlp.experts.down_proj"])
    experts("experts_unsaid", [mlp + "experts.", "target_parameters"], "parameters that the configuration hides", both)
    experts("experts_half", ["lora_A", "lora_B"], "lora_A of all experts alone",
            {k: v for k, v in pair(mlp + "experts", r=16).items() if "lora_A" in k}, target_parameters=["mlp.experts.down_proj"])
    experts("experts_other_rank", ["rank 4", "2"], "rank 2, where the configuration says 4", both, r=4,
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    experts("experts_dora", ["lora_magnitude_vector", "of experts"], "DoRA of an expert",
            {**pair(moe + "experts.1.w1"), moe + "experts.1.w1.lora_magnitude_vector": torch.ones(32)}, use_dora=True)
    experts("experts_magnitude_of_all", ["lora_magnitude_vector", "of experts"], "DoRA of all experts",
            {**pair(mlp + "experts", r=16), mlp + "experts.lora_magnitude_vector": torch.ones(32)},
            target_parameters=["mlp.experts.down_proj"], use_dora=True)
    experts("experts_nan", [mlp + "experts.lora_A.weight", "NaN"], "a NaN in the fourth expert", {
        **pair(mlp + "experts", r=16),
        mlp + "experts.lora_A.weight": torch.ones(16, 32).index_put((torch.tensor(7), torch.tensor(3)), torch.tensor(float("nan")))},
            target_parameters=["mlp.experts.down_proj"])
    add("target_parameters_text", ["target_parameters"], "a text instead of a list", plain_config(target_parameters="mlp.experts"))

    # files
    add("config_missing", [CONFIG_FILE], f"no {CONFIG_FILE}", None)
    add("config_not_json", [CONFIG_FILE], f"{CONFIG_FILE} is YAML", "peft_type: LORA\nr: 2\n")
    add("config_truncated", [CONFIG_FILE], f"{CONFIG_FILE} ends in the middle", text[:len(text) // 2])
    add("config_empty", [CONFIG_FILE], f"{CONFIG_FILE} is empty", "")
    add("config_array", [CONFIG_FILE], f"{CONFIG_FILE} is a JSON array", "[]\n")
    add("config_deep", [CONFIG_FILE], "deeply nested JSON", "[" * 20000 + "]" * 20000)
    add("tensors_missing", [TENSOR_FILE], f"no {TENSOR_FILE}", tensors=None)
    add("pickle", ["adapter_model.bin", "safetensors"], "only a pickle file (its content is not one: never read it)",
        tensors=None, files={"adapter_model.bin": b"This stands for a pickle file. It must not be opened.\n"})
    add("nothing", [CONFIG_FILE], "an empty directory (apart from expect.json)", None, None)

    # safetensors that are no safetensors
    body = bytes(512)
    fine = {A0: entry([2, 32], 0, 256), B0: entry([32, 2], 256, 512)}
    whole = raw_file(fine, body)

    def of_family(name, must, why, base, module, fan_in, fan_out):
        config = plain_config(base_model_name_or_path=f"loramux-golden/{base}", target_modules=[module.split(".")[-1]])
        add(name, [module, *must], why, config, pair("base_model.model." + module, fan_in=fan_in, fan_out=fan_out), base=base)

    of_family("family_values_are_keys", ["the values of its layer 1 are the keys"], "values of a layer of Gemma 4 without any",
              "gemma4", "model.layers.1.self_attn.v_proj", 32, 16)
    of_family("family_keys_of_another_layer", ["reads the keys and values of layer 2"], "keys of a layer without any",
              "gemma4_small", "model.layers.4.self_attn.k_proj", 32, 24)
    of_family("family_layer_input", ["its layers have no inputs of their own"], "a layer's own input in a model without",
              "gemma4", "model.layers.0.per_layer_input_gate", 32, 8)
    of_family("family_layer_context", ["its layers have no inputs of their own"], "what makes the layers' own inputs, in a "
              "model without", "gemma4", "model.per_layer_model_projection", 32, 48)
    of_family("family_layer_shape", ["expected [rank, 32]"], "a gate of another model's size", "gemma4_small",
              "model.layers.0.per_layer_input_gate", 24, 8)
    of_family("family_projection", ["its embedding is as wide as its hidden states"], "the projection of OPT-350M's "
              "embedding, in another OPT", "opt", "model.decoder.project_in", 24, 32)
    dora = pair("base_model.model.model.decoder.project_in", fan_in=24)
    add("family_projection_dora", ["model.decoder.project_in", "without DoRA"], "DoRA of a projection of the embedding",
        plain_config(base_model_name_or_path="loramux-golden/opt_post_norm", target_modules=["project_in"], use_dora=True),
        {**dora, "base_model.model.model.decoder.project_in.lora_magnitude_vector": torch.ones(32)}, base="opt_post_norm")
    of_family("family_projection_layer", ["unknown name"], "a projection of the embedding within a layer", "opt_post_norm",
              "model.decoder.layers.0.project_in", 24, 32)

    def bad(name, why, data, must=()):
        add(f"file_{name}", [TENSOR_FILE, *must], why, tensors=data)

    bad("empty", "0 bytes", b"")
    bad("seven_bytes", "shorter than the header's length field", whole[:7])
    bad("truncated_body", "100 bytes short", whole[:-100])
    bad("truncated_header", "ends inside the header", whole[:60])
    bad("trailing_bytes", "bytes after the last tensor", whole + b"\0" * 16)
    bad("header_beyond_file", "header length beyond the file", raw_file(fine, body, length=1 << 20))
    bad("header_length_huge", "header length 2^63 + 5", raw_file(fine, body, length=(1 << 63) + 5))
    bad("header_length_max", "header length 2^64 - 1: adding 8 overflows", raw_file(fine, body, length=(1 << 64) - 1))
    bad("header_length_zero", "header length 0", raw_file(b"", body))
    bad("header_not_json", "header is not JSON", raw_file("not json at all", body))
    bad("header_cut_json", "header is JSON cut short", raw_file(json.dumps(fine)[:-3], body))
    bad("header_array", "header is a JSON array", raw_file("[1, 2]", body))
    bad("header_not_utf8", "a name that is not UTF-8", raw_file(b'{"\xff\xfe":' + json.dumps(fine[A0]).encode() + b"}", body))
    bad("header_deep", "deeply nested header", raw_file("[" * 20000 + "]" * 20000, body))
    bad("duplicate_key", "the same tensor twice",
        raw_file("{" + ", ".join(f'"{A0}": {json.dumps(e)}' for e in fine.values()) + "}", body), [A0])
    bad("overlapping", "two tensors share bytes",
        raw_file({A0: entry([2, 32], 0, 256), B0: entry([32, 2], 128, 384)}, bytes(384)))
    bad("same_bytes", "two tensors on the same bytes",
        raw_file({A0: entry([2, 32], 0, 256), B0: entry([32, 2], 0, 256)}, bytes(256)))
    bad("hole", "bytes between two tensors that belong to none",
        raw_file({A0: entry([2, 32], 0, 256), B0: entry([32, 2], 264, 520)}, bytes(520)))
    bad("not_from_zero", "the first tensor does not begin at 0",
        raw_file({A0: entry([2, 32], 8, 264), B0: entry([32, 2], 264, 520)}, bytes(520)))
    bad("offset_beyond_file", "offsets beyond the file",
        raw_file({A0: entry([2, 32], 0, 256), B0: entry([32, 2], 1 << 20, (1 << 20) + 256)}, body), [B0])
    bad("offset_overflow", "offsets that wrap around 2^64",
        raw_file({A0: entry([2, 32], 0, 256), B0: entry([32, 2], (1 << 64) - 256, (1 << 64) - 1)}, body))
    bad("offset_reversed", "end before begin",
        raw_file({A0: entry([2, 32], 0, 256), B0: entry([32, 2], 512, 256)}, body), [B0])
    bad("offset_negative", "negative offsets",
        raw_file({A0: entry([2, 32], -256, 0), B0: entry([32, 2], 0, 256)}, body))
    bad("offset_fraction", "offsets that are no integers",
        raw_file({A0: entry([2, 32], 0.5, 256.5), B0: entry([32, 2], 256, 512)}, body))
    bad("offsets_three", "three offsets",
        raw_file({A0: dict(fine[A0], data_offsets=[0, 128, 256]), B0: fine[B0]}, body))
    bad("offsets_missing", "no data_offsets",
        raw_file({A0: {"dtype": "F32", "shape": [2, 32]}, B0: fine[B0]}, body))
    bad("size_mismatch", "shape and dtype need 256 bytes, the offsets give 252",
        raw_file({A0: entry([2, 32], 0, 252), B0: entry([32, 2], 252, 508)}, bytes(508)), [A0])
    bad("dtype_mismatch", "F16 with the bytes of F32",
        raw_file({A0: entry([2, 32], 0, 256, "F16"), B0: fine[B0]}, body), [A0])
    bad("dtype_unknown", "dtype F99", raw_file({A0: entry([2, 32], 0, 256, "F99"), B0: fine[B0]}, body), ["F99"])
    bad("shape_overflow", "a product of dimensions that wraps to 0 in 64 bits",
        raw_file({A0: entry([1 << 32, 1 << 32], 0, 0), B0: entry([32, 2], 0, 256)}, bytes(256)), [A0])
    bad("shape_bytes_overflow", "elements fit in 64 bits, bytes wrap to 256",
        raw_file({A0: entry([(1 << 62) + 64], 0, 256), B0: fine[B0]}, body), [A0])
    bad("shape_negative", "a negative dimension",
        raw_file({A0: entry([-2, -32], 0, 256), B0: fine[B0]}, body))
    bad("shape_text", "dimensions as strings",
        raw_file({A0: entry(["2", "32"], 0, 256), B0: fine[B0]}, body))
    return cases


def write_by_hand(out, config, tensors, files):
    if isinstance(config, dict):
        write_json(out / CONFIG_FILE, config)
    elif config is not None:
        (out / CONFIG_FILE).write_text(config, encoding="utf-8")
    if isinstance(tensors, dict):
        tensors = save(tensors, metadata={"format": "pt"})
    if tensors is not None:
        (out / TENSOR_FILE).write_bytes(tensors)
    for name, data in files.items():
        (out / name).write_bytes(data)


def library_verdict(path):
    """What the safetensors library says to the file: None when it reads it."""
    try:
        load_file(path)
        return None
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, KeyError, OverflowError) as e:
        return str(e)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=pathlib.Path, default=HERE / "models")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "refused", help="where the adapters go")
    parser.add_argument("--verdicts", action="store_true",
                        help="also print what the safetensors library says to each broken file")
    args = parser.parse_args()
    fresh_dir(args.out)
    for name, (case, lora, must, why) in by_peft().items():
        out = fresh_dir(args.out / name)
        save_with_peft(out, args.models, case, lora)
        write_json(out / "expect.json", {"model": case, "must_mention": must, "why": why})
    for name, (config, tensors, must, why, files, base) in by_hand().items():
        out = fresh_dir(args.out / name)
        write_by_hand(out, config, tensors, files)
        write_json(out / "expect.json", {"model": base, "must_mention": must, "why": why})
        if name.startswith("file_"):
            verdict = library_verdict(out / TENSOR_FILE)
            if args.verdicts:
                print(f"{name:28} {verdict or 'READ WITHOUT COMPLAINT'}"[:150])
    print(f"{len(list(args.out.iterdir()))} adapters to refuse in {args.out.name}/")


if __name__ == "__main__":
    main()
