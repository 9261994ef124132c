"""A packed row's documents are read as if each stood alone: by our own model and by families of transformers."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.job import GptModel
from planner.train.models.gpt import Gpt
from planner.train.models.packed import mask_of, positions_in

LENGTHS = [[5, 1, 9, 1], [16], [3, 13]]
DOCUMENTS = torch.tensor([[number for number, n in enumerate(row) for _ in range(n)] for row in LENGTHS])
INPUTS = torch.arange(48).view(3, 16) * 11 % 256


def apart(model):
    """The documents' own logits, one forward pass each, in the places that they have in the rows."""
    rows = []
    for inputs, lengths in zip(INPUTS, LENGTHS, strict=True):
        parts = torch.split(inputs, lengths)
        rows.append(torch.cat([model(part[None])[0] for part in parts]))
    return torch.stack(rows)


def assert_packed_is_apart(model):
    model.eval()
    with torch.no_grad():
        expected = apart(model)
        assert float((model(INPUTS, DOCUMENTS) - expected).abs().max()) <= 1e-5
        assert float((model(INPUTS) - expected).abs().max()) > 1e-2


def test_our_own_model_reads_documents_apart():
    """Positions begin anew and attention does not cross."""
    torch.manual_seed(3)
    config = GptModel(kind="gpt", layers=2, width=16, heads=2, context=16)
    model = Gpt(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    assert_packed_is_apart(model)
    checkpointed = Gpt(config, activation_checkpointing=True)
    checkpointed.load_state_dict(model.state_dict())
    model(INPUTS, DOCUMENTS).sum().backward()
    checkpointed(INPUTS, DOCUMENTS).sum().backward()
    for one, other in zip(model.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt_neox", "mistral"])
def test_families_read_documents_apart(tiny_model, family, attention):
    """Mistral's window of 4 tokens is shorter than its documents: each layer's own mask is kept."""
    assert_packed_is_apart(hf_model(tiny_model(family), attention))


def test_rows_may_be_laid_in_one(tiny_model):
    """As flash attention wants them: a row's first position is 0, so rows do not see each other."""
    model = hf_model(tiny_model("llama"), "sdpa")
    model._flattens = True
    assert_packed_is_apart(model)


@pytest.mark.parametrize("crosses", [False, True])
def test_a_model_that_lets_documents_see_each_other_is_refused(tiny_model, crosses):
    """The check runs the model: other tokens in one document must not change another's logits."""
    from planner.errors import UserError
    from planner.train.models.hf import require_packed

    model = hf_model(tiny_model("llama"), "sdpa")
    if not crosses:
        require_packed(model)
        assert model.training
        return
    real = model.hf.forward
    model.hf.forward = lambda **settings: real(input_ids=settings["input_ids"])
    with pytest.raises(UserError, match=r"data\.packing: llama lets a packed row's documents see each other"):
        require_packed(model)


def hf_model(folder, attention):
    from transformers import AutoModelForCausalLM

    from planner.train.models.hf import HfCausal

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    return HfCausal(loaded)


def test_without_adapters_a_model_is_its_base(tiny_model):
    """Also after an error in between; what is trained stays so."""
    from planner.job import Lora
    from planner.train.models.hf import HfCausal, add_adapters

    base = hf_model(tiny_model("llama"), "sdpa").eval()
    expected = base(INPUTS).detach()
    add_adapters(base.hf, Lora(rank=2, targets=("q_proj", "up_proj")))
    model = HfCausal(base.hf, has_adapters=True).eval()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2 * 2
    with torch.no_grad():
        for name in trained:
            model.get_parameter(name).add_(0.5)
        assert float((model(INPUTS) - expected).abs().max()) > 1e-3
    with contextlib.suppress(ZeroDivisionError), model.without_adapters():
        without = model(INPUTS)
        _ = 1 / 0
    assert torch.equal(without, expected)
    with torch.no_grad():
        assert float((model(INPUTS) - expected).abs().max()) > 1e-3
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == trained


def test_adapters_stand_where_the_job_wants_them(tiny_model):
    """A name that matches nothing is refused even if others match. A note has the number of layers with adapters."""
    from planner.errors import UserError
    from planner.job import Lora
    from planner.train.models.hf import adapters_text, add_adapters

    folder = tiny_model("llama")
    model = hf_model(folder, "sdpa")
    with pytest.raises(
        UserError, match=r"targets: v_prj matches no layer of this model\. Choose of q_proj, k_proj, v_p"
    ):
        add_adapters(model.hf, Lora(rank=2, targets=("q_proj", "v_prj")))
    add_adapters(model.hf, Lora(rank=2, targets=("q_proj", "self_attn.v_proj")))
    assert adapters_text(model) == "adapters on 4 of 14 layers"
    for targets, expected in [(None, "14 of 14"), (("embed_tokens", "lm_head"), "2 of 16")]:
        other = hf_model(folder, "sdpa")
        add_adapters(other.hf, Lora(rank=2, targets=targets))
        assert adapters_text(other) == f"adapters on {expected} layers"


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=3))
def test_positions_and_masks_by_definition(lengths):
    """Against a loop over documents; numbers may come again, as long as neighbours differ."""
    longest = max(map(sum, lengths))
    rows = [[*row, longest - sum(row)] if sum(row) < longest else row for row in lengths]
    documents = torch.tensor([[number % 2 for number, n in enumerate(row) for _ in range(n)] for row in rows])
    positions = torch.tensor([[place for n in row for place in range(n)] for row in rows])
    assert torch.equal(positions_in(documents), positions)
    for mask, row in zip(mask_of(documents), rows, strict=True):
        assert torch.equal(mask[0], torch.block_diag(*(torch.ones(n, n).tril() for n in row)).bool())
