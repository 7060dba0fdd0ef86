"""A proxy before an S3 server that fails, stalls or cuts off the answers to chosen requests."""

import http.client
import http.server
import threading
import time

# What S3 answers when it has had enough, or is broken, or the credentials have gone.
ERRORS = {
    "slow down": (503, "SlowDown", "Please reduce your request rate."),
    "internal error": (500, "InternalError", "We encountered an internal error. Please try again."),
    "access denied": (403, "AccessDenied", "Access Denied"),
    "expired token": (400, "ExpiredToken", "The provided token has expired."),
}
FAULTS = (*ERRORS, "reset", "cut off", "stalls", "no answer")
STALL_SECONDS = 4


class FaultyStore(http.server.ThreadingHTTPServer):
    """Forwards to the server at `port`; the requests from the `first` on, `count` of them, meet with the fault."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self._lock = threading.Lock()
        self.disturb("", 0, 0)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def disturb(self, fault: str, first: int, count: int) -> None:
        with self._lock:
            self.fault, self.first, self.count, self.requests = fault, first, count, 0

    def next_fault(self) -> str:
        with self._lock:
            self.requests += 1
            return self.fault if self.first <= self.requests < self.first + self.count else ""

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is nothing to talk about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyStore

    def _forward(self) -> None:
        body = self._body()
        fault = self.server.next_fault()
        if fault == "no answer":
            time.sleep(STALL_SECONDS)
        if fault in ("no answer", "reset"):
            self.close_connection = True
            return
        if fault in ERRORS:
            status, code, message = ERRORS[fault]
            content = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            self._answer(status, [("Content-Type", "application/xml")], content, len(content))
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("transfer-encoding", "expect")}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        kept = [
            each for each in answer.getheaders() if each[0].lower() not in ("content-length", "transfer-encoding", "connection")
        ]
        size = int(answer.getheader("Content-Length", 0)) if self.command == "HEAD" else len(content)
        if fault in ("cut off", "stalls"):
            content = content[: len(content) // 2]
            self.close_connection = True
        self._answer(answer.status, kept, content, size)
        if fault == "stalls":
            time.sleep(STALL_SECONDS)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, size_bytes: int) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(size_bytes))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(found)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""
