#!/usr/bin/env python3
"""SkyRL's client of inference servers against running servers, on a CPU. Not one of the tests that run by themselves: it needs
skyrl 0.3.0 (without its dependencies), pydantic and aiohttp, and PyTorch, transformers and PEFT for the check.

Usage: skyrl_client.py PATH_OF_LORAMUX [--versions 20] [--markdown FILE]

The client is as published (skyrl.backends.skyrl_train.inference_servers.remote_inference_client). It talks to two servers:
rollouts go to a router before both, and pauses, loads and resets to each. Two runs push versions of their adapters, each between
/pause?mode=keep and /resume, while rollouts of both run. Each answer must be the one that its version gives alone, on either server,
and its log-probabilities those of transformers with PEFT for the ids that came back, in float32.
"""
import argparse
import asyncio
import json
import pathlib
import re
import time
import typing

import serving
from serving import DEMO, Server

ADAPTERS = ("reverse", "upper", "rot13", "swap")   # of the demo; a version of a run is one of them
FLAGS = ("--enable-runtime-lora", "--insecure-no-admin-key", "--allowed-adapter-root", str(DEMO), "--kv-cache-dtype", "f32", "--lora-dtype", "f32",
         "--logprobs-mode", "processed_logprobs")
TOLERANCE = 4e-5   # of a log-probability; docs/results/trainers.md says why
PROMPTS = ("abcd", "hello", "lora", "mixed case", "one two", "zyx")


def client_class():
    import typing_extensions
    typing.TypedDict = typing_extensions.TypedDict   # findings/skyrl-client-is-not-imported-by-python-3.11.sh
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
    return RemoteInferenceClient


class Judge:
    """The log-probabilities that transformers and PEFT give."""

    def __init__(self):
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM
        base = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
        self.model = PeftModel.from_pretrained(base, DEMO / "adapters" / ADAPTERS[0], adapter_name=ADAPTERS[0])
        for name in ADAPTERS[1:]:
            self.model.load_adapter(DEMO / "adapters" / name, adapter_name=name)
        self.torch = torch

    def worst(self, adapter, prompt, ids, logprobs):
        self.model.set_adapter(adapter)
        with self.torch.no_grad():
            scores = self.model(self.torch.tensor([prompt + ids])).logits[0, len(prompt) - 1:-1].log_softmax(-1)
        return max(abs(scores[i, token].item() - logprobs[i]) for i, token in enumerate(ids))


class Rollouts:
    """Two runs that push versions while their rollouts run."""

    def __init__(self, client, prompts, expected, judge):
        self.client, self.prompts, self.expected, self.judge = client, prompts, expected, judge
        self.answers = self.moved = 0
        self.worst, self.pushes = 0.0, []

    async def push(self, name, adapter):
        begin = time.monotonic()
        await self.client.pause(mode="keep")
        await self.client.load_lora_adapter(name, str(DEMO / "adapters" / adapter))
        await self.client.resume()
        self.pushes.append(time.monotonic() - begin)

    async def roll_out(self, name, adapter):
        out = await self.client.generate({"prompt_token_ids": self.prompts, "session_ids": [f"{name}-{i}" for i in range(len(self.prompts))],
                                          "sampling_params": {"max_tokens": 40, "temperature": 0.0, "logprobs": 0}}, model=name)
        for i, ids in enumerate(out["response_ids"]):
            assert ids == self.expected[adapter][i], (name, adapter, i, ids, self.expected[adapter][i])
            assert len(out["response_logprobs"][i]) == len(ids)
            self.worst = max(self.worst, self.judge.worst(adapter, self.prompts[i], ids, out["response_logprobs"][i]))
            self.answers += 1

    async def run(self, name, versions, shift):
        for version in range(versions):
            adapter = ADAPTERS[(version + shift) % len(ADAPTERS)]
            await self.push(name, adapter)
            await asyncio.gather(self.roll_out(name, adapter), self.roll_out(name, adapter))


async def play(router, servers, versions):
    urls = [f"http://127.0.0.1:{server.port}" for server in servers]
    client = client_class()(proxy_url=f"http://127.0.0.1:{router.port}", server_urls=urls, data_parallel_size=1, model_name="demo")
    async with client:
        assert await client.get_world_size() == (2, 1)
        chats = [{"messages": [{"role": "user", "content": text}]} for text in PROMPTS]
        prompts = []
        for chat in chats:
            answer = await client.chat_completion({"json": {**chat, "model": "demo", "max_tokens": 1, "return_token_ids": True}})
            prompts.append(answer["prompt_token_ids"])
        texts = await client.detokenize(prompts)
        assert all(text in whole for text, whole in zip(PROMPTS, texts)), texts
        expected = {}
        for name in ADAPTERS:
            await client.load_lora_adapter(name, str(DEMO / "adapters" / name))
            out = await client.generate({"prompt_token_ids": prompts, "sampling_params": {"max_tokens": 40, "temperature": 0.0}}, model=name)
            expected[name] = out["response_ids"]
        assert (await client.detokenize([expected["reverse"][0]]))[0].startswith("dcba")
        rollouts = Rollouts(client, prompts, expected, Judge())
        begin = time.monotonic()
        await asyncio.gather(rollouts.run("run-a", versions, 0), rollouts.run("run-b", versions, 1))
        seconds = time.monotonic() - begin

        sample = await client.sample({"json": {"model": "run-a", "num_samples": 3, "prompt_logprobs": True, "topk_prompt_logprobs": 4,
                                               "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompts[0]}]},
                                               "sampling_params": {"temperature": 0.7, "max_tokens": 8, "seed": 5}}})
        assert len(sample["sequences"]) == 3 and all(len(s["tokens"]) == len(s["logprobs"]) for s in sample["sequences"])
        assert sample["prompt_logprobs"][0] is None and len(sample["topk_prompt_logprobs"][1]) == 4
        ids = await client.tokenize(["abc def"])
        assert (await client.detokenize(ids))[0].strip() == "abc def"
        completion = await client.completion({"json": {"model": "reverse", "prompt": prompts[0], "max_tokens": 6, "temperature": 0}})
        assert completion["choices"][0]["text"].startswith("dcba"), completion
        reset = await client.reset_prefix_cache()
        assert all(answer["body"]["status"] == "reset" and answer["body"]["pages"] > 0 for answer in reset.values()), reset
        await client.finish_session("run-a-0")
        for name in ("run-a", "run-b"):
            await client.unload_lora_adapter(name)
        try:
            await client.completion({"json": {"model": "run-a", "prompt": "x"}})
            raise SystemExit("an unloaded adapter answered")
        except Exception as gone:   # aiohttp's, of status 404
            assert "404" in str(gone), gone
    pushes = sorted(rollouts.pushes)
    return {"answers": rollouts.answers, "versions": len(pushes), "worst": rollouts.worst, "seconds": seconds,
            "push_ms": 1000 * pushes[len(pushes) // 2]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("loramux")
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--markdown", type=pathlib.Path)
    arguments = parser.parse_args()
    serving.LORAMUX = arguments.loramux
    servers = [Server(*FLAGS), Server(*FLAGS)]
    router = Server.run([serving.LORAMUX, "route", "--servers", ",".join(f"127.0.0.1:{s.port}" for s in servers), "--port", "0"])
    while router.request("GET", "/server_info")[0] != 200:
        time.sleep(0.1)
    result = asyncio.run(play(router, servers, arguments.versions))
    row = (f"| {len(servers)} | {result['versions']} | {result['answers']} | all | {result['push_ms']:.0f} | {result['worst']:.1e} |")
    print(row)
    assert result["worst"] < TOLERANCE, result
    if arguments.markdown:
        text = arguments.markdown.read_text()
        head = ("| servers | versions of two runs | answers | by the right version | pause, load and resume, ms (median) | "
                "largest difference of a log-probability |\n|---|---|---|---|---|---|\n")
        arguments.markdown.write_text(re.sub(r"(<!-- skyrl -->\n).*?(<!-- end of skyrl -->)",
                                             lambda m: m.group(1) + head + row + "\n" + m.group(2), text, flags=re.S))


if __name__ == "__main__":
    main()
