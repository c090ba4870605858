"""Runs the rows of conformance.json against state stores, over MQTT 5 with paho-mqtt (1.6 or 2).

    python3 conformance.py statestore/statestoretest/conformance.json 0=127.0.0.1:1883 1=127.0.0.1:1884 ...

runs row 0 against one store and row 1 against another. Each row wants an empty store with its options, which
refuses the requests of clients whose id ends in "-denied". A line for each row says "ok" or what is wrong.
"""
import json, queue, sys, time, uuid
from concurrent.futures import ThreadPoolExecutor

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

SERVICE = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
PATIENCE = 30  # seconds


def decode_hlc(text):
    """Returns a tuple that compares as versions do."""
    wall, counter, node = text.split(":")
    return int(wall), int(counter), node.encode()


def encode_command(words):
    """Returns an array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def expect(condition, wrong):
    if not condition:
        raise AssertionError(wrong)


class Client:
    def __init__(self, address, client_id):
        self.address, self.id, self.watches = address, client_id, False
        self.reply_to = f"clients/{client_id}/services/statestore/_any_/command/invoke/response"
        self.notify = f"clients/{SERVICE}/{client_id.encode().hex().upper()}/command/notify/"
        self.acks, self.replies, self.notifications = queue.Queue(), queue.Queue(), queue.Queue()
        self.connect(clean_start=True)

    def connect(self, clean_start):
        """Connects. The server ends an older connection of the client, and keeps its session unless clean_start."""
        api = [mqtt.CallbackAPIVersion.VERSION2] if hasattr(mqtt, "CallbackAPIVersion") else []
        self.mqtt = mqtt.Client(*api, client_id=self.id, protocol=mqtt.MQTTv5, reconnect_on_failure=False)
        self.mqtt.on_connect = lambda client, data, flags, reason, properties: self.acks.put([reason])
        self.mqtt.on_subscribe = lambda client, data, mid, reasons, properties: self.acks.put(reasons)
        self.mqtt.on_message = self.on_message
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        host, port = self.address.rsplit(":", 1)
        self.mqtt.connect(host, int(port), clean_start=clean_start, properties=properties)
        self.mqtt.loop_start()
        expect([reason.value for reason in self.acks.get(timeout=PATIENCE)] == [0], "the connection is refused")
        self.mqtt.subscribe([(topic, SubscribeOptions(qos=1)) for topic in (self.reply_to, self.notify + "+")])
        expect([reason.value for reason in self.acks.get(timeout=PATIENCE)] == [1, 1], "a subscription is refused")

    def on_message(self, client, data, message):
        version = dict(getattr(message.properties, "UserProperty", [])).get("__ts")
        if message.topic == self.reply_to:
            self.replies.put((message.properties.CorrelationData, message.payload, version))
        else:
            self.notifications.put((bytes.fromhex(message.topic[len(self.notify):]), message.payload, version))

    def ask(self, payload, user=(), correlation=b""):
        """Sends a request, and returns the payload and the version of its reply."""
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = self.reply_to
        properties.CorrelationData = correlation or uuid.uuid4().bytes
        properties.UserProperty = [("__srcId", self.id), *user]
        self.mqtt.publish(SERVICE + "/command/invoke", payload, qos=1, properties=properties)
        answered, payload, version = self.replies.get(timeout=PATIENCE)
        expect(answered == properties.CorrelationData, f"{self.id}: a reply to {answered}")
        return payload, version


class Row:
    def __init__(self, address):
        self.address, self.clients, self.names, self.wall = address, {}, {}, int(time.time() * 1000)

    def step(self, step):
        if "client" in step:
            self.request(step)
        elif "drop" in step:
            self.clients[step["drop"]].connect(clean_start=False)
        else:
            time.sleep(step["pass_ms"] / 1000)
            self.wall = int(time.time() * 1000)
        for name, client in self.clients.items():
            for wanted in [n for n in step.get("notifications", []) if n["client"] == name]:
                key, payload, version = client.notifications.get(timeout=PATIENCE)
                right = wanted["key"].encode("latin-1"), encode_command([w.encode("latin-1") for w in wanted["words"]])
                expect((key, payload) == right, f"{wanted}: {key}, {payload}")
                self.compare(wanted, version)
            if client.watches:  # a notification too many would come before this reply
                client.ask(encode_command([b"GET", b"is anything before me?"]))
            expect(client.notifications.empty(), f"{step}: {name} got a notification too many")

    def request(self, step):
        name = step["client"] + ("-denied" if "denied" in step else "")
        client = self.clients[name] = self.clients.get(name) or Client(self.address, name)
        words = [word.encode("latin-1") for word in step.get("words", [])]
        user = [(name, self.stamp(step[name])) for name in ("__ts", "__ft") if name in step]
        user += [("tenure-store", step["store"])] if "store" in step else []
        user += [] if "published" in step else [("__protVer", "1.0")]
        if "again" in step:  # paho-mqtt has no call for DUP; over a later connection of a session none is needed
            client.connect(clean_start=False)
        client.watches |= words[:1] == [b"KEYNOTIFY"]
        payload = encode_command(words) if words else step["payload"].encode("latin-1")
        payload, version = client.ask(payload, user, step.get("correlation", "").encode())
        expect(payload == step["reply"].encode("latin-1"), f"{step}: {payload}")
        self.compare(step, version)

    def stamp(self, text):
        if text.startswith("+"):
            ahead, rest = text.split(":", 1)
            return f"{self.wall + int(ahead[1:])}:{rest}"
        return self.names[text[1:]] if text.startswith("@") else text

    def compare(self, wanted, version):
        rule, (wall, counter, node) = wanted.get("version"), decode_hlc(version or "0:0:none")
        right = not rule or (not version if rule == "none" else version and (
            rule == "any" or rule == f"+{wall - self.wall}:{counter}"
            or rule == "now" and abs(wall - self.wall) < 1000 * PATIENCE and counter == 0
            or rule[:2] == ">@" and (wall, counter, node) > decode_hlc(self.names[rule[2:]])
            or rule[0] == "@" and version == self.names.setdefault(rule[1:], version)))
        expect(right, f"{wanted}: the version is {version}")


def check(rows, number, address):
    row = Row(address)
    try:
        for step in rows[int(number)]["steps"]:
            row.step(step)
        return f"{number} ok"
    except Exception as wrong:  # and go on with the other rows
        return f"{number} {wrong!r}"
    finally:
        for client in row.clients.values():
            client.mqtt.disconnect()


with open(sys.argv[1], encoding="utf-8") as file, ThreadPoolExecutor(8) as pool:
    table = json.load(file)["rows"]
    results = list(pool.map(lambda argument: check(table, *argument.split("=", 1)), sys.argv[2:]))
print("\n".join(results))
sys.exit(any(not result.endswith(" ok") for result in results))
