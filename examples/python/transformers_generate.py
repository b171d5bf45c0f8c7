"""A transformers model with Warpweave's attention: the same tokens as with torch's own."""

import torch
import transformers
import warpweave

warpweave.register_transformers()
config = transformers.LlamaConfig(vocab_size=300, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                                  num_attention_heads=8, num_key_value_heads=2)
torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="warpweave").eval()
prompt = torch.arange(2, 18)[None]
tokens = model.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)

model.set_attn_implementation("sdpa")
assert torch.equal(tokens, model.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0))
print("generated", tokens[0, 16:].tolist())
