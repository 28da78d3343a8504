"""What gateway and workers agreed on: subjects, messages, tensors, errors, deadlines, model configs.

No I/O, no asyncio.
"""
