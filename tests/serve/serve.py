#!/usr/bin/python3
"""`engine serve` by the program itself, over real sockets: what lm-evaluation-harness' local-completions sends and reads
(lm_eval/models/openai_completions.py: requests of these shapes, answers read as it reads them), streams, the queue's and the body's
bounds, time limits, 1,000 malformed bodies, and 200 clients at once of which many leave. Each answer must be the one that the request gets
alone, and no slot may stay taken. A model in a bucket (tests/storage/object_server.py on loopback) answers as the run's folder does; one that cannot be
read there is one error.

usage: serve.py ENGINE    ENGINE_SERVE_SOAK: seconds of the 200 clients, 3 without it
"""
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "storage"))
import object_server  # noqa: E402

RECIPE = """[model]
layers = 1
hidden = 8
vocab = 257
vocab_multiple = 8
max_positions = 32
attention = {{ heads = 2, position = "learned" }}
mlp = {{ hidden = 16 }}
[data]
paths = ["{data}"]
sequence_length = 32
split = "1,0,0"
[optimizer]
learning_rate = 1e-2
[schedule]
kind = "constant"
[training]
global_batch = 2
micro_batch = 2
iterations = 20
"""


class Failed(Exception):
    pass


def check(truth, *what):
    if not truth:
        raise Failed(" ".join(str(one) for one in what))


class Server:
    """The program, listening at a port of its own choice."""

    def __init__(self, engine, run, *options, environment=None):
        self.process = subprocess.Popen([engine, "serve", run, "--port", "0", *options], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, env=environment)
        self.output, self.port = "", None
        for line in self.process.stdout:
            self.output += line
            found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", line)
            if found:
                self.port = int(found[1])
                return
        raise Failed(f"the server did not start:\n{self.output}")

    def call(self, method, path, body=None, headers=None):
        """The code and the body, an object of JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def complete(self, **body):
        code, answer = self.call("POST", "/v1/completions", body)
        check(code == 200, code, answer, body)
        return answer

    def health(self):
        return self.call("GET", "/health")[1]

    def wait_until_idle(self):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            health = self.health()
            if health["running"] == health["waiting"] == 0:
                return health
            time.sleep(0.02)
        raise Failed(f"slots stay taken: {health}")

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed("the server does not end")
        check(code == 0, "exit code", code, self.process.stdout.read())


def harness_scores(server):
    """Log-likelihood requests, as the harness sends and reads them."""
    prompts = [[57, 32, 98, 111], [32, 98], [57]]
    body = {"model": "any", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    code, answer = server.call("POST", "/v1/completions", body, {"Authorization": "Bearer key"})
    check(code == 200, answer)
    alone = [server.complete(**{**body, "prompt": prompt})["choices"][0] for prompt in prompts]
    for choice, prompt, one in zip(sorted(answer["choices"], key=lambda choice: choice["index"]), prompts, alone):
        scores = choice["logprobs"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            check(len(scores[key]) == len(prompt) + 1, key, scores)
        check(scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None, scores)
        for value, top in zip(scores["token_logprobs"][1:], scores["top_logprobs"][1:]):
            check(value < 0 and value <= max(top.values()) and value in top.values(), value, top)
        # The drawn token is the likeliest one: the same float in both lists.
        check(scores["token_logprobs"][-1] == max(scores["top_logprobs"][-1].values()), scores)
        check(one["logprobs"] == scores and one["text"] == choice["text"], "in a list and alone", one, choice)
        check(scores["text_offset"][: len(prompt)] == list(range(len(prompt))), scores)
        check(choice["text"].startswith(bytes(prompt).decode()), choice)
    # What is scored as a prompt is what generation gives for the same tokens.
    drawn = server.complete(prompt=[57, 32], temperature=0, max_tokens=6, logprobs=0, return_token_ids=True)["choices"][0]
    whole = server.complete(prompt=[57, 32] + drawn["token_ids"], temperature=0, max_tokens=0, logprobs=0, echo=True)
    again = whole["choices"][0]["logprobs"]["token_logprobs"][2:]
    # A prompt's sums have another order than a single token's over the cache.
    apart = [abs(a - b) for a, b in zip(again, drawn["logprobs"]["token_logprobs"], strict=True)]
    check(max(apart) < 1e-5, again, drawn)


def harness_generates(server):
    body = {"model": "any", "prompt": "9 bottles", "max_tokens": 12, "temperature": 0, "stop": ["\n\n", ""], "seed": 1234}
    whole = server.complete(**body)
    text = whole["choices"][0]["text"]
    check(whole["object"] == "text_completion" and whole["choices"][0]["finish_reason"] == "length", whole)
    check(whole["usage"] == {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21}, whole)
    check(len(text) == 12, text)
    stop = text[5:7]
    stopped = server.complete(**{**body, "stop": [stop]})["choices"][0]
    check(stopped["text"] == text[: text.index(stop)] and stopped["finish_reason"] == "stop", stopped, text)
    several = server.complete(prompt=["9 b", "8 b"], n=2, max_tokens=8, seed=5)["choices"]
    check([choice["index"] for choice in several] == [0, 1, 2, 3], several)
    check(several[0]["text"] != several[1]["text"], several)
    check(server.complete(prompt="9 b", max_tokens=8, seed=5)["choices"][0]["text"] == several[0]["text"], several)
    check(server.complete(prompt="9 b", max_tokens=8)["choices"] != server.complete(prompt="9 b", max_tokens=8)["choices"])


def tokenizer(server):
    code, info = server.call("GET", "/tokenizer_info")
    check(code == 200 and info == {"eos_token": None, "bos_token": None, "chat_template": None}, info)
    code, answer = server.call("POST", "/tokenize", {"prompt": "test", "add_special_tokens": False})
    check(code == 200 and answer["tokens"] == list(b"test") and answer["count"] == 4, answer)
    code, answer = server.call("POST", "/detokenize", {"tokens": answer["tokens"]})
    check(code == 200 and answer == {"prompt": "test"}, answer)
    code, answer = server.call("GET", "/v1/models")
    check(answer["data"][0]["id"] == "run" and answer["data"][0]["max_model_len"] == 32, answer)


def events(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
    answer = connection.getresponse()
    check(answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream", answer.status)
    found = answer.read().decode().split("\n\n")
    connection.close()
    check(found[-2:] == ["data: [DONE]", ""], found)
    return [json.loads(event[len("data: "):]) for event in found[:-2]]


def streams(server):
    body = {"prompt": "9 bot", "max_tokens": 16, "seed": 3, "logprobs": 2, "echo": True, "stop": "q"}
    whole = server.complete(**body)["choices"][0]
    parts = events(server, {**body, "stream_options": {"include_usage": True}})
    check(parts[-1]["usage"]["prompt_tokens"] == 5 and parts[-1]["choices"] == [], parts[-1])
    choices = [part["choices"][0] for part in parts[:-1]]
    check("".join(choice["text"] for choice in choices) == whole["text"], choices, whole)
    check(sum((choice["logprobs"]["token_logprobs"] for choice in choices), []) == whole["logprobs"]["token_logprobs"], choices)
    check([choice["finish_reason"] for choice in choices][-1] == whole["finish_reason"], choices)
    # HTTP/1.0 knows no chunks: the events stand there as they are, and the connection ends.
    data = json.dumps({**body, "stream": True})
    for keeps in ("", "Connection: Keep-Alive\r\n"):
        began = time.monotonic()
        answer, _ = raw_answer(server, f"POST /v1/completions HTTP/1.0\r\n{keeps}Content-Length: {len(data)}\r\n\r\n{data}".encode())
        check(time.monotonic() - began < 1.5, "the end of a stream by HTTP/1.0 took", time.monotonic() - began)
        head, _, text = answer.partition("\r\n\r\n")
        check("chunked" not in head.lower() and text.startswith("data: {") and text.endswith("data: [DONE]\n\n"), answer)
        check(all(not part or part.startswith("data: ") for part in text.split("\n\n")), answer)


def refuses(server):
    def refused(body, part, code=400, path="/v1/completions"):
        got, answer = server.call("POST", path, body)
        check(got == code and part in answer["error"]["message"], got, answer, "not", code, part)

    refused("{", "the body:1:2: error:")
    refused(b'{"prompt": "\xff\x1b', "last read: '\"\\xff'")
    refused('{"prompt": "x", "seed": 1, "seed": 2}', 'the key "seed" stands twice in one object')
    refused('{"prompt": "x", "stream_options": {"include_usage": true, "include_usage": false}}', 'the key "include_usage" stands twice')
    refused('{"prompt": "x", "prompt": "y"}', 'the key "prompt" stands twice in one object', path="/tokenize")
    refused("[1]", "the body is a list, and must be an object")
    refused({}, "there is no prompt")
    refused({"prompt": []}, "the prompt has no tokens")
    refused({"prompt": "x", "max_tokns": 3}, 'unknown key "max_tokns"')
    refused({"prompt": [[1], [257]]}, "token 257 is outside of the model's vocabulary, 0 to 256")
    refused({"prompt": [1] * 33}, "the prompt has 33 tokens, but the model's window is 32")
    refused({"prompt": [-1]}, "prompt must be a string, a list of token ids, or a list of either")
    refused({"prompt": "x", "temperature": -1}, "temperature is -1, and must be from 0 to 100")
    refused({"prompt": "x", "temperature": "hot"}, "temperature must be a number, and is a string")
    refused({"prompt": "x", "max_tokens": 0}, "0 new tokens are asked for, and nothing else")
    refused({"prompt": "x", "max_tokens": 1.5}, "max_tokens must be a whole number from 0 to 1048576, and is 1.5")
    refused({"prompt": "x", "logprobs": True}, "logprobs must be a whole number from 0 to 1000, and is true")
    refused({"prompt": "x", "seed": 2**64}, "seed must be a whole number from -9223372036854775808 to 18446744073709551615, and is 1.8446")
    refused({"prompt": "x", "seed": 1.5}, "to 18446744073709551615, and is 1.5")
    refused({"prompt": "x", "user": 7}, "user must be a string, and is a number")
    refused({"prompt": "x", "presence_penalty": 1}, "presence_penalty is not supported here, and must be 0")
    refused({"prompt": "x", "best_of": 3}, "best_of is not supported here, and must be n, 1")
    refused({"prompt": ["x"] * 300}, "300 sequences are asked for at once, but 4 can run, and at most 256 may wait")
    refused(b'{"prompt": "' + b"x" * 100000 + b'"}', "longer than the server takes", 413)
    refused({"text": "x"}, "", path="/tokenize")
    refused({"tokens": "x"}, "tokens must be a list of token ids", path="/detokenize")
    refused({"tokens": [65, 257]}, "257 is no token id: there are 0 to 256", path="/detokenize")
    code, answer = server.call("GET", "/nowhere")
    check(code == 404 and "there is no such path here" in answer["error"]["message"], code, answer)
    for method, path, right in (("GET", "/v1/completions", "POST"), ("DELETE", "/v1/models", "GET"), ("PUT", "/tokenize", "POST")):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request(method, path)
        answer = connection.getresponse()
        check(answer.status == 405 and answer.getheader("Allow") == right, method, path, answer.status, answer.getheaders())
        connection.close()
    seeds = [server.complete(prompt=[5], max_tokens=8, seed=seed)["choices"][0]["text"] for seed in (2**64 - 1, -1)]
    check(seeds[0] == seeds[1], "2^64 - 1 and -1 are one seed", seeds)


def raw_answer(server, *requests):
    """What comes until the server closes the connection, or after five seconds; and the seconds until its first bytes. Further requests
    are sent behind it."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        raw.sendall(requests[0])
        found = raw.recv(65536)
        seconds = time.monotonic() - began
        for request in requests[1:]:
            raw.sendall(request)
        raw.settimeout(5)
        try:
            while more := raw.recv(65536):
                found += more
        except (TimeoutError, ConnectionResetError):  # a request behind a connection that has been closed resets it
            pass
    return found.decode(), seconds


def lengths(server):
    """A Content-Length that is no number of bytes is answered at once: no body is waited for."""
    for length in ("-5", "5x", "+5"):
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
            raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            response = http.client.HTTPResponse(raw)  # its head and its body may come one by one
            response.begin()
            answer = response.read().decode()
        check(response.status == 400 and time.monotonic() - began < 20, length, time.monotonic() - began, response.status, answer)
        check(f'must be a number of bytes, and is \\"{length}\\"' in answer, answer)
    # Neither a body that is not said to come is waited for, nor one that is refused.
    for what, code, *headers in (("no body", 400), ("two ways", 400, "Content-Length: 2", "Transfer-Encoding: chunked"),
                                 ("another encoding", 400, "Transfer-Encoding: gzip"), ("two lengths", 400, "Content-Length: 2", "Content-Length: 3"),
                                 ("too long", 413, "Content-Length: 50001"), ("longer than numbers are", 413, "Content-Length: " + "9" * 30),
                                 ("asked before", 413, "Content-Length: 50001", "Expect: 100-continue")):
        head = "\r\n".join(["POST /v1/completions HTTP/1.1", "Host: x", *headers, "", ""])
        # What follows one that was refused is its body, and no request.
        answer, seconds = raw_answer(server, head.encode(), *([] if what == "no body" else [b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"]))
        check(answer.startswith(f"HTTP/1.1 {code} ") and seconds < 4 and answer.count("HTTP/1.1") == 1, what, seconds, answer)
        check(answer.count("Connection: close") == (0 if what == "no body" else 1), what, answer)


def malformed(server):
    """1,000 bodies: right ones with bytes changed, cut or doubled, and values of the wrong kind. Those that are still right may be
    answered; none may be a 5xx, or end the server."""
    draw = random.Random(27)
    right = {"prompt": [[1, 2]], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "stop": ["a"], "n": 1, "seed": 1,
             "stream": False, "top_p": 0.5, "top_k": 3}
    odd = [None, True, -1, 1.5, 1e300, 2**70, "", "x", "\ud800", [], [[]], {}, {"a": 1}, [None], [["x"]], [[2**40]], "x" * 5000]
    codes = {}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    for number in range(1000):
        path = draw.choice(["/v1/completions"] * 8 + ["/tokenize", "/detokenize"])
        body = dict(right)
        if number % 2 == 0:
            body[draw.choice(list(body) + ["new"])] = draw.choice(odd)
            data = json.dumps(body).encode()
        else:
            data = bytearray(json.dumps(body).encode())
            for _ in range(draw.randint(1, 4)):
                at = draw.randrange(len(data) or 1)
                act = draw.randrange(4)
                if act == 0:
                    data = data[:at]
                elif act == 1 and data:
                    data[at % len(data)] = draw.randrange(256)
                elif act == 2:
                    data[at:at] = draw.choice([b"[" * 200, b'{"a":', b"\xff\xfe", b"1e999", b'"', b"\x00"])
                else:
                    data += data[at:]
            data = bytes(data)
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        codes[answer.status] = codes.get(answer.status, 0) + 1
        check(answer.status in (200, 400, 413), answer.status, path, data, text)
        if answer.status != 200:
            check(json.loads(text)["error"]["message"], data, text)
    connection.close()
    check(codes[400] > 700, codes)
    for junk in (b"\x00" * 100, b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"\r\n" * 50):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
            raw.sendall(junk)
    check(server.process.poll() is None and server.wait_until_idle()["status"] == "ok", "the server is gone")


def many_clients(server, seconds):
    requests = [{"prompt": [1 + number % 200, 5, 7], "max_tokens": 4 + number % 20, "seed": number,
                 "temperature": 1.0 + number % 3} for number in range(40)]
    alone = [server.complete(**request)["choices"][0]["text"] for request in requests]
    until, failures, done = time.monotonic() + seconds, [], [0, 0]
    lock = threading.Lock()

    def client(number):
        draw = random.Random(number)
        while time.monotonic() < until:
            which = draw.randrange(len(requests))
            try:
                if draw.random() < 0.4:  # leaves at any time
                    body = json.dumps({**requests[which], "stream": draw.random() < 0.5, "max_tokens": 29}).encode()
                    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as raw:
                        raw.sendall((head + body)[: draw.choice([10, len(head), len(head) + 5, 10**6, 10**6])])
                        time.sleep(draw.random() * 0.1)
                    with lock:
                        done[1] += 1
                    continue
                code, answer = server.call("POST", "/v1/completions", requests[which])
                if code == 429:
                    time.sleep(0.05)
                    continue
                check(code == 200, code, answer)
                check(answer["choices"][0]["text"] == alone[which], "another answer than alone", answer, alone[which])
                with lock:
                    done[0] += 1
            except Exception as error:  # of a thread: told by the main one
                with lock:
                    failures.append(error)
                return

    threads = [threading.Thread(target=client, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not failures, len(failures), "clients failed, the first with", failures[:1])
    check(done[0] > 0 and done[1] > 0, done)
    server.wait_until_idle()
    check([server.complete(**request)["choices"][0]["text"] for request in requests] == alone, "other answers afterwards")
    return done


def leaving(server):
    """A client leaves while its 250 sequences wait: they are dropped, of a stream too, and the queue has room for others."""
    for stream in (False, True):
        before = server.wait_until_idle()
        body = json.dumps({"prompt": [[number] for number in range(125)], "n": 2, "max_tokens": 31, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as raw:
            raw.sendall(head + body)
            while server.health()["waiting"] == 0 and server.health()["finished"] == before["finished"]:
                time.sleep(0.001)
        after = server.wait_until_idle()
        check(after["finished"] == before["finished"] + 250, before, after)
        check(after["dropped"] > before["dropped"], "nothing was dropped", before, after)


def bounds(engine, run):
    """One slot and a queue of two: requests beyond are 429, and late ones 503."""
    server = Server(engine, run, "--slots", "1", "--queue", "2", "--timeout", "0.002", "--max-body", "2000")
    # Some answers take less than the time; with prompts for all, some wait for too long or not at all.
    codes = set()
    lock = threading.Lock()

    def ask():
        code, _ = server.call("POST", "/v1/completions", {"prompt": [[1], [2]], "max_tokens": 31, "n": 1})
        with lock:
            codes.add(code)

    until = time.monotonic() + 60
    while not {429, 503} <= codes and time.monotonic() < until:
        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(codes <= {200, 429, 503}, codes)
    check({429, 503} <= codes, codes)
    server.wait_until_idle()
    code, answer = server.call("POST", "/v1/completions", "x" * 3000)
    check(code == 413, code, answer)
    # A body in chunks has no length that could be looked at.
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", iter([b"x" * 1000] * 8), encode_chunked=True,
                       headers={"Transfer-Encoding": "chunked"})
    check(connection.getresponse().status == 413, "a long body in chunks")
    connection.close()
    taken = subprocess.run([engine, "serve", run, "--port", str(server.port)], capture_output=True, text=True, timeout=60)
    check(taken.returncode == 1 and "the port is taken" in taken.stderr, taken)
    server.stop()


def idle_clients(engine, run):
    """Connections that say nothing, or stop in the middle of a request, hold up nobody."""
    server = Server(engine, run, "--slots", "1", "--queue", "2")
    beginnings = (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    clients = []
    for number in range(300):
        clients.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        clients[-1].sendall(beginnings[number % len(beginnings)])
    began = time.monotonic()
    check(server.health()["status"] == "ok", "beside idle clients")
    server.complete(prompt=[5], max_tokens=3)
    # They would be looked after for two seconds, or five, before it is anybody else's turn.
    check(time.monotonic() - began < 1.5, "beside idle clients answers took", time.monotonic() - began)
    for client in clients:
        client.close()
    server.stop()


def ends_streams(engine, run):
    """A signal while a stream is under way: its client is told, and the stream comes to its end."""
    server = Server(engine, run, "--slots", "1")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": [[number] for number in range(120)], "n": 2, "max_tokens": 31,
                                                              "stream": True}))
    answer = connection.getresponse()
    begun = answer.read(200)
    server.process.send_signal(signal.SIGTERM)
    text = (begun + answer.read()).decode()  # IncompleteRead: it was cut
    check("the server stops" in text and text.endswith("data: [DONE]\n\n"), text[-500:])
    connection.close()
    check(server.process.wait(timeout=60) == 0, "exit code", server.process.returncode)


def without_tokenizer(engine, folder):
    text = RECIPE.format(data="x").replace('paths = ["x"]', 'source = "random"\ntokenizer = {kind = "none"}').replace('split = "1,0,0"\n', "")
    (folder / "random.toml").write_text(text.replace("iterations = 20", "iterations = 1"))
    subprocess.run([engine, "run", "random.toml", "--out", "random", "--quiet"], cwd=folder, check=True, capture_output=True, timeout=120)
    server = Server(engine, str(folder / "random"))
    code, answer = server.call("POST", "/v1/completions", {"prompt": [65], "stop": "1"})
    check(code == 400 and "no text that stop could end" in answer["error"]["message"], code, answer)
    server.stop()
    wrong = subprocess.run([engine, "serve", str(folder / "random"), "--port", "0", "--timeout", "nan"], capture_output=True, text=True,
                           timeout=60)
    check(wrong.returncode == 2 and "nan is no number" in wrong.stderr, wrong)


def from_bucket(engine, folder):
    """A run whose checkpoints are in a bucket alone, by its newest."""
    bucket = object_server.Server()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = kept | bucket.environment() | {"ENGINE_CACHE": str(folder / "cache")}
    checkpoints = folder / "run" / "checkpoints"
    newest = sorted(path.name for path in checkpoints.iterdir())[-1]
    for path in (checkpoints / newest).rglob("*"):
        if path.is_file():
            bucket.put(f"runs/served/{path.relative_to(checkpoints)}", path.read_bytes())
    ask = {"prompt": "9 bottles", "max_tokens": 12, "temperature": 0, "logprobs": 1}
    answers = []
    for run in (str(folder / "run"), "s3://runs/served", f"s3://runs/served/{newest}"):
        server = Server(engine, run, environment=environment)
        try:
            answers.append(server.complete(**ask)["choices"])
            server.stop()
        finally:
            if server.process.poll() is None:
                server.process.kill()
        check(run.startswith("s3://") == (f"note: s3://runs/served/{newest} is read from its copy, " in server.output), server.output)
    check(answers[0] == answers[1] == answers[2], "answers from the folder and from the bucket", answers)
    fetched = [request["path"] for request in bucket.log if request["method"] == "GET" and "rank_" in request["path"]]
    check(fetched, "nothing was read from the bucket")
    for run, part in (("s3://runs/nothing", "s3://runs/nothing holds no checkpoint"), ("s3://runs", "names a bucket")):
        refused = subprocess.run([engine, "serve", run, "--port", "0"], env=environment, capture_output=True, text=True, timeout=60)
        check(refused.returncode == 1 and part in refused.stderr, run, refused)


def with_template(engine, folder):
    """A tokenizer whose template puts <bos> in front of a text: offsets are into the text that is returned, which is without."""
    words = [f"w{number}" for number in range(254)] + ["<bos>", "<|endoftext|>"]
    flags = {flag: False for flag in ("single_word", "lstrip", "rstrip", "normalized")}
    template = [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    (folder / "words").mkdir()
    (folder / "words" / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": 254 + i, "content": words[254 + i], "special": True, **flags} for i in range(2)],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing", "single": template, "pair": [],
                           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [254], "tokens": ["<bos>"]}}},
        "model": {"type": "WordLevel", "unk_token": "w0", "vocab": {words[i]: i for i in range(254)}}}))
    paths = f'paths = ["{folder / "text_text_document"}"]'
    recipe = RECIPE.format(data=folder / "text_text_document")
    check(paths in recipe, recipe)
    tokenizer = f'source = "random"\ntokenizer = {{ kind = "file", path = "{folder / "words"}" }}'
    (folder / "words.toml").write_text(recipe.replace(paths, tokenizer))
    subprocess.run([engine, "run", "words.toml", "--out", "words_run", "--quiet"], cwd=folder, check=True,
                   capture_output=True, timeout=120)
    server = Server(engine, str(folder / "words_run"))
    try:
        code, info = server.call("GET", "/tokenizer_info")
        check(info == {"eos_token": "<|endoftext|>", "bos_token": "<bos>", "chat_template": None}, info)
        body = {"max_tokens": 1, "temperature": 0, "logprobs": 0, "echo": True}

        def offsets(prompt, **more):
            choice = server.complete(prompt=prompt, **body, **more)["choices"][0]
            return choice["text"], choice["logprobs"]["text_offset"]

        for prompt, around, wanted in (
                ("w5 w63 w7", True, [0, 0, 2, 6, 9]), ("w5 w63 w7", False, [0, 2, 6, 9]),
                ("<bos> w5 w6", True, [0, 0, 5, 8, 11]), ("w5<|endoftext|>w6", True, [0, 0, 2, 15, 17])):
            text, got = offsets(prompt, add_special_tokens=around)
            check(text.startswith(prompt) and got == wanted, prompt, around, text, got, "not", wanted)
        # Of ids all that they spell is returned.
        text, got = offsets([254, 5, 63])
        check(text.startswith("<bos> w5 w63") and got == [0, 5, 8, 12], text, got)
        server.stop()
    finally:
        if server.process.poll() is None:
            server.process.kill()


def main():
    engine = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lines = [json.dumps({"text": f"{i * i} bottles of beer on the wall, {i}"}) for i in range(60)]
        (folder / "text.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "tiny.toml").write_text(RECIPE.format(data=folder / "text_text_document"))
        for arguments in (["data", "build", "--input", "text.jsonl", "--output-prefix", "text", "--append-eod"],
                          ["run", "tiny.toml", "--out", "run", "--quiet"]):
            subprocess.run([engine, *arguments], cwd=folder, check=True, capture_output=True, timeout=120)
        # On one rank, and with slots on two ranks of dp, of tp 2 each.
        for layout in ([], ["--dp", "2", "--tp", "2"]):
            server = Server(engine, str(folder / "run"), "--slots", "4", "--queue", "256", "--max-body", "50000", *layout)
            try:
                for part in (harness_scores, harness_generates, tokenizer, streams, refuses, lengths, malformed, leaving):
                    part(server)
                done = many_clients(server, float(os.environ.get("ENGINE_SERVE_SOAK", "3")))
                server.stop()
                if not layout:
                    bounds(engine, str(folder / "run"))
                    idle_clients(engine, str(folder / "run"))
                    ends_streams(engine, str(folder / "run"))
                    without_tokenizer(engine, folder)
                    from_bucket(engine, folder)
                    with_template(engine, folder)
            except Failed as failure:
                sys.exit(f"serve.py {' '.join(layout)}: {failure}")
            finally:
                if server.process.poll() is None:
                    server.process.kill()
            print(f"{' '.join(layout) or 'one rank'}: {done[0]} answers as alone, {done[1]} clients left")


if __name__ == "__main__":
    main()
