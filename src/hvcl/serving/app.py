"""The service over HTTP, with FastAPI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict

from hvcl.core.errors import HvclError
from hvcl.serving.metrics import CONTENT_TYPE, Metrics
from hvcl.serving.service import BusyError, ConflictError, Service, UnavailableError

MOST_BYTES = 16_000_000
"""Of a request's body."""

DROPPED = 4
"""Times `most_bytes`: of bodies that are too large, so much is read before they are refused; larger ones are not read at all."""

PATHS = ("/predict", "/learn", "/forget", "/drift", "/health", "/metrics")
"""Those that requests are counted by; others are one."""


class PredictRequest(BaseModel):
    """Rows to predict."""

    model_config = ConfigDict(extra="forbid", strict=True)
    rows: list[Any]
    """Objects by column (null or left out: missing); lists of numbers if the model's columns have no names."""
    probabilities: bool = False
    """Also give the probabilities of all classes."""


class LearnRequest(BaseModel):
    """Rows to learn."""

    model_config = ConfigDict(extra="forbid", strict=True)
    rows: list[Any]
    labels: list[Any]
    id: str | None = None
    """A repeated request of the same id is answered, and nothing is learned twice."""
    group: str | int | None = None
    """A name for these rows, by which they can be forgotten."""


class ForgetRequest(BaseModel):
    """Rows to forget, with their labels; or a group, alone."""

    model_config = ConfigDict(extra="forbid", strict=True)
    rows: list[Any] | None = None
    labels: list[Any] | None = None
    id: str | None = None
    group: str | int | None = None
    twice: bool = False
    """Allow rows that equal rows which were forgotten before."""


def make_app(service: Service, most_bytes: int = MOST_BYTES) -> FastAPI:
    """The application; the service is closed when it ends.

    Args:
        service: answers.
        most_bytes: bodies that are larger are refused.
    """
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)

    app = FastAPI(title="hvcl", description="A model that predicts and goes on learning.", lifespan=lifespan)
    app.state.metrics = metrics
    app.add_middleware(Guard, metrics=metrics, most_bytes=most_bytes)

    @app.post("/predict")
    async def predict(request: PredictRequest) -> dict[str, Any]:
        """Predict rows by all that was acknowledged before."""
        answers = await run_in_threadpool(service.predict, request.rows, request.probabilities)
        metrics.add_predicted(len(answers))
        return {"predictions": answers}

    @app.post("/learn")
    async def learn(request: LearnRequest) -> dict[str, Any]:
        """Learn rows; the answer comes when they are on the disk."""
        done = await run_in_threadpool(service.learn, request.rows, request.labels, id=request.id, group=request.group)
        return await asyncio.wrap_future(done)

    @app.post("/forget")
    async def forget(request: ForgetRequest) -> dict[str, Any]:
        """Forget rows or a group; the answer comes when the model without them is on the disk."""
        given = request.model_dump()
        return await asyncio.wrap_future(await run_in_threadpool(lambda: service.forget(**given)))

    @app.get("/drift")
    async def drift() -> dict[str, Any]:
        """What has drifted so far, and the rows that each expert has learned."""
        return service.drift()

    @app.get("/health")
    async def health() -> JSONResponse:
        """Whether calls can be taken: status 200, else 503."""
        found = service.health()
        return JSONResponse(found, 200 if found["status"] == "ok" else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> PlainTextResponse:
        """Counts for Prometheus."""
        return PlainTextResponse(metrics.text(service), media_type=CONTENT_TYPE)

    @app.exception_handler(HvclError)
    async def refused(_: Request, error: Exception) -> JSONResponse:
        status = 409 if isinstance(error, ConflictError) else 503 if isinstance(error, BusyError | UnavailableError) else 422
        return JSONResponse({"detail": str(error)}, status, {"Retry-After": "1"} if status == 503 else None)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return JSONResponse({"detail": f"the body is no JSON ({first.get('ctx', {}).get('error', first['msg'])})"}, 422)
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse({"detail": f"{place}: {first['msg']}" if place else str(first["msg"])}, 422)

    return app


class Guard:
    """Refuses bodies that are too large, and counts requests.

    Args:
        app: answers.
        metrics: count.
        most_bytes: of a body.
    """

    def __init__(self, app: Any, metrics: Metrics, most_bytes: int) -> None:
        self.app, self.metrics, self.most_bytes = app, metrics, most_bytes

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """An ASGI call."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, read = time.perf_counter(), 500, 0
        too_large = HTTPException(413, f"the body is larger than {self.most_bytes} bytes: send the rows in parts")

        async def bounded() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read <= self.most_bytes:
                return message
            # a client that is still sending would not hear the answer: the rest is read and dropped, up to a bound
            while message.get("more_body") and read <= DROPPED * self.most_bytes:
                message = await receive()
                read += len(message.get("body", b""))
            raise too_large

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            length = dict(scope["headers"]).get(b"content-length", b"0")
            if length.isdigit() and int(length) > DROPPED * self.most_bytes:
                await JSONResponse({"detail": too_large.detail}, 413, {"Connection": "close"})(scope, receive, noted)
            else:
                await self.app(scope, bounded, noted)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.add(path, status, time.perf_counter() - begin)
