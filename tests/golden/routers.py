"""What the routers of a model of experts decide."""

import contextlib

import torch


def routers_of(model):
    """{name: router}; none in a model without experts."""
    return {name: module for name, module in model.named_modules()
            if type(module).__name__.lower().endswith(("topkrouter", "gemma4textrouter"))}


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


def biased_gap(router, logits, taken):
    """As router_gaps, of a router whose sigmoids have a bias and that chooses groups first: the least distance of all."""
    scores = logits.float().sigmoid() + router.e_score_correction_bias
    of_group = scores.view(scores.shape[0], router.num_group, -1)
    gap = float("inf")
    if router.topk_group < router.num_group:
        sums = of_group.topk(2).values.sum(-1)
        best = sums.topk(router.topk_group + 1)
        gap = (best.values[:, -2] - best.values[:, -1]).min().item()
        out = torch.ones_like(sums, dtype=torch.bool).scatter_(1, best.indices[:, :-1], False)
        scores = of_group.masked_fill(out[..., None], float("-inf")).view(scores.shape)
    best = scores.topk(taken + 1).values
    return min(gap, (best[:, -2] - best[:, -1]).min().item())


def router_gaps(model, tokens):
    """By how much, at the least of all tokens and layers, the last expert that is taken is before the first that is not: (in
    probability, in logits). None without experts. Where it is small, a rounding decides which expert a token takes."""
    if not routers_of(model):
        return None
    gaps = []

    def look(router, logits, indices):
        taken = indices.shape[-1]
        if hasattr(router, "e_score_correction_bias"):
            gaps.append((biased_gap(router, logits, taken),) * 2)
            return
        best = logits.float().topk(taken + 1).values
        likely = logits.float().softmax(-1).topk(taken + 1).values
        gaps.append(((likely[:, -2] - likely[:, -1]).min().item(), (best[:, -2] - best[:, -1]).min().item()))

    with watched(model, look):
        model(input_ids=torch.tensor([tokens]), use_cache=False)
    return tuple(map(min, zip(*gaps)))
