"""`pb_utils.Tensor` and the datatype functions that go with it. CPU memory only.

Written from the documented interface of Triton's python backend; no code of it is used.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.tensors import NUMPY_TYPES, Array, datatype_of

TRITON_CODES: Final = {
    "BOOL": 1,
    "UINT8": 2,
    "UINT16": 3,
    "UINT32": 4,
    "UINT64": 5,
    "INT8": 6,
    "INT16": 7,
    "INT32": 8,
    "INT64": 9,
    "FP16": 10,
    "FP32": 11,
    "FP64": 12,
    "BYTES": 13,
    "BF16": 14,
}
"""TRITONSERVER_DataType, which `triton_dtype` and `numpy_to_triton_type` speak."""
_DATATYPES: Final = {code: datatype for datatype, code in TRITON_CODES.items()}
_CPU: Final = (1, 0)
"""kDLCPU and its only device, in DLPack's numbers."""


class TritonModelException(Exception):
    """What a model raises, and what our side of the interface raises at a model."""


class Tensor:
    """A named array. BF16, which numpy lacks, is an array of `ml_dtypes.bfloat16`.

    `datatype` is for our side: raw 16 bits that are BF16, and stay so until somebody looks at them.
    """

    def __init__(self, name: str, array: Array, *, datatype: str | None = None) -> None:
        if not isinstance(array, np.ndarray):
            raise TritonModelException(f"tensor {name!r} must be made from a numpy array, not {type(array).__name__}")
        self._name = name
        self._array = array
        self._datatype = datatype or _datatype(name, array)

    def to_wire(self) -> tuple[str, Array]:
        """Datatype and array; BYTES are objects, BF16 are raw 16 bits."""
        if self._datatype == "BF16":
            return "BF16", self._array.view(np.uint16)
        return self._datatype, self._array

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """TRITONSERVER_DataType."""
        return TRITON_CODES[self._datatype]

    def is_cpu(self) -> bool:
        """Whether the data is in CPU memory: always."""
        return True

    def as_numpy(self) -> Array:
        """The array itself, not a copy."""
        if self._datatype == "BF16" and self._array.dtype == np.uint16:
            return self._array.view(_bfloat16(self._name))
        return self._array

    def to_dlpack(self) -> Any:
        """A DLPack capsule of the data."""
        return self.as_numpy().__dlpack__()

    def __dlpack__(self, **how: Any) -> Any:
        return self.as_numpy().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    @staticmethod
    def from_dlpack(name: str, source: Any) -> Tensor:
        """A tensor over the memory of anything that speaks DLPack, on the CPU."""
        if not hasattr(source, "__dlpack__"):
            source = _Capsule(source)
        device = tuple(int(n) for n in source.__dlpack_device__())
        if device[0] != _CPU[0]:
            raise TritonModelException(f"tensor {name!r} is on DLPack device {device}; move it to the CPU first")
        try:
            return Tensor(name, np.from_dlpack(source))
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise TritonModelException(f"tensor {name!r} can't be read through DLPack: {error}") from None


class _Capsule:
    """A bare capsule with the two methods that numpy asks for."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **how: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


def triton_string_to_numpy(data_type: str) -> npt.DTypeLike:
    """Numpy type of a config's `TYPE_…`."""
    name = data_type.removeprefix("TYPE_")
    if name == "STRING":
        return np.object_
    if name == "BF16":
        return _bfloat16("")
    if name not in NUMPY_TYPES:
        raise TritonModelException(f"data type {data_type!r} is not known")
    return NUMPY_TYPES[name].type


def triton_to_numpy_type(code: int) -> npt.DTypeLike:
    """Numpy type of a TRITONSERVER_DataType."""
    name = _DATATYPES.get(code)
    if name is None:
        raise TritonModelException(f"TRITONSERVER_DataType {code} is not known")
    return triton_string_to_numpy("TYPE_STRING" if name == "BYTES" else f"TYPE_{name}")


def numpy_to_triton_type(dtype: npt.DTypeLike) -> int:
    """TRITONSERVER_DataType of a numpy type."""
    return TRITON_CODES[_datatype("", np.empty(0, dtype))]


def _datatype(name: str, array: Array) -> str:
    found = "BF16" if array.dtype.name == "bfloat16" else datatype_of(array.dtype)
    if found is None:
        what = f"tensor {name!r} has" if name else "there is no datatype for"
        raise TritonModelException(f"{what} numpy type {array.dtype}, which no tensor can carry")
    return found


def _bfloat16(name: str) -> npt.DTypeLike:
    try:
        import ml_dtypes
    except ImportError:
        what = f"tensor {name!r} is BF16" if name else "BF16"
        raise TritonModelException(f"{what}: numpy needs the package ml_dtypes for that") from None
    found: npt.DTypeLike = ml_dtypes.bfloat16
    return found
