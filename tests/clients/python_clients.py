"""Python clients that send an Idempotency-Key, against the example `charges`. `cargo xtask clients` runs it.

Each variable of the environment is the address of the server behind one fault, which the first request of each key meets:
PASS (none), LOSE_REPLY, HALF_REPLY, CUT_REQUEST, STALL. IMPATIENT is a server of its own, which answers 409 to a duplicate while
the first request runs.
"""

import os
import sys
import threading
import time

import increase
import modern_treasury
import openai
import stripe

FAULTS = ["LOSE_REPLY", "HALF_REPLY", "CUT_REQUEST", "STALL"]
TIMEOUT = 1.0


class Stripe:
    name = "stripe"
    mismatch = stripe.IdempotencyError
    declined = stripe.CardError
    connection = stripe.APIConnectionError

    def __init__(self, url):
        self.client = stripe.StripeClient(
            "sk_python_stripe",
            base_addresses={"api": url},
            max_network_retries=3,
            http_client=stripe.RequestsClient(timeout=TIMEOUT),
        )

    def create(self, key, amount, source="tok_visa"):
        params = {"amount": amount, "currency": "usd", "source": source, "description": key}
        return self.client.v1.charges.create(params, {"idempotency_key": key}).id

    def charges(self):
        return [charge.description for charge in self.client.v1.charges.list().data]


class Generated:
    """Clients that one generator has made. They have no resource for charges, so the path is given."""

    def create(self, key, amount, source="tok_visa"):
        body = {"amount": amount, "currency": "usd", "source": source, "description": key}
        return self.client.post("/v1/charges", body=body, cast_to=object, options=self.options(key))["id"]

    def options(self, key):
        return {"idempotency_key": key}

    def charges(self):
        return [charge["description"] for charge in self.client.get("/v1/charges", cast_to=object)["data"]]


class ModernTreasury(Generated):
    name = "modern-treasury"
    mismatch = modern_treasury.BadRequestError
    declined = modern_treasury.APIStatusError
    connection = modern_treasury.APIConnectionError

    def __init__(self, url):
        self.client = modern_treasury.ModernTreasury(
            organization_id="python", api_key="modern", base_url=url, max_retries=3, timeout=TIMEOUT
        )


class Increase(Generated):
    name = "increase"
    mismatch = declined = increase.APIStatusError
    connection = increase.APIConnectionError

    def __init__(self, url):
        self.client = increase.Increase(api_key="python_increase", base_url=url, max_retries=3, timeout=TIMEOUT)


class OpenAi(Generated):
    name = "openai"
    mismatch = openai.BadRequestError
    declined = openai.APIStatusError
    connection = openai.APIConnectionError

    def __init__(self, url):
        self.client = openai.OpenAI(api_key="python_openai", base_url=url, max_retries=3, timeout=TIMEOUT)

    def options(self, key):
        # It makes no key of its own.
        return {"headers": {"Idempotency-Key": key}}


def fails(error, status, call):
    try:
        found = call()
    except error as failure:
        assert status == status_of(failure), failure
        return
    raise AssertionError(f"expected {error}, got {found!r}")


def status_of(error):
    return getattr(error, "status_code", None) or getattr(error, "http_status", None)


def conflicting(client, kind, found):
    """Creates the same charge as others do at the same time. A client that gives up on a 409 is called again, with the same key."""
    for attempt in range(6):
        try:
            return found.append(client.create("conflict", 700))
        except Exception as error:
            if attempt == 5 or status_of(error) != 409:
                raise
            print(f"  {kind.name}: 409 is not retried to its end by the client")
            time.sleep(0.5)


def crowd(size, call):
    threads = [threading.Thread(target=call) for _ in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check(kind):
    client = kind(os.environ["PASS"])
    expected = []

    def key(name):
        expected.append(name)
        return name

    # A create, its retry, another payload, and a declined card.
    first = client.create(key("plain"), 1999)
    assert client.create("plain", 1999) == first
    fails(kind.mismatch, 400, lambda: client.create("plain", 5))
    for _ in range(2):
        fails(kind.declined, 402, lambda: client.create("declined", 7, "tok_chargeDeclined"))
    assert client.create(key("other"), 1999) != first

    # What the network does to the first try. A client that does not try again by itself is called again, with the same key.
    for fault in FAULTS:
        faulty = kind(os.environ[fault])
        name = key(fault.lower())
        try:
            charge = faulty.create(name, 100)
        except kind.connection as error:
            print(f"  {kind.name}: {fault} is not retried by the client: {type(error).__name__}")
            charge = faulty.create(name, 100)
        assert client.create(name, 100) == charge, fault

    # Duplicates at once.
    name, found = key("crowd"), []
    crowd(10, lambda: found.append(client.create(name, 899)))
    assert len(found) == 10 and len(set(found)) == 1, found

    # A 409 while the first request runs.
    impatient, found = kind(os.environ["IMPATIENT"]), []
    crowd(3, lambda: conflicting(impatient, kind, found))
    assert len(found) == 3 and len(set(found)) == 1, found
    assert list(impatient.charges()) == ["conflict"], impatient.charges()

    # Each was charged once.
    assert sorted(client.charges()) == sorted(expected), client.charges()
    print(f"  {kind.name} (Python): {len(expected)} keys, each charged once")


threads, failed = [], []


def run(kind):
    try:
        check(kind)
    except BaseException as error:
        failed.append(kind.name)
        sys.excepthook(type(error), error, error.__traceback__)


for kind in [Stripe, ModernTreasury, Increase, OpenAi]:
    threads.append(threading.Thread(target=run, args=[kind]))
    threads[-1].start()
for thread in threads:
    thread.join()
sys.exit(1 if failed else 0)
