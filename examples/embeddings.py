"""Embed texts with OpenAI's own client: python examples/embeddings.py [URL]   (pip install openai)"""

import sys

import openai

TEXTS = ["Where does a river flow?", "Rivers carry water to the sea.", "Bread is baked in an oven."]

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:  # a key where the gateway has a tenants file
    answer = client.embeddings.create(model="minilm", input=TEXTS)

question, *others = [item.embedding for item in answer.data]
for text, vector in zip(TEXTS[1:], others, strict=True):
    cosine = sum(a * b for a, b in zip(question, vector, strict=True))  # minilm's vectors have length 1
    print(f"{cosine:.3f}  {text}")
print(f"{answer.usage.prompt_tokens} tokens")
