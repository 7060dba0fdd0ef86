"""What NeMo and HyperPod's recipes leave to PyTorch Lightning: how long a run is, when it evaluates, and its optimizer."""
