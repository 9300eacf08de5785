"""What the routers of a model of experts decide."""

import contextlib

import torch


def routers_of(model):
    """{name: router}; none in a model without experts."""
    return {name: module for name, module in model.named_modules() if type(module).__name__.endswith(("TopKRouter", "Gemma4TextRouter"))}


@contextlib.contextmanager
def watched(model, saw):
    """Calls `saw` with each router, its logits and the indices of the experts that it takes. What `saw` returns, if it is not
    None, replaces the weights of the experts."""
    def hook(router, _, output):
        logits, weights, indices = output
        if type(router).__name__ == "Gemma4TextRouter":  # probabilities
            logits = logits.log()
        other = saw(router, logits, indices)
        return None if other is None else (output[0], other.to(weights.dtype), indices)
    handles = [router.register_forward_hook(hook) for router in routers_of(model).values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def router_gaps(model, tokens):
    """By how much, at the least of all tokens and layers, the last expert that is taken is before the first that is not: (in
    probability, in logits). None without experts. Where it is small, a rounding decides which expert a token takes."""
    if not routers_of(model):
        return None
    gaps = []

    def look(router, logits, indices):
        taken = indices.shape[-1]
        best = logits.float().topk(taken + 1).values
        likely = logits.float().softmax(-1).topk(taken + 1).values
        gaps.append(((likely[:, -2] - likely[:, -1]).min().item(), (best[:, -2] - best[:, -1]).min().item()))

    with watched(model, look):
        model(input_ids=torch.tensor([tokens]), use_cache=False)
    return tuple(map(min, zip(*gaps)))
