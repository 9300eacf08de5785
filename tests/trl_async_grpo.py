#!/usr/bin/env python3
"""TRL's asynchronous GRPO trainer against a running server, on a CPU. Not one of the tests that run by themselves: it needs
PyTorch, transformers, PEFT, TRL 1.16.0, datasets and aiohttp.

Usage: trl_async_grpo.py PATH_OF_LORAMUX [--steps 20] [--runs 1] [--markdown FILE]

Each run trains an adapter of the demo's model, which answers lines without words by any letters. The reward is the share of
letters from a to m. Each update is a new version, which TRL loads between /pause and /resume; rollouts are held
meanwhile, and go on by the version that they name. It must reach a reward of 0.9. Then the newest version of each run answers some prompts, and
transformers with PEFT computes the log-probabilities of the same token ids in float32: they must differ by less than 2e-5.

TRL's code is as published. Three things are set from outside, and stand in for what this machine lacks: a name for the device (the trainer asks CUDA,
findings/trl-asks-a-cpu-for-its-cuda-name.sh), a sum in PyTorch for its attention kernel, which runs on GPUs only, and the
answer that vLLM is installed (only the interface of its server is used). A run has an adapter name of its own.
"""
import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import serving
from serving import DEMO, Server

MODEL = str(DEMO / "model")
TOLERANCE = 2e-5   # of a log-probability, in float32


def reward(completions, **_):
    texts = [one[0]["content"] if isinstance(one, list) else one for one in completions]
    return [sum("a" <= letter <= "m" for letter in text) / max(1, len(text)) for text in texts]


def train(url, folder, name, steps):
    """One run, in a process of its own."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_rollout_worker, packing

    class CpuAttention:
        @staticmethod
        def flash_attn_varlen_func(q, k, v, starts_q, starts_k, *_, softmax_scale, **__):
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            parts = []
            for i in range(len(starts_q) - 1):
                queries, keys = q[starts_q[i]:starts_q[i + 1]], slice(int(starts_k[i]), int(starts_k[i + 1]))
                seen = torch.ones(len(queries), len(k[keys]), dtype=torch.bool).tril(len(k[keys]) - len(queries))
                parts.append(torch.nn.functional.scaled_dot_product_attention(
                    queries.transpose(0, 1), k[keys].transpose(0, 1), v[keys].transpose(0, 1), attn_mask=seen,
                    scale=softmax_scale).transpose(0, 1))
            return torch.cat(parts)

    packing._flash_attn = lambda: CpuAttention
    async_rollout_worker.is_vllm_available = lambda *_, **__: True
    torch.cuda.get_device_name = lambda *_: "CPU"

    class Trainer(AsyncGRPOTrainer):
        _lora_name = property(lambda self: name, lambda self, value: None)

    choose = random.Random(1)
    prompts = [[{"role": "user", "content": "\n" * choose.randint(2, 9)}] for _ in range(256)]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.response_template = {"defaults": {"role": "assistant"}, "start_anchor": "<|assistant|>",
                                   "fields": {"content": {"close_pattern": r"<\|end\|>|$", "content": "text"}}}
    config = AsyncGRPOConfig(output_dir=folder, vllm_server_base_url=url, learning_rate=3e-3, max_steps=steps,
                             num_generations=8, per_device_train_batch_size=16, max_completion_length=16, max_staleness=2,
                             use_cpu=True, report_to="none", save_strategy="no", logging_steps=1)
    trainer = Trainer(model=MODEL, args=config, train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
                      peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
                      reward_funcs=reward, processing_class=tokenizer)
    trainer.train()
    log = [{key: entry.get(key) for key in ("reward", "ratio", "perf/weight_sync_s", "sample/staleness_mean")}
           for entry in trainer.state.log_history if "reward" in entry]
    (pathlib.Path(folder) / "log.json").write_text(json.dumps(log), encoding="utf-8")


def largest_difference(server, name, adapter):
    """Of the server's log-probabilities and those of transformers and PEFT for the same ids, over some answers."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32), adapter).eval()
    largest, tokens = 0.0, 0
    for count in range(2, 10):
        status, answer = server.json("POST", "/v1/chat/completions", {
            "model": name, "messages": [{"role": "user", "content": "\n" * count}], "max_tokens": 16, "n": 4, "seed": count,
            "logprobs": True, "return_token_ids": True})
        assert status == 200, answer
        for choice in answer["choices"]:
            prompt, ids = answer["prompt_token_ids"], choice["token_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([prompt + ids])).logits[0].double()
            expected = torch.log_softmax(logits, -1)[len(prompt) - 1:-1].gather(1, torch.tensor(ids)[:, None])[:, 0]
            found = torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]])
            assert len(found) == len(ids), (len(found), len(ids))
            largest = max(largest, float((expected - found).abs().max()))
            tokens += len(ids)
    return largest, tokens


def newest(folder, name):
    versions = {int(re.search(r"-v(\d+)$", str(path)).group(1)): path for path in folder.glob(f".vllm_lora/{name}-v*")}
    return max(versions), str(versions[max(versions)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loramux")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--train", nargs=3, metavar=("URL", "FOLDER", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        return train(*options.train, options.steps)
    serving.LORAMUX = options.loramux
    lines = []
    with tempfile.TemporaryDirectory() as top:
        top = pathlib.Path(top)
        server = Server.run([options.loramux, "serve", MODEL, "--served-model-name", MODEL, "--enable-runtime-lora",
                             "--insecure-no-admin-key", "--allowed-adapter-root", str(top), "--lora-dtype", "f32",
                             "--logprobs-mode", "processed_logprobs",
                             "--port", "0"])
        names = [f"run-{chr(97 + i)}" for i in range(options.runs)]
        began = time.monotonic()
        runs = []
        for name in names:
            (top / name).mkdir()
            runs.append(subprocess.Popen([sys.executable, __file__, options.loramux, "--steps", str(options.steps), "--train",
                                          f"http://127.0.0.1:{server.port}", str(top / name), name]))
        assert [run.wait() for run in runs] == [0] * len(runs), "a trainer failed"
        took = time.monotonic() - began
        for name in names:
            log = json.loads((top / name / "log.json").read_text(encoding="utf-8"))
            version, adapter = newest(top / name, name)
            asked = {int(found) for found in re.findall(rf"adapter={name}-v(\d+) ", server.text())}
            assert version == options.steps + 1, (version, options.steps)
            assert asked <= set(range(1, version + 1)) and len(asked) >= options.steps * 3 // 4, sorted(asked)
            difference, tokens = largest_difference(server, f"{name}-v{version}", adapter)
            rewards = [float(entry["reward"]) for entry in log]
            syncs = sorted(float(entry["perf/weight_sync_s"]) for entry in log if entry["perf/weight_sync_s"] is not None)
            lines.append(f"| {name} | {len(log)} | {', '.join(f'{value:.2f}' for value in rewards[::max(1, len(log) // 7)])} | "
                         f"{float(log[0]['ratio']):.4f} | {len(asked)} | {syncs[len(syncs) // 2] * 1000:.0f} | "
                         f"{difference:.1e} of {tokens} |")
            print(lines[-1], flush=True)
            assert max(rewards[-5:]) > 0.9, rewards
            assert difference < TOLERANCE, difference
        left = server.json("GET", "/v1/models")[1]["data"]
        server.stop()
    # Versions that nothing can ask for any more were unloaded: those within max_staleness, and the newest, are left.
    assert len(left) - 1 <= 4 * options.runs, [model["id"] for model in left]
    if options.markdown:
        head, rest = options.markdown.read_text(encoding="utf-8").split(f"<!-- {options.runs} -->\n")
        rest = rest.split("<!-- end -->", 1)[1]
        table = ["| run | updates | reward, every few updates | ratio of the first update | versions asked | pause, save, load and resume "
                 "of a version, ms (median) | largest difference of a log-probability |", "|---|---|---|---|---|---|---|", *lines, "",
                 f"{took:.0f} s in all."]
        options.markdown.write_text("\n".join([head + f"<!-- {options.runs} -->", *table, "<!-- end -->"]) + rest,
                                    encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
