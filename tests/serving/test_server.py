"""A real server on loopback, with a real client: under load, killed, started again."""

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import hvcl

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
pandas = pytest.importorskip("pandas")

CLIENTS, ENOUGH = 6, 80


def row(number):
    random = np.random.default_rng(number)
    label = ["ape", "bee"][number % 2]
    return {
        "a": float(random.normal() + 3 * (number % 2)),
        "b": float(random.normal()),
        "c": "red" if number % 3 else "blue",
    }, label


def reference(numbers):
    """A model that has learned these rows, each once, and no service was near."""
    model = hvcl.load("m")
    rows, labels = zip(*map(row, numbers), strict=True)
    return model.partial_fit(pandas.DataFrame(rows), list(labels))


class Server:
    """A process that serves the model ``m`` of the working folder."""

    def __init__(self, *options):
        words = [sys.executable, "-m", "hvcl", "serve", "m", "--port", "0", *options]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = self.process.stdout.readline()
        self.url = self.process.stdout.readline().split()[2]

    def client(self):
        return httpx.Client(base_url=self.url, timeout=60)

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        return out, err, self.process.returncode


@pytest.fixture
def serve(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, labels = zip(*(row(-number % 1000 + 5000) for number in range(60)), strict=True)
    hvcl.ContinualClassifier(answer="ever", features=30, warmup=50).partial_fit(pandas.DataFrame(rows), list(labels)).save("m")
    servers = []

    def start(*options):
        servers.append(Server(*options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.kill()
        server.process.stdout.close()
        server.process.stderr.close()


def learn(client, number):
    rows, label = row(number)
    return client.post("/learn", json={"rows": [rows], "labels": [label], "id": f"row {number}"})


def test_kill_9_under_load_loses_nothing_that_was_acknowledged_and_learns_nothing_twice(serve):
    server = serve("--snapshot-rows", "10")  # so that the kill falls among snapshots
    counter, acknowledged, sent, predicted = itertools.count(), queue.Queue(), set(), []
    enough, failures = threading.Event(), []

    def load():
        with server.client() as client:
            while not enough.is_set():
                number = next(counter)
                sent.add(number)
                try:
                    answer = learn(client, number)
                    if answer.status_code == 200 and answer.json()["learned"] == 1:
                        acknowledged.put(number)
                    else:
                        failures.append(answer.text)
                    predicted.append(client.post("/predict", json={"rows": [row(number)[0]]}).status_code)
                except httpx.TransportError:
                    return  # killed
                if acknowledged.qsize() >= ENOUGH:
                    enough.set()

    clients = [threading.Thread(target=load) for _ in range(CLIENTS)]
    for thread in clients:
        thread.start()
    enough.wait(120)
    server.kill()
    for thread in clients:
        thread.join()
    kept = set(acknowledged.queue)
    assert len(kept) >= ENOUGH
    assert failures == []
    assert set(predicted) == {200}

    server = serve("--snapshot-rows", "10")
    with server.client() as client:
        there = client.get("/health").json()["learned"]
        assert len(kept) <= there <= len(sent)
        answers = {number: learn(client, number).json() for number in sorted(sent)}
        assert all(answers[number].get("repeated") for number in kept), "what was acknowledged is there"
        assert client.get("/health").json()["learned"] == len(sent), "and nothing twice"
        frame = pandas.DataFrame([row(number)[0] for number in range(2000, 2020)])
        found = client.post("/predict", json={"rows": frame.to_dict("records"), "probabilities": True}).json()["predictions"]
    out, err, code = server.stop()
    assert (code, err) == (0, "")
    assert f"stopped: {len(sent):,} rows learned here" in out
    expected = reference(sorted(sent)).predict_proba(frame)
    probabilities = [[entry["probability"] for entry in answer["probabilities"]] for answer in found]
    assert np.array(probabilities) == pytest.approx(expected, abs=1e-6)


def test_every_kind_of_answer(serve):
    prometheus = pytest.importorskip("prometheus_client.parser")
    server = serve()
    assert "0 rows learned here" in server.said
    good, label = row(1)
    with server.client() as client:

        def post(path, **body):
            answer = client.post(path, json=body)
            return answer.status_code, answer.json()

        status, answer = post("/predict", rows=[good, {}])
        assert status == 200
        assert [set(entry) for entry in answer["predictions"]] == [{"label", "probability"}] * 2
        assert post("/learn", rows=[good], labels=[label], id="one")[1]["learned"] == 1
        assert post("/learn", rows=[good], labels=["ape"], id="one")[0] == 409
        assert post("/learn", rows=[{"a": "x"}], labels=[label]) == (
            422,
            {"detail": "row 0: 'a' is 'x', where a number is expected (null: missing)"},
        )
        assert post("/learn", rows=[good]) == (422, {"detail": "labels: Field required"})
        assert post("/learn", rows=[good], labels=[label], grop="g")[0] == 422
        assert post("/forget", rows=[good], labels=[label]) == (200, {"forgotten": 1, "group": None})
        assert "forgotten already" in post("/forget", rows=[good], labels=[label])[1]["detail"]
        assert post("/forget")[0] == 422
        headers = {"content-type": "application/json"}
        broken = client.post("/learn", content=b'{"rows": [', headers=headers)
        assert broken.status_code == 422
        assert "no JSON" in broken.json()["detail"]
        assert client.post("/learn", content=b" " * 16_000_001, headers=headers).status_code == 413
        chunks = client.post("/learn", content=(b" " * 2_000_000 for _ in range(9)), headers=headers)
        assert chunks.status_code == 413
        assert "send the rows in parts" in chunks.json()["detail"]
        assert client.get("/drift").json() == {"learned": 1, "events": [], "experts": [{"expert": 1, "rows": 60}]}
        assert client.get("/health").json()["status"] == "ok"
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        metrics = {
            (sample.name, sample.labels.get("path"), sample.labels.get("status")): sample.value
            for family in prometheus.text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        assert metrics["hvcl_learned_rows_total", None, None] == 1
        assert metrics["hvcl_forgotten_rows_total", None, None] == 1
        assert metrics["hvcl_predicted_rows_total", None, None] == 2
        assert metrics["hvcl_requests_total", "/learn", "200"] == 1
        assert metrics["hvcl_requests_total", "/learn", "413"] == 2
        assert metrics["hvcl_requests_total", "/forget", "422"] == 2
        assert metrics["hvcl_request_seconds_count", "/learn", None] == 8
        assert metrics["hvcl_up", None, None] == 1
    assert server.stop()[1:] == ("", 0)
    assert json.loads(Path("m.state/state.json").read_text())["extra"]["learned"] == 1
