"""The states of runs as metrics for node_exporter's textfile collector, with alerting rules and a Grafana dashboard for them."""
