"""One HTTP request at a time over wasi:http: send it, read the whole response, and when that fails say whether the request
may have arrived all the same.

It adds no credentials and no idempotency key (the host writes both on the way out), follows no redirect and retries
nothing. Python's own http.client and the libraries on top of it need sockets, which no guest has.

Resources of the host are given back where their `with` block ends, the inner ones first: the host does not let go of a
body while somebody still holds its stream.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from componentize_py_types import Err, Ok
from wit_world.imports import outgoing_handler
from wit_world.imports import wasi_http_types as wasi
from wit_world.imports.streams import StreamError_Closed

# The most that `blocking-write-and-flush` takes at once, by the definition of wasi:io.
WRITE_BYTES_MAX = 4096
READ_BYTES_MAX = 64 * 1024
EXCERPT_CHARACTERS_MAX = 200


class NotSent(Exception):
    """Nothing can have arrived: the request was malformed, or no connection came about."""


class Unheard(Exception):
    """It may have arrived, or nobody can tell. A refusal by the host looks like this too, since its error code has no room
    for more than a text; the host knows the difference and does not leave it in doubt."""


@dataclass
class Response:
    """A final status, the headers as they came, and the whole body."""

    status: int
    headers: list[tuple[str, bytes]]
    body: bytes

    def excerpt(self) -> str:
        """The beginning of the body, short enough for an error message."""
        text = self.body.decode(errors="replace")
        return text if len(text) <= EXCERPT_CHARACTERS_MAX else f"{text[:EXCERPT_CHARACTERS_MAX]}…"

    def retry_after_ms(self) -> int | None:
        """`Retry-After` in milliseconds, where it is a number of seconds. Its other form, a date, is not read: the clocks
        of two machines rarely agree well enough for the seconds it is about."""
        for name, value in self.headers:
            if name.lower() == "retry-after":
                # Up to nine digits: thirty years. Longer ones are nonsense, and would not fit the interface's u64.
                seconds = value.strip()
                return int(seconds) * 1000 if seconds.isdigit() and len(seconds) <= 9 else None
        return None


def get(url: str) -> Response:
    return send(wasi.Method_Get(), url, [], b"")


def post_json(url: str, json: str) -> Response:
    return send(wasi.Method_Post(), url, [("Content-Type", b"application/json")], json.encode())


def send(method: wasi.Method, url: str, headers: list[tuple[str, bytes]], body: bytes) -> Response:
    request = outgoing_request(method, url, headers)
    outgoing_body = request.body()
    # The request must be under way before its body is written: nobody drains the body before.
    try:
        pending = outgoing_handler.handle(request, None)
    except Err as error:
        raise NotSent(describe(error.value))
    write(outgoing_body, body)
    with pending:
        with pending.subscribe() as ready:
            ready.block()
        match pending.get():
            case Ok(Ok(incoming)):
                return read(incoming)
            case Ok(Err(code)):
                kind = NotSent if isinstance(code, BEFORE_THE_FIRST_BYTE) else Unheard
                raise kind(describe(code))
            case _:
                raise Unheard("the host woke the guest without a response")


def outgoing_request(method: wasi.Method, url: str, headers: list[tuple[str, bytes]]) -> wasi.OutgoingRequest:
    parts = urlsplit(url)
    path = parts.path or "/"
    try:
        request = wasi.OutgoingRequest(wasi.Fields.from_list(headers))
        request.set_method(method)
        request.set_scheme(wasi.Scheme_Https() if parts.scheme == "https" else wasi.Scheme_Http())
        request.set_authority(parts.netloc)
        request.set_path_with_query(f"{path}?{parts.query}" if parts.query else path)
    except Err:
        raise NotSent(f"`{url}` is no acceptable URL of a request")
    return request


def write(body: wasi.OutgoingBody, content: bytes) -> None:
    """Errors are dropped on purpose. A request that the host refuses closes its body first, and the reason is only in the
    response: whoever gives up here never learns it. A body that really broke off makes the response an error too."""
    try:
        with body.write() as stream:
            for start in range(0, len(content), WRITE_BYTES_MAX):
                stream.blocking_write_and_flush(content[start : start + WRITE_BYTES_MAX])
        wasi.OutgoingBody.finish(body, None)
    except Err:
        pass


def read(incoming: wasi.IncomingResponse) -> Response:
    with incoming:
        with incoming.headers() as fields:
            headers = fields.entries()
        chunks = []
        with incoming.consume() as body, body.stream() as stream:
            while True:
                try:
                    chunks.append(stream.blocking_read(READ_BYTES_MAX))
                except Err as error:
                    if isinstance(error.value, StreamError_Closed):
                        break
                    raise Unheard(f"the response broke off: {broken(error.value.value)}")
        return Response(incoming.status(), headers, b"".join(chunks))


def broken(error) -> str:
    code = wasi.http_error_code(error)
    return describe(code) if code is not None else error.to_debug_string()


# Each of these comes before the first byte of a request: no name, no route, no connection, or the host's no.
BEFORE_THE_FIRST_BYTE = (
    wasi.ErrorCode_DnsTimeout,
    wasi.ErrorCode_DnsError,
    wasi.ErrorCode_DestinationNotFound,
    wasi.ErrorCode_DestinationUnavailable,
    wasi.ErrorCode_DestinationIpProhibited,
    wasi.ErrorCode_DestinationIpUnroutable,
    wasi.ErrorCode_ConnectionRefused,
    wasi.ErrorCode_TlsCertificateError,
    wasi.ErrorCode_HttpRequestDenied,
    wasi.ErrorCode_HttpRequestUriInvalid,
    wasi.ErrorCode_HttpRequestMethodInvalid,
)


def describe(code: wasi.ErrorCode) -> str:
    """The code's own text where it has one (there the host says what is missing), else its name."""
    if isinstance(code, wasi.ErrorCode_InternalError) and code.value:
        return code.value
    return type(code).__name__.removeprefix("ErrorCode_")
