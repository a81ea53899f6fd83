//! Examples that need a broker or another program. Only a full run of CI has them.

mod operator;

use crate::program::said_by;

#[test]
#[ignore = "cargo xtask ci --full"]
fn mails_over_nats_reach_each_customer_once() {
    said_by("mails", &["--broker", "nats"]);
}

#[test]
#[ignore = "cargo xtask ci --full"]
fn mails_over_kafka_reach_each_customer_once() {
    said_by("mails", &["--broker", "kafka"]);
}

#[test]
#[ignore = "cargo xtask ci --full"]
fn inbox_writes_each_invoice_once() {
    said_by("inbox", &[]);
}

#[test]
#[ignore = "cargo xtask ci --full"]
fn grpc_charges_each_order_once() {
    said_by("grpc", &[]);
}
