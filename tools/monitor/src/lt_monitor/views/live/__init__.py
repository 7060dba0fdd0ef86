"""`lt-monitor watch`: a thread reads the logs (`reader`), keys (`terminal`) choose what is drawn (`screen`)."""
