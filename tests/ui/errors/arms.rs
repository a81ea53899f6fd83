#![allow(unused)]

use idem::{Error, idempotent};

enum OrderError {
    Declined(u16),
    Timeout,
    Idempotency(Error),
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

// Not as it is written.

#[idempotent(key = id, errors)]
async fn nothing_at_all(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors())]
async fn nothing_in_parentheses(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors = keep)]
async fn an_equals(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors = "keep")]
async fn an_equals_and_quotes(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors { OrderError::Timeout => release, _ => release })]
async fn braces(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(keep))]
async fn an_action_without_a_pattern(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(release))]
async fn another_action_without_a_pattern(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(abandon))]
async fn a_third_action_without_a_pattern(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(retry(max = 3)))]
async fn a_longer_action_without_a_pattern(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(polcy))]
async fn a_misspelt_policy(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(policy, _ => release))]
async fn a_policy_and_arms(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(policy = OrderError))]
async fn a_policy_of_a_type(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout))]
async fn no_action(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout, _ => release))]
async fn no_action_in_the_first_arm(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => , _ => release))]
async fn no_action_behind_the_arrow(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => ))]
async fn no_action_behind_the_last_arrow(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout = release, _ => release))]
async fn an_equals_for_an_arrow(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout -> release, _ => release))]
async fn a_thin_arrow(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => release _ => keep))]
async fn no_comma(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => release; _ => keep))]
async fn a_semicolon(id: u64) -> Result<(), OrderError> {
    Ok(())
}

// Patterns.

#[idempotent(key = id, errors(Err(OrderError::Timeout) => release, _ => release))]
async fn a_pattern_of_a_result(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(Ok(_) => keep, Err(_) => release))]
async fn patterns_of_a_result(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout() + 1 => release, _ => release))]
async fn an_expression_for_a_pattern(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors("timeout" => release, if => keep, _ => release))]
async fn no_pattern(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Declined(code) if => keep, _ => release))]
async fn an_empty_guard(id: u64) -> Result<(), OrderError> {
    Ok(())
}

// Actions.

#[idempotent(key = id, errors(_ => kepp))]
async fn a_misspelt_action(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => Keep))]
async fn an_action_in_capitals(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => cache))]
async fn an_action_of_another_library(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => unknown))]
async fn an_action_that_does_not_know(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => panic))]
async fn an_unknown_action(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => "keep"))]
async fn an_action_in_quotes(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => idem::ErrorAction::Keep))]
async fn an_action_of_the_runtime(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => { keep }))]
async fn an_action_in_braces(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => kepp, OrderError::Declined(_) => relaese, _ => rety(max = 3)))]
async fn three_misspelt_actions(id: u64) -> Result<(), OrderError> {
    Ok(())
}

// What is in the parentheses of an action.

#[idempotent(key = id, errors(_ => keep("1h")))]
async fn a_keep_without_its_option(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep(tll = "1h")))]
async fn a_misspelt_option_of_keep(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep(retention = "1h")))]
async fn an_option_of_keep_from_another_library(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep(max = 3)))]
async fn an_option_of_retry_on_keep(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep(ttl)))]
async fn no_value(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep(ttl = )))]
async fn no_value_behind_the_equals(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep(ttl = 60)))]
async fn no_unit(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep(ttl = "1h", ttl = "2h")))]
async fn twice(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => release(ttl = "1h")))]
async fn a_release_with_parentheses(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => release()))]
async fn a_release_with_nothing_in_parentheses(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => abandon("5m")))]
async fn an_abandon_with_parentheses(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry))]
async fn a_retry_without_parentheses(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(backoff = "100ms")))]
async fn a_retry_without_max(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(3)))]
async fn a_retry_with_a_number_alone(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 0)))]
async fn a_retry_for_never(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = -1)))]
async fn a_retry_for_less_than_never(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = "3")))]
async fn a_retry_with_max_in_quotes(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 99999999999)))]
async fn a_retry_for_ever(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(attempts = 3)))]
async fn a_retry_with_max_by_another_name(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3, delay = "100ms")))]
async fn a_retry_with_backoff_by_another_name(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3, backoff = 100)))]
async fn a_backoff_without_a_unit(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3, backoff = "0ms")))]
async fn no_backoff(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3, backoff = "10s", max_backoff = "1s")))]
async fn a_max_backoff_that_is_shorter(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3 backoff = "100ms")))]
async fn no_comma_in_a_retry(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max: 3)))]
async fn a_colon_in_a_retry(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3, then = retry(max = 3))))]
async fn a_retry_after_a_retry(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3, then = "keep")))]
async fn then_in_quotes(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3, then)))]
async fn then_nothing(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => retry(max = 0, backoff = "soon", then = kep), _ => keep(ttl = 5)))]
async fn four_mistakes(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors("policy"))]
async fn the_policy_in_quotes(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => "release", _ => "retry(max = 3)"))]
async fn actions_in_quotes(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => retry = 3, _ => keep = "1h"))]
async fn actions_with_values(id: u64) -> Result<(), OrderError> {
    Ok(())
}

fn main() {}
