#!/bin/sh
# Ask models with curl: sh examples/ask.sh [URL]
set -eu
url="${1:-http://127.0.0.1:8000}"

ask() {
    curl --silent --show-error --fail-with-body "$url/v2/models/$1/infer" --json "$2"
    echo
}

ask toxicity '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2, 1],
                           "data": ["have a nice day", "you are an idiot"]}]}'

# The best class of each row by its label, instead of three numbers.
ask sentiment '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2],
                            "data": ["I love this", "I hate this"]}],
                "outputs": [{"name": "logits", "parameters": {"classification": 1}}]}'
