"""Local and remote files: open, list, checksum, publish by rename and resume, with strict readers for JSON and YAML."""
