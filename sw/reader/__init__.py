"""Reads model files that others wrote: TFLite and ONNX, int8, to graphs for the NPU and stages for the host."""
