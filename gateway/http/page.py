"""The page at `/`: says what answers here and where to go on. Loads nothing, names no model."""

from __future__ import annotations

from html import escape
from typing import Final

HEADERS: Final = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "cache-control": "no-cache",
}

_LINKS: Final = (
    ("/v2", "what this server is and which protocol extensions it has"),
    ("/v2/health/live", "whether the process answers"),
    ("/v2/health/ready", "whether it can take requests"),
    ("/v2/models/stats", "what the models have done since they started"),
    ("/v1/models", "the models that are ready, as OpenAI's clients list them"),
    ("/openapi.json", "every route, error and example, as OpenAPI 3.1"),
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headrace</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem }}
pre {{ padding: .75rem; border: 1px solid; overflow-x: auto }}
dt {{ margin-top: .5rem }}
</style>
<h1>Headrace {version}</h1>
<p>This is a model server. It speaks the Open Inference Protocol, which Triton and KServe clients speak, over HTTP, and
answers OpenAI's clients under <code>/v1</code>.</p>
<dl>
{links}
</dl>
<p>Ask a model:</p>
<pre>curl {base}/v2/models/MODEL            # its inputs and outputs
curl {base}/v2/models/MODEL/infer -d \\
  '{{"inputs": [{{"name": "INPUT", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}}]}}'</pre>
<p>Where keys are asked for, send <code>Authorization: Bearer KEY</code>.</p>
</html>
"""


def index_page(version: str, base_url: str) -> bytes:
    """The page; `base_url` is how the caller reached us, without a slash at its end."""
    links = "\n".join(f'<dt><a href="{path}">{path}</a></dt><dd>{escape(words)}</dd>' for path, words in _LINKS)
    return _PAGE.format(version=escape(version), links=links, base=escape(base_url)).encode()
