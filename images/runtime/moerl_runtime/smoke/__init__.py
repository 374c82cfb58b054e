"""A tiny MoE, a tiny GRPO loop and a local engine, which speak the protocols of the real ones through the same code."""
