"""Counts of requests and the state of a service, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter

from hvcl.serving.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        """By path and status."""
        self.seconds: Counter[str] = Counter()
        """Sums, by path."""
        self.predicted = 0
        """Rows."""

    def add(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        with self._lock:
            self.requests[path, status] += 1
            self.seconds[path] += seconds  # type: ignore[assignment]

    def add_predicted(self, rows: int) -> None:
        """Rows were predicted."""
        with self._lock:
            self.predicted += rows

    def text(self, service: Service) -> str:
        """All of them."""
        health, totals = service.health(), service.published.totals
        with self._lock:
            requests, seconds, predicted = dict(self.requests), dict(self.seconds), self.predicted
        counts: Counter[str] = Counter()
        for (path, _), count in requests.items():
            counts[path] += count
        lines = ["# HELP hvcl_requests_total Requests, by path and status.", "# TYPE hvcl_requests_total counter"]
        lines += [f'hvcl_requests_total{{path="{path}",status="{status}"}} {n}' for (path, status), n in sorted(requests.items())]
        lines += ["# HELP hvcl_request_seconds Time to answer requests.", "# TYPE hvcl_request_seconds summary"]
        for path, total in sorted(seconds.items()):
            lines += [f'hvcl_request_seconds_sum{{path="{path}"}} {total:.6f}']
            lines += [f'hvcl_request_seconds_count{{path="{path}"}} {counts[path]}']
        single = [
            ("predicted_rows_total", "counter", "Rows predicted since the start.", predicted),
            ("learned_rows_total", "counter", "Rows learned and acknowledged.", totals.learned),
            ("forgotten_rows_total", "counter", "Rows forgotten one by one.", totals.forgotten),
            ("drift_events_total", "counter", "Drift events.", totals.drifts),
            ("experts", "gauge", "Experts of the model.", len(service.drift()["experts"])),
            ("waiting_calls", "gauge", "Calls that wait for the writer.", health["waiting"]),
            ("log_rows", "gauge", "Rows in the log, after the last snapshot.", health["log_rows"]),
            ("log_bytes", "gauge", "Size of the log.", health["log_bytes"]),
            ("snapshot_timestamp_seconds", "gauge", "When the last snapshot was made.", f"{health['snapshot_time']:.3f}"),
            ("up", "gauge", "Whether calls can be taken.", int(health["status"] == "ok")),
        ]
        for name, kind, text, value in single:
            lines += [f"# HELP hvcl_{name} {text}", f"# TYPE hvcl_{name} {kind}", f"hvcl_{name} {value}"]
        return "\n".join(lines) + "\n"
