#![allow(unused)]

use idem::{Error, idempotent};

// Words.

#[idempotent(key = id, duplicate = refuse)]
async fn no_such_word(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, in_flight = wiat)]
async fn a_misspelt_word(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, store_failure = Run)]
async fn a_word_in_capitals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, duplicate = "reject")]
async fn a_word_in_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, in_flight = "wait(5s)")]
async fn a_word_in_quotes_with_its_parentheses(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, in_flight = "5s")]
async fn a_duration_for_a_word(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, store_failure = true)]
async fn a_bool_for_a_word(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, duplicate = idem::Duplicate::Reject)]
async fn a_variant_for_a_word(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, abandoned = replay)]
async fn a_word_of_another_option(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, missing_key = reject())]
async fn a_word_with_parentheses(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, in_flight = reject("5s"))]
async fn a_word_with_a_duration(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, in_flight = wait())]
async fn a_wait_without_a_duration(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, in_flight = wait("5s", "6s"))]
async fn a_wait_of_two_durations(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, in_flight = wait(5))]
async fn a_wait_without_a_unit(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, abandoned = reconcile)]
async fn no_question(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, abandoned = reconcile())]
async fn no_question_in_parentheses(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, abandoned = reconcile(""))]
async fn an_empty_question(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, abandoned = reconcile("lookup(&id"))]
async fn half_a_question(id: u64) -> Result<(), Error> {
    Ok(())
}

// Numbers.

#[idempotent(key = id, max_attempts = 0)]
async fn no_attempts(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, max_attempts = -1)]
async fn fewer_than_no_attempts(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, max_attempts = "5")]
async fn attempts_in_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, max_attempts = 2.5)]
async fn half_an_attempt(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, max_attempts = 0u32)]
async fn no_attempts_of_a_type(id: u64) -> Result<(), Error> {
    Ok(())
}

// Names.

#[idempotent(key = id, name = "")]
async fn empty_name(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = "idem.audit")]
async fn a_reserved_name(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = "orders create")]
async fn name_with_a_space(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = orders.create)]
async fn name_without_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = 5)]
async fn a_number_for_a_name(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = kind)]
async fn name_of_each_call(id: u64, kind: &'static str) -> Result<(), Error> {
    Ok(())
}

trait Named {
    const NAME: &'static str;
}

#[idempotent(key = id, name = T::NAME)]
async fn a_constant_of_a_type_parameter<T: Named>(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = <T as Named>::NAME)]
async fn a_constant_of_a_trait_for_a_type_parameter<T: Named>(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = "orders.create_an_order_for_a_customer_who_has_an_account_with_us_and_wants_to_pay_for_it_now_or_later_by_card_or_by_invoice_as_they_like")]
async fn name_without_end(id: u64) -> Result<(), Error> {
    Ok(())
}

// Expressions.

#[idempotent(key = id, fingerprint = "")]
async fn empty_fingerprint(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, fingerprint = ())]
async fn fingerprint_of_nothing(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, runtime = "self.")]
async fn half_a_runtime(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, runtime = "idempotency")]
async fn no_such_runtime(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, crate = 5)]
async fn a_number_for_a_crate(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, crate = "idem-rs")]
async fn the_name_of_the_package(id: u64) -> Result<(), Error> {
    Ok(())
}

// No fingerprint, and no duration.

#[idempotent(key = id, fingerprint = "none")]
async fn no_fingerprint_in_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, fingerprint = None)]
async fn no_fingerprint_as_an_option(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = none, remember = None, lease = "none")]
async fn no_durations(id: u64) -> Result<(), Error> {
    Ok(())
}

// Options in quotes.

#[idempotent(key = id, "detached", "ttl")]
async fn options_in_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, outcome_version = 2, upgrade(1 => "old"))]
async fn an_upgrade_in_quotes(id: u64) -> Result<u32, Error> {
    Ok(1)
}

fn main() {}
