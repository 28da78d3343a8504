"""A bare InferenceSession.run loop: what the machine gives with nothing around the model.

Two threads over one session of one thread each, as the worker runs it; prints one JSON object of rows per second per
batch size.
"""

import json
import sys
import threading
import time

import numpy as np
import onnxruntime as ort
from bodies import minilm_rows


def main(model_file, tokens, seconds, threads=2):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model_file, options, providers=["CPUExecutionProvider"])
    rows = minilm_rows([tokens] * 32)
    rates = {}
    for batch in (8, 16, 32):
        feeds = {k: np.asarray([r[k] for r in rows[:batch]], np.int64) for k in ("input_ids", "attention_mask")}
        rates[batch] = _rate(session, feeds, batch, seconds, threads)
    print(json.dumps(rates))


def _rate(session, feeds, batch, seconds, threads):
    session.run(None, feeds)
    start = time.monotonic()
    counts = [0] * threads
    spent = [0.0] * threads

    def loop(i):
        while time.monotonic() - start < seconds:
            session.run(None, feeds)
            counts[i] += batch
            spent[i] = time.monotonic() - start

    pool = [threading.Thread(target=loop, args=(i,)) for i in range(threads)]
    for t in pool:
        t.start()
    for t in pool:
        t.join()
    return sum(n / s for n, s in zip(counts, spent, strict=True))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
