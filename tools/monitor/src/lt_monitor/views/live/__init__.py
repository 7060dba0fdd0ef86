"""`lt-monitor watch`: a thread reads the logs (`reader`), keys (`terminal`) choose the run to draw (`screen`)."""
