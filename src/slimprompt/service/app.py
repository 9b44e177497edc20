"""The FastAPI application: prediction, description, metrics and the web page.

A prediction request passes four stages: it is read and parsed within limits (event loop), its images are decoded (a few threads), encoded
in a batch with those of other requests and answered (worker thread), and the answer is sent.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from slimprompt import __version__
from slimprompt.classifier import Classifier
from slimprompt.collections.rows import Prediction, make_predictions
from slimprompt.errors import InputError, choose
from slimprompt.report.html import asset
from slimprompt.service.batching import Worker
from slimprompt.service.decoding import Decoder
from slimprompt.service.limits import Limits
from slimprompt.service.metrics import Metrics
from slimprompt.service.models import ModelFacts, ServedModel
from slimprompt.service.uploads import RETRY, Options, Question, Uploads, request_body

_BEARER = HTTPBearer(auto_error=False)
_DOCS = "/docs"
#: Browsers run nothing but the files of this service, and show it in no other page.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: FastAPI's page of the API: its scripts come from another server.
_DOCS_POLICY = "default-src 'self' https: data: 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong"},
    408: {"description": "The request took too long to arrive"},
    413: {"description": "The request is too large, or has too many images or pixels"},
    415: {"description": "No image can be read, or another content type"},
    422: {"description": "The form, the JSON or an option cannot be used"},
    429: {"description": "Too many images are waiting; see Retry-After"},
    503: {"description": "Too many uploads at once, or the service is stopping; see Retry-After"},
}


class ClassProbability(BaseModel):
    """One class of an answer."""

    name: str
    probability: float


class Row(BaseModel):
    """The answer for one image; the fields of a JSON line of `slimprompt predict --out`."""

    image: str = Field(description="Name of the file, or its number in JSON")
    answer: str | None = Field(description='The most likely class, or "none of these"; null if the image has an error')
    concept_match: float | None = Field(
        description="Maximum concept matching: low for an image that is none of the classes"
    )
    classes: list[ClassProbability] = Field(description="The most likely classes, best first")
    error: str | None = Field(description="Why the image has no answer")


class Predictions(BaseModel):
    """The answers for the images of a request, in their order."""

    model: str
    predictions: list[Row]
    zero_shot: list[Row] | None = Field(None, description="Answers of zero-shot classification, if asked for")


class Facts(BaseModel):
    """The served models and the limits of the service."""

    models: list[ModelFacts]
    limits: Limits


class _Service:
    """What the handlers share."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits) -> None:
        self.models, self.limits = models, limits
        self.metrics, self.uploads, self.decoder = Metrics(), Uploads(limits), Decoder(limits)
        self.worker = Worker(limits.batch_size, lambda: self.decoder.n_images, self.metrics.add_batch)

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """Threads of the service; uvicorn ends this block when the running requests are finished."""
        self.worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.worker.stop)
            self.decoder.close()

    async def predict(self, request: Request) -> dict[str, Any]:
        async with self.uploads.read(request) as question:
            model = self._model(question.options)
            async with self.decoder.decoded(question.images, model.backbone) as (views, errors):
                if not self.worker.is_running:
                    raise HTTPException(503, "the service is stopping", RETRY)
                frozen, wanted = model.backbone.frozen, [(model.backbone, ["model"])]
                if question.options.zero_shot and frozen is model.backbone:
                    wanted = [(frozen, ["model", "zero_shot"])]
                elif question.options.zero_shot:  # the model has other image features
                    wanted.append((frozen, ["zero_shot"]))
                result: dict[str, Any] = {}
                for backbone, parts in wanted:
                    answer = partial(_predictions, model, question, errors, parts)
                    result |= await asyncio.wrap_future(self.worker.submit(backbone, views, answer))
        self.metrics.n_images += len(views)
        return result

    def _model(self, options: Options) -> ServedModel:
        if options.model is None:
            if len(self.models) > 1:
                raise InputError(f"several models are served: set model to one of {', '.join(self.models)}")
            return next(iter(self.models.values()))
        return choose("model", options.model, self.models)


def _predictions(
    model: ServedModel, question: Question, errors: Sequence[str | None], parts: Sequence[str], features: Tensor
) -> dict[str, Any]:
    """Parts of the answer to a request, "model" and "zero_shot", with a row for each image; runs in the worker thread."""
    options = question.options
    names = None if options.classes is None else tuple(options.classes)
    readable = [image.name for image, error in zip(question.images, errors, strict=True) if error is None]

    def rows(classifier: Classifier, lowest: float) -> list[dict[str, Any]]:
        found = iter(make_predictions(classifier, readable, features, top=options.top, lowest=lowest))
        rows = [
            next(found) if error is None else Prediction.unreadable(image.name, error)
            for image, error in zip(question.images, errors, strict=True)
        ]
        return [row.as_json() | {"error": row.error} for row in rows]

    answer: dict[str, Any] = {}
    if "model" in parts:
        used = model.on_classes(names)
        lowest = options.min_confidence or 0.0
        if options.coverage is not None:
            lowest = used.calibration_.threshold(options.coverage)
        answer |= {"model": model.name, "predictions": rows(used, lowest)}
    if "zero_shot" in parts:
        answer["zero_shot"] = rows(model.zero_shot(names), 0.0)
    return answer


class _Guard:
    """Counts requests in `metrics`, sets the security headers, and refuses requests that other web sites let a browser send."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 500, time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if scope["path"] == _DOCS:
                    headers["Content-Security-Policy"] = _DOCS_POLICY
            await send(message)

        headers = Headers(scope=scope)
        foreign = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"
        refusal = JSONResponse({"detail": "requests of other web sites are refused"}, 403)
        try:
            await (refusal if foreign else self._app)(scope, receive, send_with_headers)
        finally:
            self._metrics.statuses[status] += 1
            if scope["path"] == "/predict":
                self._metrics.add_seconds(time.perf_counter() - start)


def create_app(
    models: Mapping[str, ServedModel],
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """The application.

    Prediction, description and metrics need the bearer `token`, if there is one. The service is only addressed by the names in `hosts`,
    which keeps out web sites that let their own name point here; None allows all.
    """
    service = _Service(models, limits or Limits())
    app = FastAPI(
        title="slimprompt",
        version=__version__,
        docs_url=_DOCS,
        swagger_ui_oauth2_redirect_url=None,
        redoc_url=None,
        lifespan=service.running,
    )
    app.state.service = service
    if hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=sorted(hosts), www_redirect=False)
    app.add_middleware(_Guard, metrics=service.metrics)
    app.add_exception_handler(InputError, _unusable)
    app.add_exception_handler(Exception, _bug)
    _add_api(app, service, token)
    _add_page(app)
    return app


async def _unusable(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 422)


async def _bug(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": f"this is a bug in slimprompt ({type(error).__name__})"}, 500)


def _add_api(app: FastAPI, service: _Service, token: str | None) -> None:
    def authorized(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if token is not None and not hmac.compare_digest((given.credentials if given else "").encode(), token.encode()):
            detail = "this service needs a token: send it as `Authorization: Bearer TOKEN`"
            raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})

    checked = [Depends(authorized)]

    @app.post(
        "/predict",
        response_model=Predictions,
        response_model_exclude_unset=True,
        dependencies=checked,
        responses=_ERRORS,
        openapi_extra={"requestBody": request_body()},
        summary="Classify images",
    )
    async def predict(request: Request) -> Any:
        return await service.predict(request)

    @app.get("/classes", dependencies=checked, summary="Models with their classes, and limits")
    async def classes() -> Facts:
        return Facts(models=[model.describe() for model in service.models.values()], limits=service.limits)

    @app.get("/health", summary="Whether the service can answer; needs no token")
    async def health(response: Response) -> dict[str, str]:
        if not service.worker.is_running:
            response.status_code = 503
            return {"status": "stopping"}
        return {"status": "ok"}

    @app.get("/metrics", dependencies=checked, response_class=PlainTextResponse, summary="Prometheus metrics")
    async def metrics() -> Response:
        text = service.metrics.text(n_waiting=service.worker.n_waiting, n_admitted=service.decoder.n_images)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    """The web page; it needs no token, but asks for one."""

    @app.get("/base.css", include_in_schema=False)
    async def base() -> Response:
        return Response(asset("page.css"), media_type="text/css")  # the style of all pages

    app.mount("/", StaticFiles(packages=[("slimprompt.service", "page")], html=True))
