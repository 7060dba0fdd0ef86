"""The contracts between the lt tools: file formats, manifests, architectures, log lines, console behaviour."""

__version__ = "0.1.0"
