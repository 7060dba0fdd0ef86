"""What one tool prints or writes and another reads: manifest lines, log lines and the files of a run's directory."""
