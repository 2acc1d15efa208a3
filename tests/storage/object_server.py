#!/usr/bin/python3
"""A server of objects on loopback for tests: what the engine uses of S3's interface, and plain files over HTTP.

Signatures are checked by the specification alone (AWS Signature Version 4: hmac and hashlib), and so are the digests of what is
sent. The bucket `public` may be read without a signature. The bucket `unlisted` does not tell
what is not there: it answers 403 for it. Faults are injected on request, so that a client's patience can be
tested: `Server.faults` is a list of dicts, each with

  method   of the requests that it is for, as "GET"       path     a regular expression of the path and query
  times    how often (once)                               after    how many requests it lets pass first (none)
  do       status   answers `status`, with the error `code`
           reset    sends `bytes` of the body, then resets the connection
           cut      sends `bytes` of the body, then closes the connection in good order
           short    says and sends `bytes` less than there are           long   says 10 bytes more than there are
           stall    sends `bytes` of the body, and then nothing for `seconds`
           together waits, MOST_HELD at most for all requests, until `count` of them have been under way at once
           whole    knows no ranges                                       shift  gives the range one byte too far on
           change   puts `bytes` more in the object first, so that it has another ETag
           lose     does what was asked, then resets the connection before the answer
           redirect answers 302 to the address `to`
           error200 answers 200 with the error `code` in the body

usage: object_server.py [CERTIFICATE KEY]     with these over TLS. Prints its port; then each line of JSON on stdin is a command, answered by a line of JSON:
  {"put": [KEY, LATIN1]}  {"get": KEY}  {"faults": […]}  {"log": true}: requests since the last time  {"uploads": true}: how many are open
"""
import datetime
import hashlib
import hmac
import http.server
import json
import re
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse
import uuid
from xml.sax.saxutils import escape

KEY_ID, SECRET, REGION = "AKIDTEST", "secret/with+signs=", "test-region-1"
LEAST_PART = 5 << 20
MOST_HELD = 30  # seconds


def hmac_sha256(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def encode(text, safe=""):
    return urllib.parse.quote(text, safe="-._~" + safe)


class Refused(Exception):
    def __init__(self, status, code, message):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Server:
    def __init__(self, token=None, certificate=None):
        self.objects = {}  # "bucket/key" → (bytes, etag)
        self.uploads = {}
        self.faults = []
        self.log = []
        self.busy = self.most_busy = 0
        self.token = token  # of the session that requests must be of
        self.list_page = 1000
        self.delay = 0  # seconds before each answer
        self.rate = 0  # bytes a second of a body that is sent here, over each connection; 0: as fast as they come
        self.who = None  # a function of the ports of client and server, whose answer is logged with the requests
        self.lock = threading.RLock()
        handler = type("Bound", (Handler,), {"store": self})
        self.http = Quiet(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.scheme = "https" if certificate else "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
                "AWS_ENDPOINT_URL": self.url, "no_proxy": "127.0.0.1"}

    def put(self, name, data, etag=None):
        with self.lock:
            self.objects[name] = (data, etag or f'"{hashlib.md5(data).hexdigest()}"')
            return self.objects[name][1]

    def wait_for_others(self, fault):
        end = fault.setdefault("end", time.monotonic() + MOST_HELD)
        while self.most_busy < fault["count"] and time.monotonic() < end:
            time.sleep(0.001)

    def fault_for(self, method, path):
        with self.lock:
            for fault in self.faults:
                if fault.get("method", method) != method or not re.search(fault.get("path", ""), path):
                    continue
                if fault.get("after", 0) > 0:
                    fault["after"] -= 1
                    continue
                if fault.setdefault("times", 1) > 0:
                    fault["times"] -= 1
                    return fault
        return {}


class Quiet(http.server.ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request, client_address):  # clients that a fault ended
        if not isinstance(sys.exc_info()[1], (ConnectionError, ValueError)):
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store = None

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # ------------------------------------------------------------------------------------------------- signatures
    def check_signature(self, path, query, body):
        authorization = self.headers.get("Authorization")
        bucket = path.split("/")[1]
        if authorization is None:
            if bucket == "public" and self.command in ("GET", "HEAD"):
                return
            raise Refused(403, "AccessDenied", "Access Denied")
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, SignedHeaders=([a-z0-9;-]+), "
                             r"Signature=([0-9a-f]{64})", authorization)
        if not found:
            raise Refused(400, "AuthorizationHeaderMalformed", "not of the form that the specification gives")
        key_id, date, region, names, signature = found.groups()
        if key_id != KEY_ID:
            raise Refused(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
        if region != REGION:
            raise Refused(400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; expecting '{REGION}'")
        stamp = self.headers["x-amz-date"]
        at = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs((datetime.datetime.now(datetime.timezone.utc) - at).total_seconds()) > 900 or not stamp.startswith(date):
            raise Refused(403, "RequestTimeTooSkewed", "The difference between the request time and the server's is too large.")
        signed = names.split(";")
        must = {"host"} | {name.lower() for name in self.headers if name.lower().startswith("x-amz-")}
        if not must <= set(signed) or signed != sorted(signed):
            raise Refused(403, "AccessDenied", f"headers that are not signed: {must - set(signed)}")
        digest = self.headers["x-amz-content-sha256"]
        if digest != hashlib.sha256(body).hexdigest():
            raise Refused(400, "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match.")
        canonical_query = "&".join(sorted(f"{encode(k)}={encode(v)}" for k, v in query))
        headers = "".join(f"{name}:{' '.join(self.headers[name].split())}\n" for name in signed)
        canonical = "\n".join([self.command, encode(urllib.parse.unquote(path), "/"), canonical_query, headers, names, digest])
        scope = f"{date}/{region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = ("AWS4" + SECRET).encode()
        for part in (date, region, "s3", "aws4_request"):
            key = hmac_sha256(key, part)
        if not hmac.compare_digest(hmac_sha256(key, text).hex(), signature):
            raise Refused(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
        if self.store.token is not None and self.headers.get("x-amz-security-token") != self.store.token:
            raise Refused(403, "InvalidToken", "The provided token is malformed or otherwise invalid.")

    # --------------------------------------------------------------------------------------------------- requests
    def read_body(self, size):
        rate = self.store.rate
        if rate == 0:
            return self.rfile.read(size)
        pieces, began, got = [], time.monotonic(), 0
        while got < size:
            pieces.append(self.rfile.read(min(1 << 18, size - got)))
            got += len(pieces[-1])
            time.sleep(max(0, began + got / rate - time.monotonic()))
        return b"".join(pieces)

    def handle_one(self):
        store = self.store
        path, _, query_text = self.path.partition("?")
        query = urllib.parse.parse_qsl(query_text, keep_blank_values=True)
        body = self.read_body(int(self.headers.get("Content-Length") or 0))
        by = store.who(self.client_address[1], store.port) if store.who else None  # which may take a while
        with store.lock:
            store.busy += 1
            store.most_busy = max(store.most_busy, store.busy)
            store.log.append({"method": self.command, "path": self.path, "range": self.headers.get("Range"),
                              "if_match": self.headers.get("If-Match"), "bytes": len(body),
                              "by": by})
        try:
            time.sleep(store.delay)
            self.fault = store.fault_for(self.command, self.path)
            if self.fault.get("do") == "together":
                store.wait_for_others(self.fault)
            if self.fault.get("do") == "status":
                raise Refused(self.fault["status"], self.fault.get("code", "InternalError"), "as the test asks for")
            if self.fault.get("do") == "redirect":
                return self.send(302, {"Location": self.fault["to"]}, b"elsewhere")
            self.check_signature(path, query, body)
            name = urllib.parse.unquote(path)[1:]
            if "/" not in name:
                self.list_bucket(name, dict(query))
            else:
                getattr(self, "do_object_" + self.command)(name, dict(query), body)
        except Refused as refused:
            self.refuse(refused)
        finally:
            with store.lock:
                store.busy -= 1

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    def refuse(self, refused):
        self.send(refused.status, {"Content-Type": "application/xml"},
                  f"<?xml version='1.0'?><Error><Code>{escape(refused.code)}</Code><Message>{escape(refused.message)}</Message></Error>"
                  .encode())

    def reset(self):
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def send(self, status, headers, body):
        kind = self.fault.get("do")
        if kind == "lose":
            return self.reset()
        said = len(body)
        if kind == "short":
            body = body[:-self.fault["bytes"]]
            said = len(body)
        if kind == "long":
            said += 10
            self.close_connection = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(said))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if kind in ("reset", "cut", "stall"):
            self.wfile.write(body[:self.fault["bytes"]])
            self.wfile.flush()
            if kind == "reset":
                time.sleep(0.05)  # a reset takes back what the other side has not read
                return self.reset()
            if kind == "stall":
                time.sleep(self.fault["seconds"])
            self.close_connection = True
            return None
        self.wfile.write(body)
        return None

    def do_object_GET(self, name, query, _):
        store = self.store
        if self.fault.get("do") == "change":
            with store.lock:
                store.put(name, store.objects[name][0] + b"x" * self.fault["bytes"])
        with store.lock:
            if name not in store.objects:
                if name.startswith("unlisted/"):
                    raise Refused(403, "AccessDenied", "Access Denied")
                raise Refused(404, "NoSuchKey", "The specified key does not exist.")
            data, etag = store.objects[name]
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != etag:
            raise Refused(412, "PreconditionFailed", "At least one of the preconditions you specified did not hold.")
        headers = {"ETag": etag, "Accept-Ranges": "bytes"}
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if not found or self.fault.get("do") == "whole":
            return self.send(200, headers, data)
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        if first >= len(data):
            raise Refused(416, "InvalidRange", "The requested range is not satisfiable")
        if self.fault.get("do") == "shift":
            first, last = first + 1, last + 1
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return self.send(206, headers, data[first:last + 1])

    def do_object_HEAD(self, name, query, _):
        with self.store.lock:
            if name not in self.store.objects:
                return self.send(404, {}, b"")
            data, etag = self.store.objects[name]
        return self.send(200, {"ETag": etag, "Accept-Ranges": "bytes"}, data)

    def do_object_PUT(self, name, query, body):
        if "uploadId" not in query:
            return self.send(200, {"ETag": self.store.put(name, body)}, b"")
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        with self.store.lock:
            if query["uploadId"] not in self.store.uploads:
                raise Refused(404, "NoSuchUpload", "The specified upload does not exist.")
            self.store.uploads[query["uploadId"]][int(query["partNumber"])] = (body, etag)
        return self.send(200, {"ETag": etag}, b"")

    def do_object_POST(self, name, query, body):
        store = self.store
        if "uploads" in query:
            upload = uuid.uuid4().hex
            with store.lock:
                store.uploads[upload] = {}
            return self.send(200, {}, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                                      "</InitiateMultipartUploadResult>".encode())
        if self.fault.get("do") == "error200":
            return self.send(200, {}, f"<?xml version='1.0'?>  <Error><Code>{self.fault['code']}</Code><Message>as asked</Message></Error>"
                             .encode())
        with store.lock:
            parts = store.uploads.get(query["uploadId"])
            if parts is None:
                raise Refused(404, "NoSuchUpload", "The specified upload does not exist.")
            listed = re.findall(r"<Part><PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag></Part>", body.decode())
            if [int(n) for n, _ in listed] != sorted(parts) or \
                    any(parts[int(n)][1] != tag.replace("&quot;", '"') for n, tag in listed):
                raise Refused(400, "InvalidPart", "One or more of the specified parts could not be found.")
            if any(len(parts[int(n)][0]) < LEAST_PART for n, _ in listed[:-1]):
                raise Refused(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
            data = b"".join(parts[int(n)][0] for n, _ in listed)
            digests = b"".join(hashlib.md5(parts[int(n)][0]).digest() for n, _ in listed)
            store.put(name, data, f'"{hashlib.md5(digests).hexdigest()}-{len(listed)}"')
            del store.uploads[query["uploadId"]]
        return self.send(200, {}, b"<?xml version='1.0'?>  <CompleteMultipartUploadResult><Key>k</Key></CompleteMultipartUploadResult>")

    def do_object_DELETE(self, name, query, _):
        with self.store.lock:
            if "uploadId" in query:
                self.store.uploads.pop(query["uploadId"], None)
            else:
                self.store.objects.pop(name, None)
        self.send(204, {}, b"")

    def list_bucket(self, bucket, query):
        if query.get("list-type") != "2":
            raise Refused(400, "InvalidArgument", "only version 2 is known")
        store = self.store
        with store.lock:
            found = sorted((name[len(bucket) + 1:], len(data), etag) for name, (data, etag) in store.objects.items()
                           if name.startswith(f"{bucket}/{query.get('prefix', '')}"))
        begin = int(query.get("continuation-token", "0+/=").split("+")[0])
        page = found[begin:begin + store.list_page]
        more = begin + len(page) < len(found)
        contents = "".join(f"<Contents><Key>{escape(key)}</Key><ETag>{escape(tag)}</ETag><Size>{size}</Size></Contents>"
                           for key, size, tag in page)
        token = f"<NextContinuationToken>{begin + len(page)}+/=</NextContinuationToken>" if more else ""
        self.send(200, {"Content-Type": "application/xml"},
                  f"<?xml version='1.0'?><ListBucketResult xmlns='x'><IsTruncated>{str(more).lower()}</IsTruncated>{contents}{token}"
                  "</ListBucketResult>".encode())


def main():
    server = Server(certificate=sys.argv[1:])
    print(server.port, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = None
        with server.lock:
            if "put" in command:
                answer = server.put(command["put"][0], command["put"][1].encode("latin-1"), command.get("etag"))
            if "get" in command:
                answer = server.objects[command["get"]][0].decode("latin-1") if command["get"] in server.objects else None
            if "sha256" in command:
                answer = hashlib.sha256(server.objects[command["sha256"]][0]).hexdigest()
            if "faults" in command:
                server.faults = command["faults"]
            if "log" in command:
                answer, server.log = server.log, []
            if "uploads" in command:
                answer = len(server.uploads)
            if "most_busy" in command:
                answer, server.most_busy = server.most_busy, 0
            if "set" in command:
                for name, value in command["set"].items():
                    setattr(server, name, value)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
