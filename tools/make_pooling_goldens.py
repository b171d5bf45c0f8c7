#!/usr/bin/env python3
"""Tiny random models of states, decoders and encoders, with what transformers computes from them.

Writes tests/golden/pooling/<name>/: config.json, model.safetensors, the files by which sentence-transformers
knows how to pool (of embedding models), and golden.json: prompts as token ids and, for each, every token's
state and the embedding or the logits of the labels. The same seed gives the same files.
Needs: torch, transformers, safetensors.

    python3 tools/make_pooling_goldens.py [name ...]
"""
import copy
import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "pooling"
VOCAB = 96
PROMPT_LENGTHS = [1, 7, 30]

BASE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=128, rms_norm_eps=1e-5,
    tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)

SHAPE = {key: BASE[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")}
MODERN = dict(**SHAPE, num_hidden_layers=4, local_attention=8, max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
              cls_token_id=0, sep_token_id=1, pad_token_id=2)
# Encoders have shapes of their own, and read prompts as the two texts of a pair, too.
ENCODERS = {
    "bert": dict(**SHAPE, num_hidden_layers=2, max_position_embeddings=48, pad_token_id=2),
    "roberta": dict(**SHAPE, num_hidden_layers=2, max_position_embeddings=48, type_vocab_size=1, pad_token_id=1),
    "xlm-roberta": dict(**SHAPE, num_hidden_layers=2, max_position_embeddings=48, type_vocab_size=1, pad_token_id=1),
    "modernbert": MODERN,
}

# name -> (model_type, labels or 0, pooling, normalize, dtype of the saved weights)
MODELS = {
    "qwen3-last": ("qwen3", 0, "lasttoken", True, "bfloat16"),
    "llama-mean": ("llama", 0, "mean", False, "float32"),
    "llama-cls": ("llama", 0, "cls", True, "float32"),
    "qwen3-labels": ("qwen3", 3, None, False, "bfloat16"),
    "llama-score": ("llama", 1, None, False, "float32"),
    "bert-mean": ("bert", 0, "mean", True, "float32"),
    "bert-score": ("bert", 1, None, False, "float32"),
    "roberta-labels": ("roberta", 3, None, False, "bfloat16"),
    "modernbert-cls": ("modernbert", 0, "cls", True, "float32"),
    "modernbert-score": ("modernbert", 1, None, False, "float32"),
    "modernbert-labels": ("modernbert", 3, None, False, "bfloat16"),
    "xlm-roberta-mean": ("xlm-roberta", 0, "mean", True, "float32"),
    "xlm-roberta-score": ("xlm-roberta", 1, None, False, "float32"),
}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if is_norm else 0.2 * noise)


def pool(states, how):
    return {"lasttoken": states[-1], "cls": states[0], "mean": states.mean(0)}[how]


def write_pooling(folder, how, normalize):
    modules = ["Transformer", "Pooling"] + (["Normalize"] if normalize else [])
    listed = [{"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{name}",
               "type": f"sentence_transformers.models.{name}"} for i, name in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n")
    keys = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    on = {"lasttoken": "lasttoken", "cls": "cls_token", "mean": "mean_tokens"}[how]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    config = {"word_embedding_dimension": BASE["hidden_size"], **{f"pooling_mode_{key}": key == on for key in keys},
              "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config, indent=2) + "\n")


TEXTS = ["The cat sat.", "Is rain wet?", "A stone"]
PAIRS = [("The cat sat", "A cat was here"), ("Is rain wet?", "stones are dry, rain is wet")]


def write_tokenizer(folder):
    """WordPiece of as many tokens as the models have, with BERT's normalizer and templates."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[CLS]", "[SEP]", "[PAD]", "[UNK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, min_frequency=1, show_progress=False, special_tokens=specials)
    tokenizer.train_from_iterator([*TEXTS, *(text for pair in PAIRS for text in pair)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def write_unigram(folder):
    """XLM-RoBERTa's: SentencePiece's Unigram with its four special tokens first."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=VOCAB, show_progress=False, unk_token="<unk>",
                                      special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.train_from_iterator([*TEXTS, *(text for pair in PAIRS for text in pair)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def text_cases(tokenizer, result_of):
    """What texts and pairs give, read by this tokenizer."""
    out = []
    for text in [(text,) for text in TEXTS] + PAIRS:
        encoded = tokenizer.encode(*text)
        out.append({"texts": list(text), "pooled": rounded(result_of(encoded.ids, encoded.type_ids))})
    return out


def make(name, seed):
    model_type, labels, how, normalize, dtype = MODELS[name]
    more = dict(id2label={i: f"class {i}" for i in range(labels)}) if labels else {}
    if name == "modernbert-labels":
        more.update(classifier_pooling="mean", classifier_bias=True, attention_bias=True, mlp_bias=True, norm_bias=True)
    config = AutoConfig.for_model(model_type, **ENCODERS.get(model_type, BASE), **more)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    build = AutoModelForSequenceClassification if labels else AutoModel
    model = build.from_config(config).eval()
    randomize(model, seed)
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    saved = copy.deepcopy(model).to(getattr(torch, dtype))
    saved.save_pretrained(folder)
    # Only what is saved is rounded, not the rotary frequencies.
    with torch.no_grad():
        for parameter, stored in zip(model.parameters(), saved.parameters()):
            parameter.copy_(stored.float())
    if how:
        write_pooling(folder, how, normalize)
    generator = torch.Generator().manual_seed(seed + 1)
    cases = []
    base = getattr(model, "model", None) or getattr(model, model.base_model_prefix) if labels else model
    for length, second in [(n, -1) for n in PROMPT_LENGTHS] + ([(40, 17), (9, 3)] if model_type in ENCODERS else []):
        ids = torch.randint(3, VOCAB, (1, length), generator=generator)
        types = {}
        if model_type == "bert":
            types["token_type_ids"] = (torch.arange(length) >= (length if second < 0 else second)).long()[None]
        with torch.no_grad():
            states = base(ids, **types).last_hidden_state[0]
            result = model(ids, **types).logits[0] if labels else pool(states, how)
        if normalize:
            result = result / result.norm()
        cases.append({"input_ids": ids[0].tolist(), "second_text_at": second, "states": rounded(states),
                      "pooled": rounded(result)})
    golden = {"transformers": transformers.__version__, "cases": cases}

    def result_of(ids, type_ids):
        types = {"token_type_ids": torch.tensor([type_ids])} if model_type == "bert" else {}
        with torch.no_grad():
            ids = torch.tensor([ids])
            result = model(ids, **types).logits[0] if labels else pool(base(ids, **types).last_hidden_state[0], how)
        return result / result.norm() if normalize else result

    if model_type in ("bert", "modernbert"):
        golden["texts"] = text_cases(write_tokenizer(folder), result_of)
    if model_type == "xlm-roberta":
        golden["texts"] = text_cases(write_unigram(folder), result_of)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


def rounded(values):
    return [[round(v, 6) for v in row] if isinstance(row, list) else round(row, 6) for row in values.tolist()]


def main():
    for seed, name in enumerate(MODELS):
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(name, 100 + seed)
            print(name)


main()
