"""A packed row's documents are read as if each stood alone: by our own model and by families of transformers."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.job import GptModel
from planner.train.models import document_attention
from planner.train.models.document_attention import attend, mask_of, pieces_in, pieces_of, positions_in
from planner.train.models.gpt import Gpt

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
    model(INPUTS, DOCUMENTS).sum().backward()
    for how in (True, "selective"):
        checkpointed = Gpt(config, activation_checkpointing=how)
        checkpointed.load_state_dict(model.state_dict())
        checkpointed(INPUTS, DOCUMENTS).sum().backward()
        for one, other in zip(model.parameters(), checkpointed.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt_neox", "mistral", "mixtral"])
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
        require_packed(model, "data.packing")
        assert model.training
        return
    real = model.hf.forward
    model.hf.forward = lambda **settings: real(input_ids=settings["input_ids"])
    with pytest.raises(UserError, match=r"data\.packing: llama lets a packed row's documents see each other"):
        require_packed(model, "data.packing")


@pytest.mark.parametrize("crosses", [False, True])
def test_a_mixture_of_experts_is_checked_by_its_gradient(tiny_model, monkeypatch, crosses):
    """Other tokens may change how its products round. One layer of four that mixes documents is found."""
    from planner.errors import UserError
    from planner.train.models import hf

    model = hf_model(tiny_model("mixtral", num_hidden_layers=4), "eager")
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    monkeypatch.setattr(hf, "_has_same_bits", lambda _: False)  # a CPU's kernels decide whether they do
    if not crosses:
        hf.require_packed(model, "data.packing")
    else:
        last = model.hf.model.layers[-1].self_attn
        real = last.forward
        last.forward = lambda *given, **settings: real(*given, **{**settings, "attention_mask": None})
        with pytest.raises(UserError, match=r"data\.packing: mixtral lets a packed row's documents see each other"):
            hf.require_packed(model, "data.packing")
    assert model.training
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == trained
    assert all(parameter.grad is None for parameter in model.parameters())


def test_all_workers_make_the_same_passes(tiny_model, monkeypatch):
    """If rounding differs on one of them, all look at the gradient."""
    from planner.train.models import hf

    model, passes = hf_model(tiny_model("llama"), "sdpa"), []
    real = hf._has_own_gradient
    monkeypatch.setattr(hf, "_has_own_gradient", lambda given: passes.append(1) or real(given))
    hf.require_packed(model, "data.packing")
    assert not passes
    hf.require_packed(model, "data.packing", any_worker=lambda _: True)
    assert passes == [1]


@pytest.mark.parametrize(("row_tokens", "fits"), [(0, True), (32, True), (33, False)])
def test_rows_longer_than_a_models_masks_are_refused(tiny_model, row_tokens, fits):
    """GPT-Neo keeps a mask of its positions. GPT-BigCode keeps one, too, and does not use it."""
    from planner.errors import UserError
    from planner.train.models.hf import require_packed

    changes = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}
    model = hf_model(tiny_model("gpt_neo", max_position_embeddings=32, **changes), "eager")
    if fits:
        require_packed(model, "data.packing", row_tokens=row_tokens)
    else:
        says = (
            r"rows have up to 33 tokens, and the masks of gpt_neo have 32\. Write less \(for kto: of batch\.max_micro"
        )
        with pytest.raises(UserError, match=says):
            require_packed(model, "data.packing", row_tokens=row_tokens)
    other = hf_model(tiny_model("gpt_bigcode", n_positions=32, n_embd=32, n_layer=2, n_head=4), "eager")
    require_packed(other, "batch.max_tokens", row_tokens=row_tokens)


def hf_model(folder, attention):
    from transformers import AutoModelForCausalLM

    from planner.train.models.hf import HfCausal

    document_attention.use_in_transformers()
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
    """A name that matches nothing is refused even if others match. An event has the number of layers with adapters."""
    from planner.errors import UserError
    from planner.events.training import AdaptersPlaced
    from planner.job import Lora
    from planner.train.models.hf import adapters_of, add_adapters

    folder = tiny_model("llama")
    model = hf_model(folder, "sdpa")
    with pytest.raises(
        UserError, match=r"targets: v_prj matches no layer of this model\. Choose of q_proj, k_proj, v_p"
    ):
        add_adapters(model.hf, Lora(rank=2, targets=("q_proj", "v_prj")))
    add_adapters(model.hf, Lora(rank=2, targets=("q_proj", "self_attn.v_proj")))
    assert adapters_of(model) == AdaptersPlaced(adapted=4, layers=14)
    for targets, expected in [(None, (14, 14)), (("embed_tokens", "lm_head"), (2, 16))]:
        other = hf_model(folder, "sdpa")
        add_adapters(other.hf, Lora(rank=2, targets=targets))
        found = adapters_of(other)
        assert (found.adapted, found.layers) == expected


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


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from(["causal", "window", "prefix", "none"]))
def test_a_piece_of_a_row_is_what_no_other_token_attends_to(lengths, kind):
    """Documents, also with a window, a prefix that all its tokens see, or tokens that see nothing."""
    masks = []
    for n in lengths:
        mask = torch.ones(n, n).tril().bool()
        if kind == "window":
            mask &= torch.ones(n, n).triu(-2).bool()
        if kind == "prefix":
            mask[:, : n // 2 + 1] = True
        if kind == "none":
            mask[-1] = False
        masks.append(mask)
    whole = torch.block_diag(*masks).bool()
    (pieces,) = pieces_of(whole[None, None])
    covered = torch.zeros_like(whole)
    for piece, is_causal in pieces:
        covered[piece, piece] = True
        part = whole[piece, piece]
        assert is_causal == torch.equal(part, torch.ones_like(part).tril())
    assert not (whole & ~covered).any()
    assert [piece.start for piece, _ in pieces] == [0, *(piece.stop for piece, _ in pieces[:-1])]
    assert pieces[-1][0].stop == len(whole)
    assert len(pieces) >= len(lengths)


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=3))
def test_pieces_of_documents_are_those_of_their_mask(rows):
    """Without making the mask."""
    documents = torch.tensor(rows)
    assert pieces_in(documents) == pieces_of(mask_of(documents))


def test_our_own_model_makes_no_mask_on_a_cpu(monkeypatch):
    """Compiled blocks that compute activations again need one."""
    from planner.train.models import gpt
    from planner.train.models.blocks import compile_block

    made = []
    monkeypatch.setattr(gpt, "mask_of", lambda documents: made.append(1) or mask_of(documents))
    config = GptModel(kind="gpt", layers=2, width=16, heads=2, context=16)
    model, recomputing = Gpt(config), Gpt(config, activation_checkpointing=True)
    recomputing.load_state_dict(model.state_dict())
    with torch.no_grad():  # where compiled blocks run as they are
        expected = model(INPUTS, DOCUMENTS)
        for block in [*model.blocks, *recomputing.blocks]:
            compile_block(block)
        assert torch.equal(model(INPUTS, DOCUMENTS), expected)
        assert not made
        torch.testing.assert_close(recomputing(INPUTS, DOCUMENTS), expected, rtol=1e-5, atol=1e-6)
    assert made == [1]


def test_the_mask_of_a_long_row_is_read_in_parts(monkeypatch):
    """No copy of it in larger numbers, and the same pieces."""
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            del types
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor):
                made.append(found.numel() * found.element_size())
            return found

    documents = torch.arange(64)[None] // 24
    expected = pieces_of(mask_of(documents))
    mask = mask_of(documents)
    monkeypatch.setattr(document_attention, "_PART", 5 * 64)
    with Noted():
        assert pieces_of(mask) == expected
    assert max(made) <= mask.numel()


def test_documents_are_computed_one_by_one():
    """Without a mask where nothing is hidden but the future, with its part of the mask otherwise. Once without one."""
    calls = []

    def noted(query, _key, _value, mask):
        calls.append((query.shape[2], mask is not None))
        return query

    query = torch.randn(1, 2, 7, 4)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    assert torch.equal(attend(noted, (query, query, query), mask_of(documents), tokens_dim=2), query)
    assert torch.equal(attend(noted, (query, query, query), None, tokens_dim=2), query)
    windowed = mask_of(documents) & torch.ones(7, 7).triu(-1).bool()
    assert torch.equal(attend(noted, (query, query, query), windowed, tokens_dim=2), query)
    assert calls == [(4, False), (3, False), (7, False), (4, True), (3, True)]


def test_models_of_transformers_compute_documents_one_by_one(tiny_model, monkeypatch):
    """Also if they give positions to their attention. Those are no bias."""
    from torch.nn import functional

    lengths, real = [], functional.scaled_dot_product_attention

    def noted(query, *given, **settings):
        lengths.append((query.shape[2], settings.get("attn_mask") is not None))
        return real(query, *given, **settings)

    model = hf_model(tiny_model("llama"), "sdpa")
    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    model(INPUTS[:1], DOCUMENTS[:1])
    assert lengths == [(length, False) for length in LENGTHS[0]] * 2


def test_tokens_that_see_what_comes_later_are_not_causal():
    """As many pairs as a causal mask has, but others."""
    (pieces,) = pieces_of(torch.tensor([[True, True], [False, True]])[None, None])
    assert pieces == [(slice(0, 2), False)]


def test_a_bias_by_position_belongs_to_the_whole_row():
    """It is not cut into documents."""
    from transformers import AttentionInterface

    document_attention.use_in_transformers()
    query, mask = torch.randn(1, 2, 7, 4), mask_of(torch.tensor([[0, 0, 0, 0, 1, 1, 1]]))
    bias = torch.randn(1, 2, 7, 7)
    module = torch.nn.Module()
    found, _ = AttentionInterface()["sdpa"](module, query, query, query, mask, scaling=0.5, position_bias=bias)
    scores = (query @ query.transpose(2, 3) * 0.5 + bias).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(found, (scores.softmax(dim=-1) @ query).transpose(1, 2))
