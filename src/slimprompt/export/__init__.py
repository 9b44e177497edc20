"""Classifiers for use elsewhere: as one ONNX file, as a class matrix, or on the Hugging Face hub.

| module | contents |
|---|---|
| `contents` | what exported files say about a classifier: class names, backbone and preprocessing |
| `onnx` | pixels → probabilities as one ONNX file, compared with torch |
| `matrix` | the linear head of a classifier as a safetensors file |
| `card` | the model card of a repository on the hub |
| `hub` | the files of a repository on the hub, and their upload |
"""

from slimprompt.export.hub import HubFiles, push, write_hub_folder
from slimprompt.export.matrix import export_matrix
from slimprompt.export.onnx import OnnxComparison, export_onnx

__all__ = ["HubFiles", "OnnxComparison", "export_matrix", "export_onnx", "push", "write_hub_folder"]
