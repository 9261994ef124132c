"""How often FSDP gathers weights: blocks for each of their passes, and the head once per round for all chunks."""

from unittest import mock

import pytest

pytestmark = pytest.mark.fsdp

ROUNDS, CHUNKS, ROWS, TOKENS = 3, 4, 2, 8


def gathers(rank, train, way):
    """A worker's gathers in one step, of the root (which has the head) and of each block. Its chunks per round."""
    import torch

    from planner.data.samples import NO_LOSS
    from planner.job import GptModel
    from planner.train import collectives
    from planner.train.log_probs import log_prob_sum, log_probs
    from planner.train.models import head
    from planner.train.models.gpt import VOCABULARY
    from planner.train.sample_batches import Sequences
    from planner.train.shard import make_model
    from planner.train.world import World, cpu_device

    made, chunks = [], []

    class Counted(collectives._AllGather):
        def __init__(self):
            self.count = 0
            made.append(self)

        def __call__(self, *given, **settings):
            self.count += 1
            super().__call__(*given, **settings)

    class Noted(head._Logits):
        def __init__(self, *given):
            super().__init__(*given)
            chunks.append(len(self.chunks))

    size = ROWS * TOKENS // CHUNKS * VOCABULARY
    config = GptModel(kind="gpt", layers=2, width=4, heads=2, context=TOKENS)
    with (
        mock.patch.object(collectives, "_AllGather", Counted),
        mock.patch.object(head, "_Logits", Noted),
        mock.patch.dict(head.CHUNK_LOGITS, cpu=size),
    ):
        model = make_model(config, train, World.join(cpu_device))
        for number in range(1, ROUNDS + 1):
            model.set_is_last_backward(number == ROUNDS)
            # The last round of the second worker is a ghost.
            is_ghost = rank > 0 and number == ROUNDS
            tokens = torch.randint(3, 90, (1, 1) if is_ghost else (ROWS, TOKENS))
            labels = torch.full_like(tokens, NO_LOSS) if is_ghost else tokens
            rows = Sequences(inputs=tokens, labels=labels, documents=None, lengths=(TOKENS,) * len(tokens), squares=0)
            found = log_prob_sum(model, tokens, labels) if way == "sum" else log_probs(model, rows).sum()
            found.backward()
    return [each.count for each in made], chunks


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("way", ["sum", "each"])
def test_the_head_is_gathered_once_per_round(workers, way, recomputes):
    """Also for losses that compute logits again in the backward pass, and where blocks are computed again."""
    from planner.job import Train

    train = Train.model_validate(
        {"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-3}, "activation_checkpointing": recomputes}
    )
    first, second = workers.run(gathers, 2, train, way)
    assert first == ([ROUNDS, 2 * ROUNDS, 2 * ROUNDS], [CHUNKS] * ROUNDS)
    assert second[0] == first[0]
