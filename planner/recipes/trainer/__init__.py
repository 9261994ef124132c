"""transformers' Trainer, accelerate and DeepSpeed: the layer that TRL, LLaMA-Factory, axolotl and own scripts share."""
