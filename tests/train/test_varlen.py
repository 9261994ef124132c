"""`model.attention: varlen`, with a stand-in for torch's kernel: packed rows are read as by masks, or it is refused."""

import inspect

import pytest
import torch
from varlen_stand_in import newer_stand_in, stand_in

from planner.data.model_folder import ModelFolder
from planner.errors import UserError
from planner.job import HfModel
from planner.train.models import varlen_attention
from planner.train.models.document_attention import Documents, positions_in
from planner.train.models.hf import HfCausal, build_on_meta, require_packed
from planner.train.models.varlen_attention import boundaries_of

LENGTHS = [[5, 1, 9, 1], [16], [3, 13]]
DOCUMENTS = torch.tensor([[number for number, n in enumerate(row) for _ in range(n)] for row in LENGTHS])
INPUTS = torch.arange(48).view(3, 16) * 11 % 256
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gpt_neox", "smollm3"]


@pytest.fixture
def kernel(monkeypatch):
    """The stand-in for torch 2.11's kernel. Called with one, another takes its place."""

    def use(function):
        monkeypatch.setattr(varlen_attention, "kernel", lambda: function)

    use(stand_in)
    return use


def hf_model(folder, attention):
    from transformers import AutoModelForCausalLM

    varlen_attention.use_in_transformers()
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    return HfCausal(loaded)


def loss_of(model, documents):
    """A forward and backward pass. Returns the logits and the gradients."""
    model.zero_grad()
    logits = model(INPUTS, documents)
    logits.log_softmax(-1).gather(2, INPUTS.roll(-1, 1)[..., None]).mean().backward()
    return logits.detach(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("function", "is_recomputed"), [(stand_in, False), (newer_stand_in, True)])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_masks(tiny_model, kernel, family, function, is_recomputed):
    """Packed rows and plain ones, also where the backward pass computes blocks again. Mistral has a window of 4."""
    folder = tiny_model(family)
    ours, masked = hf_model(folder, "varlen").train(), hf_model(folder, "eager").train()
    if is_recomputed:
        ours.hf.gradient_checkpointing_enable({"use_reentrant": False})
    kernel(function)
    for documents in (None, DOCUMENTS):
        logits, gradients = loss_of(ours, documents)
        expected, expected_gradients = loss_of(masked, documents)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        for one, other in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    kernel(lambda query, *_, **__: query * 0)
    with torch.no_grad():
        assert float((ours(INPUTS, DOCUMENTS) - expected).abs().max()) > 1e-2


def test_boundaries_by_definition():
    """Of all rows behind each other; a number that comes again is a new document."""
    found = boundaries_of(INPUTS, DOCUMENTS)
    assert found.shape == (16, 16, 8)
    assert found[0, 0].tolist() == [0, 5, 6, 15, 16, 32, 35, 48]
    assert found.untyped_storage().nbytes() == 8 * 4
    again = boundaries_of(INPUTS[:1, :4], torch.tensor([[0, 1, 0, 0]]))
    assert again.shape[1:] == (2, 4)
    assert again[0, 0].tolist() == [0, 1, 2, 4]
    plain = boundaries_of(INPUTS, None)
    assert plain.shape == (16, 16, 4)
    assert plain[0, 0].tolist() == [0, 16, 32, 48]
    assert boundaries_of(INPUTS[:1, :1], None)[0, 0].tolist() == [0, 1]
    assert positions_in(DOCUMENTS)[0].tolist() == [0, 1, 2, 3, 4, 0, *range(9), 0]


def test_places_go_to_the_device_without_a_wait(monkeypatch):
    """Python waits when they come from the device, and not again."""
    given = []
    monkeypatch.setattr(varlen_attention, "moved", lambda *each: given.append(each) or each[0])
    assert boundaries_of(INPUTS, DOCUMENTS).shape == (16, 16, 8)
    assert [(places.tolist(), device) for places, device in given] == [([0, 5, 6, 15, 16, 32, 35, 48], INPUTS.device)]


def test_places_are_computed_once_per_pass(tiny_model, kernel, monkeypatch):
    """Each layer has the same tensor: on a GPU there is one wait, and none in a layer."""
    calls, seen = [], []
    real = varlen_attention.boundaries_of
    monkeypatch.setattr(varlen_attention, "boundaries_of", lambda *given: calls.append(1) or real(*given))

    def noted(*given, **settings):
        seen.append((given[3].data_ptr(), settings["window_size"]))
        return stand_in(*given, **settings)

    kernel(noted)
    hf_model(tiny_model("mistral"), "varlen")(INPUTS, DOCUMENTS)
    assert len(calls) == 1
    assert len(seen) == 2
    assert len(set(seen)) == 1
    assert seen[0][1] == (3, 0)


@pytest.mark.usefixtures("kernel")
def test_no_place_is_copied_from_the_device(tiny_model, monkeypatch):
    """Where the CPU knows the documents, as in training."""
    model = hf_model(tiny_model("llama"), "varlen")
    expected = model(INPUTS, DOCUMENTS)
    given = Documents.of(DOCUMENTS, torch.device("cpu"))
    monkeypatch.setattr(varlen_attention, "places_of", None)
    assert boundaries_of(INPUTS, given)[0, 0].data_ptr() == given.places.data_ptr()
    assert torch.equal(model(INPUTS, given), expected)


@pytest.mark.parametrize("crosses", [False, True])
def test_the_check_of_packed_jobs_finds_documents_that_see_each_other(tiny_model, kernel, crosses):
    if crosses:
        kernel(lambda _query, _key, value, *_, **__: value.repeat(1, 2, 1).flip(0))
    model = hf_model(tiny_model("llama"), "varlen")
    if not crosses:
        require_packed(model, "data.packing")
        return
    with pytest.raises(UserError, match=r"data\.packing: llama lets a packed row's documents see each other"):
        require_packed(model, "data.packing")


def built(folder, **settings):
    model = HfModel.model_validate(
        {"kind": "hf", "path": str(folder), "context": 24, "attention": "varlen", **settings}
    )
    return build_on_meta(ModelFolder.find(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_built_for_it(tiny_model, family):
    assert built(tiny_model(family)).hf.config._attn_implementation == "varlen"


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("llama", {"attention_dropout": 0.1}, "drops 0.1 of its attention"),
        ("qwen3", {"head_dim": 12}, "heads have 12 features, and the kernel takes multiples of 8 up to 256"),
        ("qwen3", {"head_dim": 264}, "heads have 264 features"),
    ],
)
def test_what_the_kernel_cannot_is_refused_before_weights_are_read(tiny_model, family, changes, says):
    with pytest.raises(UserError, match=says) as caught:
        built(tiny_model(family, **changes))
    assert str(caught.value).endswith("Write model.attention: auto")


def config_of(family, **settings):
    from transformers import AutoConfig

    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }
    return AutoConfig.for_model(family, **{**sizes, **settings})


@pytest.mark.parametrize(
    ("family", "settings", "says"),
    [
        ("gemma2", {"head_dim": 8}, "softcap"),
        ("gpt_oss", {"head_dim": 8, "num_local_experts": 2}, "s_aux"),
        ("deepseek_v3", {"q_lora_rank": 8, "kv_lora_rank": 8, "num_key_value_heads": 4}, "features in queries"),
        ("bloom", {"n_head": 4}, "cannot exchange the attention of bloom"),
    ],
)
def test_other_attention_is_refused(family, settings, says):
    """Caps on scores, sinks, latent attention, biases by position."""
    from transformers import AutoModelForCausalLM

    varlen_attention.use_in_transformers()
    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(config_of(family, **settings), attn_implementation="varlen")
    with pytest.raises(UserError, match=says):
        varlen_attention.check(hf)


def test_masks_that_are_no_window_are_refused():
    """Attention in blocks, and masks that a model adds."""
    from transformers import masking_utils

    boundaries = boundaries_of(INPUTS, DOCUMENTS)
    layer = varlen_attention.boundaries_of_layer
    assert layer(mask_function=masking_utils.causal_mask_function, attention_mask=boundaries).shape == (16, 16, 8)
    for size, window in ((1, 1), (4, 4), (16, 16), (40, 16)):
        slides = masking_utils.sliding_window_causal_mask_function(size)
        assert layer(mask_function=slides, attention_mask=boundaries, local_size=size).shape == (window, 16, 8)
    blocks = masking_utils.chunked_causal_mask_function(4, torch.zeros(3, dtype=torch.int64))
    wrong = [
        {"mask_function": blocks, "local_size": 4},
        {"mask_function": masking_utils.sliding_window_causal_mask_function(5), "local_size": 4},
        {"mask_function": masking_utils.sliding_window_causal_mask_function(5)},
        {"mask_function": masking_utils.bidirectional_mask_function},
        {"mask_function": masking_utils.causal_mask_function, "use_vmap": True},
    ]
    for settings in wrong:
        with pytest.raises(UserError, match="more than a causal window"):
            layer(attention_mask=boundaries, **settings)


def test_a_worker_without_a_gpu_is_refused():
    with pytest.raises(UserError, match=r"varlen needs a GPU, and this worker trains on its CPU\. Write model.att"):
        varlen_attention.require(torch.device("cpu"))


def test_an_older_torch_is_refused(monkeypatch):
    """A `varlen_attn` without windows, and none."""
    from torch.nn.attention import varlen

    monkeypatch.setattr(varlen, "varlen_attn", lambda query: query)
    with pytest.raises(UserError, match=r"varlen needs torch 2\.11 or newer, and this worker has 2\."):
        varlen_attention.kernel.__wrapped__()
    monkeypatch.delattr(varlen, "varlen_attn")
    with pytest.raises(UserError, match=r"varlen needs torch 2\.11"):
        varlen_attention.kernel.__wrapped__()


def test_torchs_kernel_takes_what_it_is_called_with():
    """The installed torch has all arguments of the stand-in."""
    real = inspect.signature(varlen_attention.kernel()).parameters
    for name, parameter in inspect.signature(stand_in).parameters.items():
        assert real[name].kind == parameter.kind
