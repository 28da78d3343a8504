"""OpenAI's routes under /v1, and the rerank and score routes that its users expect beside them."""
