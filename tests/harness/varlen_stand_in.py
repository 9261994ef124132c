"""A stand-in for torch's `varlen_attn`, which runs on GPUs alone."""

import inspect

import torch
from torch.nn import functional


def stand_in(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)):
    """torch 2.11's signature, and what its kernel requires. Each document by `scaled_dot_product_attention`."""
    assert cu_seq_q is cu_seq_k
    assert cu_seq_q.dtype == torch.int32
    assert cu_seq_q.is_contiguous()
    assert cu_seq_q.ndim == 1
    assert all(each.ndim == 3 and each.stride(-1) == 1 and len(each) == cu_seq_q[-1] for each in (query, key, value))
    assert cu_seq_q[0] == 0
    assert int(cu_seq_q.diff().min()) > 0
    assert int(cu_seq_q.diff().max()) == max_q == max_k
    assert return_aux is None
    assert window_size[1] == 0
    found = []
    for start, stop in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        heads = [each[start:stop].transpose(0, 1)[None] for each in (query, key, value)]
        places = torch.arange(stop - start)
        may_attend = places[:, None] >= places
        if window_size[0] >= 0:
            may_attend &= places[:, None] - places <= window_size[0]
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=may_attend, scale=scale, enable_gqa=True)
        found.append(mixed[0].transpose(0, 1))
    return torch.cat(found)


def newer_stand_in(query, key, value, *others, enable_gqa=False, **settings):
    """torch 2.13's, which wants to be told of fewer heads in keys and values."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    return stand_in(query, key, value, *others, **settings)


newer_stand_in.__signature__ = inspect.signature(stand_in).replace(
    parameters=[
        *inspect.signature(stand_in).parameters.values(),
        inspect.Parameter("enable_gqa", inspect.Parameter.KEYWORD_ONLY, default=False),
    ]
)
