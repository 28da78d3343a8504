#!/bin/sh
# Embeddings, rerank and score with curl: sh examples/embeddings.sh [URL]
set -eu
url="${1:-http://127.0.0.1:8000}"

ask() {
    curl --silent --show-error --fail-with-body "$url/v1/$1" --json "$2"
    echo
}

# Eight of the 384 numbers, scaled back to length 1; as base64 of little-endian float32 with "encoding_format": "base64".
ask embeddings '{"model": "minilm", "input": ["a river", "a stream"], "dimensions": 8}'

ask rerank '{"model": "minilm", "query": "Where does a river flow?", "top_n": 1, "return_documents": true,
             "documents": ["Bread is baked in an oven.", "Rivers carry water to the sea."]}'

ask score '{"model": "minilm", "text_1": "a river", "text_2": ["a stream", "a bank account"]}'
