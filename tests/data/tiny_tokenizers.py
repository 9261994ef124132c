"""Tokenizers of two families, trained in a moment on a few words and saved as models are: with a config, no weights."""

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "user assistant system hello there how are you today I am fine thank you What is 2 + 2? It is 4.",
    "The quick brown fox jumps over the lazy dog. Äpfel und Birnen, naïve café, 日本語\n\n\n\tand  some   spaces",
] * 4

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The same text, with the assistant's words marked.
CHATML_MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ m['content'] + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# As Zephyr's: role markers are ordinary words, and there is no beginning.
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def byte_level(folder, template=CHATML, vocab_size=400):
    """As GPT-2, GPT-NeoX, Qwen: no beginning of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    eos = "<|im_end|>" if "im_end" in (template or "") else "<|endoftext|>"
    return saved(tokenizer, folder, template, eos_token=eos)


def sentence_piece(folder, template=ZEPHYR):
    """As Llama's and Mistral's first ones: a blank is put before every text, and `<s>` before that."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[*special, *(f"<0x{i:02X}>" for i in range(256))], show_progress=False
    )
    words = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = words
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.pre_tokenizer = None
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return saved(tokenizer, folder, template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def saved(tokenizer, folder, template, **special):
    """Save a tokenizer as models are, and return the folder."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special)
    fast.save_pretrained(folder)
    size = max(fast.get_vocab().values()) + 1
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": size, "hidden_size": 32}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def word_level(folder, size, split=pre_tokenizers.WhitespaceSplit):
    """A vocabulary of this many ids: w1 is 1, w2 is 2, ... and 0 ends a text and stands for any other word."""
    words = {"</s>": 0, **{f"w{number}": number for number in range(1, size)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    tokenizer.pre_tokenizer = split()
    return saved(tokenizer, folder, None, eos_token="</s>")
