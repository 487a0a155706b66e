"""The read-only part of Modal's gRPC control plane, as its SDK 1.6.4 uses it.

`ClientHello`, `AuthTokenGet`, `AppGetOrCreate` as a look-up and `SandboxListV2` with its filters and pages. The
messages are Modal's own (`modal_proto`, of the extra `modal`). A token pair is required, and for a listing
the token that `AuthTokenGet` gave. Error texts and the page size are our own, because no real ones are recorded.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import islice
from typing import Any

from server.demo.grpc_server import Call, Refusal
from server.demo.judges import INIT_FAILURE, INIT_TEXT, KERNEL_OOM_KILL, Judge, Judges

PAGE = 100
SERVICE = "/modal.client.ModalClient/"
# Lifetime of a token, s; the SDK requests a new one before the old one expires.
_TOKEN_SECONDS = 1_200
Metadata = Mapping[str, str]


class ModalApi:
    """Answers for one workspace. Sandboxes have epoch times: the run began at `start`.

    `calls` is what a `GrpcServer` serves. `look` advances the simulation to the time of a request and locks it
    while the request is answered.

    Raises:
        ImportError: the extra is not installed.
    """

    def __init__(self, judges: Judges, seed: int, start: float, look: Callable[[Callable[[], Any]], Any]) -> None:
        self._api = import_module("modal_proto.api_pb2")
        self._judges = judges
        self._start = start
        self._look = look
        self.app = judges.plan.app
        self.token_id = "ak-" + _hash(22, seed, "token")
        self.token_secret = "as-" + _hash(22, seed, "secret")
        self._app_id = "ap-" + _hash(22, seed, "app")
        self._image_id = "im-" + _hash(22, seed, "image")
        self.calls = self._calls()

    def _calls(self) -> dict[str, Call]:
        api, empty = self._api, import_module("google.protobuf.empty_pb2").Empty
        calls = {
            "ClientHello": Call(empty, api.ClientHelloResponse, self._hello),
            "AuthTokenGet": Call(api.AuthTokenGetRequest, api.AuthTokenGetResponse, self._token),
            "AppGetOrCreate": Call(api.AppGetOrCreateRequest, api.AppGetOrCreateResponse, self._find_app),
            "SandboxListV2": Call(api.SandboxListRequest, api.SandboxListResponse, self._list),
        }
        return {SERVICE + name: call for name, call in calls.items()}

    # -- authentication ----------------------------------------------------------------------------------------

    def _check(self, metadata: Metadata) -> None:
        if (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != (
            self.token_id,
            self.token_secret,
        ):
            raise Refusal("UNAUTHENTICATED", "Token missing or not valid")

    def _hello(self, request: Any, metadata: Metadata) -> Any:
        self._check(metadata)
        return self._api.ClientHelloResponse()

    def _token(self, request: Any, metadata: Metadata) -> Any:
        """Returns a JSON web token. Its time is the wall clock's, because the SDK compares it with that."""
        self._check(metadata)
        head, body = _base64({"alg": "HS256"}), _base64({"exp": int(time.time()) + _TOKEN_SECONDS})
        return self._api.AuthTokenGetResponse(token=f"{head}.{body}.{self._sign(head, body)}")

    def _sign(self, head: str, body: str) -> str:
        return hmac.new(self.token_secret.encode(), f"{head}.{body}".encode(), hashlib.sha256).hexdigest()

    def _check_token(self, metadata: Metadata) -> None:
        head, body, signature = (*metadata.get("x-modal-auth-token", "").split("."), "", "", "")[:3]
        if not body or signature != self._sign(head, body):
            raise Refusal("UNAUTHENTICATED", "Auth token missing or not valid")
        if json.loads(base64.urlsafe_b64decode(body + "=="))["exp"] < time.time():
            raise Refusal("UNAUTHENTICATED", "Auth token expired")

    # -- listing -----------------------------------------------------------------------------------------------

    def _find_app(self, request: Any, metadata: Metadata) -> Any:
        self._check(metadata)
        if request.object_creation_type != self._api.OBJECT_CREATION_TYPE_UNSPECIFIED:
            raise Refusal("PERMISSION_DENIED", "This token may only read")
        if request.app_name != self.app:
            raise Refusal("NOT_FOUND", f"App '{request.app_name}' not found")
        return self._api.AppGetOrCreateResponse(app_id=self._app_id)

    def _list(self, request: Any, metadata: Metadata) -> Any:
        """Lists sandboxes newest first, created before the request's time (0: any); an empty page is the end."""
        self._check(metadata)
        self._check_token(metadata)
        return self._look(lambda: self._page(request))

    def _page(self, request: Any) -> Any:
        judges = self._judges
        pool = judges.records if request.include_finished else judges.live
        found = (judge for judge in reversed(pool.values()) if self._is_asked_for(judge, request))
        return self._api.SandboxListResponse(sandboxes=[self._info(judge) for judge in islice(found, PAGE)])

    def _is_asked_for(self, judge: Judge, request: Any) -> bool:
        before = request.before_timestamp
        return (
            request.app_id in ("", self._app_id)
            and (not before or self._start + judge.created < before)
            and all((tag.tag_name, tag.tag_value) == ("run", judge.run) for tag in request.tags)
        )

    def _info(self, judge: Judge) -> Any:
        api = self._api
        return api.SandboxInfo(
            id=judge.id,
            created_at=self._start + judge.created,
            task_info=self._task(judge),
            app_id=self._app_id,
            tags=[api.SandboxTag(tag_name="run", tag_value=judge.run)],
            name=judge.name,
            image_id=self._image_id,
            regions=["us-east"],
            timeout_secs=judge.timeout_seconds,
        )

    def _task(self, judge: Judge) -> Any:
        """Protobuf's 0 means "not yet": a task without a worker has neither id nor times."""
        api = self._api
        result = api.GenericResult(
            status=judge.status,
            exception=INIT_TEXT if judge.status == INIT_FAILURE else "",
            exitcode=137 if judge.status == KERNEL_OOM_KILL else 0,
        )
        return api.TaskInfo(
            id="" if judge.enqueued is None else "ta-" + judge.id[3:],
            enqueued_at=self._time(judge.enqueued),
            started_at=self._time(judge.started),
            finished_at=self._time(judge.finished),
            result=result if judge.status else None,
            sandbox_id=judge.id,
        )

    def _time(self, now: float | None) -> float:
        return 0.0 if now is None else self._start + now


def _base64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _hash(length: int, *parts: object) -> str:
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:length]
