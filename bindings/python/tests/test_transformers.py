"""attn_implementation="warpweave" gives what sdpa gives."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import warpweave  # noqa: E402

SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128)


@pytest.fixture(scope="module", autouse=True)
def register():
    assert warpweave.register_transformers() == "warpweave"


def models(config, make=transformers.AutoModelForCausalLM):
    """The same weights under both implementations."""
    torch.manual_seed(3)
    # A model keeps its configuration, and that the name of its attention.
    ours = make.from_config(copy.deepcopy(config), attn_implementation="warpweave").eval()
    theirs = make.from_config(copy.deepcopy(config), attn_implementation="sdpa").eval()
    theirs.load_state_dict(ours.state_dict())
    assert ours.config._attn_implementation == "warpweave" and theirs.config._attn_implementation == "sdpa"
    return ours, theirs


def ids(batch, length, seed=0):
    return torch.randint(5, 90, (batch, length), generator=torch.Generator().manual_seed(seed))


def generate(model, prompt, **kwargs):
    return model.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None, **kwargs)


@pytest.mark.parametrize("batch", [1, 3])
def test_llama_generates_the_same(batch):
    ours, theirs = models(transformers.LlamaConfig(**SIZES))
    prompt = ids(batch, 13)
    assert torch.equal(generate(ours, prompt), generate(theirs, prompt))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side):
    ours, theirs = models(transformers.LlamaConfig(**SIZES))
    prompt, mask = ids(3, 16), torch.ones(3, 16, dtype=torch.long)
    for b, padding in enumerate((0, 5, 11)):
        mask[b, slice(0, padding) if side == "left" else slice(16 - padding, 16)] = 0
    with torch.no_grad():
        a, b = (model(prompt, attention_mask=mask).logits for model in (ours, theirs))
    torch.testing.assert_close(a[mask.bool()], b[mask.bool()], atol=1e-4, rtol=1e-4)
    if side == "left":
        assert torch.equal(generate(ours, prompt, attention_mask=mask), generate(theirs, prompt, attention_mask=mask))


def test_sliding_window():
    ours, theirs = models(transformers.MistralConfig(**SIZES, sliding_window=8))
    prompt = ids(2, 30)
    assert torch.equal(generate(ours, prompt), generate(theirs, prompt))


def test_bidirectional_encoder_with_padding():
    config = transformers.BertConfig(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=96)
    ours, theirs = models(config, transformers.AutoModel)
    tokens, mask = ids(2, 20), torch.ones(2, 20, dtype=torch.long)
    mask[1, 12:] = 0
    with torch.no_grad():
        a, b = (model(tokens, attention_mask=mask).last_hidden_state for model in (ours, theirs))
    torch.testing.assert_close(a[mask.bool()], b[mask.bool()], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("local", [4, 16, 200])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_modernbert_windows(local, side):
    """Layers that see local // 2 tokens on both sides, between layers that see all."""
    config = transformers.ModernBertConfig(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
                                           num_attention_heads=4, local_attention=local, pad_token_id=0, cls_token_id=1,
                                           sep_token_id=2, bos_token_id=1, eos_token_id=2)
    ours, theirs = models(config, transformers.AutoModel)
    tokens, mask = ids(2, 40), torch.ones(2, 40, dtype=torch.long)
    if side != "none":
        mask[1, slice(0, 11) if side == "left" else slice(29, 40)] = 0
    with torch.no_grad():
        a, b = (model(tokens, attention_mask=mask).last_hidden_state for model in (ours, theirs))
    torch.testing.assert_close(a[mask.bool()], b[mask.bool()], atol=1e-4, rtol=1e-4)


def test_training_raises():
    ours, _ = models(transformers.LlamaConfig(**SIZES))
    prompt = ids(1, 6)
    loss = ours(prompt, labels=prompt).loss
    with pytest.raises(NotImplementedError, match="no gradients"):
        loss.backward()


def test_packed_sequences():
    ours, _ = models(transformers.LlamaConfig(**SIZES))
    first, second = ids(1, 9, 1), ids(1, 14, 2)
    positions = torch.cat([torch.arange(9), torch.arange(14)])[None]
    with torch.no_grad():
        packed = ours(torch.cat([first, second], dim=1), position_ids=positions, use_cache=False).logits
        apart = torch.cat([ours(first).logits, ours(second).logits], dim=1)
    torch.testing.assert_close(packed, apart, atol=1e-4, rtol=1e-4)


def test_holes_in_a_mask_are_refused():
    ours, _ = models(transformers.LlamaConfig(**SIZES))
    mask = torch.tensor([[1, 1, 0, 1, 1]])
    with pytest.raises(NotImplementedError, match="padding inside a sequence"):
        ours(ids(1, 5), attention_mask=mask)
