#!/usr/bin/python3
"""Bytes of TensorBoard's event files and of W&B's offline files, made without engine/: by protoc from schemas that say the
field numbers of the projects' own .proto files, and with checksums of Python and of a bitwise CRC-32C.

usage: sink_formats.py           writes tests/metrics/golden/*.hex (Debian: protobuf-compiler)
       sink_formats.py FILE…     prints what is in event files and .wandb files, each record by protoc --decode
"""
import bisect
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

SPREAD = [0.5, -0.25, 0.5, 3.0, 0.53125, -1000.0, 0.0, 2.0**-60]  # each a float32

SCHEMA = """
syntax = "proto3";
message Value { oneof kind { double number_value = 2; string string_value = 3; bool bool_value = 4; } }
message Event {
  double wall_time = 1; int64 step = 2;
  oneof what { string file_version = 3; Summary summary = 5; SessionLog session_log = 7; }
}
message SessionLog { enum Status { UNKNOWN = 0; START = 1; STOP = 2; CHECKPOINT = 3; } Status status = 1; }
message Summary {
  message Value { string tag = 1; SummaryMetadata metadata = 9; oneof value { float simple_value = 2; HistogramProto histo = 5; TensorProto tensor = 8; } }
  repeated Value value = 1;
}
message HistogramProto {
  double min = 1; double max = 2; double num = 3; double sum = 4; double sum_squares = 5;
  repeated double bucket_limit = 6; repeated double bucket = 7;
}
message SummaryMetadata { message PluginData { string plugin_name = 1; bytes content = 2; } PluginData plugin_data = 1; }
message TensorShapeProto { message Dim { optional int64 size = 1; } repeated Dim dim = 2; }
message TensorProto { int32 dtype = 1; TensorShapeProto tensor_shape = 2; repeated bytes string_val = 8; }
message HParamsPluginData {
  int32 version = 1;
  oneof data { Experiment experiment = 2; SessionStartInfo session_start_info = 3; SessionEndInfo session_end_info = 4; }
}
message Experiment { repeated HParamInfo hparam_infos = 4; repeated MetricInfo metric_infos = 5; }
message HParamInfo { string name = 1; int32 type = 4; }
message MetricName { string group = 1; string tag = 2; }
message MetricInfo { MetricName name = 1; }
message SessionStartInfo { map<string, Value> hparams = 1; double start_time_secs = 5; }
message SessionEndInfo { int32 status = 1; double end_time_secs = 2; }

message Record {
  int64 num = 1;
  oneof type { HistoryRecord history = 2; SummaryRecord summary = 3; ConfigRecord config = 5; RunRecord run = 17; RunExitRecord exit = 18; }
}
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message RunRecord {
  string run_id = 1; string entity = 2; string project = 3; string display_name = 8; string host = 13; Timestamp start_time = 17;
}
message Item { string key = 1; repeated string nested_key = 2; string value_json = 16; }
message HistoryStep { int64 num = 1; }
message HistoryRecord { repeated Item item = 1; HistoryStep step = 2; }
message SummaryRecord { repeated Item update = 1; }
message ConfigRecord { repeated Item update = 1; }
message RunExitRecord { optional int32 exit_code = 1; }
"""


def protoc(option, data):
    with tempfile.TemporaryDirectory() as folder:
        schema = pathlib.Path(folder, "sinks.proto")
        schema.write_text(SCHEMA)
        command = ["protoc", f"--proto_path={folder}", option, str(schema)]
        return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout


def encode(message, text):
    return protoc(f"--encode={message}", text.encode())


def decode(message, data):
    return protoc(f"--decode={message}", data).decode()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tf_record(data):
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def quoted(data):
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


def hparams(part, wall, text):
    content = encode("HParamsPluginData", text)
    return encode("Event", f'wall_time: {wall} summary {{ value {{ tag: "_hparams_/{part}" metadata {{ plugin_data {{ '
                           f'plugin_name: "hparams" content: {quoted(content)} }} }} '
                           f"tensor {{ dtype: 1 tensor_shape {{ dim {{ size: 0 }} }} }} }} }}")


def histogram_limits():
    """tensorflow/core/lib/histogram/histogram.cc, InitDefaultBucketsInner."""
    positive = []
    limit = 1.0e-12
    while limit < 1.0e20:
        positive.append(limit)
        limit *= 1.1
    positive.append(sys.float_info.max)
    return [-limit for limit in reversed(positive)] + [0.0] + positive


def histogram(values):
    limits = histogram_limits()
    counts = [0] * len(limits)
    for value in values:
        counts[bisect.bisect_right(limits, value)] += 1
    buckets = []
    for limit, count in zip(limits, counts):
        if count == 0 and (not buckets or buckets[-1][1] == 0):
            if buckets:
                buckets[-1] = (limit, 0)
            continue
        buckets.append((limit, count))
    if buckets[-1][1] == 0:
        buckets.pop()
    text = f"min: {min(values)!r} max: {max(values)!r} num: {len(values)} sum: {sum(values)!r} "
    text += f"sum_squares: {sum(value * value for value in values)!r} "
    return text + " ".join(f"bucket_limit: {limit!r} bucket: {count}" for limit, count in buckets)


def event_records():
    """What tests/metrics/event_file_test.cpp writes, in its order."""
    yield encode("Event", 'wall_time: 1 file_version: "brain.Event:2"')
    yield encode("Event", "wall_time: 1.5 step: 51 session_log { status: START }")
    yield encode("Event", 'wall_time: 1 step: 100 summary { value { tag: "lm loss" simple_value: 0.5 } }')
    yield encode("Event", 'wall_time: 2 step: 3000000000 summary { value { tag: "a" simple_value: -0 } value { tag: "b" '
                          "simple_value: 0.1 } }")
    yield encode("Event", f'wall_time: 2 step: 7 summary {{ value {{ tag: "weights/a" histo {{ {histogram(SPREAD)} }} }} value {{ '
                          f'tag: "b" histo {{ {histogram([0.25])} }} }} }}')
    yield encode("Event", 'wall_time: 1 step: 50 summary { value { tag: "recipe" metadata { plugin_data { plugin_name: "text" '
                          '} } tensor { dtype: 7 tensor_shape { } string_val: "| a | \\303\\244 |\\n" } } }')
    yield hparams("experiment", 1, 'experiment { hparam_infos { name: "model.layers" type: 3 } hparam_infos { name: "fp8" '
                                   'type: 2 } hparam_infos { name: "kind" type: 1 } hparam_infos { name: "lr" type: 3 } '
                                   'metric_infos { name { tag: "lm loss" } } }')
    # A map's entries are in no order: one at a time.
    yield hparams("session_start_info", 1, 'session_start_info { hparams { key: "model.layers" value { number_value: 12 } } '
                                           "start_time_secs: 1 }")
    yield hparams("session_start_info", 1, 'session_start_info { hparams { key: "fp8" value { bool_value: true } } '
                                           "start_time_secs: 1 }")
    yield hparams("session_start_info", 1, 'session_start_info { hparams { key: "kind" value { string_value: "sgd" } } '
                                           "start_time_secs: 1 }")
    yield hparams("session_start_info", 1, 'session_start_info { hparams { key: "lr" value { number_value: 0.5 } } '
                                           "start_time_secs: 1 }")
    yield hparams("session_end_info", 1, "session_end_info { status: 2 end_time_secs: 1 }")


def wandb_file(records):
    out = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    for record in records:
        first = True
        while True:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += bytes(left)
                continue
            part, record = record[:left - 7], record[left - 7:]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not record]
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
            first = False
            if not record:
                break
    return out


def wandb_records():
    """What tests/metrics/wandb_test.cpp writes of a run."""
    yield encode("Record", 'num: 1 run { run_id: "IDIDIDID" entity: "us" project: "proj" display_name: "name" host: "h" '
                           "start_time { seconds: 1000 } }")
    yield encode("Record", 'num: 2 config { update { key: "model.layers" value_json: "12" } update { key: "lr" value_json: "0.5" } update { key: "kind" '
                           'value_json: "\\"sgd\\"" } update { key: "fp8" value_json: "true" } }')
    rows = [(1, 0.5, 1001), (2, 0.25, 1002)]
    yield encode("Record", f"num: 3 history {{ {items('item', row(*rows[0]))} step {{ num: 1 }} }}")
    last = {**row(*rows[1]), "engine/checkpoint-save-seconds": "1.5"}
    yield encode("Record", f"num: 4 history {{ {items('item', last)} step {{ num: 2 }} }}")
    yield encode("Record", f"num: 5 summary {{ {items('update', last)} }}")
    yield encode("Record", f"num: 6 summary {{ {items('update', last)} }}")
    yield encode("Record", "num: 7 exit { exit_code: 0 }")


def row(step, loss, time):
    return {"_runtime": f"{time - 1000}.0", "_step": str(step), "_timestamp": f"{time}.0", "lm loss": str(loss)}


def items(field, values):
    return " ".join(f'{field} {{ key: "{key}" value_json: "{value}" }}' for key, value in sorted(values.items()))


def show(path):
    data = path.read_bytes()
    if data.startswith(b":W&B"):
        at, record = 7, b""
        while at < len(data):
            left = 32768 - at % 32768
            if left < 7:
                at += left
                continue
            crc, length, kind = struct.unpack_from("<IHB", data, at)
            assert zlib.crc32(data[at + 6:at + 7 + length]) == crc, f"checksum at byte {at}"
            record = (record if kind in (3, 4) else b"") + data[at + 7:at + 7 + length]
            at += 7 + length
            if kind in (1, 4):
                print(decode("Record", record))
        return
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12:at + 12 + length]
        assert tf_record(body) == data[at:at + 16 + length], f"checksums at byte {at}"
        at += 16 + length
        print(decode("Event", body))


def main():
    if len(sys.argv) > 1:
        for path in sys.argv[1:]:
            show(pathlib.Path(path))
        return
    golden = pathlib.Path(__file__).resolve().parent.parent / "metrics" / "golden"
    golden.mkdir(exist_ok=True)
    (golden / "events.hex").write_text("".join(tf_record(r).hex() + "\n" for r in event_records()))
    (golden / "run.wandb.hex").write_text(wandb_file(wandb_records()).hex() + "\n")
    long = [bytes(i % 251 for i in range(size)) for size in (32768 - 7 - 7 - 3, 5, 32768 - 7 - 12 - 7, 100000, 0)]
    (golden / "long.wandb.crc").write_text(f"{zlib.crc32(wandb_file(long)):08x}\n")


if __name__ == "__main__":
    main()
