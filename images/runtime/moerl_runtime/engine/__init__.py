"""SGLang over HTTP: what the agent asks of an engine and of a router. No model code."""
