"""OpenMetrics of workers and jobs: what is counted, as data, and the endpoint where Prometheus fetches it."""
