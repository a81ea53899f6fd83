// Node clients that send an Idempotency-Key, against the example `charges`. `cargo xtask clients` runs it.
//
// Each variable of the environment is the address of the server behind one fault, which the first request of each key meets:
// PASS (none), LOSE_REPLY, HALF_REPLY, CUT_REQUEST, STALL. IMPATIENT is a server of its own, which answers 409 to a duplicate while
// the first request runs.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

// The packages are not beside this file: NODE_CLIENTS names the folder.
const require = createRequire(`${process.env.NODE_CLIENTS}/package.json`);
const imported = (name) => {
  const module = require(name);
  return module.default ?? module;
};
const Stripe = imported("stripe");
const ModernTreasury = imported("modern-treasury");
const Increase = imported("increase");
const OpenAI = imported("openai");

const FAULTS = ["LOSE_REPLY", "HALF_REPLY", "CUT_REQUEST", "STALL"];
const TIMEOUT = 1000;

class StripeClient {
  static title = "stripe";
  static isMismatch = (error) => error.type === "StripeIdempotencyError";
  static isDeclined = (error) => error.type === "StripeCardError";
  static isStatus = (error) => error.statusCode !== undefined;
  static isConflict = (error) => error.statusCode === 409;

  constructor(url) {
    const { hostname, port } = new URL(url);
    const options = { host: hostname, port, protocol: "http", maxNetworkRetries: 3, timeout: TIMEOUT, telemetry: false };
    this.client = new Stripe("sk_node_stripe", options);
  }

  async create(key, amount, source = "tok_visa") {
    const params = { amount, currency: "usd", source, description: key };
    return (await this.client.charges.create(params, { idempotencyKey: key })).id;
  }

  async charges() {
    return (await this.client.charges.list()).data.map((charge) => charge.description);
  }
}

// Clients that one generator has made. They have no resource for charges, so the path is given.
class Generated {
  static isMismatch = (error) => error.status === 400;
  static isDeclined = (error) => error.status === 402;
  static isStatus = (error) => error.status !== undefined;
  static isConflict = (error) => error.status === 409;

  async create(key, amount, source = "tok_visa") {
    const body = { amount, currency: "usd", source, description: key };
    return (await this.client.post("/v1/charges", { body, ...this.options(key) })).id;
  }

  options(key) {
    return { idempotencyKey: key };
  }

  async charges() {
    return (await this.client.get("/v1/charges")).data.map((charge) => charge.description);
  }
}

class ModernTreasuryClient extends Generated {
  static title = "modern-treasury";

  constructor(url) {
    super();
    this.client = new ModernTreasury({ organizationID: "node", apiKey: "modern", baseURL: url, maxRetries: 3, timeout: TIMEOUT });
  }
}

class IncreaseClient extends Generated {
  static title = "increase";

  constructor(url) {
    super();
    this.client = new Increase({ apiKey: "node_increase", baseURL: url, maxRetries: 3, timeout: TIMEOUT });
  }
}

class OpenAiClient extends Generated {
  static title = "openai";

  constructor(url) {
    super();
    this.client = new OpenAI({ apiKey: "node_openai", baseURL: url, maxRetries: 3, timeout: TIMEOUT });
  }

  // It makes no key of its own.
  options(key) {
    return { headers: { "Idempotency-Key": key } };
  }
}

async function check(Client) {
  const client = new Client(process.env.PASS);
  const expected = [];
  const key = (name) => {
    expected.push(name);
    return name;
  };

  // A create, its retry, another payload, and a declined card.
  const first = await client.create(key("plain"), 1999);
  assert.match(first, /^ch_/);
  assert.equal(await client.create("plain", 1999), first);
  await assert.rejects(client.create("plain", 5), Client.isMismatch);
  for (let time = 0; time < 2; time++) {
    await assert.rejects(client.create("declined", 7, "tok_chargeDeclined"), Client.isDeclined);
  }
  assert.notEqual(await client.create(key("other"), 1999), first);

  // What the network does to the first try. A client that does not try again by itself is called again, with the same key.
  for (const fault of FAULTS) {
    const faulty = new Client(process.env[fault]);
    const name = key(fault.toLowerCase());
    let charge;
    try {
      charge = await faulty.create(name, 100);
    } catch (error) {
      if (Client.isStatus(error)) throw error;
      console.log(`  ${Client.title}: ${fault} is not retried by the client: ${error.constructor.name}`);
      charge = await faulty.create(name, 100);
    }
    assert.equal(await client.create(name, 100), charge, fault);
  }

  // Duplicates at once.
  const name = key("crowd");
  const found = await Promise.all(Array.from({ length: 10 }, () => client.create(name, 899)));
  assert.equal(new Set(found).size, 1, found.join());

  // A 409 while the first request runs. A client that gives up is called again, with the same key.
  const impatient = new Client(process.env.IMPATIENT);
  const conflicting = async () => {
    for (let time = 0; ; time++) {
      try {
        return await impatient.create("conflict", 700);
      } catch (error) {
        if (time === 5 || !Client.isConflict(error)) throw error;
        console.log(`  ${Client.title}: 409 is not retried to its end by the client`);
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
    }
  };
  assert.equal(new Set(await Promise.all([conflicting(), conflicting(), conflicting()])).size, 1);
  assert.deepEqual(await impatient.charges(), ["conflict"]);

  // Each was charged once.
  assert.deepEqual((await client.charges()).sort(), expected.toSorted());
  console.log(`  ${Client.title} (Node): ${expected.length} keys, each charged once`);
}

await Promise.all([StripeClient, ModernTreasuryClient, IncreaseClient, OpenAiClient].map(check));
process.exit(0);
