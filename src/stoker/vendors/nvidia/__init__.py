"""NVIDIA: chips, the driver's library (NVML), CUDA, and which builds of frameworks run where."""
